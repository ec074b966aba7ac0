"""The sampling loop: carry z0 along a velocity field, one step of the schedule after the other."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fmkernels.flow.graph import Captured, capturable
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
    step_end: Callable[[int, Tensor, Tensor], Tensor | None] | None = None,
    graph: bool | str = "auto",
) -> Sample:
    """``dx/dt = gain * velocity(x, t)`` from x = z0 along the schedule. Returns ``(x, trace)``.

    velocity: called ``velocity(x, t)`` with x like z0, in z0's dtype, and t (B,) in [0, 1], in the state's dtype. With
    ``guidance`` it is called with both halves in one batch, ``velocity(x, t, null=null)``, null (2B,) bool, False then
    True, and ``v = v_null + guidance * (v - v_null)``. x is one buffer, written anew for every call: clone what you
    keep. A condition besides z0 is yours to close over, twice for guidance: ``cond=torch.cat([cond, cond])``. The
    state is fp32 whatever z0's dtype is (fp64 for fp64).
    solver: ``euler``; ``ab2``, second order at one evaluation a step; ``heun``, second order at two; ``dopri5``,
    adaptive (needs torchdiffeq), takes only the ends from the schedule. time_dir: ``"1->0"`` reverses t and dt.
    trace: a new :class:`Trace` to fill, which also says what non-finite values do (default: raise); False returns none.
    callback: called at every step, before the state moves on, with a dict of ``step t dt x v predicted_endpoint``. x, v
    and the endpoint (where the straight line along v leads) are copies.
    step_end: called ``step_end(step, x, stats)`` after every step with a copy of the state and the step's row of the
    trace, (B, 5) on the device; what it returns, if anything, is the state from there on (not with dopri5).
    graph: True captures the velocity in a CUDA graph after two calls and replays it for the others: the same results,
    with a fraction of the host's work. ``"auto"`` does so on CUDA. A velocity that cannot be captured is called as
    usual, with a warning that gives the reason.
    No gradients; nothing is read back to the host inside the loop, but by dopri5.
    """
    plan = _checked(velocity, z0, schedule, solver, guidance, gain, dt_scale, time_dir, trace, callback, step_end)
    if graph not in (True, False, "auto"):
        raise ValueError(f"sample: graph must be True, False or 'auto', got {graph!r}")
    if capturable(graph, z0.device, solver):
        velocity = Captured(velocity)
    x = z0.to(torch.promote_types(z0.dtype, torch.float32), copy=True)
    record = trace if isinstance(trace, Trace) else Trace()
    field = _Field(velocity, z0, guidance)
    if solver == "dopri5":
        x = _dopri5(field, x, plan, gain, dt_scale, record, callback)
        return Sample(x, record if trace is not False else None)
    times, dt = plan.t.tolist(), (plan.dt * dt_scale).tolist()
    both = torch.stack([plan.t, plan.t_next]).to(x.device, x.dtype)  # one upload
    t, t_next = both[:, :, None].repeat(1, 1, len(field.x))
    stats = torch.empty(len(plan), len(x), len(COLUMNS), device=x.device, dtype=torch.float32)
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
            v_next = field.keep(k + 1, *field(t_next[k]))  # beside v, in the other buffer
            multistep_step_(x, v, v_next, dt[k], 0.5, 0.5, **step)
        elif solver == "ab2" and k > 0 and dt[k - 1] != 0:
            r = dt[k] / dt[k - 1] / 2  # the line through the last two velocities, at the middle of the step
            multistep_step_(x, v, field.kept[(k - 1) % 2], dt[k], 1 + r, -r, **step)
        else:
            euler_step_(x, v, dt[k], v_uncond=v_null, guidance=1.0 if guidance is None else guidance, **step)
        record.append(k, stats[k], x.dtype, times[k])
        if step_end and (replaced := step_end(k, x.clone(), stats[k])) is not None:
            _check.like("sample", "what step_end returns", replaced, "x", x)
            field.low.copy_(x.copy_(replaced))
    record.check()
    return Sample(x, record if trace is not False else None)


class _Field:
    """The velocity on a copy of the state in z0's dtype, both guidance halves in one batch."""

    def __init__(self, velocity, z0, guidance):
        self.velocity, self.guidance, self.kept = velocity, guidance, [None, None]
        self.x = torch.cat([z0.detach()] * (1 if guidance is None else 2))
        self.low = self.x[: len(z0)]  # what the steps write; the other half follows it
        null = torch.arange(len(self.x), device=z0.device) >= len(z0)
        self.options = {} if guidance is None else {"null": null}

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor | None]:
        """(v, v_null) at t, which has an element for each of x."""
        if self.guidance is not None:
            self.x[len(self.low) :].copy_(self.low)
        v = self.velocity(self.x, t, **self.options)
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
        if self.kept[k % 2] is None:
            self.kept[k % 2] = torch.empty_like(self.low, dtype=torch.promote_types(self.x.dtype, torch.float32))
        if v_null is None:
            return self.kept[k % 2].copy_(v)
        return self.kept[k % 2].copy_(v_null).lerp_(v.to(self.kept[k % 2].dtype), self.guidance)


def _seen(k: int, t: float, dt: float, x: Tensor, v: Tensor, left: float) -> dict:
    """What a callback gets; ``left`` is the time to the end, times the gain."""
    return {"step": k, "t": t, "dt": dt, "x": x.clone(), "v": v.clone(), "predicted_endpoint": x + left * v}


def _checked(velocity, z0, schedule, solver, guidance, gain, dt_scale, time_dir, trace, callback, step_end) -> Schedule:
    """The schedule in the direction asked for, once all arguments are what they must be."""
    for name, value in (("velocity", velocity), ("callback", callback), ("step_end", step_end)):
        if not callable(value) and not (name != "velocity" and value is None):
            raise TypeError(f"sample: {name} must be callable, got {type(value).__name__}")
    _check.batched("sample", "z0", z0)
    if not isinstance(schedule, Schedule):
        got = type(schedule).__name__
        raise TypeError(f"sample: schedule must be a Schedule, as fmkernels.flow.uniform(50), got {got}")
    if solver not in SOLVERS:
        raise ValueError(f"sample: unknown solver {solver!r}; choose one of {', '.join(SOLVERS)}")
    if solver == "dopri5" and step_end is not None:
        raise ValueError("sample: step_end is not supported with the adaptive solver 'dopri5'")
    if time_dir not in ("0->1", "1->0"):
        raise ValueError(f"sample: time_dir must be '0->1' or '1->0', got {time_dir!r}")
    for name, value in (("guidance", guidance), ("gain", gain), ("dt_scale", dt_scale)):
        if value is not None or name != "guidance":
            _check.number("sample", name, value)
    if not isinstance(trace, (bool, Trace)):
        raise TypeError(f"sample: trace must be True, False or a Trace, got {type(trace).__name__}")
    if isinstance(trace, Trace) and len(trace):
        raise ValueError(f"sample: trace must be new, got one with {len(trace)} steps of another run")
    plan = schedule if time_dir == "0->1" else schedule.reversed()
    gaps = plan.t[:-1] + plan.dt[:-1] - plan.t[1:]
    if solver in ("heun", "ab2") and (abs(plan.start - plan.t[0].item()) > 1e-6 or (gaps.abs() > 1e-6).any()):
        warnings.warn(
            f"sample: {solver} is of second order where a step starts at its t and ends at the next one's; "
            f"in {plan.name!r} it does not, so expect the first order of euler",
            stacklevel=4,
        )
    return plan


def _dopri5(field: _Field, x: Tensor, plan: Schedule, gain: float, dt_scale: float, trace: Trace, callback) -> Tensor:
    """torchdiffeq's adaptive steps from the schedule's start to its end; the trace has the accepted ones."""
    try:
        from torchdiffeq import odeint
    except ImportError:
        raise ImportError("sample: solver='dopri5' needs torchdiffeq: pip install torchdiffeq") from None
    start, end = (min(max(t, 0.0), 1.0) for t in (plan.start, plan.end))
    if start == end or x.numel() == 0:
        return x

    class Adaptive:
        accepted, first, last = 0, None, None

        def __call__(self, t, x):
            field.low.copy_(x)
            self.last = field.keep(0, *field(t.to(x.dtype).repeat(len(field.x)))).clone()
            self.first = self.last if self.first is None else self.first
            slope = gain * dt_scale * self.last
            if not torch.isfinite(slope).all():  # whatever trace says: an adaptive step cannot go on
                trace.nonfinite = "raise"
                trace.record(self.accepted, x, slope, 0.0, t=t.item())
                trace.check()
            return slope

        def callback_accept_step(self, t, x, dt):
            """The velocity at a step's end is the next one's at its start."""
            t, dt = t.item(), dt.item() * dt_scale * (1 if end > start else -1)
            trace.record(self.accepted, x, self.first, dt, t=t, gain=gain)
            if callback:
                callback(_seen(self.accepted, t, dt, x, self.first, gain * dt_scale * (end - t)))
            self.first, self.accepted = self.last, self.accepted + 1

    times = torch.tensor([start, end], device=x.device, dtype=torch.float64)
    options = {"step_t": times[1:]}  # not beyond the end, where the network never was
    return odeint(Adaptive(), x, times, rtol=TOLERANCE, atol=TOLERANCE, method="dopri5", options=options)[-1]
