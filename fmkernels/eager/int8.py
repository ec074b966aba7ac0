"""Linear layers in int8: rows of x and rows of the weight quantized symmetrically, an int32 product, one fp32 epilogue.

The packed weight of the CPU kernels, (panels, in / 4 + 1, 128) int8: a panel has 32 rows of the weight, as groups of
four neighbouring elements of each; its last 128 bytes are an int32 per row, -128 times the row's sum.
"""

import torch
import torch.nn.functional as F

from fmkernels.eager._dtypes import rounded
from fmkernels.eager.norm import td_norm

LEVELS = 127
SMALLEST = 2.0**-100  # a row without a larger magnitude is a row of zeros: 127 / SMALLEST is far from overflow
PANEL, DEPTH = 32, 4
EXACT = 1024  # so many products of int8 values have an exact sum in fp32: 128 * 128 * 1024 = 2^24


def quantize_rows(x):
    """-> int8 rows round(x * (127 / amax)), and the scale amax / 127 of each row: 0 for zeros, NaN if not finite."""
    wide = x.float()
    largest = wide.abs().amax(-1) if x.shape[-1] else wide.new_zeros(x.shape[:-1])
    finite, zero = torch.isfinite(largest), largest < SMALLEST
    inverse = torch.where(zero, 0.0, torch.full_like(largest, LEVELS) / largest)  # a number / largest rounds twice
    rows = torch.where(finite[..., None], (wide * inverse[..., None]).round(), 0.0)
    scale = torch.where(zero, 0.0, largest / LEVELS)
    return rounded(rows, torch.int8), torch.where(finite, scale, torch.nan)


def linear_int8(x, x_scale, weight, scale, bias, dtype):
    if x_scale is None:
        x, x_scale = quantize_rows(x)
    if weight.dim() == 3:
        weight = unpack_int8(weight, len(scale), x.shape[-1])
    y = _product(x.reshape(x.shape[:-1].numel(), x.shape[-1]), weight).float() * (x_scale.reshape(-1, 1) * scale)
    if bias is not None:
        y = y + bias.float()
    return rounded(y, dtype).view(*x.shape[:-1], len(scale))


def _product(rows, weight):
    """``rows @ weight.T`` in int32: torch's int8 product on CUDA, elsewhere exact products in fp32."""
    if rows.is_cuda and len(rows) > 16 and rows.shape[1] % 8 == len(weight) % 8 == 0 < weight.numel():
        return torch._int_mm(rows, weight.t())
    sums = torch.zeros(len(rows), len(weight), dtype=torch.int32, device=rows.device)
    for x, w in zip(rows.split(EXACT, 1), weight.split(EXACT, 1), strict=True):
        sums = sums + (x.float() @ w.float().t()).int()
    return sums


def pack_int8(weight):
    rows, width = weight.shape
    panels, depth = -(-rows // PANEL), -(-width // DEPTH)
    filled = F.pad(weight, (0, depth * DEPTH - width, 0, panels * PANEL - rows))
    body = filled.view(panels, PANEL, depth, DEPTH).transpose(1, 2).reshape(panels, depth, PANEL * DEPTH)
    start = filled.sum(1, dtype=torch.int32).mul(-128).view(panels, 1, PANEL).view(torch.int8)
    return torch.cat([body, start], dim=1)


def unpack_int8(packed, out_features, in_features):
    panels, depth = packed.shape[0], packed.shape[1] - 1
    rows = packed[:, :-1].reshape(panels, depth, PANEL, DEPTH).transpose(1, 2).reshape(panels * PANEL, depth * DEPTH)
    return rows[:out_features, :in_features].contiguous()


def td_norm_int8(x, scale, offset, residual, eps, center):
    """-> the int8 rows of the unrounded norm, their scales, and x + residual (empty without one)."""
    joined = torch.cat(x, dim=-1) if len(x) > 1 else x[0]
    if residual is None:
        y, summed, _ = td_norm([joined.float()], scale, offset, None, None, eps, center, center)
    else:
        y, summed, _ = td_norm([joined.float()], scale, offset, residual.float(), None, eps, center, center)
        summed = rounded(summed, torch.promote_types(joined.dtype, residual.dtype))
    return *quantize_rows(y), summed
