"""The path from x0 to x1, the flow loss, and the statistics of a predicted velocity."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fmkernels import checks, eager
from fmkernels.autograd import path as gradients
from fmkernels.backend import Op


def _check_t(op, t, name, ref):
    checks.floating(op, "t", t)
    checks.same_device(op, "t", t, name, ref)
    batch = ref.shape[0]
    if t.numel() != batch or (t.dim() > 0 and t.shape[0] != batch) or t.dim() == 0:
        raise ValueError(f"{op}: t must have shape ({batch},), one time a sample, got {tuple(t.shape)}")


def _check_ends(op, x0, x1, sigma_min, sigma_max):
    checks.batched(op, "x0", x0)
    checks.like(op, "x1", x1, "x0", x0)
    checks.sigmas(op, sigma_min, sigma_max)


def _check_psi(t, x0, x1, sigma_min, sigma_max):
    _check_ends("psi", x0, x1, sigma_min, sigma_max)
    _check_t("psi", t, "x0", x0)


def _check_dt_psi(x0, x1, sigma_min, sigma_max):
    _check_ends("Dt_psi", x0, x1, sigma_min, sigma_max)


def _check_flow_pair(t, x0, x1, sigma_min, sigma_max, dtype):
    _check_ends("flow_pair", x0, x1, sigma_min, sigma_max)
    _check_t("flow_pair", t, "x0", x0)
    if dtype is not None and (not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize == 1):
        raise TypeError(f"flow_pair: dtype must be float16, bfloat16, float32, float64 or None, got {dtype}")


def _check_target(op, v_pred, x0, x1, v_target, sigma_min, sigma_max):
    checks.batched(op, "v_pred", v_pred)
    if v_target is not None:
        for name, x in (("x0", x0), ("x1", x1)):
            if x is not None:
                raise ValueError(f"{op}: give x0 and x1, or v_target, not {name} with v_target")
        checks.like(op, "v_target", v_target, "v_pred", v_pred)
    for name, x in (("x0", x0), ("x1", x1)):
        if v_target is None:
            if x is None:
                raise ValueError(f"{op}: {name} is missing: give x0 and x1, or v_target")
            checks.like(op, name, x, "v_pred", v_pred)
    checks.sigmas(op, sigma_min, sigma_max)


def _check_velocity_stats(v_pred, x0, x1, v_target, sigma_min, sigma_max):
    _check_target("velocity_stats", v_pred, x0, x1, v_target, sigma_min, sigma_max)


def _check_flow_loss(v_pred, x0, x1, v_target, weight, sigma_min, sigma_max):
    _check_target("flow_loss", v_pred, x0, x1, v_target, sigma_min, sigma_max)
    if weight is not None:
        checks.floating("flow_loss", "weight", weight)
        checks.same_device("flow_loss", "weight", weight, "v_pred", v_pred)
        checks.shape("flow_loss", "weight", weight, (v_pred.shape[0],), "one weight a sample")


_PSI = Op("psi", eager.psi, _check_psi, gradients.psi)
_DT_PSI = Op("dt_psi", eager.dt_psi, _check_dt_psi, gradients.dt_psi)
_FLOW_PAIR = Op("flow_pair", eager.flow_pair, _check_flow_pair, gradients.flow_pair)
_VELOCITY_STATS = Op("velocity_stats", eager.velocity_stats, _check_velocity_stats)
_VELOCITY_SUMMARY = Op("velocity_summary", eager.velocity_summary)
_FLOW_LOSS = Op("flow_loss", eager.flow_loss, _check_flow_loss, gradients.flow_loss)


def psi(t: Tensor, x0: Tensor, x1: Tensor, sigma_min: float = 1e-5, sigma_max: float = 1.0) -> Tensor:
    """``(t (sigma_min/sigma_max - 1) + 1) x0 + t x1``

    t: (B,), or (B, 1, ...). x0, x1: (B, ...). Computed in fp32, rounded once to the promoted dtype of
    x0 and x1. Gradients go to x0 and x1.
    """
    checks.sigmas("psi", sigma_min, sigma_max)
    return _PSI(t, x0, x1, sigma_min, sigma_max)


def Dt_psi(t: Tensor, x0: Tensor, x1: Tensor, sigma_min: float = 1e-5, sigma_max: float = 1.0) -> Tensor:  # noqa: N802
    """``(sigma_min/sigma_max - 1) x0 + x1``, the time derivative of :func:`psi`: t does not enter."""
    if t is not None and isinstance(x0, Tensor) and x0.dim():
        _check_t("Dt_psi", t, "x0", x0)
    checks.sigmas("Dt_psi", sigma_min, sigma_max)
    return _DT_PSI(x0, x1, sigma_min, sigma_max)


def flow_pair(
    t: Tensor,
    x0: Tensor,
    x1: Tensor,
    sigma_min: float = 1e-5,
    sigma_max: float = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """``(psi(t, x0, x1), Dt_psi(t, x0, x1))`` in one pass over x0 and x1: what a training step starts from.

    Both in ``dtype`` (default: promoted from x0 and x1), computed in fp32 and rounded once. x_t carries
    gradients to x0 and x1; the target carries none, by construction.
    """
    checks.sigmas("flow_pair", sigma_min, sigma_max)
    if dtype is not None:
        checks.dtype("flow_pair", "dtype", dtype)
    return _FLOW_PAIR(t, x0, x1, sigma_min, sigma_max, dtype)


def velocity_stats(
    v_pred: Tensor,
    x0: Tensor | None = None,
    x1: Tensor | None = None,
    *,
    v_target: Tensor | None = None,
    t: Tensor | None = None,
    sigma_min: float = 1e-5,
    sigma_max: float = 1.0,
) -> "VelocityStats":
    """How v_pred compares with its target, from one pass and without a copy to the host.

    The target is ``v_target``, or ``Dt_psi(t, x0, x1)``, which is then never written to memory.
    t: (B,), only for :meth:`VelocityStats.by_t`.
    """
    checks.sigmas("velocity_stats", sigma_min, sigma_max)
    with torch.no_grad():
        sums = _VELOCITY_STATS(v_pred, x0, x1, v_target, sigma_min, sigma_max)
    return VelocityStats(sums, v_pred[:1].numel(), _times("velocity_stats", t, v_pred))


def flow_loss(
    v_pred: Tensor,
    x0: Tensor | None = None,
    x1: Tensor | None = None,
    *,
    v_target: Tensor | None = None,
    t: Tensor | None = None,
    weight: Tensor | None = None,
    sigma_min: float = 1e-5,
    sigma_max: float = 1.0,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, "VelocityStats"]:
    """``weight[b] * mean((v_pred[b] - v_target[b])^2)``, averaged over the batch or (``"none"``) per sample.

    Targets as in :func:`velocity_stats`. Gradients go to v_pred only: targets and weight are detached by
    construction. ``return_stats=True`` adds the statistics, from the same pass.
    """
    if reduction not in ("mean", "none"):
        raise ValueError(f"flow_loss: reduction must be 'mean' or 'none', got {reduction!r}")
    checks.sigmas("flow_loss", sigma_min, sigma_max)
    loss, sums = _FLOW_LOSS(v_pred, x0, x1, v_target, weight, sigma_min, sigma_max)
    t = _times("flow_loss", t, v_pred)
    if reduction == "mean":
        loss = loss.mean()
    return (loss, VelocityStats(sums, v_pred[:1].numel(), t)) if return_stats else loss


def _times(op, t, v_pred):
    if t is None:
        return None
    _check_t(op, t, "v_pred", v_pred)
    return t.detach().reshape(-1)


@dataclass(frozen=True)
class VelocityStats:
    """Per-sample sums of one comparison, kept on the device; every property is a tensor there.

    sums: (B, 9), the columns of csrc/shared/columns.h. n: elements per sample. t: (B,) or None.
    """

    sums: Tensor
    n: int
    t: Tensor | None = None

    def _summary(self, t: Tensor | None = None, bins: int = 0) -> Tensor:
        return _VELOCITY_SUMMARY(self.sums, t, self.n, bins)

    @property
    def nmse(self) -> Tensor:
        """sum (v_pred - v_target)^2 / sum v_target^2, pooled over the batch."""
        return self._summary()[0, 0]

    @property
    def cos(self) -> Tensor:
        """Mean over samples of the cosine between v_pred and its target."""
        return self._summary()[0, 1]

    @property
    def speed_ratio(self) -> Tensor:
        """Mean over samples of |v_pred| / |v_target|."""
        return self._summary()[0, 2]

    @property
    def gain(self) -> Tensor:
        """Median over samples of |v_target| / |v_pred|: the factor by which the field is too slow (fm_gain)."""
        return (self.sums[:, 2].sqrt() / (self.sums[:, 1].sqrt() + 1e-12)).median()

    @property
    def nonfinite(self) -> Tensor:
        """Number of elements of v_pred or its target that are infinite or NaN."""
        return self.sums[:, 8].sum()

    def by_t(self, bins: int = 10) -> dict[str, Tensor]:
        """``nmse`` (pooled), ``cos``, ``speed_ratio`` (means) and ``count`` of each slice (k/bins, (k+1)/bins] of t.

        Tensors of length ``bins``; t = 0 is in slice 0, and a slice without samples is NaN with count 0.
        """
        if self.t is None:
            raise ValueError("VelocityStats.by_t: t is missing: pass t to velocity_stats or flow_loss")
        if not isinstance(bins, int) or bins < 1:
            raise ValueError(f"VelocityStats.by_t: bins must be a whole number of at least 1, got {bins!r}")
        columns = self._summary(self.t, bins)[1:].unbind(1)
        return dict(zip(("nmse", "cos", "speed_ratio", "count"), columns, strict=True))

    def as_dict(self) -> dict[str, float]:
        """Floats under the log's names; the one copy to the host. With t, also of its non-empty tenths."""
        (nmse, cos, speed_ratio, _), *slices = self._summary(self.t, 10 if self.t is not None else 0).tolist()
        out = {"flow/cos": cos, "flow/nmse": nmse, "flow/speed_ratio": speed_ratio}
        for k, (nmse, cos, _, count) in enumerate(slices):
            if count:
                out[f"flow/nmse_t{k}"], out[f"flow/cos_t{k}"] = nmse, cos
        return out
