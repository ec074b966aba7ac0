"""The sampling loop: carry z0 along a velocity field, one step of the schedule after the other."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fmkernels.flow.schedule import Schedule
from fmkernels.flow.trace import COLUMNS, Trace
from fmkernels.ops import _check, euler_step_, multistep_step_

SOLVERS = ("euler", "heun", "ab2", "dopri5")
TOLERANCE = 1e-5  # of dopri5, relative and absolute


class Sample(NamedTuple):
    """x: the state after the last step, fp32 (fp64 for fp64 z0). trace: of all steps, or None."""

    x: Tensor
    trace: Trace | None


@torch.no_grad()
def sample(
    velocity: Callable[..., Tensor],
    z0: Tensor,
    schedule: Schedule,
    *,
    solver: str = "euler",
    guidance: float | None = None,
    gain: float = 1.0,
    dt_scale: float = 1.0,
    time_dir: str = "0->1",
    trace: bool | Trace = True,
    callback: Callable[[dict], object] | None = None,
) -> Sample:
    """``dx/dt = gain * velocity(x, t)`` from x = z0 along the schedule. Returns ``(x, trace)``.

    velocity: called ``velocity(x, t)`` with x like z0, in z0's dtype, and t (B,) fp32 in [0, 1]. With ``guidance``
    it is called once a step with both halves in one batch, ``velocity(x, t, null=null)``, null (2B,) bool, and
    ``v = v_null + guidance * (v - v_null)``. The state is kept in fp32 whatever z0's dtype is.
    solver: ``euler``; ``ab2``, second order at one evaluation a step; ``heun``, second order at two; ``dopri5``,
    adaptive (needs torchdiffeq), takes only the ends from the schedule. time_dir: ``"1->0"`` reverses t and dt.
    trace: False for none, or a :class:`Trace` to fill, which also says what non-finite values do (default: raise).
    callback: called before every step with a dict of ``step t dt x v predicted_endpoint``. x, v and the endpoint
    (where the straight line along v leads) are copies. No gradients, no copy to the host inside the loop.
    """
    _check_arguments(z0, schedule, solver, guidance, gain, dt_scale, time_dir, trace)
    plan = schedule if time_dir == "0->1" else schedule.reversed()
    x = z0.to(torch.promote_types(z0.dtype, torch.float32), copy=True)
    trace = Trace() if trace is True else None if trace is False else trace
    field = _Field(velocity, z0, guidance)
    if solver == "dopri5":
        return _dopri5(field, x, plan, gain * dt_scale, trace, callback)
    plan = plan.scaled(dt_scale)
    times, dt = plan.t.tolist(), plan.dt.tolist()
    t, t_next = (table.to(x.device, x.dtype) for table in (plan.t, plan.t_next))
    stats = torch.empty(len(plan), len(x), len(COLUMNS), device=x.device)
    ahead = torch.empty_like(x) if solver == "heun" else None
    for k in range(len(plan)):
        v, v_null = field(t[k])
        if solver != "euler" or callback:
            v, v_null = field.keep(k, v, v_null), None
        if callback:
            callback(_seen(k, times[k], dt[k], x, v, gain * sum(dt[k:])))
        step = {"gain": gain, "low": field.low, "stats": stats[k]}
        if solver == "heun":
            euler_step_(ahead.copy_(x), v, dt[k], gain=gain, low=field.low)
            multistep_step_(x, v, field.keep(k + 1, *field(t_next[k])), dt[k], 0.5, 0.5, **step)
        elif solver == "ab2" and k > 0:  # the line through the last two velocities, at the middle of the step
            r = dt[k] / dt[k - 1] / 2
            multistep_step_(x, v, field.kept[k - 1 & 1], dt[k], 1 + r, -r, **step)
        else:
            euler_step_(x, v, dt[k], v_uncond=v_null, guidance=1.0 if guidance is None else guidance, **step)
        if trace is not None:
            trace.append(k, stats[k], times[k])
    if trace is not None:
        trace.check()
    return Sample(x, trace)


class _Field:
    """The velocity on a copy of the state in z0's dtype, both guidance halves in one batch."""

    def __init__(self, velocity, z0, guidance):
        self.velocity, self.guidance, self.kept = velocity, guidance, [None, None]
        copies = 1 if guidance is None else 2
        self.x = z0.detach().repeat(copies, *[1] * (z0.dim() - 1))
        self.low = self.x[: len(z0)]  # what the steps write; the other half follows it
        self.options = {}
        if guidance is not None:
            self.options["null"] = torch.arange(len(self.x), device=z0.device) >= len(z0)

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor | None]:
        """(v, v_null) at a 0-dimensional t."""
        if self.guidance is not None:
            self.x[len(self.low) :].copy_(self.low)
        v = self.velocity(self.x, t.expand(len(self.x)), **self.options)
        if not isinstance(v, Tensor) or v.shape != self.x.shape or not v.is_floating_point():
            got = f"{tuple(v.shape)} {v.dtype}" if isinstance(v, Tensor) else type(v).__name__
            raise ValueError(
                f"sample: velocity must return a floating point tensor of x's shape {tuple(self.x.shape)}, got {got}; "
                f"of a model with an output a stage pass the last: lambda x, t, **kw: model(x, t, **kw)[-1]"
            )
        if v.untyped_storage().data_ptr() == self.x.untyped_storage().data_ptr():
            v = v.clone()  # it returned its input, which the step is about to write
        return (v, None) if self.guidance is None else v.chunk(2)

    def keep(self, k: int, v: Tensor, v_null: Tensor | None) -> Tensor:
        """The (guided) velocity in the state's dtype, in one of two buffers: the network may reuse its own."""
        if self.kept[k & 1] is None:
            self.kept[k & 1] = torch.empty_like(v, dtype=torch.promote_types(self.x.dtype, torch.float32))
        if v_null is None:
            return self.kept[k & 1].copy_(v)
        return self.kept[k & 1].copy_(v_null).lerp_(v.to(self.kept[k & 1].dtype), self.guidance)


def _seen(k: int, t: float, dt: float, x: Tensor, v: Tensor, left: float) -> dict:
    """What a callback gets; ``left`` is the time to the end, times the gain."""
    return {"step": k, "t": t, "dt": dt, "x": x.clone(), "v": v.clone(), "predicted_endpoint": x + left * v}


def _check_arguments(z0, schedule, solver, guidance, gain, dt_scale, time_dir, trace) -> None:
    _check.batched("sample", "z0", z0)
    if not isinstance(schedule, Schedule):
        got = type(schedule).__name__
        raise TypeError(f"sample: schedule must be a Schedule, as fmkernels.flow.uniform(50), got {got}")
    if solver not in SOLVERS:
        raise ValueError(f"sample: unknown solver {solver!r}; choose one of {', '.join(SOLVERS)}")
    if time_dir not in ("0->1", "1->0"):
        raise ValueError(f"sample: time_dir must be '0->1' or '1->0', got {time_dir!r}")
    for name, value in (("guidance", guidance), ("gain", gain), ("dt_scale", dt_scale)):
        if value is not None or name != "guidance":
            _check.number("sample", name, value)
    if not isinstance(trace, (bool, Trace)):
        raise TypeError(f"sample: trace must be True, False or a Trace, got {type(trace).__name__}")
    gaps = schedule.t[:-1] + schedule.dt[:-1] - schedule.t[1:]
    if solver in ("heun", "ab2") and (schedule.start != schedule.t[0] or (gaps.abs() > 1e-6).any()):
        warnings.warn(
            f"sample: {solver} is of second order where a step starts at its t and ends at the next one's; "
            f"in {schedule.name!r} it does not, so expect the first order of euler",
            stacklevel=4,
        )


def _dopri5(field: _Field, x: Tensor, plan: Schedule, gain: float, trace: Trace | None, callback) -> Sample:
    """torchdiffeq's adaptive steps from the schedule's start to its end; the trace has the accepted ones."""
    try:
        from torchdiffeq import odeint
    except ImportError:
        raise ImportError("sample: solver='dopri5' needs torchdiffeq: pip install 'fmkernels[ode]'") from None
    start, end = (min(max(t, 0.0), 1.0) for t in (plan.start, plan.end))

    class Adaptive:
        accepted, first, last = 0, None, None

        def __call__(self, t, x):
            field.low.copy_(x)
            self.last = field.keep(0, *field(t.to(x.dtype))).clone()
            self.first = self.last if self.first is None else self.first
            if trace is not None and trace.nonfinite == "raise" and not torch.isfinite(self.last).all():
                trace.record(self.accepted, x, self.last, 0.0, t=t.item())
                trace.check()
            return gain * self.last

        def callback_accept_step(self, t, x, dt):
            """The velocity at a step's end is the next one's at its start."""
            t, dt = t.item(), dt.item() * (1 if end > start else -1)
            if trace is not None:
                trace.record(self.accepted, x, self.first, dt, t=t)
            if callback:
                callback(_seen(self.accepted, t, dt, x, self.first, gain * (end - t)))
            self.first, self.accepted = self.last, self.accepted + 1

    times = torch.tensor([start, end], device=x.device, dtype=torch.float64)
    options = {"step_t": times[1:]}  # not beyond the end, where the network never was
    x = odeint(Adaptive(), x, times, rtol=TOLERANCE, atol=TOLERANCE, method="dopri5", options=options)[-1]
    return Sample(x, trace)
