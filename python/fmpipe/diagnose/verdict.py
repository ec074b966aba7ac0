"""What a check says: the numbers it measured, the threshold, what they mean, what to do next."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

STATUSES = ("pass", "warn", "fail", "skipped")
Overrides = Mapping[str, float] | None  # of rows of THRESHOLDS

THRESHOLDS: Mapping[str, float] = MappingProxyType(
    {
        # the autoencoder
        "vae/psnr_warn": 25.0,  # dB of decode(encode(x)); the diary's: 29.08
        "vae/psnr_fail": 20.0,
        "vae/latent_std_low": 0.3,  # of scaled latents, which should be near 1
        "vae/latent_std_high": 3.0,
        "vae/contract_db": 1.0,  # dB that decode(z) must be better than decode(z * scale) and decode(z / scale)
        "latent/rounding": 1e-3,  # noise below this part of a latent is not told from rounding
        "latent/tie": 0.05,  # nats an element by which a sample may fit worse than another explanation of z1
        "latent/rms_low": 0.8,  # of (z1 - mean) / std, which is 1 for a sample
        "latent/rms_high": 1.25,
        "latent/alike": 0.75,  # cosine of the flow's ends with x1 from which on their lengths can be compared
        "latent/left": 0.3,  # of x0 that may be left in the flow's ends: with more of it, the field is to blame
        "latent/apart": 1.4,  # of one length to the other, at most
        # text, data
        "text/cos": 0.9,  # mean pairwise cosine of z_text of different prompts, below
        "data/pairing": 0.0,  # score of true pairs less that of shuffled ones, above
        "data/pairing_fail": 2.0,  # standard errors by which it must be above
        "data/pairing_warn": 4.0,
        "data/same": 0.01,  # rms of the difference of two paths' images / their std, at most
        "data/alike": 0.95,  # correlation that names how they differ
        "data/range": 0.01,  # by which pixels may leave [-1, 1]
        # the field
        "scale/ratio": 3.0,  # largest / smallest of E|z0|, E|z1|, E|x_t|, E|v*|, at most
        "one_step/cos": 0.5,
        "one_step/ratio_low": 0.5,
        "one_step/ratio_high": 2.0,
        "shooting/relative": 0.5,  # MSE(z_end, x1) / MSE(x0, x1), below
        "shooting/fall": 0.95,  # that with the calibrated gain / without, at most, to count as falling
        "teacher/growth": 3.0,  # MSE at N = 100 / MSE at N = 5, at most
        "teacher/floor": 1e-7,  # of MSE(x0, x1): smaller errors count as this one
        "teacher/relative": 0.01,  # of MSE(x0, x1), at most
        "target/margin": 0.1,  # cosine with the velocity above that with any other target
        "endpoint/rise": 1.05,  # RMSE at a K / that at the K before, at most
        "endpoint/creep": 1.15,  # RMSE at a K / the least of smaller K, at most
        "endpoint/floor": 1e-3,  # of RMSE(x0, x1): smaller errors may do anything
        "condition/gain": 0.0,  # cos(cond) - cos(shuffled), above
        "condition/weak": 0.02,  # below, it may be chance
        "leak/cos": 0.9,
        "leak/relative": 0.5,
        "leak/std": 0.3,
        "probes/contrast": 0.05,  # std over pixels in [-1, 1] of a decoded latent, above
        "probes/range": 1.5,  # |pixel| of a decoded latent, at most; 1 is white, and decoders overshoot
        "probes/first_step": 1e-4,  # rms of the first step's change / rms of z0, above
        # training
        "gradient_path/leak": 1e-6,  # norm of d target / d x1, of d KL / d eps, at most
        "kl/there": 0.1,  # distance of mu/abs_mean, std/mean, logvar/mean from 0, 1, 0 that needs no trend, at most
        "kl/z_mean": 0.1,  # |mean| of z_init, at most
        "kl/z_var_low": 0.5,
        "kl/z_var_high": 2.0,
        "kl/collapse_std": 0.05,  # std/mean below
        "kl/clamped": 0.5,  # share of logvar at its clamp, at most
        "dino/entropy": 0.05,  # of log K, above
        "dino/gradient": 0.05,  # grad/dino / grad/total, above, when the student's entropy is small
        "share/warn": 0.10,  # grad/one / grad/total
        "share/fail": 0.05,
        "share/dino_low": 0.2,  # of grad/flow
        "share/dino_high": 0.5,
        "share/kl_low": 0.1,
        "share/kl_high": 0.3,
        "update/ratio": 1e-5,  # median over the last steps of |change| / |parameter|, above
        "update/jump": 1e-1,  # the same median, at most
        "time/rms": 3.0,  # rms of the time embedding / rms of the features it is added to, at most
        "loss/ratio": 100.0,  # largest / smallest weighted loss, at most
        "overflow/skipped": 0.05,  # share of optimizer steps skipped for overflow, at most
        "overflow/scale": 1.0,  # of a GradScaler at the end, at least
        "overfit/loss": 0.5,  # last / first flow MSE, below
        "overfit/cos": 0.5,  # at the end, above
        "overfit/kl": 3.0,  # largest / smallest KL, at most
        "ablation/drop": 0.05,  # of cos or a relative loss, that counts as a change
        "ablation/gain": 0.02,  # of cos by the right condition, at or below which it is noise
        "ablation/left": 0.5,  # share of the KL's trend that may be left at w_kl = 0
    }
)


@dataclass(frozen=True)
class Verdict:
    """name: of the check. status: ``pass``, ``warn``, ``fail`` or ``skipped``. values: what was measured.

    threshold: the rule, with its numbers. meaning: of these values. advice: what to do next (empty when it passes).
    experience: what happened to the people who met it first, a sentence or two.
    """

    name: str
    status: str
    values: dict[str, object]
    threshold: str
    meaning: str
    advice: str = ""
    experience: str = ""

    def __post_init__(self):
        if self.status not in STATUSES:
            raise ValueError(f"Verdict: unknown status {self.status!r}; choose one of {', '.join(STATUSES)}")

    def __bool__(self) -> bool:
        """False for a failure only."""
        return self.status != "fail"

    def __str__(self) -> str:
        return " ".join(filter(None, [f"{self.name}: {self.status.upper()}.", self.meaning, self.advice]))

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def skipped(name: str, why: str) -> Verdict:
    """The verdict of a check that had nothing to measure; why: which input it lacks."""
    return Verdict(name, "skipped", {}, "", why)


def nonfinite(values: object, name: str = "") -> list[str]:
    """The names of numbers that are infinite or NaN, in a dict of numbers, lists and dicts."""
    if isinstance(values, Mapping):
        return [bad for key, value in values.items() for bad in nonfinite(value, f"{name} {key}".strip())]
    if isinstance(values, (list, tuple)):
        return [name] * any(nonfinite(value, name) for value in values)
    return [name] * (isinstance(values, float) and not math.isfinite(values))


def not_finite(name: str, values: dict, threshold: str, experience: str = "") -> Verdict:
    """The failure of a check one of whose numbers is infinite or NaN, whatever comparisons would make of it."""
    bad = ", ".join(nonfinite(values))
    advice = "Find the first: fmkernels.flow.Trace names its step and sample. Run in fp32, with a lower learning rate."
    return Verdict(name, "fail", values, threshold, f"Not finite: {bad}.", advice, experience)


def limits(overrides: Overrides = None) -> dict[str, float]:
    """:data:`THRESHOLDS` with some replaced. KeyError for a name it does not have, with the nearest it has."""
    for name in overrides or {}:
        if name not in THRESHOLDS:
            near = difflib.get_close_matches(name, THRESHOLDS, 1, 0.0)
            raise KeyError(f"limits: there is no threshold {name!r}; the nearest is {near[0]!r}")
    return {**THRESHOLDS, **(overrides or {})}
