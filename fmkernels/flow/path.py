"""Paths from x0 to x1: the training input and its target velocity from one object."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fmkernels import checks
from fmkernels.ops import Dt_psi, flow_pair, psi

Coefficient = Callable[[Tensor], Tensor]


class Path:
    """``x_t = alpha(t) x0 + beta(t) x1`` and its velocity ``v = alpha'(t) x0 + beta'(t) x1``.

    alpha, beta: functions of t, element by element. Their derivatives are taken by differentiation, so a path
    and its velocity cannot disagree. t: (B,); x0, x1: (B, ...). Computed in fp32 (fp64 for fp64), rounded once to
    ``dtype`` or to the promoted dtype of x0 and x1. x_t carries gradients to x0 and x1; v, a target, carries none.
    """

    def __init__(self, alpha: Coefficient, beta: Coefficient):
        self.alpha, self.beta = alpha, beta

    def pair(self, t: Tensor, x0: Tensor, x1: Tensor, *, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """(x_t, v)."""
        checks.batched("Path", "x0", x0)
        checks.like("Path", "x1", x1, "x0", x0)
        checks.shape("Path", "t", t, (len(x0),), "(B,)")
        dtype = dtype or torch.promote_types(x0.dtype, x1.dtype)
        wide = torch.promote_types(dtype, torch.float32)
        t = t.to(wide)
        slopes = (torch.func.grad(lambda t, f=f: f(t).sum()) for f in (self.alpha, self.beta))
        a, b, da, db = (f(t).reshape(-1, *[1] * (x0.dim() - 1)) for f in (self.alpha, self.beta, *slopes))
        x0, x1 = x0.to(wide), x1.to(wide)
        return (a * x0 + b * x1).to(dtype), (da * x0 + db * x1).to(dtype).detach()

    def point(self, t: Tensor, x0: Tensor, x1: Tensor) -> Tensor:
        """x_t."""
        return self.pair(t, x0, x1)[0]

    def velocity(self, t: Tensor, x0: Tensor, x1: Tensor) -> Tensor:
        """v at (t, x_t)."""
        return self.pair(t, x0, x1)[1]


class PsiPath(Path):
    """CrossFlow's path: ``x_t = (t (σmin/σmax - 1) + 1) x0 + t x1``, by fused ops. σmin = 0 is the straight line."""

    def __init__(self, sigma_min: float = 1e-5, sigma_max: float = 1.0):
        self.sigmas = {"sigma_min": sigma_min, "sigma_max": sigma_max}
        super().__init__(lambda t: t * (sigma_min / sigma_max - 1) + 1, lambda t: t)

    def pair(self, t: Tensor, x0: Tensor, x1: Tensor, *, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        return flow_pair(t, x0, x1, dtype=dtype, **self.sigmas)

    def point(self, t: Tensor, x0: Tensor, x1: Tensor) -> Tensor:
        return psi(t, x0, x1, **self.sigmas)

    def velocity(self, t: Tensor, x0: Tensor, x1: Tensor) -> Tensor:
        return Dt_psi(t, x0.detach(), x1.detach(), **self.sigmas)


PATHS = {
    "psi": PsiPath(),
    "linear": PsiPath(sigma_min=0.0),
    "cosine": Path(lambda t: torch.cos(t * math.pi / 2), lambda t: torch.sin(t * math.pi / 2)),
}
