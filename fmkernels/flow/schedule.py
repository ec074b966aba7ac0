"""Step schedules: explicit tables of where the velocity is evaluated and how far each step goes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Schedule:
    """Step k evaluates the velocity at ``t[k]`` and moves by ``dt[k]``. Both are (N,) fp32 tables on the CPU.

    start: the time before the first step, t[0] by default. ``print(schedule)`` shows the table, and a note if the
    steps do not add up to the whole path.
    """

    name: str
    t: Tensor
    dt: Tensor
    start: float | None = None

    def __post_init__(self):
        for field in ("t", "dt"):
            value = getattr(self, field)
            value = value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
            value = value.to("cpu", torch.float32, copy=True)
            if value.dim() != 1 or len(value) == 0:
                raise ValueError(f"Schedule: {field} must be of shape (N,) with N > 0, got {tuple(value.shape)}")
            if not torch.isfinite(value).all():
                raise ValueError(f"Schedule: {field} must be finite, got {value.tolist()}")
            object.__setattr__(self, field, value)
        if self.t.min() < 0 or self.t.max() > 1:
            raise ValueError(f"Schedule: t must be in [0, 1], got {self.t.min():g} … {self.t.max():g}")
        if len(self.t) != len(self.dt):
            raise ValueError(f"Schedule: t and dt must be of one length, got {len(self.t)} and {len(self.dt)}")
        if self.start is None:
            object.__setattr__(self, "start", self.t[0].item())

    def __len__(self) -> int:
        return len(self.t)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return zip(self.t.tolist(), self.dt.tolist(), strict=True)

    def __getitem__(self, step: int) -> tuple[float, float]:
        return self.t[step].item(), self.dt[step].item()

    @property
    def total(self) -> float:
        """The sum of dt: 1 for a schedule that covers the path."""
        return self.dt.double().sum().item()

    @property
    def end(self) -> float:
        """The time after the last step."""
        return self.start + self.total

    @property
    def t_next(self) -> Tensor:
        """(N,): the time of the state after each step, which is the next step's t, and ``end`` after the last."""
        return torch.cat([self.t[1:], self.t.new_tensor([self.end]).clamp(0, 1)])

    def reversed(self) -> "Schedule":
        """t and dt in reverse order, dt negative: the "1->0" of the debugging notes.

        A step is then evaluated at the time it leads to, so every solver is of first order on it.
        """
        return Schedule(f"{self.name}, 1->0", self.t.flip(0), -self.dt.flip(0), self.end)

    def __str__(self) -> str:
        lines = [f"{self.name}, {len(self)} steps", " step         t        dt"]
        lines += [f"{k:>5}  {t:8.6f}  {dt:8.6f}" for k, (t, dt) in enumerate(self)]
        if abs(abs(self.total) - 1) > 1e-4:
            way = f"from t = {self.start:.4f} to {self.end:.4f}"
            lines.append(f"the steps add up to {self.total:.4f}, not to 1: they lead {way}")
        return "\n".join(lines)


def _steps(name: str, steps: object) -> int:
    if not isinstance(steps, Integral) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"{name}: steps must be a whole number of at least 1, got {steps!r}")
    return int(steps)


def _even(steps: int) -> Tensor:
    return torch.linspace(0, 1, steps + 1, dtype=torch.float64, device="cpu")


def _between(name: str, edges: Tensor) -> Schedule:
    """Each step starts at one edge and ends at the next; differences are taken before rounding to fp32."""
    return Schedule(name, edges[:-1], edges.diff())


def logit_normal(steps: int, *, close_ends: bool = False) -> Schedule:
    """``t = sigmoid(icdf(u))``, u even between 1e-6 and 1 - 1e-6, in fp32.

    This is the grid of the debugging notes, to every printed digit. It starts after 0 and ends before 1 (0.0086 and
    0.9914); ``close_ends`` stretches it to the whole path.
    """
    u = torch.linspace(1e-6, 1 - 1e-6, _steps("logit_normal", steps) + 1, dtype=torch.float32, device="cpu")
    edges = torch.sigmoid(torch.erfinv(2 * u - 1) * math.sqrt(2))
    if close_ends:
        edges = (edges - edges[0]) / (edges[-1] - edges[0])
    return _between("logit_normal" + (", ends closed" if close_ends else ""), edges)


def uniform(steps: int) -> Schedule:
    """``t = k/N``, ``dt = 1/N``."""
    return _between("uniform", _even(_steps("uniform", steps)))


def midpoint(steps: int) -> Schedule:
    """``t = (k + 1/2)/N``, ``dt = 1/N``: a first-order rule of Euler's cost, for Euler only."""
    edges = _even(_steps("midpoint", steps))
    return Schedule("midpoint", edges[:-1] + 0.5 / steps, edges.diff(), start=0.0)


def crossflow(steps: int) -> Schedule:
    """CrossFlow's schedule: t is N even points from 0 to 1 - 1e-5, dt the differences of N + 1 from 1e-5 to 1."""
    kind = {"dtype": torch.float32, "device": "cpu"}
    t = torch.linspace(0, 1 - 1e-5, _steps("crossflow", steps), **kind)
    return Schedule("crossflow", t, torch.linspace(1e-5, 1, steps + 1, **kind).diff())


def shifted(steps: int, *, shift: float = 3.0) -> Schedule:
    """``t = s u / (1 + (s - 1) u)``, u = k/N: with s > 1 the steps get shorter toward 1."""
    if not isinstance(shift, (int, float)) or not 0 < shift < math.inf:
        raise ValueError(f"shifted: shift must be a positive number, got {shift!r}")
    u = _even(_steps("shifted", steps))
    return _between(f"shifted by {shift:g}", shift * u / (1 + (shift - 1) * u))


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    f.__name__: f for f in (logit_normal, uniform, midpoint, crossflow, shifted)
}


def make_schedule(name: str, steps: int, **options) -> Schedule:
    """A schedule by its name; raises ValueError, listing the names, for an unknown one."""
    if name not in SCHEDULES:
        raise ValueError(f"make_schedule: unknown schedule {name!r}; choose one of {', '.join(SCHEDULES)}")
    return SCHEDULES[name](steps, **options)
