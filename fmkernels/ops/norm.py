"""Time-dependent norms and the gelu gate: what stands between the products of a block."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fmkernels import checks, eager
from fmkernels.autograd import norm as gradients
from fmkernels.backend import Op


def _check_norm(x, scale, offset, residual, eps, center):
    op = "td_layer_norm" if center else "td_rms_norm"
    scale_name, offset_name = ("weight", "bias") if center else ("scale", "offset")
    if not isinstance(x, (list, tuple)) or not x:
        raise ValueError(f"{op}: x must be a tensor or a non-empty list of tensors")
    for i, part in enumerate(x):
        name = f"x[{i}]" if len(x) > 1 else "x"
        checks.batched(op, name, part)
        checks.same_device(op, name, part, "x[0]", x[0])
        if part.shape[:-1] != x[0].shape[:-1]:
            raise ValueError(f"{op}: {name} must agree with x[0] but for the last dimension, got {tuple(part.shape)}")
        if part.dtype != x[0].dtype:
            raise TypeError(f"{op}: {name} must have x[0]'s dtype {x[0].dtype}, got {part.dtype}")
    width, batch = sum(part.shape[-1] for part in x), x[0].shape[0] if x[0].dim() > 1 else 1
    for name, parameter in ((scale_name, scale), (offset_name, offset)):
        if parameter is None and name == "offset":
            continue
        checks.floating(op, name, parameter)
        checks.same_device(op, name, parameter, "x", x[0])
        # The rank first: comparing tuples of other lengths would tie B to D in a compiled graph.
        fits = parameter.dim() in (1, 2) and parameter.shape[-1] == width
        if not fits or (parameter.dim() == 2 and parameter.shape[0] not in (1, batch)):
            raise ValueError(
                f"{op}: {name} must have shape ({width},), (1, {width}) or ({batch}, {width}), "
                f"got {tuple(parameter.shape)}"
            )
    if offset is not None and offset.numel() != scale.numel():
        raise ValueError(
            f"{op}: {offset_name} must have as many rows as {scale_name}, got {tuple(offset.shape)} beside "
            f"{tuple(scale.shape)}; expand the smaller one"
        )
    if residual is not None:
        if len(x) > 1:
            raise ValueError(f"{op}: residual goes with a single tensor x, got a list of {len(x)}")
        checks.like(op, "residual", residual, "x", x[0])
    checks.number(op, "eps", eps)


def _check_norm_out(x, scale, offset, residual, eps, center, y, summed):
    op = "td_layer_norm" if center else "td_rms_norm"
    _check_norm(x, scale, offset, residual, eps, center)
    dtype = x[0].dtype if residual is None else torch.promote_types(x[0].dtype, residual.dtype)
    shape = (*x[0].shape[:-1], sum(part.shape[-1] for part in x))
    inputs = {f"x[{i}]": part for i, part in enumerate(x)} | {"scale": scale, "offset": offset, "residual": residual}
    for name, out in (("out" if summed is None else "out[0]", y), ("out[1]", summed)):
        if out is None:
            continue
        checks.floating(op, name, out)
        checks.same_device(op, name, out, "x", x[0])
        checks.shape(op, name, out, shape, "x's, with the width of all its parts")
        if out.dtype != dtype:
            raise TypeError(f"{op}: {name} must be {dtype}, the result's dtype, got {out.dtype}")
        checks.writable(op, name, out, **inputs)
        inputs[name] = out


def _check_gelu_mul(a, b):
    checks.floating("gelu_mul", "a", a)
    if b is not None:
        checks.like("gelu_mul", "b", b, "a", a)
    elif a.dim() < 1 or a.shape[-1] % 2:
        raise ValueError(f"gelu_mul: a holds both halves, so its last dimension must be even, got {tuple(a.shape)}")


_NORM = Op("td_norm", eager.td_norm, _check_norm, gradients.td_norm)
_NORM_OUT = Op("td_norm_out", eager.td_norm_out, _check_norm_out)
_GELU_MUL = Op("gelu_mul", eager.gelu_mul, _check_gelu_mul, gradients.gelu_mul)


def _same_rows(scale, offset):
    """A shared scale beside offsets of each sample, or the reverse, repeated: the op takes equally many rows."""
    if not isinstance(scale, Tensor) or not isinstance(offset, Tensor) or scale.shape == offset.shape:
        return scale, offset
    rows = max(x.shape[0] if x.dim() == 2 else 1 for x in (scale, offset))
    return tuple(
        x.expand(rows, x.shape[-1]) if x.dim() in (1, 2) and x.numel() == x.shape[-1] else x for x in (scale, offset)
    )


def _norm(x, scale, offset, residual, eps, center, out):
    scale, offset = _same_rows(scale, offset)
    if out is None:
        y, summed, _ = _NORM(x, scale, offset, residual, eps, center)
        return y if residual is None else (y, summed)
    op = "td_layer_norm" if center else "td_rms_norm"
    pair = isinstance(out, (list, tuple))
    if pair == (residual is None) or (pair and len(out) != 2):
        raise ValueError(f"{op}: out must be {'a tensor' if residual is None else '(y, sum), because of residual'}")
    y, summed = out if pair else (out, None)
    checks.no_gradient(op, "out", *x, scale, offset, residual, y, summed)
    _NORM_OUT(x, scale, offset, residual, eps, center, y, summed)
    checks.written(y, summed)
    return out


def td_rms_norm(
    x: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    eps: float = 1e-8,
    out: Tensor | tuple[Tensor, Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """``x / (|x| d^(-1/2) + eps) * scale (+ offset)``, the norm over the last dimension, eps outside the root.

    x: (B, ..., D). scale, offset: (D,), (1, D) or (B, D), one row a sample, of any floating dtype.
    With ``residual`` (x's shape): returns ``(norm(x + residual), x + residual)``, both from one pass.
    Results have x's dtype (promoted with residual's). Gradients go to x, residual, scale and offset.
    ``out`` (two tensors with ``residual``) receives the result instead of fresh memory, without gradients.
    """
    if type(eps) is not float:
        checks.number("td_rms_norm", "eps", eps)
    return _norm([x], scale, offset, residual, eps, False, out)


def td_layer_norm(
    x: Tensor | Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    *,
    residual: Tensor | None = None,
    eps: float = 1e-5,
    out: Tensor | tuple[Tensor, Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension.

    x: (B, ..., D), or a list of tensors normalised as their concatenation on the last dimension, which
    is never made. weight, bias: (D,), (1, D) or (B, D). With ``residual`` (and a single x): returns
    ``(norm(x + residual), x + residual)``. Gradients go to x, residual, weight and bias. ``out`` as in td_rms_norm.
    """
    parts = list(x) if isinstance(x, (list, tuple)) else [x]
    if type(eps) is not float:
        checks.number("td_layer_norm", "eps", eps)
    return _norm(parts, weight, bias, residual, eps, True, out)


def gelu_mul(a: Tensor, b: Tensor | None = None) -> Tensor:
    """``gelu(a) * b`` with the exact (erf) gelu, in one pass; gradients to both.

    a, b: one shape. With ``b`` left out, ``a`` holds both as the halves of its last dimension, gate
    first, and the result has half its width.
    """
    return _GELU_MUL(a, b)
