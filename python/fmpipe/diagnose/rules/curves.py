"""Curves of a log: the smoothed training loss, its noise, and what a run does by design that changes the loss."""

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from fmpipe.diagnose.figures import Figures, Series
from fmpipe.diagnose.rules.data import LOSSES

FEW = 24  # values below which a curve cannot be judged
_REWARD = re.compile("reward|(?:episode|ep|mean|avg)_return|ep_rew", re.IGNORECASE)
_NO_GOAL = re.compile("/(?:kl|disc)$|sds|vsd|policy|actor|critic|value|entropy|pg_")  # losses that need not fall
_OPPONENT = re.compile(  # names of a discriminator's losses and outputs
    r"discriminator|(?:^|[_/.\s])(?:d|disc|gan|adv)_(?:total|adv|loss|real|fake)|(?:g|gen)_adv|(?:real|fake)_(?:logit|score)"
    r"|(?:logits?|scores?|out_d)[_/](?:real|fake)|(?:^|[/\s])D_[AB]$",
    re.IGNORECASE,
)
_PROGRESS = re.compile(  # not settings: counters and speeds
    r"epoch|batch_?i|progress|percent|elapsed|\beta\b|tps|flops|mfu|throughput|per_?s|time|mem|speed|seconds|gpu",
    re.IGNORECASE,
)
HELD_OUT = (*(f"val/loss/{name}" for name in ("flow", "diffusion", "mse", "total", "rec")), "val/flow/nmse")


class LossCurve:
    """A smoothed loss: level (running median), noise (robust deviation from it), and where it begins and ends."""

    def __init__(self, series: Series):
        good = np.isfinite(series.values)
        self.steps, self.values = thinned(series.steps[good], series.values[good])
        n = len(self.values)
        self.window = max(5, n // 40)
        self.level = running_median(self.values, self.window)
        apart = np.abs(self.values - self.level)
        self.noise = float(np.median(apart)) * 1.4826 if n else 0.0
        late = float(np.median(apart[n // 2 :])) * 1.4826 if n else 0.0
        self.error = 1.25 * late / math.sqrt(self.window)  # standard error of the level in the last half
        self.blocks = (
            [float(np.median(part)) for part in np.array_split(self.values[n // 10 :], 16)] if n >= FEW else []
        )
        self.drift = noise_of(self.blocks) if n >= FEW else 0.0  # noise that does not average out
        tenth = max(3, n // 10)
        self.first = float(np.median(self.values[: max(3, n // 20)])) if n else math.nan
        self.last = float(np.median(self.values[-tenth:])) if n else math.nan
        self.lowest = int(self.level.argmin()) if n else 0

    def __len__(self) -> int:
        return len(self.values)


def thinned(steps: np.ndarray, values: np.ndarray, most: int = 8000) -> tuple[np.ndarray, np.ndarray]:
    """Return medians of blocks if there are more than ``most`` values: a trend needs no more."""
    size = -(-len(values) // most)
    if size < 2:
        return steps, values
    whole = len(values) // size * size
    return steps[:whole:size], np.median(values[:whole].reshape(-1, size), axis=1)


def rank_correlation(x: Sequence[float]) -> float:
    """Return Spearman's correlation of a series with time."""
    order = np.argsort(np.argsort(x, kind="stable"), kind="stable")
    return float(np.corrcoef(order, np.arange(len(x)))[0, 1]) if len(x) > 2 else 0.0


def running_median(x: np.ndarray, window: int) -> np.ndarray:
    if len(x) <= window:
        return np.full(len(x), np.median(x)) if len(x) else x
    half = window // 2
    padded = np.concatenate([np.full(half, np.median(x[: half + 1])), x, np.full(half, np.median(x[-half - 1 :]))])
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)


def noise_of(x: Sequence[float]) -> float:
    """Return the standard deviation of the noise in a curve, from its second differences."""
    return float(np.median(np.abs(np.diff(x, 2)))) * 1.4826 / math.sqrt(6)


def _settings(f: Figures) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (name, steps, values) of the settings in a log: series without noise, such as a weight or a resolution."""
    for name in ("lr", *(n for n in f.metrics if n.startswith("w/")), *f.unknown):
        x = f.metrics.get(name)
        if x is None or len(x.finite) < FEW or _PROGRESS.search(name):
            continue
        values, width = x.finite, float(np.ptp(x.finite))
        if width > 0 and (np.abs(np.diff(values, 2)) > 2e-3 * width).mean() < 0.2:
            yield name, x.steps[np.isfinite(x.values)], values


def setting_jumps(f: Figures) -> Iterator[np.ndarray]:
    """Yield the steps at which each setting jumps."""
    for _, steps, values in _settings(f):
        by = np.abs(np.diff(values))
        yield steps[1:][by > 8 * np.median(by) + 0.01 * np.ptp(values)]


def setting_changes(f: Figures, start: float, end: float) -> bool:
    """Tell whether a setting other than the LR, which bends or jumps, differs between two steps."""
    for name, steps, values in _settings(f):
        bends = np.abs(np.diff(values, 2)).max() > 0.3 * np.abs(np.diff(values)).max()
        apart = np.abs(np.diff(np.interp([start, end], steps, values)))[0]
        if name != "lr" and bends and apart > 0.1 * np.ptp(values):
            return True
    return False


def loss_curve_of(f: Figures) -> LossCurve | None:
    """Return the curve of the training loss; None if it is too short."""
    adversarial = is_adversarial(f) and "loss/rec" in f.metrics  # the total changes with the discriminator
    series = f.first_of(*(("loss/rec",) if adversarial else (*LOSSES, "loss/rec")))
    if series is None:  # the longest of losses with other names
        others = [x for n, x in f.metrics.items() if n.startswith("loss/") and not _NO_GOAL.search(n)]
        series = max(others, key=lambda x: len(x.finite), default=None)
    if series is None or f.stage == "vae" or is_rewarded(f) or len(series.finite) < FEW:
        return None
    if "curve" not in series.cache:
        series.cache["curve"] = LossCurve(series)
    return series.cache["curve"]


def is_rewarded(f: Figures) -> bool:
    """Tell whether the run maximizes a reward: its loss need not fall."""
    return any(_REWARD.search(name) for name in f.unknown)


def is_adversarial(f: Figures) -> bool:
    """Tell whether the run has a discriminator: the losses of the two sides rise and fall with each other."""
    return "loss/disc" in f.metrics or any(_OPPONENT.search(name) for name in (*f.unknown, *f.names))


def held_out_is_best(f: Figures, step: float) -> bool:
    """Tell whether held-out losses or measures of samples, after a step, end as good as they ever were."""
    series = ((n, f.metrics[n]) for n in (*HELD_OUT, "quality/fid") if n in f.metrics)
    late = [x.finite for _, x in series if len(x.finite) > 4 and x.steps[-1] > step]
    return bool(late) and all(float(np.median(x[-2:])) <= 1.02 * float(x.min()) for x in late)


def warming_up(f: Figures) -> bool:
    """Tell whether the log ends while the LR is still rising: nothing is learned yet."""
    lr = f.first_of("lr")
    return lr is not None and len(lr.finite) > 3 and bool((np.diff(lr.finite) > 0).all())
