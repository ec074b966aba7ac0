"""Linear layers in int8, for inference: quantized rows, products, and norms whose output is quantized."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fmkernels import backend, checks, eager
from fmkernels.backend import Op
from fmkernels.eager.int8 import DEPTH, PANEL
from fmkernels.ops.norm import _check_norm
from fmkernels.ops.rows import same_rows

WIDEST = 131071  # of a row: 128 * 128 * 131072 is the first sum that int32 does not hold
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def check_floats(op, name, x, *more):
    checks.tensor(op, name, x)
    if x.dtype not in (*_FLOATS, *more):
        kinds = "float32, bfloat16 or float16" + " (or int8 with x_scale)" * bool(more)
        raise TypeError(f"{op}: {name} must be {kinds}, got {x.dtype}")
    if x.dim() < 1:
        raise ValueError(f"{op}: {name} must have at least one dimension, got a 0-dimensional tensor")


def _check_int8(op, name, x):
    checks.tensor(op, name, x)
    if x.dtype != torch.int8:
        raise TypeError(f"{op}: {name} must be int8, got {x.dtype}; fmkernels.quantize_weight makes it")


def _check_quantize_rows(x):
    check_floats("quantize_rows", "x", x)


def _check_pack_int8(weight):
    _check_int8("pack_int8", "weight", weight)
    if weight.dim() != 2:
        raise ValueError(f"pack_int8: weight must have shape (out, in), got {tuple(weight.shape)}")


def _check_scale(op, name, x, shape, meaning, like):
    checks.tensor(op, name, x)
    if x.dtype != torch.float32:
        raise TypeError(f"{op}: {name} must be float32, got {x.dtype}")
    checks.same_device(op, name, x, "x", like)
    checks.shape(op, name, x, shape, meaning)


def _check_linear_int8(x, x_scale, weight, scale, bias, dtype):
    op = "linear_int8"
    check_floats(op, "x", x, torch.int8)
    if (x_scale is None) == (x.dtype == torch.int8):
        expected = "be given with int8 rows" if x_scale is None else f"be left out with x of {x.dtype}"
        raise ValueError(f"{op}: x_scale must {expected}; fmkernels.quantize_rows makes both")
    if x_scale is not None:
        _check_scale(op, "x_scale", x_scale, x.shape[:-1], "one per row of x", x)
    width = x.shape[-1]
    if width > WIDEST:
        raise ValueError(f"{op}: x must have at most {WIDEST} columns, so that int32 holds the sums, got {width}")
    name = "packed" if isinstance(weight, Tensor) and weight.dim() == 3 else "weight"
    _check_int8(op, name, weight)
    checks.same_device(op, name, weight, "x", x)
    checks.tensor(op, "scale", scale)
    rows = scale.shape[0] if scale.dim() == 1 else None
    if name == "packed":
        _check_scale(op, "scale", scale, (rows,), "(out,)", x)
        checks.shape(op, name, weight, (-(-rows // PANEL), -(-width // DEPTH) + 1, PANEL * DEPTH), "from pack_int8")
    else:
        if weight.dim() != 2 or weight.shape[1] != width:
            raise ValueError(
                f"{op}: weight must have shape (out, {width}), {width} being x's width, got {tuple(weight.shape)}"
            )
        rows = weight.shape[0]
        _check_scale(op, "scale", scale, (rows,), "(out,)", x)
    if bias is not None:
        check_floats(op, "bias", bias)
        checks.same_device(op, "bias", bias, "x", x)
        checks.shape(op, "bias", bias, (rows,), "(out,)")
    if dtype not in _FLOATS:
        raise TypeError(f"{op}: out_dtype must be float32, bfloat16 or float16, got {dtype}")


def _check_norm_int8(x, scale, offset, residual, eps, center):
    _check_norm(x, scale, offset, residual, None, eps, center, center, "_int8")
    for name, tensor in (("x", x[0]), ("residual", residual)):
        if tensor is not None:
            check_floats(f"td_{'layer' if center else 'rms'}_norm_int8", name, tensor)


_QUANTIZE_ROWS = Op("quantize_rows", eager.quantize_rows, _check_quantize_rows)
_PACK = Op("pack_int8", eager.pack_int8, _check_pack_int8)
_LINEAR = Op("linear_int8", eager.linear_int8, _check_linear_int8)
_NORM = Op("td_norm_int8", eager.td_norm_int8, _check_norm_int8)


def inference_only(op: str, **tensors: object) -> None:
    if torch.is_grad_enabled():
        for name, x in tensors.items():
            if isinstance(x, Tensor) and x.requires_grad:
                raise ValueError(f"{op}: {name} must not require gradients (inference only); use torch.no_grad()")


def int8_kernel() -> str:
    """The inner loop of ``linear_int8`` on this CPU: "avx512_vnni", "avx_vnni", "avx2", "plain" or "eager".

    The first two are much faster than a product in float32, and "avx2" is a little faster on CPUs without AVX-512.
    """
    return backend.int8_kernel() if backend.native_cpu() else "eager"


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(rows, x_scale)``: int8 rows (..., in) and their float32 scales (...,), with ``x ≈ rows * x_scale``.

    x: (..., in), float32, bfloat16 or float16. With amax, the largest magnitude of a row: ``x_scale = amax / 127`` and
    ``rows = round(x * (127 / amax))``, half to even, in float32. A row whose magnitudes are all below 2**-100 is a row
    of zeros with the scale 0. A row with a NaN or an infinity has the scale NaN and zeros as elements, so that all its
    products are NaN. One quantized input may be passed to several ``linear_int8``. Without gradients.
    """
    inference_only("quantize_rows", x=x)
    return _QUANTIZE_ROWS(x)


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(int8 weight, scale)`` of a weight (out, in), one scale per output: ``quantize_rows`` of it."""
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        got = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"quantize_weight: weight must be a tensor of shape (out, in), got {got}")
    return quantize_rows(weight.detach())


def pack_int8(weight: Tensor) -> Tensor:
    """Return an int8 weight (out, in) in the layout of the CPU kernels; on other devices, the weight itself.

    The layout is the same on every CPU, but not meant for files: ``unpack_int8`` restores the weight. Pack once per
    module, and pass the result as ``packed=`` to ``linear_int8``, which then does not need the weight.
    """
    if isinstance(weight, Tensor) and weight.device.type not in ("cpu", "meta"):
        _check_pack_int8(weight)
        return weight
    return _PACK(weight)


def unpack_int8(packed: Tensor, out_features: int, in_features: int) -> Tensor:
    """Return the weight (out_features, in_features) from which ``pack_int8`` made ``packed``."""
    _check_int8("unpack_int8", "packed", packed)
    if packed.dim() == 2:
        return packed
    panels, depth = -(-out_features // PANEL), -(-in_features // DEPTH)
    checks.shape("unpack_int8", "packed", packed, (panels, depth + 1, PANEL * DEPTH), "from pack_int8")
    return eager.unpack_int8(packed, out_features, in_features)


def linear_int8(
    x: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    x_scale: Tensor | None = None,
    packed: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``(rows @ weight.T) * (x_scale * scale) + bias`` with int8 rows, exact int32 sums and a float32 epilogue.

    The result is rounded once. Every backend and any number of threads give the same bits. A row of x with a NaN or an
    infinity gives a row of NaN. For inference: raises ValueError if gradients are requested.

    Args:
        x: (..., in). Float32, bfloat16 or float16 rows are quantized as by ``quantize_rows``, in the pass that reads
            them; int8 rows come with their ``x_scale``. At most 131071 columns.
        weight: (out, in), int8. May be None if ``packed`` is given.
        scale: (out,), float32, from ``quantize_weight``.
        bias: (out,), of any of the three floating dtypes.
        x_scale: x.shape[:-1], float32; only with int8 rows.
        packed: the result of ``pack_int8(weight)``; without it, the CPU kernels pack the weight in every call.
        out_dtype: float32, bfloat16 or float16; by default x's dtype, and float32 for int8 rows.
    """
    inference_only("linear_int8", x=x, scale=scale, bias=bias)
    if out_dtype is None:
        out_dtype = x.dtype if isinstance(x, Tensor) and x.dtype != torch.int8 else torch.float32
    checks.dtype("linear_int8", "out_dtype", out_dtype)
    if packed is not None:
        weight = packed
        if _is_foreign(packed):
            _check_linear_int8(x, x_scale, packed, scale, bias, out_dtype)
            weight = eager.unpack_int8(packed, len(scale), x.shape[-1])
    return _LINEAR(x, x_scale, weight, scale, bias, out_dtype)


def _is_foreign(packed: object) -> bool:
    """True for the layout of the CPU kernels where others compute the product."""
    return isinstance(packed, Tensor) and packed.dim() == 3 and not (packed.is_cpu and backend.native_cpu())


def _norm(op, x, scale, offset, residual, eps, center):
    rows = {"weight": scale, "bias": offset} if center else {"scale": scale, "offset": offset}
    inference_only(op, residual=residual, **rows)
    for part in x:
        inference_only(op, x=part)
    scale, offset = same_rows(scale, offset)
    rows, row_scale, summed = _NORM(x, scale, offset, residual, eps, center)
    return (rows, row_scale) if residual is None else (rows, row_scale, summed)


def td_rms_norm_int8(
    x: Tensor, scale: Tensor, offset: Tensor | None = None, *, residual: Tensor | None = None, eps: float = 1e-8
) -> tuple[Tensor, ...]:
    """``quantize_rows(td_rms_norm(x, ...))`` in one pass: ``(rows, x_scale)`` for ``linear_int8``.

    With ``residual``: ``(rows, x_scale, x + residual)``. The norm is quantized before it is rounded to x's dtype: it
    never exists in memory. x: float32, bfloat16 or float16; the other arguments as for ``td_rms_norm``.
    """
    checks.number("td_rms_norm_int8", "eps", eps)
    return _norm("td_rms_norm_int8", [x], scale, offset, residual, eps, False)


def td_layer_norm_int8(
    x: Tensor | Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    *,
    residual: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, ...]:
    """``quantize_rows(td_layer_norm(x, ...))`` in one pass; see ``td_rms_norm_int8`` and ``td_layer_norm``."""
    checks.number("td_layer_norm_int8", "eps", eps)
    parts = list(x) if isinstance(x, (list, tuple)) else [x]
    return _norm("td_layer_norm_int8", parts, weight, bias, residual, eps, True)
