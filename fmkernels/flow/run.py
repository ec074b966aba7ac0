"""What the solvers share: the state and the network's copy of it, guidance, the trace, callbacks, and graphs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fmkernels import checks
from fmkernels.flow.graph import Captured
from fmkernels.flow.schedule import Schedule
from fmkernels.flow.trace import COLUMNS, Trace


class Now(NamedTuple):
    """Tensors of one step. t, t_next: one element per network input. dt: (1,). stats: the step's row of the trace."""

    t: Tensor
    t_next: Tensor
    dt: Tensor
    stats: Tensor


@dataclass
class Run:
    """One call of ``sample``, whose arguments are the fields. A solver's function iterates over ``steps()``.

    x: the state, fp32 (fp64 for fp64 z0), updated in place. input: the network's input in z0's dtype; with guidance,
    both halves of the batch. low: its first half, the copy of x that the step ops write. v: a buffer for the velocity
    in x's dtype, if the solver or the callback needs it. dt: the step sizes, as numbers.
    """

    velocity: Callable[..., Tensor]
    z0: Tensor
    plan: Schedule
    guidance: float | None
    gain: float
    dt_scale: float
    trace: Trace
    callback: Callable[[dict], object] | None
    step_end: Callable[[int, Tensor, Tensor], Tensor | None] | None
    copy_state: bool
    graph: bool

    def __post_init__(self):
        z0, halves = self.z0.detach(), 1 if self.guidance is None else 2
        self.x = z0.to(torch.promote_types(z0.dtype, torch.float32), copy=True)
        self.input = torch.cat([z0] * halves)
        self.low = self.input[: len(z0)]
        null = torch.arange(len(self.input), device=z0.device) >= len(z0)
        self.options = {} if self.guidance is None else {"null": null}
        self.v = torch.empty_like(self.x)
        self.dt_table = self.plan.dt * self.dt_scale
        self.dt = self.dt_table.tolist()
        self.update = {"gain": self.gain, "low": self.low}  # what every step op gets

    def evaluate(self, t: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return (v, v_null) of the network at t, which has an element per input."""
        if self.guidance is not None:
            self.input[len(self.low) :].copy_(self.low)
        v = self.velocity(self.input, t, **self.options)
        if not isinstance(v, Tensor) or v.shape != self.input.shape or not v.is_floating_point():
            got = f"{tuple(v.shape)} {v.dtype}" if isinstance(v, Tensor) else type(v).__name__
            raise ValueError(
                f"sample: velocity must return a floating point tensor of x's shape {tuple(self.input.shape)}, got "
                f"{got}; for a model with one output per stage, pass the last: lambda x, t, **kw: model(x, t, **kw)[-1]"
            )
        if v.untyped_storage().data_ptr() == self.input.untyped_storage().data_ptr():
            v = v.clone()  # it returned its input, which the step is about to write
        return (v, None) if self.guidance is None else v.chunk(2)

    def guided(self, t: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the (guided) velocity at t in x's dtype, in ``v`` or in ``out``: the network may reuse its output."""
        out = self.v if out is None else out
        v, v_null = self.evaluate(t)
        return out.copy_(v) if v_null is None else out.copy_(v_null).lerp_(v.to(out.dtype), self.guidance)

    def steps(self) -> Iterator[Now]:
        """Yield every step; afterwards, call the callback and step_end and record the statistics."""
        times, wide = self.plan.t.tolist(), (-1, len(self.input))
        columns = self.plan.t[:, None].expand(wide), self.plan.t_next[:, None].expand(wide), self.dt_table[:, None]
        self.table = torch.cat(columns, dim=1).to(self.x.device, self.x.dtype)  # one upload
        self.stats = self._rows(len(times))
        for k, t in enumerate(times):
            before = self.x.clone() if self.callback else None
            yield self._now(self.table[k], self.stats[k])
            if self.callback:
                self.callback(self.seen(k, t, self.dt[k], before, self.v, self.gain * sum(self.dt[k:])))
            self.trace.append(k, self.stats[k], self.x.dtype, t)
            if self.step_end:
                x = self.x.clone() if self.copy_state else self.x
                if (replaced := self.step_end(k, x, self.stats[k])) is not None:
                    checks.like("sample", "what step_end returns", replaced, "x", self.x)
                    self.low.copy_(self.x.copy_(replaced))

    def repeat(self, step: Callable[[Now], object]) -> None:
        """Run ``step`` at every step, from a graph if possible."""
        step = self.captured(step)
        for now in self.steps():
            step(now)

    def captured(self, step: Callable[[Now], object], first: int = 0) -> Callable[[Now], object]:
        """Return ``step``, or with graphs, a function that replays it. Call it at every step from ``first`` on.

        The number of the step is kept on the device: a replay gathers the step's row of the table and scatters the
        statistics.
        """
        if not self.graph:
            return step
        index = torch.full((1,), first, device=self.x.device)
        (row,) = self._rows(1)

        def on_the_device() -> None:
            step(self._now(self.table.index_select(0, index)[0], row))
            self.stats.index_copy_(0, index, row[None])
            index.add_(1)

        replayed = Captured(on_the_device, self.x.device)
        return lambda now: replayed()

    def _now(self, row: Tensor, stats: Tensor) -> Now:
        return Now(*row.split([len(self.input), len(self.input), 1]), stats)

    def _rows(self, steps: int) -> Tensor:
        return torch.empty(steps, len(self.x), len(COLUMNS), device=self.x.device, dtype=torch.float32)

    def seen(self, step: int, t: float, dt: float, x: Tensor, v: Tensor, left: float) -> dict:
        """Return what a callback gets; left: the gain times the time to the end."""
        return {"step": step, "t": t, "dt": dt, "x": x, "v": v.clone(), "predicted_endpoint": x + left * v}
