"""The hypotheses of flow matching, G to M: gradients, condition, KL, integration, scale, the two halves, a leak."""

import math
from collections.abc import Iterator

import numpy as np

from fmpipe.diagnose.checks.flow import judge_condition_use, judge_scale
from fmpipe.diagnose.checks.sampling import judge_endpoint
from fmpipe.diagnose.checks.sampling import leak as judge_leak
from fmpipe.diagnose.report.diffusion import first_bad_loss, is_pixels
from fmpipe.diagnose.report.finding import Finding, Limits, checked, find, of_checks
from fmpipe.diagnose.report.stats import RunStats, SamplingTrace, Series

SD_SCALE, CROSSFLOW_SCALE = 0.18215, 0.2301  # of fmpipe.vae, which imports torch
SUPERVISED = ("grad/flow", "grad/kl", "grad/dino", "grad/contrastive", "grad/norm")  # losses that must have a share
FORMATS = {"bfloat16": 8, "float16": 11}  # bits of the significand


def gradients(s: RunStats, limit: Limits) -> Iterator[Finding]:
    total = s.metrics.get("grad/total")
    if total is not None and total.count > 3:
        overflowed = "scaler/scale" in s.metrics and total.nonfinite < 0.05 * total.count  # GradScaler finds its scale
        if total.nonfinite and not overflowed:
            step = total.first_nonfinite
            after = ["loss_numerics"] if first_bad_loss(s) <= step else []
            yield find(False, "gradient/nonfinite", after, count=total.nonfinite, step=step)
        quarter = max(1, len(total.finite) // 4)
        first, rest = total.finite[:quarter], total.finite[quarter:]
        if len(rest):
            # of neighbours, so that one spike is not an explosion
            start, top, end = float(np.median(first)), _sustained(rest), total.late
            said = {"start": start, "top": top, "end": end}
            yield find(top <= limit["gradient/exploding"] * start, "gradient/exploding", ["scale_mismatch"], **said)
            yield find(end >= limit["gradient/vanishing"] * start, "gradient/vanishing", **said)
        for name, share in _shares(s, total).items():
            drowned = share < limit["gradient/drowned"]
            yield find(not drowned, "gradient/share", ["scale_mismatch"], name=name, share=share)
    for name, x in s.metrics.items():
        if name.startswith("step/") and name.endswith("_update_ratio") and x.count > 3:
            key = "gradient/still" if x.late < limit["update/ratio"] else "gradient/moves"
            ok = limit["update/ratio"] <= x.late <= limit["update/jump"]
            yield find(ok, key, name=name, ratio=x.late)
    yield from _teacher(s, limit)
    yield from checked(s, "gradient_path", "gradient_shares", "update_ratios", "loss_magnitudes", "overflow", "dino")


def _sustained(values: np.ndarray) -> float:
    """Return the largest value that a tenth of the values around it reach too."""
    width = max(3, len(values) // 10)
    if len(values) < width:
        return float(values.max())
    return float(np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1).max())


def _recipe(s: RunStats) -> bool:
    """Tell whether something else than the KL holds the head by design: then the KL's share may be small."""
    held = any((s.late(f"w/{name}") or 0) > 0 for name in ("anchor", "match"))
    held = held or any(f"{kind}/{name}" in s.metrics for kind in ("loss", "grad") for name in ("anchor", "match"))
    constrained = s.setting("flow/head/std_range") or s.setting("flow/losses/detach") or "std_range" in s.constants
    return bool(held or constrained or "anchor" in s.metrics)


def _shares(s: RunStats, total: Series) -> dict[str, float]:
    """Late share of each loss in the gradient of those it shares parameters with; of losses without a weight none.

    A KL is small by design, and what comes of too small a one is hypothesis I. Where z0 is detached from the flow loss
    (flow/losses/detach) the head's losses have parameters of their own.
    """
    late = {n: x.late for n, x in s.metrics.items() if n.startswith("grad/") and n != "grad/total" and x.late == x.late}
    weight = {n: s.late(n.replace("grad/", "w/")) for n in late}
    late = {n: x for n, x in late.items() if weight[n] is None or weight[n] > 0}
    whole = dict.fromkeys(late, total.late)
    if s.setting("flow/losses/detach"):
        head = math.hypot(*(x for n, x in late.items() if n != "grad/flow"))
        whole = {n: late[n] if n == "grad/flow" else head for n in late}
    skipped = {"grad/kl"} if _recipe(s) else set()
    return {n: x / whole[n] if whole[n] else 0.0 for n, x in late.items() if n not in skipped and n in SUPERVISED}


def _teacher(s: RunStats, limit: Limits) -> Iterator[Finding]:
    """Entropies against log K, K from the config, else the largest entropy there was."""
    teacher, student = s.first_of("ent/teacher"), s.first_of("ent/student")
    if teacher is None or student is None:
        return
    classes = s.setting("flow/losses/dino_classes") or s.late("ent/classes")
    whole = math.log(classes) if classes and classes > 1 else s.late("ent/log_classes")
    top = whole or max(teacher.max, student.max)
    share = {"teacher": teacher.late / top, "student": student.late / top} if top > 0 else {}
    known = whole is not None
    if share:
        yield find(share["teacher"] >= limit["dino/entropy"], "gradient/teacher", share=share["teacher"])
    if known:
        yield find(share["teacher"] <= limit["dino/uniform"], "dino/uniform", share=share["teacher"])
    total, dino = s.late("grad/total"), s.late("grad/dino")
    if share and total and dino is not None:
        bad = share["student"] < limit["dino/entropy"] and dino / total < limit["share/warn"]
        bad = bad and share["teacher"] >= limit["dino/entropy"]
        yield find(not bad, "dino/student", share=share["student"], grad=dino / total)


def condition_use(s: RunStats, limit: Limits) -> Iterator[Finding]:
    gain = s.first_of("flow/cond_gain_cos", "val/flow/cond_gain_cos")
    upstream = ["leak", "kl", "scale_mismatch", "gradients", "loss_numerics", "train_inference", "input_range"]
    if gain is not None and gain.count > 1:
        judged = judge_condition_use(gain.last, overrides=of_checks(limit))
        yield find(judged.status == "pass", "condition/gain", upstream, gain=gain.last, first=gain.values[0])
    cos = s.late("text/cos")
    if cos is not None:
        yield find(cos < limit["text/cos"], "text/means", ["kl"], cos=cos)
    yield from checked(s, "text_path", "condition_use", "pairing", causes=["leak"])


def kl(s: RunStats, limit: Limits) -> Iterator[Finding]:
    std, logvar, mu = s.late("std/mean"), s.late("logvar/mean"), s.late("mu/rms")
    if std is not None:
        yield find(std >= limit["kl/collapse_std"], "kl/std", ["leak"], std=std, first=s.first_of("std/mean").early)
    if logvar is not None:
        yield find(-5.94 < logvar < 5.94, "kl/clamp", logvar=logvar)
    low, high = s.first_of("std/min"), s.first_of("std/max")
    if low is not None and high is not None:
        ok = low.min >= 0.99 * math.exp(-3) and high.max <= 1.01 * math.exp(3)
        yield find(ok, "kl/outside", low=low.min, high=high.max)
    if mu is not None:
        yield find(mu <= limit["kl/mu"], "kl/mu", ["gradients"], mu=mu, first=s.first_of("mu/rms").early)
    size, var = s.first_of("mu/abs_mean", "mu/rms"), s.late("z_init/var")
    if size is not None and std is not None and not _recipe(s):
        prior = size.late < limit["kl/prior_mu"] and abs(std - 1) < limit["kl/prior_std"]
        yield find(not prior, "kl/prior", mu=size.late, std=std)
        grown = size.count > 9 and size.late > limit["kl/drift"] * max(size.early, 0.05)
        away = (var is not None and not 0.5 <= var <= 2.0) or not 0.6 <= std <= 1.6
        kl_there = "loss/kl" in s.metrics or "w/kl" in s.metrics
        drifts = grown and away and kl_there and (s.late("w/kl") is None or s.late("w/kl") > 0)
        yield find(not drifts, "kl/drift", first=size.early, mu=size.late, var=math.nan if var is None else var)
    yield from _formula(s, limit)
    yield from checked(s, "kl")


def _formula(s: RunStats, limit: Limits) -> Iterator[Finding]:
    """loss/kl is a constant times ½ (E z² - 1 - E logvar), E z² = E mu² + E sigma²: that of mu and logvar, not of z."""
    names = ("loss/kl", "z_init/var", "z_init/mean", "logvar/mean")
    rows = [s.metrics.get(name) for name in names]
    if any(x is None for x in rows) or s.setting("flow/losses/kl_kind") == "crossflow":
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
    yield find(ok, "kl/formula", ratio=middle, spread=apart, loss=float(loss[kept][-1]), due=float(due[kept][-1]))


def integration(s: RunStats, limit: Limits) -> Iterator[Finding]:
    for k, trace in enumerate(s.traces, 1):
        yield from _trace(k, trace, limit)
    v = s.verdict("teacher_euler")
    if v is not None and v.values.get("growth", 0) > limit["teacher/growth"]:
        yield from checked(s, "teacher_euler")
    elif v is not None and v.status != "fail":
        yield find(True, "check/teacher_euler_flat")
    yield from checked(s, "probes", causes=["train_inference", "scale_mismatch"])


def _trace(k: int, trace: SamplingTrace, limit: Limits) -> Iterator[Finding]:
    n, x, v, dt = len(trace), trace.x, trace.v, np.abs(trace.dt)
    where = f"{k} ({trace.label})" if trace.label else str(k)
    if n < 2:
        return
    if not (np.isfinite(x).all() and np.isfinite(v).all()):
        step = int(np.flatnonzero(~(np.isfinite(x) & np.isfinite(v)))[0])
        yield find(False, "trace/nonfinite", ["scale_mismatch", "model_output"], trace=where, step=step)
        return
    reach = x[0] + v[0] * dt.sum()
    if x.max() > limit["trace/far"] * reach:
        said = {"step": int(x.argmax()), "x": float(x.max()), "first": float(x[0])}
        yield find(False, "trace/far", ["scale_mismatch", "gradients"], trace=where, **said)
        return
    moved, way = int((np.diff(x) != 0).sum()), float((v * dt).sum())
    stuck = moved < limit["trace/moves"] * (n - 1) and abs(x[-1] - x[0]) <= limit["trace/displaced"] * way
    kind = trace.dtype if trace.dtype in FORMATS else "" if trace.dtype else _rounding(trace)
    said = {"trace": where, "n": n, "moved": moved, "of": n - 1, "first": float(x[0]), "last": float(x[-1])}
    said |= {"least": float((v * dt).min()), "most": float((v * dt).max())}
    if kind:
        spacing = 2.0 ** (math.floor(math.log2(float(x.max()) or 1.0)) + 1 - FORMATS[kind])
        # Rounding to the nearest moves an element by 0.29 of its spacing, rms; |v| dt stands for the change's rms.
        lost = min(1.0, 0.29 * spacing / float(np.median(v * dt) or 1e-30))
        lossy = stuck or (trace.dtype and lost > limit["trace/lost"])  # on a guess of the format alone nothing is said
        yield find(not lossy, "trace/rounded", **said, kind=kind, spacing=spacing, lost=lost)
    else:
        yield find(not stuck, "trace/still" if stuck else "trace/moves", **said)


def _rounding(trace: SamplingTrace) -> str:
    """The half format on whose grid every printed |x| and |v| lies, to four digits; "" if none, or too few to tell."""
    numbers = np.unique(np.concatenate([trace.x, trace.v]))
    for kind, bits in FORMATS.items():
        spacing = 2.0 ** (np.floor(np.log2(np.maximum(numbers, 1e-6))) + 1 - bits)
        wide = spacing > 4e-4  # finer than this any printed number lies on the grid
        on_grid = np.abs(np.round(np.round(numbers / spacing) * spacing, 4) - numbers) < 1e-6
        if wide.sum() >= 2 and on_grid[wide].all():
            return kind
    return ""


def scale_mismatch(s: RunStats, limit: Limits) -> Iterator[Finding]:
    std = s.first_of("stat/x_0/std")
    if std is not None and not is_pixels(s):
        ok = limit["input/std_low"] <= std.median <= limit["input/std_high"]
        yield find(ok, "scale/latents", std=std.median)
        yield from _factor(std.median, limit)
    psnr = s.first_of("vae/psnr")
    if psnr is not None and s.stage != "vae" and "loss/rec" not in s.metrics:
        bad = psnr.late < limit["vae/psnr_fail"] and psnr.late < 1.3 * psnr.early
        yield find(not bad, "scale/psnr", ["input_range"], psnr=psnr.late)
    yield from _starts(s, limit)
    own = s.late("stat/noise/std")
    if own is not None and std is not None and own > 0 and not is_pixels(s):
        apart = max(own / std.median, std.median / own) if std.median > 0 else math.inf
        yield find(
            apart <= limit["scale/ratio"],
            "scale/stds",
            ["input_range", "kl", "gradients", "loss_numerics"],
            z0=own,
            z1=std.median,
            ratio=apart,
        )
    z0, z1, v = (s.late(f"scale/{name}") for name in ("z0", "z1", "v*"))
    if z0 is not None and z1 is not None:
        judged = judge_scale(z0, z1, v=v, overrides=of_checks(limit))
        said = {
            "z0": z0,
            "z1": z1,
            "v": v if v is not None else math.nan,
            "ratio": judged.values.get("ratio", math.inf),
        }
        yield find(judged.status != "fail", "scale/norms", ["kl", "gradients", "loss_numerics", "target"], **said)
    yield from checked(s, "scale", causes=["kl", "gradients"])
    yield from checked(s, "scale_contract", "latent_is_sample", "vae_round_trip")


def _factor(std: float, limit: Limits) -> Iterator[Finding]:
    """A std that is a power of a known scale factor: applied twice, or not at all."""
    for factor in (SD_SCALE, CROSSFLOW_SCALE):
        for power in (1, -1):
            ratio = std / factor**power
            if abs(ratio - 1) <= 2 * limit["scale/factor"]:
                yield find(False, "scale/factor", std=std, ratio=ratio, factor=factor, power=power)
                return


def _starts(s: RunStats, limit: Limits) -> Iterator[Finding]:
    """|x| at step 0 against E|N(0, 1)| = 0.8, and against the other traces."""
    firsts = [float(trace.x[0]) for trace in s.traces if len(trace) > 1 and np.isfinite(trace.x[0])]
    for k, x in enumerate(firsts, 1):
        if x > limit["scale/start"] * 0.8 or 0 < x < 0.8 / (2 * limit["scale/start"]):
            yield find(False, "scale/start", ["kl", "gradients"], trace=k, x=x, due=0.8)
            return


def _left(s: RunStats) -> float | None:
    """MSE(z_end, z1) / MSE(z0, z1) at the largest K. The start from scale/v* where it is known, else the first."""
    ks = _endpoints(s)
    if not ks:
        return None
    end = ks[max(ks)]
    norm, v, std, mean = (s.late(n) for n in ("scale/z1", "scale/v*", "stat/x_0/std", "stat/x_0/mean"))
    start = float(end.values[0])
    if None not in (norm, v, std, mean) and std > 0:
        start = v * math.sqrt(std**2 + mean**2) / norm  # ‖v*‖ / √n, n from ‖z1‖
    return (end.last / start) ** 2 if start > 0 else None


def _endpoints(s: RunStats) -> dict[int, Series]:
    named = {n.rpartition("@")[2]: x for n, x in s.metrics.items() if n.startswith(("flow/endpt", "val/flow/endpt"))}
    return {int(k): x for k, x in named.items() if k.isdigit() and len(x.finite)}


def train_inference(s: RunStats, limit: Limits) -> Iterator[Finding]:
    upstream = ["scale_mismatch", "leak", "kl", "gradients", "loss_numerics", "input_range", "time_sampling"]
    upstream += ["integration", "schedule_constants", "learning_rate", "target", "run", "condition_use"]
    cos, nmse = s.late("val/flow/cos", "flow/cos"), s.late("val/flow/nmse", "flow/nmse")
    ks, left, ratio = _endpoints(s), _left(s), s.late("val/flow/speed_ratio", "flow/speed_ratio")
    learnt = cos is not None and cos >= limit["inference/learnt"]
    if len(ks) > 1:
        rmse = {k: ks[k].last for k in sorted(ks)}
        said = {"ks": ", ".join(map(str, rmse)), "rmse": ", ".join(f"{x:.3g}" for x in rmse.values())}
        ok = not learnt or judge_endpoint({"euler": rmse}, overrides=of_checks(limit)).status != "fail"
        yield find(ok, "inference/steps", upstream, **said)
    if left is not None and nmse is not None and learnt:
        yield find(
            left <= limit["inference/left"],
            "inference/endpoint",
            [*upstream, "condition_use"],
            left=left,
            nmse=nmse,
            cos=cos,
        )
    if ratio is not None and cos is not None and learnt:
        ok = limit["inference/slow"] * cos <= ratio <= limit["inference/fast"]
        said = {"ratio": ratio, "cos": cos, "gain": 1 / ratio if ratio else math.inf}
        yield find(ok, "inference/speed", upstream, **said)
    seen = s.first_of("val/flow/cos", "flow/cos")
    if seen is not None and len(seen.steps) and seen.steps[-1] >= limit["inference/steps"]:
        more = ["condition_use", "model_output", "forward_process"]
        yield find(seen.late >= limit["inference/cos"], "inference/cos", [*upstream, *more], cos=seen.late)
    for name in ("flow", "diffusion", "mse", "total"):
        held, own = s.late(f"val/loss/{name}"), s.late(f"loss/{name}")
        if held is not None and own:
            ok = held <= limit["inference/val"] * own
            yield find(ok, "inference/val", upstream, name=name, held=held, own=own, ratio=held / own)
            break
    for k, trace in enumerate(s.traces, 1):
        if len(trace) > 1:
            yield _sum_of(k, trace, limit)
            first, last = abs(float(trace.dt[0])), abs(float(trace.dt[-1]))
            if len(trace) >= 8:
                even = min(first, last) > 0 and max(first, last) / min(first, last) <= 2
                yield find(even, "trace/symmetry", trace=k, first=first, last=last)
    yield from checked(s, "one_step", "target_definition", "endpoint", causes=["scale_mismatch", "target"])
    yield from checked(s, "shooting", causes=["scale_mismatch", "leak", "condition_use", "target"])
    v = s.verdict("teacher_euler")
    if v is not None and v.status == "fail" and not v.values.get("growth", 0) > limit["teacher/growth"]:
        yield from checked(s, "teacher_euler")


def _sum_of(k: int, trace: SamplingTrace, limit: Limits) -> Finding:
    """Σ|dt| is 1, or 0.983 on the logit-normal grid; an even grid has as many steps as 1 / dt."""
    total, n = float(np.abs(trace.dt).sum()), len(trace)
    even = float(np.ptp(np.abs(trace.dt))) <= 1.1e-4
    slack = 5e-5 * n + (min(limit["trace/sum"], 0.4 / n) if even else limit["trace/sum"])
    return find(abs(total - 1) <= slack, "trace/sum", trace=k, n=n, total=total)


def leak(s: RunStats, limit: Limits) -> Iterator[Finding]:
    cos, std, left = s.late("val/flow/cos", "flow/cos"), s.late("std/mean"), _left(s)
    if cos is not None and (std is not None or left is not None):
        # Where a text has several pictures the right end is another of them: sigma says more, if it is known.
        judged = judge_leak(cos, left if std is None else None, std, overrides=of_checks(limit))
        said = {"cos": cos, "std": std if std is not None else math.nan, "left": left if left is not None else math.nan}
        yield find(judged.status != "fail", "leak/cos", **said)
    yield from checked(s, "leak")
