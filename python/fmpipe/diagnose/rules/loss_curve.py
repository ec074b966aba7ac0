"""Rules about the loss curve: learning rate, trend, generalization, resuming, and the end of the run."""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from fmpipe.diagnose.figures import Figures, Series
from fmpipe.diagnose.rule import Evidence, rule, say
from fmpipe.diagnose.rules.curves import (
    FEW,
    HELD_OUT,
    LossCurve,
    held_out_is_best,
    is_adversarial,
    is_rewarded,
    loss_curve_of,
    noise_of,
    rank_correlation,
    running_median,
    setting_changes,
    setting_jumps,
    thinned,
    warming_up,
)
from fmpipe.diagnose.rules.data import LOSSES
from fmpipe.diagnose.thresholds import Limits


def _learns(f: Figures) -> bool:
    """Tell whether the cosine shows a trained field, for which a flat loss is normal."""
    cos = f.late("val/flow/cos", "flow/cos")
    return cos is not None and cos >= 0.4


@rule("lr", *LOSSES)
def learning_rate(f: Figures, limit: Limits) -> Iterator[Evidence]:
    lr, curve = f.first_of("lr"), loss_curve_of(f)
    if lr is None or len(lr.finite) < 2:
        return
    top, middle = float(lr.finite.max()), float(np.median(lr.finite))
    flat = curve is not None and curve.last > 0.9 * curve.first
    tiny = top < limit["lr/least"] or middle == 0
    small = (tiny and _still(f, lr, curve, limit)) or (top < limit["lr/small"] and flat and not _learns(f))
    yield say(not small, "lr/small", top=top, middle=middle)
    if curve is None:
        return
    swing, falls = _roughness(lr, curve, 0.5 * top)
    high = top >= limit["lr/high"] and swing > limit["lr/swing"] and not falls
    yield say(not high, "lr/high", top=top, swing=swing)
    if jump := _restart(lr, curve, limit):
        planned = setting_changes(f, jump[0] - 1, curve.steps[-1]) or held_out_is_best(f, jump[0])
        values = dict(zip(("step", "low", "high", "before", "after"), jump, strict=True))
        yield say("warn" if planned else "fail", "lr/restart", **values)


def _still(f: Figures, lr: Series, curve: LossCurve | None, limit: Limits) -> bool:
    """Tell whether the loss is flat while the LR is 0. If it falls, a small LR may have been printed as 0."""
    if curve is None:
        loss = f.first_of(*LOSSES)
        return loss is None or len(loss.finite) < 4 or loss.last > 0.95 * float(loss.finite[0])
    rates = np.interp(curve.steps, lr.steps[np.isfinite(lr.values)], lr.finite)
    x = curve.values[rates < limit["lr/least"]]
    part = max(3, len(x) // 5)
    return len(x) >= 6 and float(np.median(x[-part:])) > 0.95 * float(np.median(x[:part]))


def _roughness(lr: Series, curve: LossCurve, least: float) -> tuple[float, bool]:
    """Return how far the losses spread while the LR is at least this high, in medians, and whether they fall."""
    rates = np.interp(curve.steps, lr.steps[np.isfinite(lr.values)], lr.finite)
    there = (rates >= least) & (curve.level > 0)
    x = curve.values[there]
    if len(x) < FEW:
        return 0.0, True
    x, apart = x[len(x) // 5 :], (x / curve.level[there])[len(x) // 5 :]  # after the warm-up
    first, last = np.median(x[: len(x) // 2]), np.median(x[len(x) // 2 :])
    return float(np.ptp(np.percentile(apart, [5, 95]))), bool(last < 0.5 * first)


def _restart(lr: Series, curve: LossCurve, limit: Limits) -> tuple | None:
    """Return (step, LR before and after, loss before and at the end) of a jump from which the loss did not recover."""
    values = lr.finite
    for k in range(max(3, len(values) // 10), len(values) - 2):
        if values[k] > limit["lr/jump"] * values[k - 1] > 0 and values[k - 1] < 0.5 * values[:k].max():
            step = lr.steps[np.isfinite(lr.values)][k]
            before = curve.values[curve.steps < step]
            after = curve.values[curve.steps >= step]
            if len(before) >= 4 and len(after) >= 4:
                low, end = float(np.median(before[-max(4, len(before) // 10) :])), curve.last
                if end > 1.1 * low:
                    return int(step), float(values[k - 1]), float(values[k]), low, end
    return None


@rule(*LOSSES)
def loss_trend(f: Figures, limit: Limits) -> Iterator[Evidence]:
    curve = loss_curve_of(f)
    if curve is None:
        short = f.first_of(*LOSSES)
        if short is not None and short.count >= 10 and short.first10 > 0 and not is_rewarded(f):
            values = {"first": short.first10, "low": short.min, "last": short.last10, "step": int(short.steps[0])}
            rise = short.last10 > limit["trend/rise"] * short.first10
            yield say(not rise, "trend/rise", **values)
        return
    low, end, n = float(curve.level[curve.lowest]), curve.last, len(curve)
    values = {"first": curve.first, "low": low, "last": end, "step": int(curve.steps[curve.lowest])}
    if status := flatness(f, limit):
        yield say(status, "trend/flat", **values)
    # a negative loss rises in parts of what it had fallen, a positive one in parts of its lowest level
    whole = low if low > 0 else curve.first - low
    above, clear = (end - low) / max(whole, 1e-12), end - low > 6 * curve.error and not is_adversarial(f)
    clear = clear and (end - min(curve.blocks) > 6 * curve.drift or end > 2 * curve.first)
    early = curve.lowest < (0.85 if above < 0.5 else 0.95) * n
    jump = _jump(curve) if clear and early and low > 0 and above > 0.5 * (limit["trend/rise"] - 1) else None
    at_once = curve.lowest < 0.05 * n and above < 0.5 and curve.first < 1.1 * low  # the first losses are chance
    rise = clear and early and not at_once and above > limit["trend/rise"] - 1
    planned = (jump or rise) and setting_changes(f, curve.steps[curve.lowest], curve.steps[-1])
    planned = planned or held_out_is_best(f, curve.steps[curve.lowest])
    planned |= jump is not None and any(r.key == "remark/restarted" for r in f.remarks)  # another stage
    bad = "warn" if planned else "fail"
    if jump is not None:
        yield say(bad, "trend/jump", step=jump, low=low, last=end)
    else:
        yield say(bad if rise else "pass", "trend/rise", **values)
    if low <= 0 or curve.values.min() <= 0 or is_adversarial(f):
        return
    apart = np.log(curve.values / curve.level)  # single losses spread by factors
    spread = 1.4826 * float(np.median(np.abs(apart)))
    far = np.flatnonzero(apart > max(math.log(limit["trend/spike"]), 6 * spread))
    starts = far[np.diff(far, prepend=-n) > max(3, n // 100)]  # a wide spike is one
    late = int((starts >= n // 2).sum())
    bad = late >= max(3, limit["trend/spikes"] * n / 2)
    yield say(not bad, "trend/spikes", count=len(starts), late=late, worst=float(np.exp(apart.max())))


def flatness(f: Figures, limit: Limits) -> str | None:
    """Return the status of the loss as one that never falls: "fail" or "warn" if it is flat; None if unknown."""
    curve = loss_curve_of(f)
    if curve is None or not curve.last > 0:
        return None
    low, end = float(curve.level[curve.lowest]), curve.last
    error = max(curve.noise / math.sqrt(max(1, len(curve) // 10)), 0.75 * curve.drift)  # of a tenth of the values
    fell = curve.first - min(end, low) > max(limit["trend/flat"] * abs(curve.first), 3 * error)
    fell = fell and (curve.first - end > limit["trend/flat"] * abs(curve.first) or low < 0.85 * curve.first)
    better = any(x.count > 3 and _improves(n, x) for n, x in f.metrics.items() if n.startswith("quality/"))
    held = f.first_of(*HELD_OUT)
    held = held if held is not None and len(held.finite) > 3 else None
    better = better or (
        held is not None and held.last < (1 - limit["trend/flat"]) * held.finite[0] - 3 * noise_of(held.finite)
    )
    begun = curve.steps[0] > 2 * (curve.steps[-1] - curve.steps[0])  # an excerpt of a run that has long fallen
    if fell or end > 1.1 * curve.first or _learns(f) or begun or better:
        return "pass"
    sure = f.numbered or f.metrics.keys() & {"lr", "grad/total", "epoch"}
    seen = error < 0.7 * limit["trend/flat"] * curve.first and curve.first - end < max(3 * error, 0.005 * curve.first)
    seen = seen and rank_correlation(curve.blocks) > -0.6
    seen = seen or (held is not None and abs(held.last / held.finite[0] - 1) < 0.5 * limit["trend/flat"])
    sure = sure and seen and "recipe/finetune" not in f.texts and not warming_up(f)
    return "fail" if sure and curve.first >= limit["trend/low"] else "warn"


def _improves(name: str, x: Series) -> bool:
    """Tell whether a measure of samples (FID, CLIP score) ends better than it began, by more than its noise."""
    gain = (x.last - float(x.finite[0])) * (1 if "clip" in name else -1)
    return gain > max(0.01 * abs(x.last), 3 * float(np.median(np.abs(np.diff(x.finite, 2)))))


def _jump(curve: LossCurve) -> int | None:
    """Return the step at which the loss jumped within a few values to a level that it kept; None for a slow rise."""
    n, w = len(curve), max(3, len(curve) // 60)
    before = np.array([np.median(curve.values[max(0, k - 3 * w) : k]) for k in range(3 * w, n - 3 * w)])
    after = np.array([np.median(curve.values[k : k + w]) for k in range(3 * w, n - 3 * w)])
    if not len(before):
        return None
    k = int((after / np.maximum(before, 1e-12)).argmax())
    rest, noise = curve.last - before[k], curve.noise / math.sqrt(w)
    jumps = after[k] - before[k] > max(0.12 * before[k], 5 * noise, 5 * curve.drift)
    # all values after it are above those before it, so that it is a step and neither a spike nor a slow rise
    later, earlier = curve.values[k + 3 * w :], curve.values[max(0, k) : k + 3 * w]
    step = np.percentile(later, 20) > np.percentile(earlier, 60)
    step = step and np.median(earlier[-w:]) < before[k] + 0.3 * (after[k] - before[k])
    stays = rest > 0.2 * before[k] or (rest > 0.1 * before[k] and curve.last > 0.95 * after[k])
    if jumps and step and stays and after[k] - before[k] > 0.5 * rest:
        return int(curve.steps[k + 3 * w])
    return None


@rule(*HELD_OUT, "val/flow/cos", "quality/fid", "quality/clip_score", *LOSSES)
def generalization(f: Figures, limit: Limits) -> Iterator[Evidence]:
    psnr = f.first_of("val/vae/psnr", "vae/psnr")
    if psnr is not None and psnr.count > 9 and psnr.late >= psnr.early:
        return  # an autoencoder that still improves; its losses change with their weights
    judged = False
    for name in (*HELD_OUT, "val/flow/cos", "quality/fid", "quality/clip_score"):
        held = f.metrics.get(name)
        if held is None or len(held.finite) < 4 or (judged and name.startswith("val/")):
            continue
        better = name.endswith("cos") or "clip" in name
        # what is better when larger, as its distance from 1 or its inverse, so that less is better in all of them
        steps, raw = thinned(held.steps[np.isfinite(held.values)], held.finite, 2000)
        x = (1 - raw if name.endswith("cos") else 1 / np.maximum(raw, 1e-9)) if better else raw
        window, few = max(3, len(x) // 20), len(x) < 5
        level = running_median(x, window) if len(x) >= 12 else x  # one good value among many is chance
        best = int(np.argmin(level))
        end, low = float(np.median(x[-max(1 if few else 2, len(x) // 8) :])), float(level[best])
        noise = 3 * noise_of(x) if len(x) > 6 else 2 * float(np.median(np.abs(np.diff(x))))
        most = limit["overfit/quality" if name.startswith("quality") else "overfit/few" if few else "overfit/turn"]
        worse = end > most * low > 0 and (few or end - low > noise) and best < 0.8 * (len(x) - 1)
        worse = worse and (not few or bool((np.diff(x[best:]) > 0).all()))
        own = f.metrics.get(name.removeprefix("val/")) or f.first_of(*LOSSES)
        own = f.first_of(*LOSSES) if name.startswith("quality") else own
        falls = own is None or name.endswith("cos") or own.late <= 1.02 * _at(own, steps[best])
        values = {"name": name, "low": float(raw[best]), "last": held.last, "step": int(steps[best])}
        yield say(not (worse and falls), "overfit/turn", **values)
        judged |= name.startswith("val/")
    for name in ("flow", "diffusion", "mse", "total"):
        held, own = f.late(f"val/loss/{name}"), f.late(f"loss/{name}")
        if held is not None and own is not None and own > 0:
            values = {"name": name, "held": held, "own": own, "ratio": held / own}
            early = [f.metrics[f"{held_out}loss/{name}"].early for held_out in ("val/", "")]
            falls = held < 0.5 * early[0] or held / own < 1.5 * early[0] / early[1]  # else another unit from the start
            yield say(falls or held <= limit["inference/val"] * own, "overfit/gap", **values)
            break


@rule(*LOSSES, "epoch")
def memorization(f: Figures, limit: Limits) -> Iterator[Evidence]:
    curve = loss_curve_of(f)
    if curve is None or len(curve) < 60 or curve.values.min() <= 0 or is_adversarial(f):
        return
    if (stairs := _stairs(f, curve)) and not _by_schedule(f, curve, len(curve) / stairs[0]):
        yield say("fail", "period/stairs", epochs=stairs[0], drop=stairs[1], within=stairs[2])
    elif (period := _period(curve, limit)) and not _by_schedule(f, curve, period[0]):
        sure = _is_epochs(f, curve, period[0])
        sure = sure if sure is not None else period[1] > limit["overfit/exact"]
        yield say("fail" if sure else "warn", "period/found", period=period[0], share=period[1])
    else:
        yield say("pass", "period/none")


def _stairs(f: Figures, curve: LossCurve) -> tuple[int, float, float] | None:
    """Return (epochs, drop at their ends, change inside) if the loss falls at the ends of epochs and is flat inside."""
    epoch = f.first_of("epoch")
    if epoch is None:
        return None
    number = np.floor(np.interp(curve.steps, epoch.steps, epoch.values) + 1e-6)
    x, parts = np.log(curve.values), []
    for k in np.unique(number):
        inside = x[number == k]
        if len(inside) >= 6:
            third = max(2, len(inside) // 3)
            parts.append((float(np.median(inside[:third])), float(np.median(inside[-third:]))))
    if len(parts) < 5:
        return None
    drops = np.array([b[0] - a[1] for a, b in pairwise(parts)])
    inside = np.array([last - first for first, last in parts])
    drop, within = float(np.median(drops)), float(np.median(inside))
    if (drops < 0).mean() >= 0.8 and drop < -0.03 and drop < 3 * min(within, 0.0) and abs(within) < 0.5 * abs(drop):
        return len(parts), 1 - math.exp(drop), 1 - math.exp(within)
    return None


def _by_schedule(f: Figures, curve: LossCurve, period: float) -> bool:
    """Tell whether a setting jumps with the period, as warm restarts and cyclical weights do."""
    length = period * (curve.steps[-1] - curve.steps[0]) / (len(curve) - 1)
    for steps in setting_jumps(f):
        apart = np.diff(steps) / length
        if len(apart) and (np.abs(apart - np.round(apart)) < 0.1).all() and np.round(apart).min() >= 1:
            return True
    return False


def _is_epochs(f: Figures, curve: LossCurve, period: int) -> bool | None:
    """Tell whether a period, in values, is one or several epochs; None if the log has none."""
    epoch = f.first_of("epoch")
    if epoch is None or not np.ptp(epoch.finite) > 0:
        return None
    number = np.interp(curve.steps, epoch.steps, epoch.values)
    length = (len(curve) - 1) / np.ptp(epoch.finite)
    if (epoch.finite == np.round(epoch.finite)).all():  # they are counted: the first and the last may be cut off
        length = float(np.median(np.unique(np.floor(number + 1e-6), return_counts=True)[1]))
    epochs = period / length
    return round(epochs) >= 1 and abs(epochs - round(epochs)) < 0.15


def _at(series: Series, step: float) -> float:
    """Return the level of a series around a step."""
    near = np.abs(series.steps - step).argsort()[: max(5, len(series.values) // 20)]
    found = series.values[near]
    return float(np.median(found[np.isfinite(found)])) if np.isfinite(found).any() else math.nan


def _trend(values: np.ndarray) -> np.ndarray:
    """Return a smooth curve through a series: a polynomial in the logarithm of the time."""
    time = np.log1p(np.arange(len(values)) / max(1, len(values) / 50))
    return np.polyval(np.polyfit(time, values, 5), time)


def _period(curve: LossCurve, limit: Limits) -> tuple[int, float] | None:
    """Return the period of the loss, in values, and the share of its variance that has it; None if there is none."""
    n = len(curve)
    values = np.log(curve.values)  # so that a falling loss keeps its amplitude
    rest = values - _trend(values)
    rest = np.clip(rest, *np.percentile(rest, [1, 99]))
    power = float((rest * rest).mean())
    if power <= 0:
        return None
    correlation = {lag: float((rest[lag:] * rest[:-lag]).mean()) / power for lag in range(max(8, n // 100), n // 4 + 1)}
    best = max(correlation, key=correlation.get)
    # A slow drift correlates at every short lag; a period does so again at twice its length, and less in between.
    between = min(correlation.get(lag, 1.0) for lag in range(best // 2 - 1, best // 2 + 2))
    twice = float((rest[2 * best :] * rest[: -2 * best]).mean()) / power
    least = limit["overfit/period"]
    if correlation[best] > least and twice > 0.6 * least and between < 0.5 * correlation[best]:
        return best, correlation[best]
    return None


@rule()
def self_stopped(f: Figures, limit: Limits) -> Iterator[Evidence]:
    if why := f.texts.get("stop/reason"):
        yield say("fail", "run/stopped", why=why)


@rule(*LOSSES)
def resumed(f: Figures, limit: Limits) -> Iterator[Evidence]:
    curve = loss_curve_of(f)
    if curve is None:
        return
    again = _from_scratch(curve)
    if again is None:
        yield say("pass", "run/continues")
    else:
        yield say("fail", "run/scratch", step=again[0], before=again[1], after=again[2], first=curve.first)


def _from_scratch(curve: LossCurve) -> tuple[int, float, float] | None:
    """Return (step, loss before, loss after) where the loss is back at its beginning and falls again as it did."""
    n, w = len(curve), max(3, len(curve) // 60)
    first = float(np.median(curve.values[:3]))
    for k in range(max(2 * w, n // 12), n - 3 * w):
        before, after = float(np.median(curve.values[k - w : k])), float(np.median(curve.values[k : k + 2]))
        fallen = first - before
        returns = before + 0.6 * fallen < after < first + 0.5 * fallen
        if not (fallen > 0.2 * abs(first) and fallen > 4 * curve.noise and fallen > 8 * curve.drift and returns):
            continue
        elapsed, so_far = curve.steps[k:] - curve.steps[k], curve.steps[:k] - curve.steps[0]
        common = int((elapsed <= so_far[-1]).sum())  # the interval of logging may have changed
        window = max(3, min(curve.window, common // 8))
        again = running_median(curve.values[k : k + common], window)
        begun = np.interp(elapsed[:common], so_far, running_median(curve.values[:k], window))
        alike = float(np.mean(np.abs(again - begun))) < 0.2 * fallen
        ends = abs(float(np.mean(again[-common // 3 :] - begun[-common // 3 :]))) < 0.12 * fallen
        halves = [_half_life(x, before + 0.5 * fallen) for x in (again, begun)]
        if alike and ends and again[-1] < again[0] - 0.2 * fallen and 0.4 <= halves[0] / halves[1] <= 2.5:
            return int(curve.steps[k]), before, after
    return None


def _half_life(x: np.ndarray, level: float) -> int:
    """Return after how many values, at least 1, a series is below a level."""
    below = np.flatnonzero(x < level)
    return max(1, int(below[0])) if len(below) else len(x)


@rule()
def metrics_lost(f: Figures, limit: Limits) -> Iterator[Evidence]:
    """Judge whether a metric that was logged regularly has finite values until the end of the run."""
    ends = {n: x.steps[np.isfinite(x.values)] for n, x in f.metrics.items() if len(x.finite) >= 4}
    curve = loss_curve_of(f)
    if not ends or curve is None:
        return
    final = max(float(steps[-1]) for steps in ends.values())
    first, lost = min(float(steps[0]) for steps in ends.values()), {}
    for name, steps in ends.items():
        gap, interval = final - float(steps[-1]), float(np.median(np.diff(steps)))
        ended = steps[-1] > curve.steps[0] and gap > max(4 * interval, limit["run/lost"] * (final - first))
        if ended and not name.startswith(("stat/", "epoch", "loss/", "scaler/", "w/", "ent/classes")):
            lost[name] = int(steps[-1])
    if lost:  # they may also have been switched off, unless their places are there
        empty = any(f.metrics[name].nonfinite for name in lost) or any(r.key == "remark/nulls" for r in f.remarks)
        yield say("fail" if empty else "warn", "run/lost", names=list(lost), step=min(lost.values()))
    else:
        yield say("pass", "run/whole")


@rule()
def ema(f: Figures, limit: Limits) -> Iterator[Evidence]:
    pairs = {n: f"val/{n.removeprefix('val/ema/').replace('_', '/', 1)}" for n in f.metrics if n.startswith("val/ema/")}
    pairs |= {n: n.replace("/ema_", "/") for n in f.metrics if n.startswith("quality/ema_")}
    for name, other in pairs.items():
        x, raw = f.metrics[name], f.metrics.get(other)
        if raw is None or min(len(x.finite), len(raw.finite)) < 4:
            continue
        start, gain = float(raw.finite[0]), abs(float(raw.finite[0]) - raw.last)
        sign = 1 if start >= raw.last else -1  # averaged weights may well be better
        behind = sign * (x.last - raw.last) > limit["ema/behind"] * gain and gain > 0.1 * abs(start)
        yield say(not behind, "run/ema", name=name, ema=x.last, raw=raw.last)
