"""Sampling settings: their names, ranges and checks, shared by the pipeline and the command line. Imports no torch."""

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, fields, replace
from reprlib import repr  # shortened: a value of a damaged file may be long
from typing import Literal, get_args

Solver = Literal["euler", "heun", "ab2", "dopri5"]
Schedule = Literal["uniform", "crossflow", "logit_normal", "midpoint", "shifted"]
TimeDirection = Literal["0->1", "1->0"]
Dtype = Literal["float32", "bfloat16", "float16"]
VelocityDtype = Literal["float32", "bfloat16", "float16", "auto"]
Precision = Literal["fp32", "bf16", "int8", "fp8", "auto"]
CHOICES = {
    "velocity_precision": get_args(Precision),
    "solver": get_args(Solver),
    "schedule": get_args(Schedule),
    "time_dir": get_args(TimeDirection),
    "z0_mode": ("sample", "mean"),
    "output_type": ("pil", "np", "pt", "latent"),
    "graph": (True, False, "auto"),
}
LARGEST = 100_000  # a count in a damaged file must not fill the memory
COUNTS = ("num_inference_steps", "num_images_per_prompt")
NUMBERS = ("guidance_scale", "fm_gain", "dt_scale", "max_guidance", "diversity")
STORED = ("num_inference_steps", "guidance_scale", "schedule", "solver", "fm_gain")  # in a pipeline's config
OWN = (*STORED, "max_guidance", "graph")  # None selects the pipeline's own value
FLOAT32_MAX = 2.0**128 - 2.0**104
DTYPES = ("float64", *get_args(Dtype))


@dataclass(frozen=True)
class SamplingOptions:
    """The settings of one :meth:`fmpipe.FlowPipeline.__call__`, which describes them.

    Args:
        label: maps the name of a setting to the name that the user knows it by, such as ``--steps``.

    Raises ValueError, naming the first setting that is invalid.
    """

    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    schedule: Schedule | None = None
    solver: Solver | None = None
    fm_gain: float | None = None
    dt_scale: float = 1.0
    time_dir: TimeDirection = "0->1"
    align_variance: bool | float = False
    velocity_dtype: object | None = None  # a torch.dtype, its name, or "auto"
    z0_mode: str = "sample"
    num_images_per_prompt: int = 1
    output_type: str = "pil"
    graph: bool | str | None = None
    diversity: float = 1.0
    label: InitVar[Callable[[str], str]] = str

    def __post_init__(self, label: Callable[[str], str]):
        for field in fields(self):
            check_setting(field.name, getattr(self, field.name), label(field.name))

    @property
    def changed(self) -> dict[str, object]:
        """The settings that are not at their defaults, as arguments of the pipeline."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    def completed(self, config: Mapping[str, object]) -> "SamplingOptions":
        """Return the options with the values of a pipeline's config in place of None."""
        return replace(self, **{name: config[name] for name in STORED if getattr(self, name) is None})

    @property
    def solver_arguments(self) -> dict[str, object]:
        """The arguments of :func:`fmkernels.flow.sample`. A guidance scale of 1 is none, at half the cost."""
        guidance = None if self.guidance_scale == 1 else self.guidance_scale
        shared = {"solver": self.solver, "dt_scale": self.dt_scale, "time_dir": self.time_dir}
        return {**shared, "guidance": guidance, "gain": self.fm_gain}


def check_setting(name: str, value: object, label: str) -> None:
    """Raise ValueError, calling the setting ``label``, unless its value is valid."""
    if value is None and name in OWN:
        return
    if name in CHOICES and value not in CHOICES[name]:
        raise ValueError(f"unknown {label} {repr(value)}; choose one of {', '.join(map(str, CHOICES[name]))}")
    if name in COUNTS and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST):
        raise ValueError(f"{label} must be a whole number from 1 to {LARGEST}, got {repr(value)}")
    number = name in NUMBERS or (name == "align_variance" and not isinstance(value, bool))
    if number and (not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= FLOAT32_MAX):
        raise ValueError(f"{label} must be a finite number, got {repr(value)}")
    if name == "diversity" and value < 0:
        raise ValueError(f"{label} must be 0 or more, got {repr(value)}")
    if name == "align_variance" and value is not False and value <= 0:
        raise ValueError(f"{label} must be True, False or a positive standard deviation, got {repr(value)}")
    if name == "velocity_dtype" and value not in (None, "auto") and str(value).removeprefix("torch.") not in DTYPES:
        raise ValueError(f"{label} must be a floating point dtype, 'auto' or None, got {repr(value)}")
