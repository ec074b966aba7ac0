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

FORMATS = {"bfloat16": 8, "float16": 11}  # bits of the significand


def gradients(s: RunStats, limit: Limits) -> Iterator[Finding]:
    total = s.metrics.get("grad/total")
    if total is not None and total.count > 3:
        if total.nonfinite:
            step = total.first_nonfinite
            after = ["loss_numerics"] if first_bad_loss(s) <= step else []
            yield find(False, "gradient/nonfinite", after, count=total.nonfinite, step=step)
        quarter = max(1, len(total.finite) // 4)
        first, rest = total.finite[:quarter], total.finite[quarter:]
        if len(rest):
            start, top, end = float(np.median(first)), float(rest.max()), total.late
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
    return {n: x / whole[n] if whole[n] else 0.0 for n, x in late.items() if n != "grad/kl"}


def _teacher(s: RunStats, limit: Limits) -> Iterator[Finding]:
    """Entropies against log K, K from the config, else the largest entropy there was."""
    teacher, student = s.first_of("ent/teacher"), s.first_of("ent/student")
    if teacher is None or student is None:
        return
    classes = s.setting("flow/losses/dino_classes")
    top = math.log(classes) if isinstance(classes, int) and classes > 1 else max(teacher.max, student.max)
    share = {"teacher": teacher.late / top, "student": student.late / top} if top > 0 else {}
    if share:
        yield find(share["teacher"] >= limit["dino/entropy"], "gradient/teacher", share=share["teacher"])


def condition_use(s: RunStats, limit: Limits) -> Iterator[Finding]:
    gain = s.first_of("flow/cond_gain_cos", "val/flow/cond_gain_cos")
    upstream = ["leak", "kl", "scale_mismatch", "gradients", "loss_numerics", "train_inference", "input_range"]
    if gain is not None and gain.count > 1:
        judged = judge_condition_use(gain.last, overrides=of_checks(limit))
        yield find(judged.status == "pass", "condition/gain", upstream, gain=gain.last, first=gain.values[0])
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
    z0, z1, v = (s.late(f"scale/{name}") for name in ("z0", "z1", "v*"))
    if z0 is not None and z1 is not None:
        judged = judge_scale(z0, z1, v=v, overrides=of_checks(limit))
        said = {
            "z0": z0,
            "z1": z1,
            "v": v if v is not None else math.nan,
            "ratio": judged.values.get("ratio", math.inf),
        }
        yield find(judged.status != "fail", "scale/norms", ["kl", "gradients", "loss_numerics"], **said)
    yield from checked(s, "scale", causes=["kl", "gradients"])
    yield from checked(s, "scale_contract", "latent_is_sample", "vae_round_trip")


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
    upstream += ["integration", "schedule_constants"]
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
    yield from checked(s, "one_step", "target_definition", "endpoint", causes=["scale_mismatch"])
    yield from checked(s, "shooting", causes=["scale_mismatch", "leak", "condition_use"])
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
