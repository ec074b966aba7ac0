"""Sampling settings: their names, ranges and checks, shared by the pipeline and the command line. Imports no torch."""

from collections.abc import Callable
from math import isfinite
from typing import Literal, get_args

Solver = Literal["euler", "heun", "ab2", "dopri5"]
Schedule = Literal["uniform", "crossflow", "logit_normal", "midpoint", "shifted"]
TimeDirection = Literal["0->1", "1->0"]
Dtype = Literal["float32", "bfloat16", "float16"]
CHOICES = {
    "solver": get_args(Solver),
    "schedule": get_args(Schedule),
    "time_dir": get_args(TimeDirection),
    "z0_mode": ("sample", "mean"),
    "output_type": ("pil", "np", "pt", "latent"),
}
COUNTS = ("num_inference_steps", "num_images_per_prompt")
NUMBERS = ("guidance_scale", "fm_gain", "dt_scale", "max_guidance")
OWN = ("num_inference_steps", "guidance_scale", "schedule", "solver", "fm_gain", "max_guidance")  # may be None


def check_sampling(label: Callable[[str], str] = str, **settings: object) -> None:
    """Raise ValueError for the first setting that cannot be used.

    Args:
        label: maps the name of a setting to the name that the user knows it by, such as ``--steps``.
        settings: any of the arguments of :meth:`fmpipe.FlowPipeline.__call__` in ``CHOICES``, ``COUNTS`` and
            ``NUMBERS``, and ``align_variance``. For those in ``OWN``, None selects the pipeline's own value.
    """
    for name, value in settings.items():
        if value is None and name in OWN:
            continue
        if name in CHOICES and value not in CHOICES[name]:
            raise ValueError(f"unknown {label(name)} {value!r}; choose one of {', '.join(CHOICES[name])}")
        if name in COUNTS and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"{label(name)} must be a whole number of at least 1, got {value!r}")
        if name in NUMBERS and (not isinstance(value, (int, float)) or not isfinite(value)):
            raise ValueError(f"{label(name)} must be a finite number, got {value!r}")
        if name == "align_variance" and not isinstance(value, bool):
            if not isinstance(value, (int, float)) or not isfinite(value):
                raise ValueError(f"{label(name)} must be a finite number, got {value!r}")
            if value <= 0:
                raise ValueError(f"{label(name)} must be True, False or a positive standard deviation, got {value!r}")
