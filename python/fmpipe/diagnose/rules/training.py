"""Rules about gradients, losses against each other, the variational head, DINO, half precision, and short trials."""

import math
from collections.abc import Iterator

import numpy as np

from fmpipe.diagnose.figures import Figures, Series
from fmpipe.diagnose.rule import Evidence, measured_rule, rule, say
from fmpipe.diagnose.rules.curves import rank_correlation
from fmpipe.diagnose.rules.data import LOSSES, broken_before, first_bad_loss
from fmpipe.diagnose.thresholds import Limits

EXPECTED = {"mu/abs_mean": 0.8, "mu/rms": 1.0}  # of z0 where it has no noise
PRIOR = {"mu/abs_mean": 0.0, "std/mean": 1.0, "logvar/mean": 0.0}  # where the KL pulls each statistic
SUPERVISED = ("flow", "kl", "dino", "contrastive", "norm")  # losses that must have a share of the gradient


@rule(*LOSSES, "val/loss/flow", letter="E")
def loss_numerics(f: Figures, limit: Limits) -> Iterator[Evidence]:
    losses = {n: x for n, x in f.metrics.items() if n.startswith(("loss/", "val/loss/"))}
    why = f.texts.get("stop/reason", "")
    if "not finite" in why.lower():
        yield say("fail", "loss/stopped", why=why)
    if not losses:
        return
    lost = {n: x for n, x in losses.items() if x.nonfinite and not _recovers(x)}
    count, first = sum(x.nonfinite for x in losses.values()), first_bad_loss(f)
    if lost:
        before = broken_before(f, first)
        if (grads := f.metrics.get("grad/total")) is not None and _explodes(grads, first, limit):
            before.append("gradients")
        main = any(n in LOSSES for n in lost) or not any(n in LOSSES for n in losses)
        causes = [*before, "overflow"]
        yield say("fail" if main else "warn", "loss/nonfinite", causes, count=count, names=list(lost), step=first)
    elif count:
        yield say("pass", "loss/recovered", count=count, step=first)
    else:
        yield say("pass", "finite", names=list(losses))
    loss = f.first_of(*LOSSES)
    if loss is None:
        return
    others = [float(x.steps[-1]) for n, x in f.metrics.items() if n in ("lr", "scaler/scale", "epoch") and x.count > 9]
    gap, interval = (
        max(others, default=0) - float(loss.steps[-1]),
        float(np.median(np.diff(loss.steps, prepend=loss.steps[0]))),
    )
    if loss.count > 9 and not lost and gap > max(5 * interval, 0.05 * max(others, default=0)):
        yield say("fail", "loss/ends", step=int(loss.steps[-1]))
    name = next(n for n, x in f.metrics.items() if x is loss)
    start, end = loss.first10, loss.last10
    drop = 100 * (1 - end / start) if start else 0.0
    yield say("pass", "loss/drop", name=name, first=start, last=end, drop=drop, low=loss.min, high=loss.max)
    level = loss.stated.get("level", 0.75 * start)
    above = np.flatnonzero(loss.values > level)
    if "above" in loss.stated:
        yield say("pass", "loss/above_stated", count=int(loss.stated["above"]), level=level)
    elif len(above) and start > 0 and loss.count >= 20:
        step = int(loss.steps[above[-1]])
        yield say("pass", "loss/above", count=len(above), of=loss.count, level=level, step=step)


def _recovers(x: Series) -> bool:
    """Tell whether only a few values are not finite and finite ones follow, as after a skipped step."""
    good = np.isfinite(x.values)
    tail = len(good) - 1 - int(np.flatnonzero(~good)[-1])
    return x.nonfinite <= max(3, 0.02 * len(good)) and tail >= max(3, 0.05 * len(good))


def _explodes(grads: Series, until: float, limit: Limits) -> bool:
    """Tell whether the gradients had run away before a step."""
    before = grads.finite[: int((grads.steps < until).sum())]
    return len(before) > 2 and before[-1] > limit["gradient/exploding"] * np.median(before)


@rule("grad/total", "grad/flow")
def gradients(f: Figures, limit: Limits) -> Iterator[Evidence]:
    total = f.metrics.get("grad/total")
    if total is None or total.count < 4 or not len(total.finite):
        return
    if total.nonfinite and not ("scaler/scale" in f.metrics and total.nonfinite < 0.05 * total.count):
        step = total.first_nonfinite
        causes = ["overflow", *["loss_numerics"] * (first_bad_loss(f) <= step)]
        status = "pass" if _recovers(total) else "fail"
        yield say(status, "gradient/nonfinite", causes, count=total.nonfinite, step=step)
    quarter = max(1, len(total.finite) // 4)
    first, rest = total.finite[:quarter], total.finite[quarter:]
    if not len(rest):
        return
    start, top, end = float(np.median(first)), _sustained(rest), total.late  # one spike is not an explosion
    values = {"start": start, "top": top, "end": end}
    grows = end > limit["gradient/growth"] * max(start, 1e-12) and rank_correlation(total.finite) > 0.8
    if grows and not _in_steps(total.finite) and len(total.finite) >= 20:
        yield say("fail", "gradient/growing", **values)
    else:
        yield say(top <= limit["gradient/exploding"] * start, "gradient/exploding", **values)
    begin = max(start, float(np.median(total.finite[:5])))
    gone = end < limit["gradient/vanishing"] * begin
    loss = f.first_of(*LOSSES)
    gone = gone and not (loss is not None and loss.last10 < 0.1 * loss.first10)  # nothing is left to learn
    yield say(not gone, "gradient/vanishing", start=begin, top=top, end=end)


def _in_steps(norms: np.ndarray) -> bool:
    """Tell whether nearly all of the growth is in one or two steps, as when further parameters are trained."""
    norms = norms[norms > 0]
    level = np.log([np.median(part) for part in np.array_split(norms, min(20, len(norms) // 2))])
    rises = np.sort(np.diff(level))
    return rises[-4:].sum() > 0.9 * (level[-1] - level[0]) and rises[-1] > 0.25 * (level[-1] - level[0])


def _sustained(values: np.ndarray) -> float:
    """Return the largest value that a tenth of the values around it reach too."""
    values = values[:: max(1, len(values) // 4000)]
    width = max(3, len(values) // 10)
    if len(values) < width:
        return float(values.max())
    return float(np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1).max())


def held_by_recipe(f: Figures) -> list[str]:
    """Return what holds the head by design instead of the KL, whose share and trend are then small."""
    held = [name for name in ("anchor", "match") if (f.late(f"w/{name}") or 0) > 0]
    held += [n for n in ("anchor", "match") if f"loss/{n}" in f.metrics or f"grad/{n}" in f.metrics or n in f.metrics]
    told = " ".join([*_paths(f.config), *f.constants, *f.texts, *f.metrics])
    held += [name for name in ("std_range", "anchor", "detach", "fixed_std", "frozen_head") if name in told]
    return list(dict.fromkeys(held))


def _paths(config: object, prefix: str = "") -> Iterator[str]:
    """Yield the paths of all settings that are not off."""
    for name, value in config.items() if isinstance(config, dict) else ():
        yield from _paths(value, f"{prefix}{name}/") if isinstance(value, dict) else [f"{prefix}{name}"] * bool(value)


@rule("grad/flow", "grad/kl", "grad/dino", "grad/total")
def gradient_shares(f: Figures, limit: Limits) -> Iterator[Evidence]:
    for name in SUPERVISED:  # shares that were logged as such
        if (x := f.first_of(f"share/{name}")) is not None and not (name == "kl" and held_by_recipe(f)):
            share = x.half / (100 if x.max > 1 else 1)
            status = "fail" if share < limit["share/fail"] else "warn" if share < limit["share/warn"] else "pass"
            yield say(status, "share/good" if status == "pass" else "share/small", name=name, share=share)
    late = {n.removeprefix("grad/"): x.half for n, x in f.metrics.items() if n.startswith("grad/")}
    if any(x.nonfinite and not len(x.finite) for n, x in f.metrics.items() if n.startswith("grad/")):
        return  # the rule `gradients` reports it
    total, held = late.pop("total", None), held_by_recipe(f)
    weight = {name: f.late(f"w/{name}") for name in late}
    late = {n: x for n, x in late.items() if weight[n] is None or weight[n] > 0}
    if total is None or not late:
        return
    larger = {n: x for n, x in late.items() if x > 1.2 * total and x > 1.2 * math.hypot(*late.values()) / 2}
    unweighted = {n: weight[n] * x for n, x in late.items() if weight[n] is not None}
    if larger and len(unweighted) == len(late) and max(unweighted.values()) <= 1.2 * total:
        yield say("pass", "share/unweighted", names=list(larger))
        late = unweighted
    elif larger and len(late) > 1:
        yield say("warn", "share/larger", norms=larger, total=total)
    whole = dict.fromkeys(late, total)
    if f.setting("flow/losses/detach"):  # the losses of the head have parameters that the flow loss does not reach
        head = math.hypot(*(x for n, x in late.items() if n != "flow"))
        whole = {n: late[n] if n == "flow" else head for n in late}
    share = {n: late[n] / whole[n] if whole[n] else 0.0 for n in late}
    judged = {n: x for n, x in share.items() if (n in SUPERVISED or not f.lines) and not (held and n == "kl")}
    factor, flow = _factors(late, share, limit), late.get("flow", 0.0)
    for name, x in judged.items():
        values = {"name": name, "share": x, "factor": factor.get(name), "weight_factor": factor}
        if x < limit["share/warn"]:
            other = next(iter(factor), None)
            key = "share/drowned" if late[name] > 0 and name in factor else "share/drowned_by"
            key = key if late[name] > 0 and other else "share/none"
            if key == "share/drowned_by":
                values |= {"other": other, "factor": factor[other]}
            yield say("fail" if x < limit["share/fail"] else "warn", key, **values)
        else:
            yield say("pass", "share/good", **values)
    for name in ("dino", "kl") if not f.setting("flow/losses/detach") else ():
        if name not in judged or not flow > 0:
            continue
        low, high, ratio = limit[f"share/{name}_low"], limit[f"share/{name}_high"], late[name] / flow
        values = {"name": name, "ratio": ratio, "low": low, "high": high, "weight_factor": factor}
        if ratio > limit["share/over"] * high or not (low <= ratio <= high or f.lines):
            yield say("warn", "share/band", **values, factor=factor.get(name))


def _factors(late: dict[str, float], share: dict[str, float], limit: Limits) -> dict[str, float]:
    """Return what to multiply weights by: to the middle of the band dino : flow : kl, else to the least share."""
    flow, factor = late.get("flow", 0.0), {}
    for name in ("dino", "kl"):
        low, high = limit[f"share/{name}_low"], limit[f"share/{name}_high"]
        if late.get(name, 0) > 0 and flow > 0 and not low <= late[name] / flow <= high:
            factor[name] = (low + high) / 2 / (late[name] / flow)
    for name, x in share.items():
        # Where another weight already has a factor, flow rises by that; both at once would overshoot.
        if 0 < x < limit["share/warn"] and not (name == "flow" and factor):
            factor.setdefault(name, limit["share/warn"] / x)
    return factor


@rule("step/z_head_update_ratio", "step/flow_head_update_ratio")
def update_ratios(f: Figures, limit: Limits) -> Iterator[Evidence]:
    lr = f.first_of("lr").half if f.first_of("lr") else None
    for name, x in f.metrics.items():
        if name.startswith("step/") and name.endswith("_update_ratio") and (x.count > 1 or not f.lines):
            if x.nonfinite:
                yield say("fail", "not_finite", ["loss_numerics"], names=[name])
            elif x.half < limit["update/ratio"]:
                slow = lr is not None and x.half > 0.3 * lr  # as much as such an LR allows
                yield say("warn" if slow else "fail", "update/still", name=name, ratio=x.half)
            else:
                jumps = x.half > limit["update/jump"]
                yield say(
                    "warn" if jumps else "pass", "update/jumps" if jumps else "update/moves", name=name, ratio=x.half
                )


@rule("ent/teacher", "ent/student", "grad/dino")
def dino(f: Figures, limit: Limits) -> Iterator[Evidence]:
    m, teacher, student = f.measured.get("dino", {}), f.first_of("ent/teacher"), f.first_of("ent/student")
    if teacher is None or student is None:
        return
    classes = m.get("classes") or f.setting("flow/losses/dino_classes") or f.late("ent/classes")
    known = math.log(classes) if classes and classes > 1 else f.late("ent/log_classes") or _power_of_two(teacher)
    top = known or max(teacher.max, student.max)
    if not top > 0:
        return
    share = {"teacher": teacher.late / top, "student": student.late / top}
    total, own = f.late("grad/total"), f.late("grad/dino")
    grad = m.get("grad_share", own / total if total and own is not None else None)
    least, heat = (
        limit["dino/entropy"],
        m.get("temperatures") or f.setting("flow/losses/temperatures") or ("unknown", "unknown"),
    )
    values = {"teacher": share["teacher"], "student": share["student"], "grad": grad, "T_t": heat[0], "T_s": heat[1]}
    if share["teacher"] < least:
        yield say("fail", "dino/peaked", **values)
    elif known and share["teacher"] > limit["dino/uniform"]:
        yield say("fail", "dino/uniform", **values)
    elif share["student"] < least and (grad is None or grad < limit["share/warn"]):
        yield say("warn", "dino/student_alone", **values) if grad is None else say("fail", "dino/student", **values)
    else:
        yield say("pass", "dino/good", **values)


def _power_of_two(entropy: Series) -> float | None:
    """Return log K if an entropy rests at that of a power of two: heads have 256 classes or more, and round numbers."""
    bits = entropy.late / math.log(2)
    rests = float(np.std(entropy.finite[-max(2, len(entropy.finite) // 4) :])) < 0.005 * entropy.late
    return round(bits) * math.log(2) if bits > 7.9 and abs(bits - round(bits)) < 0.02 and rests else None


@rule("mu/abs_mean", "std/mean", "logvar/mean", "mu/rms", "z_init/mean", "z_init/var", "loss/kl")
def kl(f: Figures, limit: Limits) -> Iterator[Evidence]:
    m = f.measured.get("kl", {})
    trained = "loss/rec" in f.metrics and "loss/flow" not in f.metrics and "mu/abs_mean" not in f.metrics
    narrow = f.stage == "vae" or trained  # the posterior of an image autoencoder, by design
    broken = [n for n in PRIOR if n in f.metrics and f.metrics[n].nonfinite and not _recovers(f.metrics[n])]
    if broken:
        yield say("fail", "not_finite", ["loss_numerics"], names=broken)
        return
    std, logvar, mu = f.late("std/mean"), f.late("logvar/mean"), f.late("mu/rms")
    held, out, size = held_by_recipe(f), [], f.first_of("mu/abs_mean", "mu/rms")
    if size is not None and std is not None and not held and not m:
        prior = size.late < limit["kl/prior_mu"] and abs(std - 1) < limit["kl/prior_std"] and size.count > 9
        out.append(say(not prior, "kl/prior" if prior else "kl/posterior", mu=size.late, std=std))
    if narrow:
        if f.stage == "vae" and (loss := f.late("loss/kl")) is not None and not out:  # fmpipe's: nats per element
            out.append(say(loss >= limit["kl/prior_nats"], "kl/autoencoder", kl=loss))
        yield from out
        return
    if std is not None:
        first = f.first_of("std/mean").early
        out.append(say(std >= limit["kl/collapse_std"], "kl/collapse", ["leak", "loss_numerics"], std=std, first=first))
    if logvar is not None:
        out.append(say(-5.94 < logvar < 5.94, "kl/clamp", logvar=logvar))
    low, high = f.first_of("std/min"), f.first_of("std/max")
    if low is not None and high is not None:
        ok = low.min >= 0.99 * math.exp(-3) and high.max <= 1.01 * math.exp(3)
        out.append(say(ok, "kl/outside", low=low.min, high=high.max))
    if "clamped" in m:
        out.append(say(m["clamped"] <= limit["kl/clamped"], "kl/clamped", clamped=m["clamped"]))
    if mu is not None:
        out.append(say(mu <= limit["kl/mu"], "kl/mu", mu=mu, first=f.first_of("mu/rms").early))
    yield from out
    yield from _formula(f, limit)
    if held:
        yield say("pass", "kl/held", names=held)
        return
    if not any(e.status == "fail" for e in out):
        yield from _trends(f, m, limit)
    yield from ablation_kl_off(m.get("without") or {}, limit)
    if m.get("without") == {}:
        yield say("warn", "kl/no_comparison", names=[n for n in PRIOR if n in f.metrics])


def _trends(f: Figures, m: dict, limit: Limits) -> Iterator[Evidence]:
    """Judge whether the statistics of z0 approach the prior: mu/abs_mean 0, std/mean 1, logvar/mean 0, z_init N(0, 1).

    In a log, only a statistic that moves away from the prior while a KL acts fails: how far it comes depends on the
    weight. Where the user asks (``checks.kl``), one that does not come nearer fails.
    """
    strict, weight = bool(m), f.late("w/kl")
    acts = strict or (("loss/kl" in f.metrics or weight is not None) and (weight is None or weight > 0))
    loss = f.metrics.get("loss/kl")
    acts = acts and (strict or loss is None or len(loss.finite) < 10 or loss.late > 0.8 * loss.early)  # else it works
    size = {} if "mu/abs_mean" in f.metrics else {"mu/rms": 0.0}
    mu, std = f.late("mu/rms") or 1.25 * (f.late("mu/abs_mean") or math.nan), f.late("std/mean")
    whole = f.late("z_init/var") or (mu * mu + std * std if std is not None and mu == mu else None)  # variance of z0
    for name, goal in (PRIOR | size).items():
        x = f.metrics.get(name)
        if x is None or x.count < 2 or (not strict and x.count < 10):
            continue
        first, last = abs(x.early - goal), abs(x.late - goal)
        there = last <= limit["kl/there"] or last <= first * (1 - limit["ablation/drop"])
        drift, shift = limit["kl/drift"] * max(first, 0.05), first + limit["kl/away"]
        away = last > (max(drift, EXPECTED[name]) if name.startswith("mu/") else shift)
        values = {"name": name, "first": x.early, "last": x.late, "goal": goal}
        status = "pass" if there or not (strict or (away and acts)) else "fail"
        if status == "fail" and not strict and x.late < goal:  # z0 becomes sharper, and mu carries what it knows
            status = (
                "warn"
                if whole is None
                else "pass"
                if limit["kl/z_var_low"] <= whole <= limit["kl/z_var_high"]
                else "fail"
            )
        yield say(status, "kl/trend", **values)
    for name, low, high in (
        ("z_init/mean", -limit["kl/z_mean"], limit["kl/z_mean"]),
        ("z_init/var", limit["kl/z_var_low"], limit["kl/z_var_high"]),
    ):
        if (x := f.first_of(name)) is not None:
            ok = low <= x.late <= high or not acts
            grows = not ok and x.count > 9 and x.late > max(high, limit["kl/drift"] * abs(x.early))
            status = "pass" if ok else "fail" if grows and name == "z_init/var" else "warn"
            yield say(status, "kl/z_init", name=name, value=x.late, low=low, high=high)


def _formula(f: Figures, limit: Limits) -> Iterator[Evidence]:
    """Judge whether loss/kl is a constant times ½ (E z² - 1 - E logvar), E z² = E mu² + E sigma², not a KL of z."""
    rows = [f.metrics.get(name) for name in ("loss/kl", "z_init/var", "z_init/mean", "logvar/mean")]
    if any(x is None for x in rows) or f.setting("flow/losses/kl_kind") == "crossflow":
        return
    steps = set(rows[0].steps.tolist()).intersection(*(x.steps.tolist() for x in rows[1:]))
    loss, var, mean, logvar = (x.values[np.isin(x.steps, list(steps))] for x in rows)
    if len({len(x) for x in (loss, var, mean, logvar)}) > 1:
        return  # a step written twice
    due = (var + mean**2 - 1 - logvar) / 2
    kept = np.isfinite(due) & np.isfinite(loss) & (due > 0.05)  # near 0 the batch's chance is all there is
    if kept.sum() < 4:
        return
    ratio = loss[kept] / due[kept]
    middle = float(np.median(ratio))
    apart = float(np.median(np.abs(ratio - middle)) / abs(middle)) if middle else math.inf
    # A mean over elements, or a sum over them, are both right; a share or a changing factor is neither.
    ok = apart <= limit["kl/formula"] and middle > 1 - limit["kl/formula"]
    yield say(ok, "kl/formula", ratio=middle, spread=apart, loss=float(loss[kept][-1]), due=float(due[kept][-1]))


@measured_rule
def gradient_path(m: dict, limit: Limits) -> Iterator[Evidence]:
    for name in ("d_target/d_x1", "d_target/d_x0", "d_kl/d_eps"):
        if name in m:
            key = "path/kl" if name == "d_kl/d_eps" else "path/target"
            yield say(m[name] <= limit["gradient_path/leak"], key, name=name, norm=m[name])
    if clamped := m.get("logvar/clamped"):
        status = "warn" if clamped <= limit["kl/clamped"] else "fail"
        yield say(status, "path/clamped", ["kl", "loss_numerics"], clamped=clamped)
    elif "logvar/clamped" in m:
        yield say("pass", "path/inside")


@rule("loss/flow", "loss/kl", "loss/dino")
def loss_magnitudes(f: Figures, limit: Limits) -> Iterator[Evidence]:
    m = f.measured.get("loss_magnitudes")
    if m is None:
        losses = {n: x.late for n, x in f.metrics.items() if n.startswith("loss/") and x.count > 1 and x.late == x.late}
        if held_by_recipe(f):
            losses.pop("loss/kl", None)
        # the size of a logged loss is meaningless without its weight
        m = {n: abs(w * x) for n, x in losses.items() if (w := f.late(n.replace("loss/", "w/"))) and n != "loss/total"}
    if len(m) < 2:
        return
    least, most = min(m, key=m.get), max(m, key=m.get)
    ratio = m[most] / m[least] if m[least] > 0 else math.inf
    values = {"large": most, "most": m[most], "small": least, "least": m[least], "ratio": ratio}
    yield say("pass" if ratio <= limit["loss/ratio"] else "warn", "loss/magnitudes", **values)


@rule("scaler/scale", "scaler/skipped")
def overflow(f: Figures, limit: Limits) -> Iterator[Evidence]:
    m = f.measured.get("overflow", {})
    if m.get("nonfinite"):
        yield say("fail", "overflow/nonfinite", count=m["nonfinite"])
    series = f.metrics.get("scaler/scale")
    if "skipped" in m:
        status = "pass" if m["skipped"] <= limit["overflow/skipped"] else "warn" if m.get("early") else "fail"
        yield say(status, "overflow/skipped", share=m["skipped"])
    if "last" in m:
        yield say(m["last"] >= limit["overflow/scale"], "overflow/scale", first=m["first"], last=m["last"])
    if series is None or len(series.finite) < 10:
        return
    x, skipped, share = series.finite, f.metrics.get("scaler/skipped"), 0.0
    falls = x[-1] <= min(x.max() / limit["overflow/fall"], limit["overflow/low"]) and x[-1] <= 4 * x[len(x) // 2]
    if skipped is not None and len(skipped.finite) > 1:
        total = skipped.finite[-1] if (np.diff(skipped.finite) >= 0).all() else skipped.finite.sum()
        steps = [s.steps for s in f.metrics.values() if len(s.steps)]
        share = float(total) / max(1.0, float(max(s[-1] for s in steps) - min(s[0] for s in steps) + 1))
    bad = falls or (share > limit["overflow/share"] and x[-1] < x.max())
    yield say(not bad, "overflow/fall", first=float(x.max()), last=float(x[-1]), share=share)


@measured_rule
def overfit(m: dict, limit: Limits) -> Iterator[Evidence]:
    for name in ("flow/nmse", "loss/flow", "flow/cos"):
        if name in m:
            first, last = m[name]
            cos = name == "flow/cos"
            ok = (last > first and last >= limit["overfit/cos"]) if cos else last <= limit["overfit/loss"] * first
            yield say(ok, "trial/learns", name=name, first=first, last=last)
    if "loss/kl" in m:
        first, last = (max(x, 1e-3) for x in m["loss/kl"])  # a KL that trembles at 0 is steady
        grows, falls = last > limit["overfit/kl"] * first, first > limit["overfit/kl"] * last
        key = "trial/kl_grows" if grows else "trial/kl_falls" if falls else "trial/kl_steady"
        yield say("fail" if grows else "warn" if falls else "pass", key, first=first, last=last)


@measured_rule
def ablation_only_flow(m: dict, limit: Limits) -> Iterator[Evidence]:
    step = limit["ablation/drop"]
    for name, (first, last) in m.items():
        ok = last >= first + step if name == "flow/cos" else last <= first * (1 - step)
        yield say(ok, "trial/endpoint" if "endpt" in name else "trial/alone", name=name, first=first, last=last)


def ablation_kl_off(m: dict[str, dict], limit: Limits) -> Iterator[Evidence]:
    """Judge whether the trends to the prior vanish without the KL; if only some of them do, the others warn."""
    partly = any(by["gone"] for by in m.values())
    for name, by in m.items():
        status = "pass" if by["gone"] else "warn" if partly else "fail"
        yield say(status, "kl/without", name=name, with_kl=by["with_kl"], without=by["without"])


measured_rule(ablation_kl_off)


@measured_rule
def ablation_condition_shuffled(m: dict, limit: Limits) -> Iterator[Evidence]:
    gain = m["cos"] - m["cos_shuffled"]
    ok, hardly = gain >= limit["ablation/drop"], gain > limit["ablation/gain"]
    yield say("pass" if ok else "warn" if hardly else "fail", "trial/shuffled", gain=gain)


@measured_rule
def ablation_dino_shuffled(m: dict, limit: Limits) -> Iterator[Evidence]:
    # What a perfect student would gain: the cross-entropy with a target is never below its entropy.
    room = max(m["shuffled"] - m["entropy"], 1e-6)
    share = (m["shuffled"] - m["loss"]) / room
    ok, hardly = share >= limit["ablation/dino"], share > limit["ablation/gain"]
    status = "pass" if ok else "warn" if hardly else "fail"
    yield say(status, "trial/dino_shuffled", share=share, loss=m["loss"], shuffled=m["shuffled"])
