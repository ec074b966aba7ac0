"""The norms of rows that do not fit in registers or are given as a list of tensors: processed in tiles.

The table has a row per tile: width and address of its tensor, the tile's first column in the tensor, and the tensor's
first column in the row.
"""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fmkernels.triton._launch import DTYPES, Meta, aligned, cdiv, launch, meta
from fmkernels.triton._math import get, put, sum_fours, widen
from fmkernels.triton._table import planned, table

TILE = 1024  # columns per tile
# Tiles at a time, whose loads are issued together: the largest number that divides all tiles, but at most 2 if rows are
# not aligned, because each element is then a load.
TILES = (6, 5, 4, 3, 2, 1)
PIECE, ROWS = 256, 4  # columns and rows at a time of the column sums
FIELDS = tl.constexpr(4)  # of the table


@triton.jit
def rstd_of(power, eps, INSIDE: tl.constexpr):
    """1 / sqrt(power + eps), or 1 / (sqrt(power) + eps)."""
    power = tl.where(power < 0, 0.0, power)  # negative because of rounding; NaN stays NaN
    return tl.div_rn(1.0, tl.sqrt_rn(power + eps) if INSIDE else tl.sqrt_rn(power) + eps)


@triton.jit
def along_h(mean_gh, rstd, eps, INSIDE: tl.constexpr):
    """The factor of h in the gradient: d rms / d s = s / (D rms), rms * rstd = 1 - eps * rstd; 0 for a row of zeros."""
    if not INSIDE:
        share = 1.0 - eps * rstd
        mean_gh = tl.where(share > 0, tl.div_rn(mean_gh, tl.where(share > 0, share, 1.0)), 0.0)
    return mean_gh


@triton.jit
def _tile(tiles, k, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr):
    """Tile k: pointer to it in the first row, distance between rows, first column, columns left in the tensor."""
    at = tiles + k * FIELDS
    stride, address, begin, column = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    pointer, begin = address.to(tl.pointer_type(DTYPE), bitcast=True), tl.multiple_of(begin, TILE)
    if ALIGNED:
        pointer, stride, column = tl.multiple_of(pointer, 16), tl.multiple_of(stride, 8), tl.multiple_of(column, 8)
    return pointer + begin, stride, column + begin, stride - begin


@triton.jit
def _parts(
    tiles, first, row, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, FULL: tl.constexpr, TILE: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """TILES tiles from ``first`` on, all loaded before any is used: elements, columns, and which of them are inside."""
    i, parts = tl.arange(0, TILE), ()
    for k in tl.static_range(TILES):
        pointer, stride, column, left = _tile(tiles, first + k, DTYPE, ALIGNED, TILE)
        if FULL:
            inside = tl.full([TILE], True, tl.int1)
        else:
            inside = i < left
        parts = parts + ((tl.load(pointer + row * stride + i, mask=inside, other=0.0), column + i, inside),)
    return parts


@triton.jit
def _sum(lanes):
    """The sum of all elements in fp64."""
    return tl.sum(lanes.to(tl.float64))


@triton.jit
def _wide_moments(
    tiles, tile_count, residual, gate, total, row, width, eps, CENTER: tl.constexpr, INSIDE: tl.constexpr,
    DTYPE: tl.constexpr, ALIGNED: tl.constexpr, FULL: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """(mean, rstd) of a row; writes gate * x + residual to ``total``.

    Each lane adds up its own elements in fp32, and the lanes are added up in fp64 at the end, so no threads exchange
    values in the loop. For a layer norm, the elements are taken relative to the mean of the first tile, so that rows
    far from zero stay accurate.
    """
    near = 0.0
    shifts, squares = tl.zeros([TILE // 4], tl.float32), tl.zeros([TILE // 4], tl.float32)
    for k in range(0, tile_count, TILES):
        parts = _parts(tiles, k, row, DTYPE, ALIGNED, FULL, TILE, TILES)
        for j in tl.static_range(TILES):
            s, column, inside = widen(parts[j][0]), parts[j][1], parts[j][2]
            if residual is not None:
                if gate is not None:
                    s *= get(gate, column, inside)
                s += get(residual, row * width + column, inside)
                if total is not None:
                    put(total, row * width + column, s, inside)
            if CENTER:
                if j == 0 and k == 0:
                    near = tl.div_rn(tl.sum(s), tl.sum(tl.where(inside, 1.0, 0.0)))
                s = tl.where(inside, s - near, 0.0)
                shifts += sum_fours(s)
            squares += sum_fours(s * s)
    power = _sum(squares) / width
    if CENTER:
        shift = _sum(shifts) / width
        power -= shift * shift
        mean = (near + shift).to(tl.float32)
    else:
        mean = 0.0
    return mean, rstd_of(power.to(tl.float32), eps, INSIDE)


@triton.jit
def _wide(
    tiles, residual, scale, offset, gate, y, total, stat, tile_count, width, per_scale, scale_stride, offset_stride,
    gate_stride, eps, CENTER: tl.constexpr, INSIDE: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr,
    FULL: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One row: x in tiles, y and total (rows, width), stat (rows, 2); ``per_scale`` rows share a row of scale."""
    row = tl.program_id(0).to(tl.int64)
    if ALIGNED:
        width = tl.multiple_of(width, 8)
    if gate is not None:
        gate += row // per_scale * gate_stride
    mean, rstd = _wide_moments(
        tiles, tile_count, residual, gate, total, row, width, eps, CENTER, INSIDE, DTYPE, ALIGNED, FULL, TILE, TILES
    )
    tl.store(stat + 2 * row, mean)
    tl.store(stat + 2 * row + 1, rstd)
    scale += row // per_scale * scale_stride
    if offset is not None:
        offset += row // per_scale * offset_stride
    for k in range(0, tile_count, TILES):
        parts = _parts(tiles, k, row, DTYPE, ALIGNED, FULL, TILE, TILES)
        for j in tl.static_range(TILES):
            s, column, inside = widen(parts[j][0]), parts[j][1], parts[j][2]
            if residual is not None:
                if gate is not None:
                    s *= get(gate, column, inside)
                s += get(residual, row * width + column, inside)
            result = (s - mean) * rstd * get(scale, column, inside)
            if offset is not None:
                result += get(offset, column, inside)
            put(y, row * width + column, result, inside)


@triton.jit
def _wide_backward(
    tiles, grad, more, scale, stat, to_s, used, tile_count, width, per_scale, scale_stride, eps,
    CENTER: tl.constexpr, INSIDE: tl.constexpr, ROUNDED: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr,
    FULL: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The gradient to s of one row; stores the moments it used for ``_wide_columns``."""
    row = tl.program_id(0).to(tl.int64)
    if ALIGNED:
        width = tl.multiple_of(width, 8)
    if ROUNDED:
        mean, rstd = _wide_moments(
            tiles, tile_count, None, None, None, row, width, eps, CENTER, INSIDE, DTYPE, ALIGNED, FULL, TILE, TILES
        )
    else:
        mean, rstd = tl.load(stat + 2 * row), tl.load(stat + 2 * row + 1)
    tl.store(used + 2 * row, mean)
    tl.store(used + 2 * row + 1, rstd)
    scale += row // per_scale * scale_stride
    sum_g, sum_gh = tl.zeros([TILE // 4], tl.float32), tl.zeros([TILE // 4], tl.float32)
    for k in range(0, tile_count, TILES):
        parts = _parts(tiles, k, row, DTYPE, ALIGNED, FULL, TILE, TILES)
        for j in tl.static_range(TILES):
            s, column, inside = widen(parts[j][0]), parts[j][1], parts[j][2]
            gs = get(grad, row * width + column, inside) * get(scale, column, inside)
            sum_g += sum_fours(gs)
            sum_gh += sum_fours(tl.where(inside, gs * ((s - mean) * rstd), 0.0))
    mean_g = (_sum(sum_g) / width).to(tl.float32) if CENTER else 0.0
    along = along_h((_sum(sum_gh) / width).to(tl.float32), rstd, eps, INSIDE)
    for k in range(0, tile_count, TILES):
        parts = _parts(tiles, k, row, DTYPE, ALIGNED, FULL, TILE, TILES)
        for j in tl.static_range(TILES):
            s, column, inside = widen(parts[j][0]), parts[j][1], parts[j][2]
            gs = get(grad, row * width + column, inside) * get(scale, column, inside)
            result = rstd * (gs - mean_g - (s - mean) * rstd * along)
            if more is not None:
                result += get(more, row * width + column, inside)
            put(to_s, row * width + column, result, inside)


@triton.jit
def _wide_columns(
    tiles, grad, used, to_scale, to_offset, pieces, width, group, DTYPE: tl.constexpr, ALIGNED: tl.constexpr,
    FULL: tl.constexpr, TILE: tl.constexpr, PIECE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradients to PIECE columns of a tile of one row of scale and offset: sums over ``group`` rows."""
    pid = tl.program_id(0)
    which, piece = (pid // pieces).to(tl.int64), pid % pieces
    pointer, stride, column, left = _tile(tiles, piece // (TILE // PIECE), DTYPE, ALIGNED, TILE)
    if ALIGNED:
        width = tl.multiple_of(width, 8)
    begin = piece % (TILE // PIECE) * PIECE
    i = tl.arange(0, PIECE)[None, :]
    scale_sum, offset_sum = tl.zeros([ROWS, PIECE], tl.float32), tl.zeros([ROWS, PIECE], tl.float32)
    for first in range(0, group, ROWS):
        local = first + tl.arange(0, ROWS)[:, None]
        here = local < group
        row, inside = which * group + local, here & (begin + i < left)
        s = get(pointer + begin, row * stride + i, inside)
        g = get(grad + column + begin, row * width + i, inside)
        mean = tl.load(used + 2 * row, mask=here, other=0.0)
        rstd = tl.load(used + 2 * row + 1, mask=here, other=0.0)
        scale_sum += tl.where(inside, g * ((s - mean) * rstd), 0.0)
        offset_sum += g
    i = tl.arange(0, PIECE)
    inside = begin + i < left
    put(to_scale, which * width + column + begin + i, tl.sum(scale_sum, 0), inside)
    put(to_offset, which * width + column + begin + i, tl.sum(offset_sum, 0), inside)


class Tiles(NamedTuple):
    """The table of a list of tensors, the number of its rows, and the constants of the kernels that read it."""

    rows: Tensor
    count: int
    by_row: dict[str, object]
    by_column: Meta


def _tiles_of(x, widths):
    return planned(_make_tiles, x[0].device, tuple(map(Tensor.data_ptr, x)), widths, x[0].dtype)


def _make_tiles(device, addresses, widths, dtype):
    rows = table(device, widths, [addresses], TILE)
    return Tiles(rows, *_constants(widths, dtype, aligned(addresses, 16)))


@functools.lru_cache(maxsize=1024)
def _constants(widths, dtype, addresses_aligned):
    all_aligned = addresses_aligned and aligned(widths, 8)
    count, full = sum(cdiv(width, TILE) for width in widths), all(width % TILE == 0 for width in widths)
    both = {"DTYPE": DTYPES[dtype], "ALIGNED": all_aligned, "FULL": full, "TILE": TILE}
    at_once = next(tiles for tiles in TILES[0 if all_aligned else 4 :] if count % tiles == 0)
    return count, {**both, "TILES": at_once}, meta(**both, PIECE=PIECE, ROWS=ROWS)


def forward(x, shape, residual, scale, offset, gate, y, total, stat, strides, eps, center, inside):
    tiles = _tiles_of(x, shape.widths)
    launch(
        _wide, shape.rows, meta(CENTER=center, INSIDE=inside, **tiles.by_row), tiles.rows, residual, scale, offset,
        gate, y, total, stat, tiles.count, shape.width, shape.per_scale, *strides, eps,
    )  # fmt: skip


def backward(x, shape, grad, more, scale, stat, to_s, to_scale, to_offset, stride, eps, center, inside, rounded):
    tiles, used = _tiles_of(x, shape.widths), torch.empty_like(stat, dtype=torch.float32)
    launch(
        _wide_backward, shape.rows, meta(CENTER=center, INSIDE=inside, ROUNDED=rounded, **tiles.by_row), tiles.rows,
        grad, more, scale, stat, to_s, used, tiles.count, shape.width, shape.per_scale, stride, eps,
    )  # fmt: skip
    pieces = tiles.count * (TILE // PIECE)
    launch(
        _wide_columns, shape.scales * pieces, tiles.by_column, tiles.rows, grad, used, to_scale, to_offset, pieces,
        shape.width, shape.per_scale,
    )  # fmt: skip
