"""Norms whose scales and offsets depend on the time, and modulated norms: one pass between the products of a block."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fmkernels import checks, eager
from fmkernels.autograd import norm as gradients
from fmkernels.backend import Op
from fmkernels.ops.rows import by_sample, check_rows, checked, same_rows


def _check_norm(x, scale, offset, residual, gate, eps, center, inside, suffix=""):
    op = ("td_layer_norm" if center else "td_rms_norm") + suffix
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
    for name, parameter in ((scale_name, scale), (offset_name, offset), ("gate", gate)):
        if parameter is None and name != scale_name:
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
    for name, parameter in ((offset_name, offset), ("gate", gate)):
        if parameter is not None and parameter.numel() != scale.numel():
            raise ValueError(
                f"{op}: {name} must have as many rows as {scale_name}, got {tuple(parameter.shape)} beside "
                f"{tuple(scale.shape)}; expand the smaller one"
            )
    if gate is not None and residual is None:
        raise ValueError(f"{op}: gate goes with residual")
    if residual is not None:
        if len(x) > 1:
            raise ValueError(f"{op}: residual goes with a single tensor x, got a list of {len(x)}")
        checks.like(op, "residual", residual, "x", x[0])
    checks.number(op, "eps", eps)


def _check_norm_out(x, scale, offset, residual, gate, eps, center, inside, y, summed):
    op = "td_layer_norm" if center else "td_rms_norm"
    _check_norm(x, scale, offset, residual, gate, eps, center, inside)
    dtype = x[0].dtype if residual is None else torch.promote_types(x[0].dtype, residual.dtype)
    shape = (*x[0].shape[:-1], sum(part.shape[-1] for part in x))
    inputs = {f"x[{i}]": part for i, part in enumerate(x)}
    inputs |= {"scale": scale, "offset": offset, "residual": residual, "gate": gate}
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


_NORM = Op("td_norm", eager.td_norm, _check_norm, gradients.td_norm)
_NORM_OUT = Op("td_norm_out", eager.td_norm_out, _check_norm_out)


def _norm(x, scale, offset, residual, eps, center, out):
    scale, offset = same_rows(scale, offset)
    if out is None:
        y, summed, _ = _NORM(x, scale, offset, residual, None, eps, center, center)
        return y if residual is None else (y, summed)
    op = "td_layer_norm" if center else "td_rms_norm"
    pair = isinstance(out, (list, tuple))
    if pair == (residual is None) or (pair and len(out) != 2):
        raise ValueError(f"{op}: out must be {'a tensor' if residual is None else '(y, sum), because of residual'}")
    y, summed = out if pair else (out, None)
    checks.no_gradient(op, "out", *x, scale, offset, residual, y, summed)
    _NORM_OUT(x, scale, offset, residual, None, eps, center, center, y, summed)
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

    x: (B, ..., D). scale, offset: (D,), (1, D) or (B, D), one row per sample, of any floating dtype.
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

    x: (B, ..., D), or a list of tensors normalized as their concatenation on the last dimension, which
    is never made. weight, bias: (D,), (1, D) or (B, D). With ``residual`` (and a single x): returns
    ``(norm(x + residual), x + residual)``. Gradients go to x, residual, weight and bias. ``out`` as in td_rms_norm.
    """
    parts = list(x) if isinstance(x, (list, tuple)) else [x]
    if type(eps) is not float:
        checks.number("td_layer_norm", "eps", eps)
    if bias is None:
        checks.tensor("td_layer_norm", "bias", bias)
    return _norm(parts, weight, bias, residual, eps, True, out)


def norm_modulate(
    x: Tensor,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    kind: str = "layer",
    eps: float = 1e-6,
    eps_outside: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """``(norm(s) * weight + bias) * (1 + scale) + shift`` over the last dimension in one pass, with ``s = x`` or
    ``s = residual + gate * x``.

    Returns the result, and with ``residual`` the pair ``(result, s)``. Both have x's dtype (promoted with residual's);
    the arithmetic is in fp32 (fp64 for fp64 inputs), and each is rounded once. Gradients go to all tensors.

    Args:
        x: (B, ..., D), for example the output of attention when ``residual`` is the stream that it is added to.
        scale, shift, weight, bias, gate: rows of D elements of any floating dtype: (D,), (B, D), or the number of
            dimensions of x with sizes of 1 behind those that they vary over, as (B, 1, D) or, per token, (B, S, D).
        residual: a tensor of x's shape. ``gate`` requires it.
        kind: "layer" subtracts the mean; "rms" does not.
        eps: added to the mean square inside the root (as in torch), or with ``eps_outside`` to the root.
    """
    if kind not in ("layer", "rms"):
        raise ValueError(f"norm_modulate: kind must be 'layer' or 'rms', got {kind!r}")
    if gate is not None and residual is None:
        raise ValueError("norm_modulate: gate requires residual, the tensor that gate * x is added to")
    if type(eps) is not float:
        checks.number("norm_modulate", "eps", eps)
    args = x, scale, shift, weight, bias, residual, gate, eps, kind == "layer", not eps_outside
    return checked(_check_modulate, _modulate, *args)


def _check_modulate(x, scale, shift, weight, bias, residual, gate, eps, center, inside):
    op = "norm_modulate"
    checks.batched(op, "x", x)
    checks.number(op, "eps", eps)
    if residual is not None:
        checks.like(op, "residual", residual, "x", x)
    check_rows(op, x, scale=scale, shift=shift, weight=weight, bias=bias, gate=gate)


def _modulate(x, scale, shift, weight, bias, residual, gate, eps, center, inside):
    flat, (scale, shift, weight, bias, gate) = by_sample(x, (scale, shift, weight, bias, gate))
    wide = torch.float64 if torch.float64 in (x.dtype, getattr(residual, "dtype", None)) else torch.float32
    factor, offset = _combined(scale, shift, weight, bias, wide)
    if factor is None:
        factor = x.new_ones(x.shape[-1], dtype=wide)
    factor, offset, gate = same_rows(factor, offset, gate)
    stream = residual if flat is x or residual is None else residual.reshape(flat.shape)
    y, s, _ = _NORM([flat], factor, offset, stream, gate, eps, center, inside)
    if flat is not x:
        y, s = y.reshape(x.shape), s if residual is None else s.reshape(x.shape)
    return y if residual is None else (y, s)


def _combined(scale, shift, weight, bias, wide):
    """The factor and the offset, of which each may be None, of h * weight + bias followed by scale and shift."""
    if scale is None:
        if bias is None or shift is None:
            return weight, shift if bias is None else bias
        return weight, bias.to(wide) + shift
    factor = scale.to(wide) + 1
    offset = shift if bias is None else factor * bias if shift is None else factor * bias + shift
    return factor if weight is None else factor * weight, offset
