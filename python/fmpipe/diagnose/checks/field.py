"""Checks of the velocity field at points of the path: scale, direction and size, target, condition.

Everywhere: x0, x1 are (B, ...), floating point; ``velocity(x, t)`` gets x (B, ...) and t (B,) in [0, 1] and returns a
floating point tensor of x's shape; path is a :class:`fmkernels.flow.Path`, ``PATHS["psi"]`` if None.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fmkernels.flow import PATHS, Path, Trace, midpoint, sample, uniform
from fmkernels.ops import VelocityStats, _check, velocity_stats
from fmpipe.diagnose.checks.base import Velocity, check, check_any, check_ends, times_of

TIMES = (0.1, 0.37, 0.63, 0.9)  # those of the debugging notes


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


@check
@torch.no_grad()
def scale(x0: Tensor, x1: Tensor, path: Path | None = None, *, generator: torch.Generator | None = None) -> dict:
    """``E|z0|``, ``E|z1|``, ``E|x_t|``, ``E|v*|``: batch means of 2-norms, x_t at t drawn evenly from [0, 1]."""
    check_ends("scale", x0, x1)
    t = torch.rand(len(x0), generator=generator, device=x0.device)
    pairs = (x0, x1), (path or PATHS["psi"]).pair(t.to(times_of(x0, 0.0)), x0, x1)
    norms = [x for a, b in pairs for x in velocity_stats(a, v_target=b).sums[:, 1:3].sqrt().mean(0).tolist()]
    return dict(zip(("z0", "z1", "x_t", "v*"), norms, strict=True))


@check
def one_step(
    velocity: Velocity, x0: Tensor, x1: Tensor, times: Sequence[float] = TIMES, *, path: Path | None = None
) -> dict:
    """``cos(v_pred, v*)`` and ``|v_pred| / |v*|`` at each of times, batch means, and the gain that would correct it."""
    check_ends("one_step", x0, x1)
    stats = stats_at("one_step", velocity, x0, x1, times, path)
    cos, ratio = [s.cos.item() for s in stats], [s.speed_ratio.item() for s in stats]
    return {"t": list(times), "cos": cos, "ratio": ratio, "fm_gain": pooled_gain(stats)}


@check
@torch.no_grad()
def target_definition(
    velocity: Velocity,
    x0: Tensor,
    x1: Tensor,
    noise: Tensor | None = None,
    *,
    times: Sequence[float] = TIMES,
    path: Path | None = None,
) -> dict[str, float]:
    """The mean cosine, over the batch and times, of v_pred with each thing a network may have been taught.

    ``velocity`` the path's; ``flipped`` its negative; ``x1``; ``x0`` (the noise of a plain diffusion); ``score``, -x0;
    ``x_t`` and ``-x_t``, the input and the score of a standard normal; with noise (like x0; what z0 was drawn with)
    also ``noise`` and ``-noise``. Over all times: at one t alone the best field there is may look like -x0 (t near 0)
    or x1 (t near 1).
    """
    check_ends("target_definition", x0, x1)
    if noise is not None:
        _check.like("target_definition", "noise", noise, "x0", x0)
    check_any("target_definition", "times", times)
    total: dict[str, float] = {}
    for t in times:
        t = times_of(x0, t)
        x_t, v = (path or PATHS["psi"]).pair(t, x0, x1)
        v_pred = predicted("target_definition", velocity, x_t, t)
        for name, opposite, target in (
            ("velocity", "flipped", v),
            ("x1", None, x1),
            ("x0", "score", x0),
            ("x_t", "-x_t", x_t),
            ("noise", "-noise", noise),
        ):
            if target is not None:
                cos = velocity_stats(v_pred, v_target=target).cos.item() / len(times)
                total[name] = total.get(name, 0.0) + cos
                if opposite:
                    total[opposite] = total.get(opposite, 0.0) - cos
    return total


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


@check
def condition_use(
    velocity: Velocity,
    x0: Tensor,
    x1: Tensor,
    cond: Tensor | None = None,
    *,
    times: Sequence[float] = TIMES,
    path: Path | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, float]:
    """The mean over times of :func:`condition_gain`, which says what it means with and without cond."""
    check_ends("condition_use", x0, x1, least=2)
    check_any("condition_use", "times", times)
    gains = [condition_gain(velocity, x0, x1, times_of(x0, t), cond, generator, path=path) for t in times]
    return {"flow/cond_gain_cos": sum(gains) / len(gains), **{f"t={t:g}": gain for t, gain in zip(times, gains)}}
