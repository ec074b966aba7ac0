"""The variational head's end: sample z, its KL, and the statistics of the debugging notes, in one pass."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fmkernels import checks, eager
from fmkernels.autograd import head as gradients
from fmkernels.backend import Op


def _check_reparameterize(mu, logvar, eps, low, high):
    checks.batched("reparameterize", "mu", mu)
    checks.like("reparameterize", "logvar", logvar, "mu", mu)
    checks.like("reparameterize", "eps", eps, "mu", mu)


_REPARAMETERIZE = Op("reparameterize", eager.reparameterize, _check_reparameterize, gradients.reparameterize)


def reparameterize(
    mu: Tensor,
    logvar: Tensor,
    *,
    eps: Tensor | None = None,
    generator: torch.Generator | None = None,
    clamp: tuple[float, float] = (-6.0, 6.0),
) -> tuple[Tensor, Tensor, "HeadStats"]:
    """``z = mu + exp(logvar/2) eps`` and ``kl = 1/2 sum(mu^2 + exp(logvar) - 1 - logvar)`` of each sample.

    mu, logvar: (B, ...). logvar is clamped for both; outside the clamp its gradient passes only where it
    leads back inside. eps: the noise, or None to draw it from ``generator``. Returns z (promoted dtype
    of mu and logvar), kl (B,) in fp32 (fp64 for fp64), and :class:`HeadStats`. Gradients of z and kl go
    to mu and logvar; kl does not depend on eps.
    """
    if eps is None:
        checks.batched("reparameterize", "mu", mu)
        wide = torch.float64 if mu.dtype == torch.float64 else torch.float32
        eps = torch.empty(mu.shape, device=mu.device, dtype=wide).normal_(generator=generator)
    if not isinstance(clamp, (tuple, list)) or [type(bound) in (int, float) for bound in clamp] != [True, True]:
        raise TypeError(f"reparameterize: clamp must be two numbers (low, high), got {clamp!r}")
    for bound in clamp:
        if abs(bound) != math.inf:
            checks.number("reparameterize", "clamp", bound)
    low, high = clamp
    if not low <= high:
        raise ValueError(f"reparameterize: clamp must be (low, high), got {clamp!r}")
    z, kl, stats = _REPARAMETERIZE(mu, logvar, eps, low, high)
    return z, kl, HeadStats(stats)


_NAMES = (
    "mu/abs_mean",
    "mu/rms",
    "logvar/mean",
    "std/mean",
    "std/min",
    "std/max",
    "z_init/mean",
    "z_init/var",
    "z_init/std_per_dim_mean",
)


@dataclass(frozen=True)
class HeadStats:
    """Statistics of one batch on the device: (11,), the columns of csrc/shared/columns.h.

    logvar and std are the clamped ones. ``stats["mu/rms"]`` is a tensor; ``as_dict()`` copies all nine
    named ones to the host at once.
    """

    values: Tensor

    def __getitem__(self, name: str) -> Tensor:
        if name not in _NAMES:
            raise KeyError(f"HeadStats has {', '.join(_NAMES)}; got {name!r}")
        return self.values[_NAMES.index(name)]

    @property
    def clamped(self) -> Tensor:
        """Fraction of logvar outside the clamp."""
        return self.values[9]

    @property
    def nonfinite(self) -> Tensor:
        """Number of elements of z that are infinite or NaN."""
        return self.values[10]

    def as_dict(self) -> dict[str, float]:
        """Floats under the log's names; the one copy to the host."""
        return dict(zip(_NAMES, self.values[: len(_NAMES)].tolist(), strict=True))
