"""Times of a training step: how t is drawn, how samples are weighted by it, which of them are null."""

import math

import torch
from torch import Tensor

KINDS = ("uniform", "logit_normal", "edge", "mixed", "early", "mode", "cosmap")
MODE_SCALES = (-1.0, 2 / (math.pi - 2))  # beyond them the map of `mode` is not monotonic


def sample_t(
    kind: str,
    n: int,
    generator: torch.Generator,
    *,
    edge: float = 0.5,
    mean: float = 0.0,
    std: float = 1.0,
    mode_scale: float = 1.29,
    shift: float = 1.0,
) -> Tensor:
    """Return n times in [0, 1], fp32 on the CPU, from a CPU generator; t = 0 is z0 (text), t = 1 the image.

    ========= ================================================================== ==================
    kind      density on [0, 1], with the default arguments                      standard deviation
    ========= ================================================================== ==================
    uniform   1                                                                  0.2887
    logit_…   that of sigmoid(Normal(mean, std)), l(t); mean > 0: image denser   0.2083
    edge      1 + edge · (12 (t - ½)² - 1), edge in [0, 1]                       √((5 + 4 edge) / 60)
    mixed     ½ + ½ l(t)                                                         0.2517
    early     2 (1 - t): more where only z0 shows                                0.2357
    mode      of 1 - u - mode_scale (cos²(πu/2) - 1 + u): the middle is denser,  0.2152
              below 0 both ends
    cosmap    2 / (π (1 - 2t + 2t²)): the middle is denser                       0.2611
    ========= ================================================================== ==================

    All are symmetric about ½ but ``early``, whose mean is ⅓, and logit-normals with another mean. ``edge`` draws as
    often as :func:`edge_weight` weighs: 1 + 2 edge at both ends, 1 - edge in the middle. ``logit_normal`` and ``mode``
    are those of diffusers' compute_density_for_timestep_sampling, whose u is t: its u = 0 is the first time step of a
    scheduler, where sigma = 1 - t is 1.

    shift: SD3's resolution shift of sigma = 1 - t after the draw, ``sigma ← shift · sigma / (1 + (shift - 1) sigma)``;
    above 1, times near z0 are denser. The sampler's schedule ``shifted`` with 1 / shift has the same density.
    ValueError for another kind and for arguments out of range.
    """
    if kind not in KINDS:
        raise ValueError(f"sample_t: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    _check_share("sample_t", "edge", edge)
    check_times(std, mode_scale, shift)
    t = _drawn(kind, n, generator, edge, mean, std, mode_scale)
    return t if shift == 1 else t / (t + shift * (1 - t))


def check_times(std: float, mode_scale: float, shift: float) -> None:
    """Raise ValueError for arguments of :func:`sample_t` that are out of range, under their names in the config."""
    for name, value in (("t_std", std), ("t_shift", shift)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive number, got {value!r}")
    if not MODE_SCALES[0] <= mode_scale <= MODE_SCALES[1]:
        raise ValueError(f"t_mode_scale must be in [-1, {MODE_SCALES[1]:.2f}], got {mode_scale!r}")


def _drawn(
    kind: str, n: int, generator: torch.Generator, edge: float, mean: float, std: float, mode_scale: float
) -> Tensor:
    from diffusers.training_utils import compute_density_for_timestep_sampling  # slow to import

    if kind == "mode":
        return compute_density_for_timestep_sampling("mode", n, mode_scale=mode_scale, generator=generator).clamp_(0, 1)
    u = torch.rand(n, generator=generator)
    if kind == "uniform":
        return u
    if kind == "cosmap":  # by its inverse distribution function; diffusers has it as a weight only
        return 1 - 1 / ((math.pi / 2 * u).tan() + 1)
    if kind == "early":
        return 1 - u.sqrt()
    if kind == "edge":  # a share `edge` of the density 12 (t - ½)², by its inverse distribution function
        signed = 2 * u - 1
        far = 0.5 + 0.5 * signed.sign() * signed.abs().pow(1 / 3)
        return torch.where(null_mask(n, edge, generator), far, torch.rand(n, generator=generator))
    middle = compute_density_for_timestep_sampling("logit_normal", n, mean, std, generator=generator)
    return middle if kind == "logit_normal" else torch.where(null_mask(n, 0.5, generator), middle, u)


def edge_weight(t: Tensor, strength: float) -> Tensor:
    """``1 + strength · (12 (t - ½)² - 1)`` for each t: mean 1 under uniform t. strength in [0, 1]; 0: all 1."""
    _check_share("edge_weight", "strength", strength)
    return 1 + strength * (12 * (t - 0.5).square() - 1)


def null_mask(n: int, probability: float, generator: torch.Generator) -> Tensor:
    """(n,) bool on the CPU, each True with the probability: the samples to be trained without their condition."""
    _check_share("null_mask", "probability", probability)
    return torch.rand(n, generator=generator) < probability


def _check_share(op: str, name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{op}: {name} must be in [0, 1], got {value!r}")
