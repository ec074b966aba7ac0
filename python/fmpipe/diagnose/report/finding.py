"""A finding: one fact of a run's numbers, as a sentence, and whether it is as it should be; and the thresholds."""

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from fmpipe.diagnose import verdict
from fmpipe.diagnose.report.said import Said
from fmpipe.diagnose.report.stats import RunStats
from fmpipe.diagnose.verdict import Overrides, Verdict

# The report's own; those of checks are in fmpipe.diagnose.verdict.
THRESHOLDS: Mapping[str, float] = MappingProxyType(
    {
        "input/mean": 0.25,  # |median mean| of latents, at most
        "input/std_low": 0.65,  # median std of latents; the diary's 1.19, SD's VAE at CrossFlow's factor 1.26
        "input/std_high": 1.5,
        "time/mean": 0.03,  # of the range of t, beside four standard errors
        "time/std": 0.03,
        "forward/mean": 0.05,  # of a diffusion's noise
        "forward/std": 0.1,
        "forward/reach": 1.45,  # largest |x_t| / largest |end|: √2 where √ᾱ and √(1 - ᾱ) meet
        "forward/misfit": 0.15,  # of the std of x_t from what its ends and t give
        "output/low": 0.2,  # std of the prediction / of its target, at the end
        "output/high": 2.0,
        "loss/rise": 1.2,  # last ten / first ten, at most
        "loss/outlier": 5.0,  # times the median of the last half
        "loss/outliers": 0.02,  # share of the last half that may be outliers
        "schedule/relative": 0.02,  # of a constant from what the others give
        "schedule/end": 0.01,  # alphas_cumprod at the last step, at most
        "gradient/vanishing": 1e-4,  # late / early norm of all of them, at least, once the loss has stopped falling
        "gradient/exploding": 30.0,  # largest of the last three quarters / median of the first, at most
        "gradient/drowned": 0.05,  # grad/one / grad/total of losses that share parameters, at least
        "kl/mu": 3.0,  # mu/rms, at most; the prior's z has 1
        "kl/formula": 0.25,  # spread of loss/kl / the KL that mu and logvar give, at most
        "trace/moves": 0.4,  # share of steps at which |x| is not what it was, at least
        "trace/displaced": 0.1,  # |x| at the end less at the beginning / Σ|v| dt: below, with so few moves, it is stuck
        "trace/far": 10.0,  # |x| / as far as the first velocity leads, at most
        "trace/lost": 0.1,  # of a step's change, to rounding
        "trace/sum": 0.025,  # of Σ|dt| from 1; the logit-normal grid's is 0.983
        "lr/least": 1e-8,  # the highest LR of a run, at least
        "lr/small": 3e-7,  # the same, where the loss does not fall either
        "lr/high": 5e-4,  # LR from which on a rough loss is blamed on it
        "lr/swing": 1.2,  # 5th to 95th percentile of the losses at such an LR / their median
        "lr/jump": 2.5,  # LR / the one before, of a restart
        "trend/flat": 0.03,  # of the loss, the least fall that counts
        "trend/rise": 1.2,  # loss at the end / its lowest level
        "trend/spike": 3.0,  # loss / its level
        "trend/spikes": 0.004,  # share of the last half that may be spikes
        "overfit/turn": 1.06,  # held-out loss at the end / its lowest
        "overfit/period": 0.4,  # correlation of the loss with itself, a period earlier
        "run/lost": 0.15,  # of the run, for which a metric is missing at the end
        "overflow/fall": 256.0,  # highest loss scale / the last
        "overflow/share": 0.3,  # of the steps that were skipped
        "ema/behind": 0.6,  # of the raw weights' gain, by which the averaged ones may be behind
        "slices/ratio": 2.5,  # nmse at an end of the path / in its middle
        "slices/cos": 0.35,  # cos in the middle less that at an end
        "target/sign": 0.2,  # a cosine below minus this is another target
        "target/moving": 0.45,  # |v*| at the end / at the beginning, at least
        "kl/prior_mu": 0.06,  # mu/abs_mean below which, with sigma near 1, the posterior is the prior
        "kl/prior_std": 0.06,  # distance of std/mean from 1
        "kl/drift": 2.5,  # mu/abs_mean at the end / at the beginning, at most, where only the KL holds it
        "dino/uniform": 0.985,  # of log K, at most
        "scale/start": 3.0,  # |x| at step 0 / 0.8, or between two traces, at most
        "scale/factor": 0.1,  # relative distance of a latent's std from a known scale factor that names it
        "inference/left": 2.2,  # MSE(z_end, z1) / MSE(z0, z1), at most: another picture of the same text has up to 2
        "inference/slow": 0.6,  # flow/speed_ratio / flow/cos, at least: the best prediction of a cosine c has length c
        "inference/learnt": 0.2,  # flow/cos from which on the others can be judged
        "inference/fast": 2.0,  # flow/speed_ratio, at most
        "inference/cos": 0.1,  # flow/cos after inference/steps, at least
        "inference/steps": 500,
        "inference/val": 5.0,  # held-out loss / training loss, at most
    }
)


def limits(overrides: Overrides = None) -> dict[str, float]:
    """The report's thresholds and the checks', some replaced. KeyError for an unknown name, with the nearest."""
    known = {**verdict.THRESHOLDS, **THRESHOLDS}
    for name in overrides or {}:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.0)
            raise KeyError(f"limits: there is no threshold {name!r}; the nearest is {near[0]!r}")
    return {**known, **(overrides or {})}


def of_checks(limit: Mapping[str, float]) -> dict[str, float]:
    """Those of them that a check's judge takes as its overrides."""
    return {name: limit[name] for name in verdict.THRESHOLDS}


class Finding(NamedTuple):
    """One fact. ok: whether it speaks against the hypothesis. causes: hypotheses that would explain it if it is not."""

    ok: bool
    said: Said
    causes: tuple[str, ...] = ()


def find(ok: bool, key: str, causes: Iterable[str] = (), **values: object) -> Finding:
    return Finding(bool(ok), Said(key, **values), tuple(causes))


Limits = Mapping[str, float]
Function = Callable[[RunStats, Limits], Iterator[Finding]]


def checked(s: RunStats, *names: str, causes: Iterable[str] = ()) -> Iterator[Finding]:
    """The verdicts of checks that the run has; a warning is no failure."""
    for v in map(s.verdict, names):
        if v is not None:
            yield find(v.status != "fail", f"check/{v.name}", causes, **_values(v))


_ASKED = ("fm_gain", "growth", "psnr", "mean", "max", "steps", "error", "relative", "cos", "ratio")  # by the templates


def _values(v: Verdict) -> dict[str, object]:
    """Of a check's verdict, for the templates."""
    numbers = {k: x for k, x in v.values.items() if isinstance(x, (int, float)) and not isinstance(x, bool)}
    lists = {k: ", ".join(f"{x:.3g}" for x in xs) for k, xs in v.values.items() if _is_numbers(xs)}
    shown = ", ".join([f"{k} {x:.3g}" for k, x in numbers.items()] + [f"{k} {x}" for k, x in lists.items()])
    texts = {"check": v.name, "meaning": v.meaning, "advice": v.advice, "numbers": shown}
    return {**dict.fromkeys(_ASKED, math.nan), **numbers, **lists, **texts}


def _is_numbers(xs: object) -> bool:
    return isinstance(xs, (list, tuple)) and len(xs) > 0 and all(isinstance(x, (int, float)) for x in xs)
