"""Hypotheses about the course of a run, N to S: learning rate, loss, generalization, the run itself, times, target."""

import math
from collections.abc import Iterator

import numpy as np

from fmpipe.diagnose.report.diffusion import LOSSES
from fmpipe.diagnose.report.finding import Finding, Limits, find
from fmpipe.diagnose.report.stats import RunStats, Series

FEW = 24  # values below which a course cannot be judged
SPECIFIC = (
    "learning_rate",
    "run",
    "target",
    "scale_mismatch",
    "input_range",
    "schedule_constants",
    "time_sampling",
    "kl",
)


class Course:
    """A loss over time, smoothed: level (running median), noise (of single values, robust), parts of the run."""

    def __init__(self, series: Series):
        good = np.isfinite(series.values)
        self.steps, self.values = series.steps[good], series.values[good]
        n = len(self.values)
        self.window = max(5, n // 40)
        self.level = _running_median(self.values, self.window)
        self.noise = float(np.median(np.abs(self.values - self.level))) * 1.4826 if n else 0.0
        tenth = max(3, n // 10)
        self.first = float(np.median(self.values[: max(3, n // 20)])) if n else math.nan
        self.last = float(np.median(self.values[-tenth:])) if n else math.nan
        self.lowest = int(self.level.argmin()) if n else 0

    def __len__(self) -> int:
        return len(self.values)


def _running_median(x: np.ndarray, window: int) -> np.ndarray:
    if len(x) <= window:
        return np.full(len(x), np.median(x)) if len(x) else x
    half = window // 2
    padded = np.concatenate([np.full(half, np.median(x[: half + 1])), x, np.full(half, np.median(x[-half - 1 :]))])
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)


def course_of(s: RunStats) -> Course | None:
    """Return the course of the training loss; None if it is too short."""
    series = s.first_of(*LOSSES, "loss/rec")
    if series is None or s.stage == "vae" or len(series.finite) < FEW:
        return None
    return Course(series)


def _learns(s: RunStats) -> bool:
    """Tell whether something besides the loss shows a trained field: then a flat loss is a good one."""
    cos = s.late("val/flow/cos", "flow/cos")
    return cos is not None and cos >= 0.4


def learning_rate(s: RunStats, limit: Limits) -> Iterator[Finding]:
    lr, course = s.first_of("lr"), course_of(s)
    if lr is None or len(lr.finite) < 2:
        return
    top, middle = float(lr.finite.max()), float(np.median(lr.finite))
    flat = course is not None and course.last > 0.9 * course.first
    small = top < limit["lr/least"] or middle == 0 or (top < limit["lr/small"] and flat and not _learns(s))
    yield find(not small, "lr/small", top=top, middle=middle)
    if course is None:
        return
    swing, falls = _roughness(lr, course, 0.5 * top)
    high = top >= limit["lr/high"] and swing > limit["lr/swing"] and not falls
    yield find(not high, "lr/high", top=top, swing=swing)
    if jump := _restart(lr, course, limit):
        yield find(False, "lr/restart", step=jump[0], low=jump[1], high=jump[2], before=jump[3], after=jump[4])


def _roughness(lr: Series, course: Course, least: float) -> tuple[float, bool]:
    """Return how far the losses spread while the LR is at least this high, in medians, and whether they fall."""
    rates = np.interp(course.steps, lr.steps[np.isfinite(lr.values)], lr.finite)
    x = course.values[rates >= least]
    if len(x) < FEW:
        return 0.0, True
    first, last = np.median(x[: len(x) // 2]), np.median(x[len(x) // 2 :])
    return float(np.ptp(np.percentile(x, [5, 95])) / max(abs(float(np.median(x))), 1e-12)), bool(last < 0.8 * first)


def _restart(lr: Series, course: Course, limit: Limits) -> tuple | None:
    """Return (step, LR before and after, loss before and at the end) of a jump that the loss did not survive."""
    values = lr.finite
    for k in range(max(5, len(values) // 10), len(values) - 3):
        if values[k] > limit["lr/jump"] * values[k - 1] > 0 and values[k - 1] < 0.5 * values[:k].max():
            step = lr.steps[np.isfinite(lr.values)][k]
            before = course.values[course.steps < step]
            after = course.values[course.steps >= step]
            if len(before) > 5 and len(after) > 5:
                low, end = float(np.median(before[-max(5, len(before) // 10) :])), course.last
                if end > 1.1 * low:
                    return int(step), float(values[k - 1]), float(values[k]), low, end
    return None


def loss_trend(s: RunStats, limit: Limits) -> Iterator[Finding]:
    course = course_of(s)
    if course is None:
        return
    low, end, n = float(course.level[course.lowest]), course.last, len(course)
    said = {"first": course.first, "low": low, "last": end, "step": int(course.steps[course.lowest])}
    error = course.noise / math.sqrt(max(1, n // 10))
    fell = course.first - min(end, low) > max(limit["trend/flat"] * abs(course.first), 3 * error)
    fell = fell and (course.first - end > limit["trend/flat"] * abs(course.first) or low < 0.85 * course.first)
    specific = [*SPECIFIC, "gradients", "model_output"]
    if end > 0:
        yield find(fell or end > 1.1 * course.first or _learns(s), "trend/flat", [*specific, "train_inference"], **said)
    rise = (
        end > limit["trend/rise"] * max(low, 1e-12)
        and end - low > 4 * course.noise
        and course.lowest < 0.85 * n
        and low > 0
    )
    jump = _jump(course, limit) if rise else None
    upstream = [*specific, "generalization", "condition_use"]
    if jump is not None:
        yield find(False, "trend/jump", upstream, step=jump, **{k: said[k] for k in ("low", "last")})
    else:
        yield find(not rise, "trend/rise", upstream, **said)
    far = course.values > limit["trend/spike"] * np.maximum(course.level, 1e-12)
    far &= course.values - course.level > 8 * max(course.noise, 1e-12)
    late = int(far[n // 2 :].sum())
    bad = late >= max(3, limit["trend/spikes"] * n / 2)
    worst = float((course.values / np.maximum(course.level, 1e-12)).max()) if low > 0 else 1.0
    yield find(not bad or low <= 0, "trend/spikes", specific, count=int(far.sum()), late=late, worst=worst)


def _jump(course: Course, limit: Limits) -> int | None:
    """Return the step at which the loss jumped within a few values to a level that it kept; None for a slow rise."""
    n, w = len(course), max(3, len(course) // 60)
    before = np.array([np.median(course.values[max(0, k - 3 * w) : k]) for k in range(3 * w, n - 3 * w)])
    after = np.array([np.median(course.values[k : k + w]) for k in range(3 * w, n - 3 * w)])
    if not len(before):
        return None
    k = int((after / np.maximum(before, 1e-12)).argmax())
    if (
        after[k] > 1.25 * before[k]
        and course.last > 1.1 * before[k]
        and after[k] - before[k] > 0.5 * (course.last - before[k])
    ):
        return int(course.steps[k + 3 * w])
    return None


def generalization(s: RunStats, limit: Limits) -> Iterator[Finding]:
    course = course_of(s)
    pairs = [(f"val/loss/{name}", f"loss/{name}") for name in ("flow", "diffusion", "mse", "total", "rec")]
    for name, own_name in [*pairs, ("val/flow/nmse", "flow/nmse"), ("val/flow/cos", "flow/cos")]:
        held = s.metrics.get(name)
        if held is None or len(held.finite) < 5:
            continue
        # a cosine as its distance from 1, so that less is better in all of them
        x, steps = held.finite, held.steps[np.isfinite(held.values)]
        x = 1 - x if name.endswith("cos") else x
        best = int(np.argmin(x))
        end, low = float(np.median(x[-max(2, len(x) // 8) :])), float(x[best])
        noise = float(np.median(np.abs(np.diff(x))))
        worse = end > limit["overfit/turn"] * low and end - low > 2 * noise and best < 0.8 * (len(x) - 1)
        own = s.metrics.get(own_name) or (None if course is None else s.first_of(*LOSSES))
        falls = own is None or own_name.endswith("cos") or own.late <= 1.02 * _at(own, steps[best])
        said = {"name": name, "low": float(held.finite[best]), "last": held.last, "step": int(steps[best])}
        yield find(not (worse and falls), "overfit/turn", ["learning_rate", "loss_numerics"], **said)
        break
    period = None if course is None else _period(course, limit)
    if period is not None:
        yield find(False, "overfit/periodic", period=period[0], share=period[1])


def _at(series: Series, step: float) -> float:
    """Return the level of a series around a step."""
    near = np.abs(series.steps - step).argsort()[: max(5, len(series.values) // 20)]
    found = series.values[near]
    return float(np.median(found[np.isfinite(found)])) if np.isfinite(found).any() else math.nan


def _period(course: Course, limit: Limits) -> tuple[int, float] | None:
    """Return the period of the loss, in values, and the share of its variance that has it; None if there is none."""
    n = len(course)
    if n < 60 or course.values.min() <= 0:
        return None
    values = np.log(course.values)  # so that a falling loss keeps its amplitude
    rest = values - _running_median(values, max(11, n // 6) | 1)
    rest = np.clip(rest, *np.percentile(rest, [1, 99]))
    lags = range(max(8, n // 60), n // 4)
    power = float((rest * rest).mean())
    if power <= 0:
        return None
    correlation = {lag: float((rest[lag:] * rest[:-lag]).mean()) / power for lag in lags}
    best = max(correlation, key=correlation.get)
    # A slow drift correlates at every short lag; a period does so again at twice its length, and less in between.
    between = min(correlation.get(lag, 1.0) for lag in range(best // 2 - 1, best // 2 + 2))
    twice = float((rest[2 * best :] * rest[: -2 * best]).mean()) / power
    if (
        correlation[best] > limit["overfit/period"]
        and twice > 0.6 * limit["overfit/period"]
        and between < 0.5 * correlation[best]
    ):
        return best, correlation[best]
    return None


def run(s: RunStats, limit: Limits) -> Iterator[Finding]:
    course = course_of(s)
    if why := s.texts.get("stop/reason"):
        causes = ["kl", "scale_mismatch", "loss_numerics", "gradients", "learning_rate", "target"]
        yield find(False, "run/stopped", causes, why=why)
    if course is not None and (again := _from_scratch(course)):
        step, before, after = again
        yield find(False, "run/scratch", step=step, before=before, after=after, first=course.first)
    if lost := _lost(s, limit):
        yield find(False, "run/lost", ["loss_numerics", "gradients"], names=", ".join(lost), step=min(lost.values()))
    elif course is not None:
        yield find(True, "run/whole")
    scale = s.metrics.get("scaler/scale")
    if scale is not None and len(scale.finite) >= 10:
        x = scale.finite
        ends = x[-1] <= x.max() / limit["overflow/fall"] and x[-1] < x[len(x) // 2]
        skipped = s.metrics.get("scaler/skipped")
        share = 0.0
        if skipped is not None and len(skipped.finite) > 1:
            total = skipped.finite[-1] if (np.diff(skipped.finite) >= 0).all() else skipped.finite.sum()
            share = float(total) / max(1.0, float(scale.steps[-1] - scale.steps[0] + 1))
        bad = ends or (share > limit["overflow/share"] and x[-1] < x.max())
        yield find(not bad, "run/overflow", first=float(x.max()), last=float(x[-1]), share=share)
    yield from _ema(s, limit)


def _from_scratch(course: Course) -> tuple[int, float, float] | None:
    """Return (step, loss before, loss after) where the loss is back at its beginning and falls again as it did."""
    n, w = len(course), max(3, len(course) // 60)
    for k in range(max(2 * w, n // 12), n - 3 * w):
        before, after = float(np.median(course.values[k - w : k])), float(np.median(course.values[k : k + 2]))
        fallen = course.first - before
        if not (fallen > 0.2 * abs(course.first) and fallen > 4 * course.noise and after > before + 0.75 * fallen):
            continue
        common = min(k, n - k)
        again, begun = (_running_median(course.values[i : i + common], course.window) for i in (k, 0))
        if float(np.mean(np.abs(again - begun))) < 0.2 * fallen and again[-1] < again[0] - 0.2 * fallen:
            return int(course.steps[k]), before, after
    return None


def _lost(s: RunStats, limit: Limits) -> dict[str, int]:
    """Return the metrics that were logged regularly and end before the run does, and their last steps."""
    ends = {n: x.steps[np.isfinite(x.values)] for n, x in s.metrics.items() if len(x.finite) >= 4}
    if not ends:
        return {}
    final = max(float(steps[-1]) for steps in ends.values())
    first = min(float(steps[0]) for steps in ends.values())
    lost = {}
    for name, steps in ends.items():
        interval = float(np.median(np.diff(steps))) if len(steps) > 1 else math.inf
        gap = final - float(steps[-1])
        if gap > max(4 * interval, limit["run/lost"] * (final - first)) and not name.startswith(
            ("stat/", "epoch", "loss/")
        ):
            lost[name] = int(steps[-1])
    return lost


def _ema(s: RunStats, limit: Limits) -> Iterator[Finding]:
    for name, x in s.metrics.items():
        if not name.startswith("val/ema/") or len(x.finite) < 4:
            continue
        raw = s.metrics.get(f"val/{name.removeprefix('val/ema/').replace('_', '/', 1)}")
        if raw is None or len(raw.finite) < 4:
            continue
        start, gain = float(raw.finite[0]), abs(float(raw.finite[0]) - raw.last)
        behind = abs(x.last - raw.last) > limit["ema/behind"] * gain and gain > 0.1 * abs(start)
        yield find(not behind, "run/ema", name=name, ema=x.last, raw=raw.last)


def time_slices(s: RunStats, limit: Limits) -> Iterator[Finding]:
    """The ends of the path against its middle."""
    for kind, prefix in (("nmse", "flow/nmse_t"), ("cos", "flow/cos_t")):
        late = {k: s.late(f"{prefix}{k}", f"val/{prefix}{k}") for k in range(10)}
        middle = [late[k] for k in (3, 4, 5, 6) if late[k] is not None]
        # Where a recipe draws early times on purpose, the last slice is weak by design.
        judged = (0,) if s.setting("flow/losses/t") == "early" else (0, 9)
        ends = {k: late[k] for k in judged if late[k] is not None}
        if len(middle) < 2 or not ends:
            continue
        usual = float(np.median(middle))
        worst = max(ends, key=lambda k: ends[k] if kind == "nmse" else -ends[k])
        if kind == "nmse":
            bad = ends[worst] > limit["slices/ratio"] * max(usual, 1e-9)
        else:
            bad = usual - ends[worst] > limit["slices/cos"]
        causes = ["target", "scale_mismatch", "leak"]
        yield find(not bad, "slices/ends", causes, kind=kind, slice=worst, end=ends[worst], middle=usual)


def target(s: RunStats, limit: Limits) -> Iterator[Finding]:
    cos = s.late("val/flow/cos", "flow/cos")
    if cos is not None:
        yield find(cos > -limit["target/sign"], "field/target", cos=cos)
    v = s.verdict("one_step")
    if v is not None and (found := v.values.get("cos")):
        mean = float(np.mean(found))
        yield find(mean > -limit["target/sign"], "field/target", cos=mean)
    own = s.late("corr/velocity")
    for name in ("corr/noise", "corr/score", "corr/x0"):
        other = s.late(name)
        if own is not None and other is not None:
            yield find(other <= max(own, 0) + 0.2, "field/other", name=name, other=other, own=own)
    length = s.metrics.get("scale/v*")
    if length is not None and len(length.finite) >= FEW:
        fell = length.late / length.early if length.early else 1.0
        yield find(fell > limit["target/moving"], "field/moving", ["kl"], early=length.early, late=length.late)
