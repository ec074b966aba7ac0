"""Times of a training step: how t is drawn, how samples are weighted by it, which of them are null."""

import torch
from torch import Tensor

KINDS = ("uniform", "logit_normal", "edge", "mixed", "early")


def sample_t(kind: str, n: int, generator: torch.Generator, *, edge: float = 0.5) -> Tensor:
    """n times in [0, 1], fp32 on the CPU, from a CPU generator; every kind has mean ½ but ``early``, with ⅓.

    ========= ============================================ ==================
    kind      density on [0, 1]                            standard deviation
    ========= ============================================ ==================
    uniform   1                                            0.2887
    logit_…   that of sigmoid(Normal(0, 1)), l(t)          0.2083
    edge      1 + edge · (12 (t - ½)² - 1), edge in [0, 1] √((5 + 4 edge) / 60)
    mixed     ½ + ½ l(t)                                   0.2517
    early     2 (1 - t): more where only z0 shows          0.2357
    ========= ============================================ ==================

    ``edge`` draws as often as :func:`edge_weight` weighs: 1 + 2 edge at both ends, 1 - edge in the middle.
    ValueError for another kind.
    """
    if kind not in KINDS:
        raise ValueError(f"sample_t: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    _check_share("sample_t", "edge", edge)
    u = torch.rand(n, generator=generator)
    if kind == "uniform":
        return u
    if kind == "early":
        return 1 - u.sqrt()
    if kind == "edge":  # a share `edge` of the density 12 (t - ½)², by its inverse distribution function
        signed = 2 * u - 1
        far = 0.5 + 0.5 * signed.sign() * signed.abs().pow(1 / 3)
        return torch.where(null_mask(n, edge, generator), far, torch.rand(n, generator=generator))
    middle = torch.randn(n, generator=generator).sigmoid()
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
