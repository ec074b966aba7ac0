"""Rules about carrying x0 to x1: shots, the exact field, the endpoint, a leak, probes, and the steps of a trace."""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from fmpipe.diagnose.figures import Figures, SamplingTrace, Series
from fmpipe.diagnose.rule import Evidence, measured_rule, rule, say
from fmpipe.diagnose.thresholds import Limits

UNIT_START = 2.0  # MSE(x0, x1) of independent latents of unit variance, where it was not measured
FORMATS = {"bfloat16": 8, "float16": 11}  # bits of the significand


def shooting(m: dict, limit: Limits) -> Iterator[Evidence]:
    start, relative, helped = m.get("start") or UNIT_START, m.get("relative"), m.get("relative_gain")
    relative = relative or [error / start for error in m["error"]]
    end = relative[-1]
    values = {"relative": relative, "steps": m.get("steps") or "?", "gain": m.get("fm_gain"), "helped": helped}
    if m.get("start") is None:
        yield say("pass", "shoot/assumed", start=start)
    if "relative_dt_scale" in m:
        yield say("pass", "shoot/dt_scale", relative=m["relative_dt_scale"], dt_scale=m["dt_scale"])
    if end < limit["shooting/relative"]:
        yield say("pass", "shoot/arrives", **values)
    elif helped is not None and helped <= limit["shooting/fall"] * end and helped < 1:
        yield say("warn", "shoot/gain", **values)
    elif helped is not None:
        yield say("fail", "shoot/lost", **values)
    else:
        yield say("warn", "shoot/nearer", **values) if end < 1 else say("fail", "shoot/farther", **values)
    if end > max(relative[0], limit["shooting/relative"]):
        yield say("warn", "shoot/steps", **values)


@measured_rule
def shooting_gain(m: dict, limit: Limits) -> Iterator[Evidence]:
    """Judge shooting with the gain that the user gave."""
    return shooting(m, limit)


measured_rule(shooting)


@rule()
def teacher_euler(f: Figures, limit: Limits) -> Iterator[Evidence]:
    m = f.measured.get("teacher_euler")
    if not m:
        return
    start = m.get("start") or UNIT_START
    steps, error = map(list, zip(*sorted(zip(m["steps"], m["error"], strict=True)), strict=True))
    floor, large = limit["teacher/floor"] * start, limit["teacher/relative"] * start
    first, last = (max(e, floor) for e in (error[0], error[-1]))
    values = {"error": error, "steps": steps, "growth": last / first, "start": start}
    shot = f.measured.get("shooting")
    if last / first > limit["teacher/growth"]:
        # Beside a learned field that misses x1 by far more, rounding is the smaller problem.
        missed = shot and (shot.get("relative") or [e / start for e in shot["error"]])[-1] * start
        yield say("fail", "teacher/rounding", effect=min(1.0, last / missed) if missed else 1.0, **values)
    elif last > large:
        yield say("fail", "teacher/schedule", **values, left=last / start)
    elif first > large:
        yield say("warn", "teacher/coarse", **values, left=first / start)
    else:
        yield say("pass", "teacher/flat", **values)


def endpoints(f: Figures) -> dict[int, Series]:
    """Return the endpoint errors of a log by their number of steps."""
    named = {n.rpartition("@")[2]: x for n, x in f.metrics.items() if n.startswith(("flow/endpt", "val/flow/endpt"))}
    return {int(k): x for k, x in named.items() if k.isdigit() and len(x.finite)}


@rule(*(f"flow/endpt_rmse@{k}" for k in (8, 16, 32, 64)))
def endpoint(f: Figures, limit: Limits) -> Iterator[Evidence]:
    m = f.measured.get("endpoint")
    if m:
        for solver, by_k in m["rmse"].items():
            yield _settles({int(k): x for k, x in by_k.items()}, solver, m["start"], limit)
    ks, cos = endpoints(f), f.late("val/flow/cos", "flow/cos")
    learnt = cos is None or cos >= limit["inference/learnt"]
    if len(ks) > 1:
        found = _settles({k: x.last for k, x in ks.items()}, "euler", math.sqrt(UNIT_START), limit)
        yield found if learnt else say("pass", "endpoint/settles", **found.message.values)
    left = left_over(f)
    if left is not None and cos is not None and learnt:
        most = limit["inference/left"]
        if cos >= limit["inference/good"] and max(len(x.finite) for x in ks.values()) > 4:
            most = min(most, limit["inference/unexplained"] + 1.5 * (1 - cos * cos))
        yield say(left <= most, "endpoint/left", left=left, cos=cos, most=most)


def _settles(rmse: dict[int, float], solver: str, start: float, limit: Limits) -> Evidence:
    """Judge whether the RMSE falls with K. A small rise passes: if a text has several images, it ends nearer to one."""
    ks = sorted(rmse)
    floor, least, rises = limit["endpoint/floor"] * start, rmse[ks[0]], {}
    for before, k in pairwise(ks):
        if rmse[k] > max(min(limit["endpoint/rise"] * rmse[before], limit["endpoint/creep"] * least), floor):
            rises[k] = rmse[k] / max(least, floor)
        least = min(least, rmse[k])
    values = {"solver": solver, "rmse": [rmse[k] for k in ks], "ks": ks}
    return say("fail", "endpoint/rises", **values, rises=rises) if rises else say("pass", "endpoint/settles", **values)


def left_over(f: Figures) -> float | None:
    """Return MSE(z_end, z1) / MSE(z0, z1) of a log at the largest K; the start from scale/v*, else the first value."""
    ks = endpoints(f)
    if not ks:
        return None
    end = ks[max(ks)]
    norm, v, std, mean = (f.late(n) for n in ("scale/z1", "scale/v*", "stat/x_0/std", "stat/x_0/mean"))
    start = float(end.finite[0])
    if None not in (norm, v, std, mean) and std > 0:
        start = v * math.sqrt(std**2 + mean**2) / norm  # ‖v*‖ / √n, n from ‖z1‖
    return (end.last / start) ** 2 if start > 0 else None


@rule("val/flow/cos", "flow/cos", "std/mean")
def leak(f: Figures, limit: Limits) -> Iterator[Evidence]:
    m = f.measured.get("leak")
    if m:
        yield from _leak(m.get("cos"), m.get("relative_shooting"), m.get("std/mean"), limit)
    cos, std, left = f.late("val/flow/cos", "flow/cos"), f.late("std/mean"), left_over(f)
    shot, printed = f.late("shoot/relative", "val/shoot/relative"), f.measured.get("one_step", {}).get("cos")
    if cos is None and printed and not m:  # by t
        cos = float(np.median(printed))
    if "recipe/overfit" in f.texts:
        return  # a few samples that are learned by heart on purpose
    if cos is not None and (std is not None or left is not None or shot is not None):
        # If a text has several images, another of them is a correct end, so sigma is preferred if it is known.
        yield from _leak(cos, shot if shot is not None else left if std is None else None, std, limit)


def _leak(cos: float, shot: float | None, std: float | None, limit: Limits) -> Iterator[Evidence]:
    values = {k: v for k, v in (("cos", cos), ("relative_shooting", shot), ("std/mean", std)) if v is not None}
    if len(values) < 2:
        yield say("skipped", "leak/alone")
        return
    high = cos >= limit["leak/cos"]
    far, sharp = shot is not None and shot > limit["leak/relative"], std is not None and std < limit["leak/std"]
    key = ("leak/far" if far else "leak/sharp") if high and (far or sharp) else "leak/sound" if high else "leak/low"
    yield say("fail" if key in ("leak/far", "leak/sharp") else "pass", key, figures=values)


@measured_rule
def probes(m: dict, limit: Limits) -> Iterator[Evidence]:
    if why := m.get("anomaly"):
        yield say("fail", "probe/anomaly", why=why)
        return
    a, b, c = m["A"], m["B"], m["C"]
    values = {"a_low": a["low"], "a_high": a["high"], "a_contrast": a["contrast"], "b": b}
    values |= {"c_low": c["low"], "c_high": c["high"], "c_contrast": c["contrast"]}
    if b <= limit["probes/first_step"] * a["rms"]:
        yield say("fail", "probe/still", **values)
    elif c["contrast"] <= limit["probes/contrast"]:
        yield say("warn", "probe/flat", **values)
    else:
        loud = max(-c["low"], c["high"]) > limit["probes/range"]
        yield say("warn", "probe/loud", **values) if loud else say("pass", "probe/good", **values)


@measured_rule
def precision(m: dict, limit: Limits) -> Iterator[Evidence]:
    for name, psnr in m["psnr"].items():
        values = {key: m[key][name] for key in ("velocity", "latent", "left")}
        key = "visible" if psnr < limit["precision/psnr"] else "same"
        status = "warn" if key == "visible" else "pass"
        yield say(status, f"precision/{key}", name=name, psnr=psnr, layers=m["layers"], **values)


@rule()
def sampler_state(f: Figures, limit: Limits) -> Iterator[Evidence]:
    for k, trace in enumerate(f.traces, 1):
        if len(trace) > 1:
            yield _state(f"{k} ({trace.label})" if trace.label else str(k), trace, limit)


def _state(where: str, trace: SamplingTrace, limit: Limits) -> Evidence:
    n, x, v, dt = len(trace), trace.x, trace.v, np.abs(trace.dt)
    finite = np.isfinite(x) & np.isfinite(v)
    if not finite.all():
        step = int(np.flatnonzero(~finite)[0])
        return say("fail", "trace/nonfinite", trace=where, step=step)
    if x.max() > limit["trace/far"] * (x[0] + v[0] * dt.sum()):
        return say("fail", "trace/far", trace=where, step=int(x.argmax()), x=float(x.max()), first=float(x[0]))
    moved, way = int((np.diff(x) != 0).sum()), float((v * dt).sum() if trace.whole else v.mean())
    stuck = moved < limit["trace/moves"] * (n - 1) and abs(x[-1] - x[0]) <= limit["trace/displaced"] * way
    kind = trace.dtype if trace.dtype in FORMATS else "" if trace.dtype else _rounding(trace)
    values = {"trace": where, "moved": moved, "of": n - 1, "first": float(x[0]), "last": float(x[-1])}
    if not kind:
        return say(not stuck, "trace/still" if stuck else "trace/moves", **values)
    spacing = 2.0 ** (math.floor(math.log2(float(x.max()) or 1.0)) + 1 - FORMATS[kind])
    # Rounding to the nearest moves an element by 0.29 of its spacing, rms; |v| dt approximates the rms of the change.
    lost = min(1.0, 0.29 * spacing / float(np.median(v * dt) or 1e-30))
    lossy = stuck or (trace.dtype and lost > limit["trace/lost"])  # nothing is values on a guess of the format alone
    values |= {"least": float((v * dt).min()), "most": float((v * dt).max())}
    return say(not lossy, "trace/rounded", effect=max(lost, 0.1), **values, kind=kind, spacing=spacing, lost=lost)


def _rounding(trace: SamplingTrace) -> str:
    """Return the half format on whose grid every printed |x| and |v| lies, to four digits; "" if none."""
    numbers = np.unique(np.concatenate([trace.x, trace.v]))
    for kind, bits in FORMATS.items():
        spacing = 2.0 ** (np.floor(np.log2(np.maximum(numbers, 1e-6))) + 1 - bits)
        wide = spacing > 4e-4  # finer than this, any printed number lies on the grid
        on_grid = np.abs(np.round(np.round(numbers / spacing) * spacing, 4) - numbers) < 1e-6
        if wide.sum() >= 2 and on_grid[wide].all():
            return kind
    return ""


@rule()
def step_sizes(f: Figures, limit: Limits) -> Iterator[Evidence]:
    for k, trace in enumerate(f.traces, 1):
        dt, n = trace.dt / trace.start, len(trace)
        dt = dt / 1000 if np.abs(dt).sum() > 100 else dt  # in steps of a diffusion
        if n < 2 or not trace.whole:
            continue
        total, even = float(np.abs(dt).sum()), float(np.ptp(np.abs(dt))) <= 1.1e-4
        slack = 5e-5 * n + (min(limit["trace/sum"], 0.4 / n) if even else limit["trace/sum"])
        yield say(abs(total - 1) <= slack, "trace/sum", trace=k, n=n, total=total)
        if len(set(np.sign(dt[dt != 0]))) > 1:
            yield say("fail", "trace/signs", trace=k, step=int(np.flatnonzero(np.sign(dt) != np.sign(dt[0]))[0]))
        first, last = abs(float(dt[0])), abs(float(dt[-1]))
        smooth = (np.diff(np.abs(dt)) >= -1e-4).all() or (np.diff(np.abs(dt)) <= 1e-4).all()  # a shifted schedule
        if n >= 8:
            even = max(first, last) <= 2 * min(first, last)
            yield say(even or smooth, "trace/symmetry", trace=k, first=first, last=last)
