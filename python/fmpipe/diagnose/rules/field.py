"""Rules about the velocity field at points of the path: scale, direction and size, target, condition, output."""

import math
from collections.abc import Iterator
from statistics import median

import numpy as np

from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.rule import Evidence, measured_rule, rule, say
from fmpipe.diagnose.rules.curves import FEW, rank_correlation, warming_up
from fmpipe.diagnose.rules.data import finite_tensors, is_pixels
from fmpipe.diagnose.rules.loss_curve import flatness
from fmpipe.diagnose.thresholds import Limits

SCALES = (0.18215, 0.2301, 0.13025)  # of the autoencoders of SD, CrossFlow and SDXL
EXPECTED = 0.8  # mean |x| of a standard normal z0


@rule("stat/x_0/std")
def scale_factor(f: Figures, limit: Limits) -> Iterator[Evidence]:
    series = f.first_of("stat/x_0/std")
    if series is None or is_pixels(f):
        return
    std = series.median
    if limit["input/std_low"] <= std <= limit["input/std_high"]:
        yield say("pass", "scale/latents", std=std)
        return
    powers = [(factor, power) for factor in SCALES for power in (1, -1)]
    factor, power = min(powers, key=lambda fp: abs(math.log(max(std, 1e-12) / fp[0] ** fp[1])))
    near = abs(std / factor**power - 1) <= 2 * limit["scale/factor"]
    key = "scale/latents" if not near else "scale/twice" if power == 1 else "scale/forgotten"
    # at a known factor, the factor is the cause, whatever the pixels are
    yield say("fail", key, ["scale_contract", "latent_is_sample"] if near else None, std=std, factor=factor)


@rule("scale/z0", "scale/z1", "scale/v*", "stat/noise/std", "stat/x_0/std")
def scale(f: Figures, limit: Limits) -> Iterator[Evidence]:
    m = f.measured.get("scale")
    if m:
        yield _norms({name: x for name, x in m.items() if x is not None}, limit)
    logged = {name: f.late(f"scale/{name}") for name in ("z0", "z1", "v*")}
    if logged["z0"] is not None and logged["z1"] is not None:
        yield _norms({name: x for name, x in logged.items() if x is not None}, limit)
    z0, z1 = f.late("stat/noise/std"), f.late("stat/x_0/std")
    if z0 and z1 and not is_pixels(f):
        ratio = max(z0 / z1, z1 / z0)
        yield say(ratio <= limit["scale/ratio"], "scale/stds", z0=z0, z1=z1, ratio=ratio)
    firsts = {
        t.label or str(k): float(t.x[0] / t.start) for k, t in enumerate(f.traces, 1) if len(t) > 1 and t.x[0] > 0
    }
    if firsts:
        most = limit["scale/start"]
        far = {k: x for k, x in firsts.items() if x > most * EXPECTED or x < EXPECTED / (2 * most)}
        apart = max(firsts.values()) / min(firsts.values())
        if far or apart > most:
            label, x = next(iter((far or firsts).items()))
            key = "scale/traces" if apart > most else "scale/start"
            yield say("fail", key, trace=label, x=x, low=min(firsts.values()), high=max(firsts.values()))
        else:
            yield say("pass", "scale/start", trace=next(iter(firsts)), x=next(iter(firsts.values())))


def _norms(norms: dict[str, float], limit: Limits) -> Evidence:
    large, small = max(norms, key=norms.get), min(norms, key=norms.get)
    ratio = norms[large] / norms[small] if norms[small] > 0 else math.inf
    values = {"large": large, "most": norms[large], "small": small, "least": norms[small], "ratio": ratio}
    if ratio <= limit["scale/ratio"]:
        return say("pass", "scale/one", **values)
    ends = sorted((norms["z0"], norms["z1"]))
    if ends[1] > limit["scale/ratio"] * ends[0]:
        return say("fail", "scale/ends", **values, alone="z1" if norms["z1"] > norms["z0"] else "z0")
    return say("fail", "scale/same" if small == "v*" else "scale/path", **values)


@measured_rule
def latent_scale(m: dict, limit: Limits) -> Iterator[Evidence]:
    x1, end, cos, left = (m[k] for k in ("x1", "end", "cos", "left"))
    if cos < limit["latent/alike"] or abs(left) > limit["latent/left"]:
        yield say("skipped", "length/elsewhere", **m)
        return
    ratio = x1 / end if end > 0 else math.inf
    most = max(limit["latent/apart"], 1.15 / cos)  # an end between several x1 is shorter than each, by the cosine
    right = 1 / limit["latent/apart"] <= ratio <= most
    yield say(right, "length/right" if right else "length/ratio", **m, ratio=ratio)


@rule("val/flow/cos", "flow/cos", "val/flow/speed_ratio", "flow/speed_ratio")
def one_step(f: Figures, limit: Limits) -> Iterator[Evidence]:
    if m := f.measured.get("one_step"):
        yield from _measured_step(m, limit)
    seen, ratio = f.first_of("val/flow/cos", "flow/cos"), f.late("val/flow/speed_ratio", "flow/speed_ratio")
    cos = None if seen is None else seen.late
    trained = seen is not None and len(seen.steps) and seen.steps[-1] >= limit["inference/steps"] and not warming_up(f)
    if cos is not None and cos < limit["inference/cos"] and trained:
        # if the loss never falls, that is what is wrong, and the cosine only confirms it
        yield say("warn" if flatness(f, limit) == "fail" else "fail", "step/untaught", cos=cos)
    elif cos is not None:
        yield say("pass", "step/cos", cos=cos)
    if ratio is not None:
        learnt = cos is not None and cos >= limit["inference/learnt"]
        slow = ratio < limit["inference/slow"] * (cos if learnt else 1.0)
        values = {"ratio": ratio, "gain": 1 / ratio if ratio else math.inf}
        last = (seen or f.first_of("val/flow/speed_ratio", "flow/speed_ratio")).steps[-1]
        judged = learnt or (last >= limit["inference/steps"] and not warming_up(f))
        if judged and slow:
            yield say("fail", "step/slow", **values)
        else:
            yield say(not judged or ratio <= limit["inference/fast"], "step/ratio", **values)


def _measured_step(m: dict, limit: Limits) -> Iterator[Evidence]:
    t, cos, ratio = m["t"], m["cos"], m["ratio"]
    least, low, high = (limit[f"one_step/{name}"] for name in ("cos", "ratio_low", "ratio_high"))
    gain = m.get("fm_gain") or (1 / median(ratio) if median(ratio) > 0 else None)
    weak = [at for at, c in zip(t, cos, strict=True) if c < least]
    sized = low <= min(ratio) and max(ratio) <= high
    partly = weak and min(cos) > 0 and 2 * len(weak) < len(cos)
    if max(cos) <= -least:
        yield say("fail", "step/backwards", cos=cos, t=t)
    elif partly:
        yield say("warn" if sized else "fail", "step/partly", cos=cos, t=t, weak=weak)
    else:
        yield say("fail" if weak else "pass", "step/weak" if weak else "step/right", cos=cos, t=t)
    if sized:
        yield say("pass", "step/size", ratio=ratio)
    elif max(ratio) < 1e-4:
        yield say("fail", "step/zero", ratio=ratio)
    elif max(ratio) <= high:
        yield say("fail", "step/small", ratio=ratio, fm_gain=gain)
    else:
        yield say("fail", "step/large" if min(ratio) >= low else "step/uneven", ratio=ratio, fm_gain=gain)


@rule("flow/cos", "corr/velocity", "corr/noise", "corr/score", "corr/x0")
def target_definition(f: Figures, limit: Limits) -> Iterator[Evidence]:
    if m := f.measured.get("target_definition"):
        others = {name: x for name, x in m.items() if name != "velocity"}
        best, margin = max(others, key=others.get), limit["target/margin"]
        values = {"own": m["velocity"], "other": m[best]}
        if max(m["velocity"], m[best]) <= margin:
            yield say("fail", "target/none", **values)
        elif m["velocity"] > m[best] + margin:
            yield say("pass", "target/velocity", **values)
        elif m[best] > m["velocity"] + margin:
            yield say("fail", f"target/{best}", **values)
        else:
            yield say("warn", "target/undecided", **values, name=best)
    step = f.measured.get("one_step")
    cos = float(np.mean(step["cos"])) if step else f.late("val/flow/cos", "flow/cos")
    if cos is not None and cos <= -limit["target/sign"]:
        yield say("fail", "target/negative", cos=cos)
    elif cos is not None and not m:
        yield say("pass", "step/cos", cos=cos)
    own = f.late("corr/velocity", "val/flow/cos", "flow/cos")
    own = cos if own is None else own
    if "corr/velocity" in f.metrics and own <= -limit["target/sign"]:
        yield say("fail", "target/negative", cos=own)
    for name in ("noise", "score", "x0"):
        other = f.late(f"corr/{name}")
        if own is not None and other is not None:
            yield say(other <= max(own, 0) + 0.2, "target/correlates", name=name, other=other, own=own)


@rule("scale/v*", "loss/flow")
def moving_target(f: Figures, limit: Limits) -> Iterator[Evidence]:
    length = f.metrics.get("scale/v*")
    if length is not None and len(length.finite) >= FEW and length.early:
        fell = length.late / length.early
        yield say(fell > limit["target/moving"], "target/moving", early=length.early, late=length.late)


@rule("flow/cond_gain_cos", "val/flow/cond_gain_cos")
def condition_use(f: Figures, limit: Limits) -> Iterator[Evidence]:
    least, weak = limit["condition/gain"], limit["condition/weak"]
    bad = "warn" if flatness(f, limit) == "fail" else "fail"  # what learns nothing cannot use its condition
    m, series = f.measured.get("condition_use"), f.first_of("flow/cond_gain_cos", "val/flow/cond_gain_cos")
    if m and (gain := m.get("flow/cond_gain_cos")) is not None:
        none = limit["condition/printed"] if m.get("printed") else least
        kind = "used" if gain > max(least, weak) else "hardly" if gain > none else "unused"
        yield say({"used": "pass", "hardly": "warn", "unused": bad}[kind], f"condition/{kind}", gain=gain)
    if series is not None and series.count > 1:
        end = series.finite[-max(8, len(series.finite) // 2) :]
        steady = series.count > 8 and (end > least).mean() > 0.95 and series.late > limit["condition/printed"]
        used = series.last > max(least, weak) or steady
        yield say("pass" if used else bad, "condition/used" if used else "condition/unused", gain=series.last)
    if m and m.get("own"):
        apart = m["shuffled"] / m["own"] - 1
        yield say(apart > limit["condition/loss"], "condition/loss", own=m["own"], shuffled=m["shuffled"])
    for held in ("val/", ""):
        own = f.first_of(*(f"{held}loss/{name}" for name in ("flow", "diffusion", "mse", "total")))
        shuffled = f.first_of(f"{held}loss/shuffled")
        if own is not None and shuffled is not None and own.count > 3 and own.late > 0:
            apart = shuffled.late / own.late - 1
            status = "pass" if apart > limit["condition/loss"] else bad
            yield say(status, "condition/loss", own=own.late, shuffled=shuffled.late)


@rule(*(f"flow/nmse_t{k}" for k in range(10)), *(f"flow/cos_t{k}" for k in range(10)))
def time_slices(f: Figures, limit: Limits) -> Iterator[Evidence]:
    for kind in ("nmse", "cos"):
        late = {k: f.late(f"flow/{kind}_t{k}", f"val/flow/{kind}_t{k}") for k in range(10)}
        middle = [late[k] for k in (3, 4, 5, 6) if late[k] is not None]
        # Where a recipe draws early times on purpose, the last slice is weak by design.
        ends = {k: late[k] for k in (0, 9)[: 1 + (f.setting("flow/losses/t") != "early")] if late[k] is not None}
        if len(middle) < 2 or not ends:
            continue
        usual = float(np.median(middle))
        worst = max(ends, key=lambda k: ends[k] if kind == "nmse" else -ends[k])
        if kind == "nmse":
            bad = ends[worst] > limit["slices/ratio"] * max(usual, 1e-9)
        else:
            bad = usual - ends[worst] > limit["slices/cos"]
        every = [late[k] for k in range(10) if late[k] is not None]
        steady = len(every) > 7 and abs(rank_correlation(every)) > 0.97 and np.ptp(every[:-1]) > 0.5 * np.ptp(every)
        steady = steady and np.ptp(every[1:]) > 0.5 * np.ptp(every)  # harder or easier with t, as noise prediction is
        yield say(
            "warn" if bad and steady else not bad, "slices/ends", kind=kind, slice=worst, end=ends[worst], middle=usual
        )


@rule("stat/predicted_x0/std", "stat/x_0_target/std", "stat/v_pred/std", letter="D")
def model_output(f: Figures, limit: Limits) -> Iterator[Evidence]:
    yield from finite_tensors(f, "model_output")
    target, std = f.first_of("stat/x_0_target/std", "stat/x_0/std"), f.first_of("stat/predicted_x0/std")
    if std is not None and target is not None and target.late > 0:
        first, last, due = std.early, std.late, target.late
        ok = limit["output/low"] <= last / due <= limit["output/high"] or abs(last - due) < 0.7 * abs(first - due)
        yield say(ok, "output/std", first=first, last=last, due=due)
    if ends := f.range_of("predicted_x0"):
        low, high = ends
        yield say("pass", "output/range", first=high.early - low.early, last=high.late - low.late)
