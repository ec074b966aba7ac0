"""Figures of a run: what ``fmpipe check`` measures and ``fmpipe report`` reads, and what the rules judge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Series:
    """One figure over time. steps, values: (N,), in the order of the steps.

    stated: summaries that a text states (``{"min": 0.16, "last10": 0.05, "count": 57168}``); each goes
    before what the values give, so that a report without its log is a series too.
    """

    steps: np.ndarray
    values: np.ndarray
    stated: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self):
        self.steps, self.values = np.asarray(self.steps), np.asarray(self.values, dtype=np.float64)
        if self.steps.shape != self.values.shape or self.values.ndim != 1:
            raise ValueError(f"Series: steps and values must be (N,), got {self.steps.shape} and {self.values.shape}")
        self._kept: dict[str, float] = {}  # a property is asked for several times, and N may be half a million
        self._finite: np.ndarray | None = None

    @classmethod
    def of(cls, values: Sequence[float], steps: Sequence[float] | None = None, **stated: float) -> "Series":
        """Of a plain list, the steps 0, 1, … unless given."""
        return cls(np.arange(len(values)) if steps is None else steps, values, stated)

    def _of(self, name: str, function, part: np.ndarray | None = None) -> float:
        if name in self.stated:
            return self.stated[name]
        if name not in self._kept:
            part = self.finite if part is None else part
            self._kept[name] = float(function(part)) if len(part) else float("nan")
        return self._kept[name]

    @property
    def finite(self) -> np.ndarray:
        """The values that are numbers."""
        if self._finite is None:
            good = np.isfinite(self.values)
            self._finite = self.values if good.all() else self.values[good]
        return self._finite

    @property
    def count(self) -> int:
        return int(self.stated.get("count", len(self.values)))

    @property
    def nonfinite(self) -> int:
        return int(self._of("nonfinite", lambda x: (~np.isfinite(x)).sum(), self.values)) if self.count else 0

    @property
    def first_nonfinite(self) -> int | None:
        """The step of the first value that is NaN or infinite."""
        bad = np.flatnonzero(~np.isfinite(self.values))
        return int(self.steps[bad[0]]) if len(bad) else None

    @property
    def first_above(self) -> int | None:
        """The step of the first value above 0 or not finite: of a count of bad elements."""
        bad = np.flatnonzero(~(self.values <= 0))
        return int(self.steps[bad[0]]) if len(bad) else None

    @property
    def min(self) -> float:
        return self._of("min", np.min)

    @property
    def max(self) -> float:
        return self._of("max", np.max)

    @property
    def mean(self) -> float:
        return self._of("mean", np.mean)

    @property
    def median(self) -> float:
        return self._of("median", np.median)

    @property
    def first10(self) -> float:
        """Mean of the first ten."""
        return self._of("first10", lambda x: x[:10].mean())

    @property
    def last10(self) -> float:
        """Mean of the last ten."""
        return self._of("last10", lambda x: x[-10:].mean())

    @property
    def early(self) -> float:
        """Median of the first tenth: what a trend is measured from."""
        return self._of("early", lambda x: np.median(x[: max(1, len(x) // 10)]))

    @property
    def late(self) -> float:
        """Median of the last quarter: where it has come to."""
        return self._of("late", lambda x: np.median(x[-max(1, len(x) // 4) :]))

    @property
    def half(self) -> float:
        """Median of the last half: what held for a long time."""
        return self._of("half", lambda x: np.median(x[len(x) // 2 :]))

    @property
    def last(self) -> float:
        return self._of("last", lambda x: x[-1])


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
        names, unknown: names of the log -> canonical names, and the names that were not recognised.
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
