"""Everything known about a run: ``fmpipe check`` measures it, ``fmpipe report`` reads it, and the rules judge it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np


class _Summary:
    """A property of :class:`Series`: what a text stated, otherwise ``function`` of the finite values."""

    def __init__(self, function: Callable[[np.ndarray], float]):
        self.function = function

    def __set_name__(self, owner: type, name: str):
        self.name = name

    def __get__(self, series: "Series | None", owner: type) -> float:
        if series is None:
            return self
        if self.name in series.stated:
            return series.stated[self.name]
        if self.name not in series.cache:
            series.cache[self.name] = float(self.function(series.finite)) if len(series.finite) else math.nan
        return series.cache[self.name]


@dataclass
class Series:
    """One metric over time. steps, values: (N,), in the order of the steps.

    stated: summaries that a text states (``{"min": 0.16, "last10": 0.05, "count": 57168}``). They take precedence over
    the values, so a report that quotes a log can be judged like the log. cache: what was computed from the values.
    """

    steps: np.ndarray
    values: np.ndarray
    stated: Mapping[str, float] = field(default_factory=dict)
    cache: dict[str, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self):
        self.steps, self.values = np.asarray(self.steps), np.asarray(self.values, dtype=np.float64)
        if self.steps.shape != self.values.shape or self.values.ndim != 1:
            raise ValueError(f"Series: steps and values must be (N,), got {self.steps.shape} and {self.values.shape}")

    @classmethod
    def of(cls, values: Sequence[float], steps: Sequence[float] | None = None, **stated: float) -> "Series":
        """Return the series of a list; the steps are 0, 1, … unless given."""
        return cls(np.arange(len(values)) if steps is None else steps, values, stated)

    min, max = _Summary(np.min), _Summary(np.max)
    mean, median = _Summary(np.mean), _Summary(np.median)
    first10 = _Summary(lambda x: x[:10].mean())
    last10 = _Summary(lambda x: x[-10:].mean())
    early = _Summary(lambda x: np.median(x[: max(1, len(x) // 10)]))  # the first tenth: where a trend begins
    late = _Summary(lambda x: np.median(x[-max(1, len(x) // 4) :]))  # the last quarter: where a trend ends
    half = _Summary(lambda x: np.median(x[len(x) // 2 :]))  # the last half: the usual value
    last = _Summary(lambda x: x[-1])

    @cached_property
    def finite(self) -> np.ndarray:
        """The finite values."""
        good = np.isfinite(self.values)
        return self.values if good.all() else self.values[good]

    @property
    def count(self) -> int:
        return int(self.stated.get("count", len(self.values)))

    @property
    def nonfinite(self) -> int:
        return int(self.stated.get("nonfinite", len(self.values) - len(self.finite)))

    @property
    def first_nonfinite(self) -> int | None:
        """The step of the first value that is NaN or infinite."""
        return self._first(~np.isfinite(self.values))

    @property
    def first_above(self) -> int | None:
        """The step of the first value above 0 or not finite, for a count of bad elements."""
        return self._first(~(self.values <= 0))

    def _first(self, where: np.ndarray) -> int | None:
        return int(self.steps[where.argmax()]) if where.any() else None


@dataclass
class SamplingTrace:
    """One sampling run, step by step. x, v, dt: (N,) of mean |x|, mean |v|, dt.

    dtype: of the state, "" if unknown. whole: whether every step is there, and not every tenth.
    """

    x: np.ndarray
    v: np.ndarray
    dt: np.ndarray
    label: str = ""
    dtype: str = ""
    whole: bool = True

    def __post_init__(self):
        self.x, self.v, self.dt = (np.asarray(a, dtype=np.float64) for a in (self.x, self.v, self.dt))
        if not self.x.shape == self.v.shape == self.dt.shape or self.x.ndim != 1:
            raise ValueError(
                f"SamplingTrace: x, v, dt must be (N,), got {self.x.shape}, {self.v.shape}, {self.dt.shape}"
            )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def start(self) -> float:
        """The largest sigma if the steps are those of sigma, down to 0, from noise of that size; else 1."""
        sigma = float(np.abs(self.dt).sum())
        return sigma if self.whole and sigma > 2 and abs(self.x[0] / (0.8 * sigma) - 1) < 0.1 else 1.0


@dataclass
class Figures:
    """Everything that is known about a run. Every field may be empty: a rule without its figures is not evaluated.

    Args:
        metrics: series by canonical name.
        traces: sampling runs.
        measured: rule -> the numbers that its check measured.
        texts: strings of the log, the last of each (``stat/x_0/dtype``).
        constants: lists of numbers in the log (``const/betas``).
        lines, seconds: length of the log. numbered: whether its lines have steps.
        config: settings of the run, nested.
        facts: what two runs must have in common to be compared.
        stage, stages: name of this stage (``flow``, ``vae``, ``diffusion``), and the other stages of the run.
        names, unknown: names of the log -> canonical names, and the names that were not recognized.
        remarks: sentences about the log itself.
    """

    metrics: dict[str, Series] = field(default_factory=dict)
    traces: list[SamplingTrace] = field(default_factory=list)
    measured: dict[str, dict] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    constants: dict[str, list[float]] = field(default_factory=dict)
    lines: int = 0
    seconds: float | None = None
    config: dict = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    numbered: bool = True
    source: str = ""
    stage: str = ""
    stages: dict[str, "Figures"] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, history: Mapping[str, Sequence[float]]) -> "Figures":
        """Return the figures of a history, name -> values over time."""
        return cls({name: Series.of([float(x) for x in values]) for name, values in history.items()})

    @property
    def all_stages(self) -> dict[str, "Figures"]:
        """Return the stages of the run by name, the main one first."""
        return {self.stage: self, **self.stages}

    @property
    def losses(self) -> int:
        """Return the number of logged losses."""
        return max((x.count for n, x in self.metrics.items() if n.startswith("loss")), default=0)

    def first_of(self, *names: str) -> Series | None:
        """Return the first of these series that exists and has a finite value."""
        found = (self.metrics.get(name) for name in names)
        return next((x for x in found if x is not None and not np.isnan(x.late)), None)

    def range_of(self, tensor: str) -> tuple[Series, Series] | None:
        """Return the series of the smallest and of the largest element of a tensor, None if one is missing."""
        low, high = self.first_of(f"stat/{tensor}/min"), self.first_of(f"stat/{tensor}/max")
        return None if low is None or high is None else (low, high)

    def late(self, *names: str) -> float | None:
        """Return the late value of the first of these series that exists."""
        found = self.first_of(*names)
        return None if found is None else found.late

    def setting(self, path: str, default: object = None) -> object:
        """Return a setting of the config by its path, ``flow/losses/t``."""
        node: object = self.config
        for part in path.split("/"):
            if not isinstance(node, Mapping) or part not in node:
                return default
            node = node[part]
        return node
