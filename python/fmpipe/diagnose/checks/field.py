"""Checks of the velocity field at points of the path: scale, direction and size, target, condition.

x0, x1, velocity and path are those of :mod:`fmpipe.field`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fmkernels import checks
from fmkernels.flow import PATHS, Path
from fmkernels.ops import velocity_stats
from fmpipe.diagnose.checks.base import check
from fmpipe.field import Velocity, check_any, check_ends, condition_gain, pooled_gain, predicted, stats_at, times_of

TIMES = (0.1, 0.37, 0.63, 0.9)  # those of the debugging notes


@check
@torch.no_grad()
def scale(x0: Tensor, x1: Tensor, path: Path | None = None, *, generator: torch.Generator | None = None) -> dict:
    """Measure ``E|z0|``, ``E|z1|``, ``E|x_t|``, ``E|v*|``: batch means of 2-norms, t uniform in [0, 1]."""
    check_ends("scale", x0, x1)
    t = torch.rand(len(x0), generator=generator, device=generator.device if generator else x0.device).to(x0.device)
    pairs = (x0, x1), (path or PATHS["psi"]).pair(t.to(times_of(x0, 0.0)), x0, x1)
    norms = [x for a, b in pairs for x in velocity_stats(a, v_target=b).sums[:, 1:3].sqrt().mean(0).tolist()]
    return dict(zip(("z0", "z1", "x_t", "v*"), norms, strict=True))


@check
def one_step(
    velocity: Velocity, x0: Tensor, x1: Tensor, times: Sequence[float] = TIMES, *, path: Path | None = None
) -> dict:
    """Measure the batch means of ``cos(v_pred, v*)`` and ``|v_pred| / |v*|`` at each of times, and the gain."""
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
    """Measure the cosine of v_pred with each target that a network may have been trained on, mean over batch and times.

    ``velocity`` the path's; ``flipped`` its negative; ``x1``; ``x0`` (the noise of a plain diffusion); ``score``, -x0;
    ``x_t`` and ``-x_t``, the input and the score of a standard normal; with noise (like x0; what z0 was drawn with)
    also ``noise`` and ``-noise``. The mean is over all times because even the best field resembles -x0 at t near 0 and
    x1 at t near 1.
    """
    check_ends("target_definition", x0, x1)
    if noise is not None:
        checks.like("target_definition", "noise", noise, "x0", x0)
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
    """Measure the mean over times of :func:`fmpipe.field.condition_gain`, with or without cond."""
    check_ends("condition_use", x0, x1, least=2)
    check_any("condition_use", "times", times)
    gains = [condition_gain(velocity, x0, x1, times_of(x0, t), cond, generator, path=path) for t in times]
    return {"flow/cond_gain_cos": sum(gains) / len(gains), **{f"t={t:g}": gain for t, gain in zip(times, gains)}}
