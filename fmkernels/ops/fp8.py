"""Linear layers in float8, for inference, by torch's row-wise scaled product."""

import torch
from torch import Tensor

from fmkernels import checks
from fmkernels.ops.int8 import check_floats, inference_only

FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # of FP8
SMALLEST = 2.0**-100


def quantize_rows_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(rows, x_scale)``: float8_e4m3fn rows (..., in) and their float32 scales (...,), amax / 448.

    x: (..., in), float32, bfloat16 or float16; also a weight (out, in). A row with a NaN or an infinity has the scale
    NaN; a row whose magnitudes are all below 2**-100 has the scale 0.
    """
    check_floats("quantize_rows_fp8", "x", x)
    inference_only("quantize_rows_fp8", x=x)
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True) if x.shape[-1] else wide.new_zeros(*x.shape[:-1], 1)
    finite, zero = torch.isfinite(largest), largest < SMALLEST
    rows = torch.where(finite, wide * torch.where(zero, 0.0, LARGEST / largest), 0.0)
    scale = torch.where(finite, torch.where(zero, 0.0, largest / LARGEST), torch.nan)
    return rows.clamp(-LARGEST, LARGEST).to(FP8), scale.squeeze(-1)


def linear_fp8(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    x_scale: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``(rows @ weight.T) * (x_scale * scale) + bias`` with float8 rows: ``torch._scaled_mm`` with a scale per row.

    For NVIDIA GPUs of compute capability 8.9 or higher, where it has not been run; the product is rounded to bfloat16
    there before the bias is added. The CPU executes it slowly. x: (..., in), or float8 rows with their x_scale.
    weight: (out, in), float8_e4m3fn, and scale: (out,), from ``quantize_rows_fp8``; in and out must be multiples of 16.
    Other arguments as for ``linear_int8``.
    """
    op = "linear_fp8"
    inference_only(op, x=x, scale=scale, bias=bias)
    checks.tensor(op, "weight", weight)
    if weight.dtype != FP8 or weight.dim() != 2 or any(n % 16 for n in weight.shape):
        raise ValueError(
            f"{op}: weight must be {FP8} of shape (out, in), both multiples of 16, got {weight.dtype} "
            f"{tuple(weight.shape)}"
        )
    if x_scale is None:
        out_dtype = x.dtype if out_dtype is None else out_dtype
        x, x_scale = quantize_rows_fp8(x)
    if x.dtype != FP8:
        raise TypeError(f"{op}: x must be {FP8} if x_scale is given, got {x.dtype}")
    checks.shape(op, "x", x, (*x.shape[:-1], weight.shape[1]), "its width is weight's")
    checks.shape(op, "x_scale", x_scale, x.shape[:-1], "one per row of x")
    checks.shape(op, "scale", scale, weight.shape[:1], "(out,)")
    made = torch.bfloat16 if x.is_cuda else torch.float32
    rows = x.reshape(-1, weight.shape[1])
    y = torch._scaled_mm(rows, weight.t(), x_scale.reshape(-1, 1), scale.reshape(1, -1), out_dtype=made)
    if bias is not None:
        checks.shape(op, "bias", bias, weight.shape[:1], "(out,)")
        y = y + bias.float()
    return y.to(out_dtype or torch.float32).view(*x.shape[:-1], len(scale))
