"""The sampling loop: move z0 along a velocity field, by one function per solver."""

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fmkernels import checks
from fmkernels.flow.graph import capturable
from fmkernels.flow.run import Now, Run
from fmkernels.flow.schedule import Schedule
from fmkernels.flow.trace import Trace
from fmkernels.ops import euler_step_, multistep_step_

TOLERANCE = 1e-5  # of dopri5, relative and absolute


def euler(run: Run) -> None:
    """First order, one evaluation per step: ``x += dt v(x, t)``."""

    def step(now: Now) -> None:
        v, v_null = (run.guided(now.t), None) if run.callback else run.evaluate(now.t)
        guidance = 1.0 if v_null is None else run.guidance
        euler_step_(run.x, v, now.dt, v_uncond=v_null, guidance=guidance, stats=now.stats, **run.update)

    run.repeat(step)


def heun(run: Run) -> None:
    """Second order, two evaluations per step: ``x += dt (v + v_ahead) / 2``, v_ahead at the end of an Euler step."""
    ahead, v_ahead = torch.empty_like(run.x), torch.empty_like(run.x)

    def step(now: Now) -> None:
        v = run.guided(now.t)
        euler_step_(ahead.copy_(run.x), v, now.dt, **run.update)
        run.guided(now.t_next, out=v_ahead)
        multistep_step_(run.x, v, v_ahead, now.dt, 0.5, 0.5, stats=now.stats, **run.update)

    run.repeat(step)


def ab2(run: Run) -> None:
    """Second order, one evaluation per step: ``x += dt (v + r (v - v_before))``, r half the ratio of the last two dt.

    This evaluates the line through the last two velocities at the middle of the step. The first step is Euler's. The op
    takes r as a number, so a graph contains the whole step if r is constant, and otherwise only the evaluation.
    """
    v_before = torch.empty_like(run.x)
    ratios = [None, *(dt / before / 2 if before else None for before, dt in pairwise(run.dt))]
    constant = len(set(ratios[1:])) == 1

    def evaluate(now: Now) -> None:
        run.guided(now.t)

    def update(now: Now, r: float | None) -> None:
        if r is None:
            euler_step_(run.x, run.v, now.dt, stats=now.stats, **run.update)
        else:
            multistep_step_(run.x, run.v, v_before, now.dt, 1 + r, -r, stats=now.stats, **run.update)
        v_before.copy_(run.v)

    def step(now: Now) -> None:
        evaluate(now)
        update(now, ratios[-1])

    captured = run.captured(step if constant else evaluate, first=int(constant))
    for k, now in enumerate(run.steps()):
        if constant and k > 0:
            captured(now)
        else:
            (evaluate if constant else captured)(now)
            update(now, ratios[k])


def dopri5(run: Run) -> None:
    """Adaptive: torchdiffeq's steps from the schedule's start to its end; the trace has the accepted ones."""
    try:
        from torchdiffeq import odeint
    except ImportError:
        raise ImportError("sample: solver='dopri5' needs torchdiffeq: pip install torchdiffeq") from None
    start, end = (min(max(t, 0.0), 1.0) for t in (run.plan.start, run.plan.end))
    if start == end or run.x.numel() == 0:
        return

    class Adaptive:
        accepted, first, last = 0, None, None  # steps; velocities at the start and at the end of the current step

        def __call__(self, t, x):
            run.low.copy_(x)
            self.last = run.guided(t.to(x.dtype).repeat(len(run.input))).clone()
            self.first = self.last if self.first is None else self.first
            slope = run.gain * run.dt_scale * self.last
            if not torch.isfinite(slope).all():  # an adaptive step cannot continue, even if the trace is to
                run.trace.nonfinite = "raise"
                run.trace.record(self.accepted, x, slope, 0.0, t=t.item())
                run.trace.check()
            return slope

        def callback_accept_step(self, t, x, dt):
            t, dt = t.item(), dt.item() * run.dt_scale * (1 if end > start else -1)
            run.trace.record(self.accepted, x, self.first, dt, t=t, gain=run.gain)
            if run.callback:
                run.callback(run.seen(self.accepted, t, dt, x.clone(), self.first, run.gain * run.dt_scale * (end - t)))
            self.first, self.accepted = self.last, self.accepted + 1

    times = torch.tensor([start, end], device=run.x.device, dtype=torch.float64)
    options = {"step_t": times[1:]}  # not beyond the end, where the network was not trained
    run.x = odeint(Adaptive(), run.x, times, rtol=TOLERANCE, atol=TOLERANCE, method="dopri5", options=options)[-1]


SOLVERS: dict[str, Callable[[Run], None]] = {f.__name__: f for f in (euler, heun, ab2, dopri5)}


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
    copy_state: bool = True,
    graph: bool | str = "auto",
) -> Sample:
    """``dx/dt = gain * velocity(x, t)`` from x = z0 along the schedule. Returns ``(x, trace)``.

    velocity: called ``velocity(x, t)`` with x like z0, in z0's dtype, and t (B,) in [0, 1], in the state's dtype. With
    ``guidance`` it is called with both halves in one batch, ``velocity(x, t, null=null)``, null (2B,) bool, False then
    True, and ``v = v_null + guidance * (v - v_null)``. x is one buffer, which the next call
    overwrites. A condition besides z0 is the velocity's own, in both halves: ``cond=torch.cat([cond, cond])``. The
    state is fp32 for every dtype of z0 but fp64.
    solver: ``euler``; ``ab2``, second order with one evaluation per step; ``heun``, second order with two; ``dopri5``,
    adaptive (needs torchdiffeq), which uses only the ends of the schedule. time_dir: ``"1->0"`` reverses t and dt.
    trace: a new :class:`Trace` to fill, which also decides what non-finite values do (default: raise); False returns
    none.
    callback: called at every step with a dict of ``step t dt x v predicted_endpoint``; x is the state before the step,
    and the endpoint is where the straight line along v leads. All three are copies.
    step_end: called ``step_end(step, x, stats)`` after every step with a copy of the state and the step's row of the
    trace, (B, 5) on the device. If it returns a tensor, that replaces the state. Not supported by dopri5.
    copy_state: False passes the state itself to step_end, which must not change or keep it.
    graph: True captures a step in a CUDA graph after two ordinary ones and replays it for the others: the same results
    with a fraction of the host time. ``"auto"`` does so on CUDA. If the velocity cannot be captured, all steps are
    ordinary ones, and a warning gives the reason.
    Computes no gradients. Inside the loop, only dopri5 reads values back to the host.
    """
    plan = _checked(
        velocity, z0, schedule, solver, guidance, gain, dt_scale, time_dir, trace, callback, step_end, graph
    )
    numbers = None if guidance is None else float(guidance), float(gain), float(dt_scale)  # torch takes no int of 2**64
    run = Run(
        velocity, z0, plan, *numbers, trace if isinstance(trace, Trace) else Trace(), callback,
        step_end, copy_state, capturable(graph, z0.device, solver),
    )  # fmt: skip
    SOLVERS[solver](run)
    if solver != "dopri5":
        run.trace.check()
    return Sample(run.x, None if trace is False else run.trace)


def _checked(
    velocity, z0, schedule, solver, guidance, gain, dt_scale, time_dir, trace, callback, step_end, graph
) -> Schedule:
    """Return the schedule in the direction of time; raise TypeError or ValueError for the first invalid argument."""
    for name, value in (("velocity", velocity), ("callback", callback), ("step_end", step_end)):
        if not callable(value) and not (name != "velocity" and value is None):
            raise TypeError(f"sample: {name} must be callable, got {type(value).__name__}")
    checks.batched("sample", "z0", z0)
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
            checks.number("sample", name, value)
    if not isinstance(trace, (bool, Trace)):
        raise TypeError(f"sample: trace must be True, False or a Trace, got {type(trace).__name__}")
    if isinstance(trace, Trace) and len(trace):
        raise ValueError(f"sample: trace must be new, got one with {len(trace)} steps of another run")
    if graph not in (True, False, "auto"):
        raise ValueError(f"sample: graph must be True, False or 'auto', got {graph!r}")
    plan = schedule if time_dir == "0->1" else schedule.reversed()
    gaps = plan.t[:-1] + plan.dt[:-1] - plan.t[1:]
    if solver in ("heun", "ab2") and (abs(plan.start - plan.t[0].item()) > 1e-6 or (gaps.abs() > 1e-6).any()):
        warnings.warn(
            f"sample: {solver} is of second order where a step starts at its t and ends at the next one's; "
            f"in {plan.name!r} it does not, so expect the first order of euler",
            stacklevel=4,
        )
    return plan
