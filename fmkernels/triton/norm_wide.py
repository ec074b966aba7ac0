"""The norms of rows that registers do not hold, or that are given as a list of tensors: gone through in tiles.

A table has a row for each tile: the width and the address of its tensor, and the tile's first column in it, and the
tensor's first column in the row.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fmkernels.triton._launch import DTYPES, aligned, launch
from fmkernels.triton._math import get, put
from fmkernels.triton._table import planned, table

TILE = 1024  # columns at a time
FIELDS = tl.constexpr(4)  # of the table


@triton.jit
def rstd_of(power, eps, CENTER: tl.constexpr):
    """1 / sqrt(var + eps), or 1 / (rms + eps)."""
    power = tl.where(power < 0, 0.0, power)  # by a rounding; NaN stays
    return tl.div_rn(1.0, tl.sqrt_rn(power + eps) if CENTER else tl.sqrt_rn(power) + eps)


@triton.jit
def along_h(mean_gh, rstd, eps, CENTER: tl.constexpr):
    """What of h goes back: d rms / d s = s / (D rms) and rms * rstd = 1 - eps * rstd, zero for a row of zeros."""
    if not CENTER:
        share = 1.0 - eps * rstd
        mean_gh = tl.where(share > 0, tl.div_rn(mean_gh, tl.where(share > 0, share, 1.0)), 0.0)
    return mean_gh


@triton.jit
def _tile(tiles, k, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr):
    """Tile k of rows that are given in parts: where it is in the first, how far rows are apart, its size and column."""
    at = tiles + k * FIELDS
    stride, address, begin, column = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    pointer, begin = address.to(tl.pointer_type(DTYPE), bitcast=True), tl.multiple_of(begin, TILE)
    if ALIGNED:
        pointer, stride, column = tl.multiple_of(pointer, 16), tl.multiple_of(stride, 8), tl.multiple_of(column, 8)
    return pointer + begin, stride, tl.minimum(stride - begin, TILE), column + begin


@triton.jit
def _part(tiles, k, row, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr):
    """The elements of tile k, their columns, and which of them are inside."""
    pointer, stride, n, column = _tile(tiles, k, DTYPE, ALIGNED, TILE)
    i = tl.arange(0, TILE)
    return get(pointer, row * stride + i, i < n), column + i, i < n, n


@triton.jit
def _wide_moments(
    tiles, tile_count, residual, total, row, width, eps, CENTER: tl.constexpr, DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """(mean, rstd) of a row in tile_count, put together in fp64 (Chan's update); leaves x + residual in ``total``."""
    mean, squares, count = tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64)
    for k in range(tile_count):
        s, column, inside, n = _part(tiles, k, row, DTYPE, ALIGNED, TILE)
        if residual is not None:
            s += get(residual, row * width + column, inside)
            if total is not None:
                put(total, row * width + column, s, inside)
        if CENTER:
            near = tl.div_rn(tl.sum(s), tl.cast(n, tl.float32))
            rest = tl.where(inside, s - near, 0.0)
            size = n.to(tl.float64)
            shift = tl.sum(rest).to(tl.float64) / size
            change = near.to(tl.float64) + shift - mean
            after = count + size
            squares += (
                tl.sum(rest * rest).to(tl.float64) - shift * shift * size + change * change * count * size / after
            )
            mean += change * size / after
            count = after
        else:
            squares += tl.sum(s * s).to(tl.float64)
    power = (squares / width).to(tl.float32)
    return mean.to(tl.float32), rstd_of(power, eps, CENTER)


@triton.jit
def _wide(
    tiles, residual, scale, offset, y, total, stat, tile_count, width, per_scale, scale_stride, offset_stride, eps,
    CENTER: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One row: x in tiles, y and total (rows, width), stat (rows, 2), a row of scale for each ``per_scale`` rows."""
    row = tl.program_id(0).to(tl.int64)
    if ALIGNED:
        width = tl.multiple_of(width, 8)
    mean, rstd = _wide_moments(tiles, tile_count, residual, total, row, width, eps, CENTER, DTYPE, ALIGNED, TILE)
    tl.store(stat + 2 * row, mean)
    tl.store(stat + 2 * row + 1, rstd)
    for k in range(tile_count):
        s, column, inside, _ = _part(tiles, k, row, DTYPE, ALIGNED, TILE)
        if residual is not None:
            s += get(residual, row * width + column, inside)
        result = (s - mean) * rstd * get(scale, row // per_scale * scale_stride + column, inside)
        if offset is not None:
            result += get(offset, row // per_scale * offset_stride + column, inside)
        put(y, row * width + column, result, inside)


@triton.jit
def _wide_backward(
    tiles, grad, more, scale, stat, to_s, used, tile_count, width, per_scale, scale_stride, eps,
    CENTER: tl.constexpr, ROUNDED: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gradient to s of one row; leaves the moments it used for ``_wide_columns``."""
    row = tl.program_id(0).to(tl.int64)
    if ALIGNED:
        width = tl.multiple_of(width, 8)
    if ROUNDED:
        mean, rstd = _wide_moments(tiles, tile_count, None, None, row, width, eps, CENTER, DTYPE, ALIGNED, TILE)
    else:
        mean, rstd = tl.load(stat + 2 * row), tl.load(stat + 2 * row + 1)
    tl.store(used + 2 * row, mean)
    tl.store(used + 2 * row + 1, rstd)
    sum_g, sum_gh = tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64)
    for k in range(tile_count):
        s, column, inside, _ = _part(tiles, k, row, DTYPE, ALIGNED, TILE)
        gs = get(grad, row * width + column, inside) * get(scale, row // per_scale * scale_stride + column, inside)
        sum_g += tl.sum(gs).to(tl.float64)
        sum_gh += tl.sum(tl.where(inside, gs * (s - mean) * rstd, 0.0)).to(tl.float64)
    mean_g = (sum_g / width).to(tl.float32) if CENTER else 0.0
    along = along_h((sum_gh / width).to(tl.float32), rstd, eps, CENTER)
    for k in range(tile_count):
        s, column, inside, _ = _part(tiles, k, row, DTYPE, ALIGNED, TILE)
        gs = get(grad, row * width + column, inside) * get(scale, row // per_scale * scale_stride + column, inside)
        result = rstd * (gs - mean_g - (s - mean) * rstd * along)
        if more is not None:
            result += get(more, row * width + column, inside)
        put(to_s, row * width + column, result, inside)


@triton.jit
def _wide_columns(
    tiles, grad, used, to_scale, to_offset, tile_count, width, group, DTYPE: tl.constexpr, ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """The gradients to one tile of one row of scale and offset: its rows added up in their order."""
    pid = tl.program_id(0).to(tl.int64)
    which, k = pid // tile_count, pid % tile_count
    if ALIGNED:
        width = tl.multiple_of(width, 8)
    scale_sum, offset_sum = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
    pointer, stride, n, column = _tile(tiles, k, DTYPE, ALIGNED, TILE)
    i = tl.arange(0, TILE)
    inside = i < n
    for local in range(group):
        row = which * group + local
        s, g = get(pointer, row * stride + i, inside), get(grad, row * width + column + i, inside)
        mean, rstd = tl.load(used + 2 * row), tl.load(used + 2 * row + 1)
        scale_sum += tl.where(inside, g * (s - mean) * rstd, 0.0)
        offset_sum += g
    put(to_scale, which * width + column + i, scale_sum, inside)
    put(to_offset, which * width + column + i, offset_sum, inside)


class Tiles(NamedTuple):
    """The table of a list of tensors, and the constants of the kernels that read it."""

    rows: Tensor
    meta: dict[str, object]


def _tiles_of(x, widths):
    return planned(_make_tiles, x[0].device, tuple(map(Tensor.data_ptr, x)), widths, x[0].dtype)


def _make_tiles(device, addresses, widths, dtype):
    rows = table(device, list(zip(widths, addresses, strict=True)), TILE)
    return Tiles(rows, {"DTYPE": DTYPES[dtype], "ALIGNED": aligned(addresses, widths), "TILE": TILE})


def forward(x, shape, residual, scale, offset, y, total, stat, strides, eps, center):
    tiles, meta = _tiles_of(x, shape.widths)
    launch(
        _wide, shape.rows, tiles, residual, scale, offset, y, total, stat, len(tiles), shape.width, shape.per_scale,
        *strides, eps, CENTER=center, **meta,
    )  # fmt: skip


def backward(x, shape, grad, more, scale, stat, to_s, to_scale, to_offset, stride, eps, center, rounded):
    tiles, meta = _tiles_of(x, shape.widths)
    count, used = len(tiles), torch.empty_like(stat, dtype=torch.float32)
    launch(
        _wide_backward, shape.rows, tiles, grad, more, scale, stat, to_s, used, count, shape.width, shape.per_scale,
        stride, eps, CENTER=center, ROUNDED=rounded, **meta,
    )  # fmt: skip
    launch(
        _wide_columns, shape.scales * count, tiles, grad, used, to_scale, to_offset, count, shape.width,
        shape.per_scale, **meta,
    )  # fmt: skip
