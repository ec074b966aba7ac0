"""A velocity field against a path: cosines and sizes at points of it, the ends of whole integrations, condition gain.

The trainer logs these numbers, and the checks judge them. x0, x1 are (B, ...), floating point; ``velocity(x, t)`` gets
x (B, ...) and t (B,) in [0, 1] and returns a floating point tensor of x's shape; path is a
:class:`fmkernels.flow.Path`, ``PATHS["psi"]`` if None.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fmkernels import checks
from fmkernels.flow import PATHS, Path, Trace, midpoint, sample, uniform
from fmkernels.ops import VelocityStats, velocity_stats

Velocity = Callable[..., Tensor]


def check_ends(op: str, x0: Tensor, x1: Tensor, least: int = 1, letter: str = "x") -> None:
    """TypeError or ValueError, naming x0 or x1, unless both are (B, ...) of one shape with B of at least ``least``."""
    checks.batched(op, f"{letter}0", x0)
    checks.like(op, f"{letter}1", x1, f"{letter}0", x0)
    if len(x0) < least:
        raise ValueError(f"{op}: {letter}0 must have at least {least} samples, got {len(x0)}")


def check_any(op: str, name: str, values: Sequence) -> None:
    if not len(values):
        raise ValueError(f"{op}: {name} must not be empty")


def times_of(x: Tensor, t: float) -> Tensor:
    """Return (B,) of t, in the dtype that a state of x has."""
    return x.new_full((len(x),), t, dtype=torch.promote_types(x.dtype, torch.float32))


def predicted(op: str, velocity: Velocity, x: Tensor, t: Tensor, **options) -> Tensor:
    """velocity(x, t); ValueError unless it returns a floating point tensor of x's shape."""
    v = velocity(x, t, **options)
    if not isinstance(v, Tensor) or v.shape != x.shape or not v.is_floating_point():
        got = f"{tuple(v.shape)} {v.dtype}" if isinstance(v, Tensor) else type(v).__name__
        raise ValueError(f"{op}: velocity must return a floating point tensor of x's shape {tuple(x.shape)}, got {got}")
    return v


@torch.no_grad()
def stats_at(
    op: str, velocity: Velocity, x0: Tensor, x1: Tensor, times: Sequence[float], path: Path | None
) -> list[VelocityStats]:
    """How velocity compares with the path's at each of times."""
    check_any(op, "times", times)
    out = []
    for t in times:
        t = times_of(x0, t)
        x_t, v = (path or PATHS["psi"]).pair(t, x0, x1)
        out.append(velocity_stats(predicted(op, velocity, x_t, t), v_target=v))
    return out


def pooled_gain(stats: Sequence[VelocityStats]) -> float:
    """Median of |v*| / |v_pred| over the samples of all of stats."""
    return VelocityStats(torch.cat([s.sums for s in stats]), stats[0].n).gain.item()


def mse(a: Tensor, b: Tensor) -> float:
    """mean((a - b)^2)"""
    return velocity_stats(a, v_target=b).sums[:, 0].double().sum().item() / a.numel()


def endpoint_rmse(
    velocity: Velocity, x0: Tensor, x1: Tensor, ks: Sequence[int] = (8, 16, 32, 64), solver: str = "euler"
) -> dict[int, float]:
    """``sqrt(mean((z_K - x1)^2))`` for each K, z_K the end of K steps from x0.

    ``euler`` on the midpoint schedule, ``heun`` on the uniform one. What is not finite stays so. ValueError for
    another solver.
    """
    check_ends("endpoint_rmse", x0, x1)
    plans = {"euler": midpoint, "heun": uniform}
    if solver not in plans:
        raise ValueError(f"endpoint_rmse: unknown solver {solver!r}; choose one of {', '.join(plans)}")
    ends = {k: sample(velocity, x0, plans[solver](k), solver=solver, trace=Trace(nonfinite="continue")).x for k in ks}
    return {k: math.sqrt(mse(end, x1)) for k, end in ends.items()}


def derangement(n: int, generator: torch.Generator | None = None) -> Tensor:
    """(n,) on the CPU: a random cycle through all of 0 … n-1, so that no element stays; n of at least 2."""
    order = torch.randperm(n, generator=generator)
    out = torch.empty_like(order)
    out[order] = order.roll(1)
    return out


@torch.no_grad()
def condition_gain(
    velocity: Velocity,
    x0: Tensor,
    x1: Tensor,
    t: Tensor,
    cond: Tensor | None = None,
    generator: torch.Generator | None = None,
    *,
    path: Path | None = None,
) -> float:
    """``flow/cond_gain_cos``: how much of the cosine with the target is lost when the condition is another's.

    With cond (B, ...): ``cos(v(x_t, t, cond), v*) - cos(v(x_t, t, cond[π]), v*)``, π a random derangement drawn from
    generator (of the CPU). Without, z0 being the condition:
    ``cos(v(ψ(t, z0, z1)), z1 - z0) - cos(v(ψ(t, z0[π], z1)), z1 - z0[π])``, the differences standing for the path's
    velocity. A field that takes z1 from z0 is then led to another z1 and loses; one that has only the average picture
    loses nothing. It says nothing at t near 1, where x_t is z1, and little where x_t shows z0 and z1 apart (z0 very
    sharp, see ``leak``): a field that sees both predicts the line between any two correctly. So without cond a gain
    above 0 is evidence of use, but 0 is no evidence of disuse before these two are ruled out. t: (B,). B of at least 2.
    """
    check_ends("condition_gain", x0, x1, least=2)
    path = path or PATHS["psi"]
    order = derangement(len(x0), generator).to(x0.device)
    x_t, v = path.pair(t, x0, x1)
    if cond is None:
        x_other, v_other = path.pair(t, x0[order], x1)
        options = other = {}
    elif isinstance(cond, Tensor) and cond.dim() and len(cond) == len(x0):
        x_other, v_other = x_t, v
        options, other = {"cond": cond}, {"cond": cond[order.to(cond.device)]}
    else:
        got = tuple(cond.shape) if isinstance(cond, Tensor) else type(cond).__name__
        raise ValueError(f"condition_gain: cond must be a tensor of {len(x0)} samples, as x0, or None, got {got}")
    own = velocity_stats(predicted("condition_gain", velocity, x_t, t, **options), v_target=v)
    shuffled = velocity_stats(predicted("condition_gain", velocity, x_other, t, **other), v_target=v_other)
    return (own.cos - shuffled.cos).item()
