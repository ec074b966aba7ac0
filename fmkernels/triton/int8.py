"""Linear layers in int8: rows quantized by one program each, and the product, whose program finishes its tile.

The compiled GPU object has no kernels for these ops: they run on NVIDIA GPUs too.
"""

import math

import torch
import triton
import triton.language as tl

from fmkernels.triton._launch import cdiv, dense, launch, meta
from fmkernels.triton._math import get, magnitude, put, quantized, row_scale, times
from fmkernels.triton.norm import norm_int8

BLOCK = 4096  # columns of a row at a time
# Tiles of the product: rows, columns, elements of their rows at a time, threads. The first one that has all rows is
# used. Rows of a width that is no multiple of 16 are loaded element by element, whose addresses fill registers.
TILES = ((16, 128, 64, 128), (64, 128, 64, 128), (128, 128, 64, 256))
UNALIGNED = (64, 64, 32, 256)


@triton.jit
def _quantize(x, out, scale, width, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    """One row, which is read once if it is WHOLE in a block."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    x, out = x + row * width + column, out + row * width + column
    if WHOLE:
        values = get(x, 0, column < width)
        by, inverse = row_scale(tl.max(magnitude(values), 0))
        tl.store(out, quantized(values, by, inverse), mask=column < width)
    else:
        largest = tl.zeros([BLOCK], tl.int32)
        for begin in range(0, width, BLOCK):
            largest = tl.maximum(largest, magnitude(get(x, begin, begin + column < width)))
        by, inverse = row_scale(tl.max(largest, 0))
        for begin in range(0, width, BLOCK):
            inside = begin + column < width
            tl.store(out + begin, quantized(get(x, begin, inside), by, inverse), mask=inside)
    tl.store(scale + row, by)


@triton.jit
def _product(
    x, x_scale, weight, scale, bias, out, rows, columns, width, tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """A tile of out (rows, columns) = x (rows, width) @ weight (columns, width).T * scales + bias."""
    pid = tl.program_id(0)
    row = (pid // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = (pid % tiles).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.int32)
    for begin in range(0, width, DEPTH):
        of_x, of_weight = begin + tl.arange(0, DEPTH)[None, :], begin + tl.arange(0, DEPTH)[:, None]
        a = tl.load(x + row * width + of_x, mask=(row < rows) & (of_x < width), other=0)
        b = tl.load(weight + column * width + of_weight, mask=(column < columns) & (of_weight < width), other=0)
        sums = tl.dot(a, b, sums, out_dtype=tl.int32)
    by = get(x_scale, row, row < rows) * get(scale, column, column < columns)
    y = times(sums.to(tl.float32), by)
    if bias is not None:
        y += get(bias, column, column < columns)
    put(out, row * columns + column, y, (row < rows) & (column < columns))


def quantize_rows(x):
    x = dense(x)
    width, leading = x.shape[-1], x.shape[:-1]
    out, scale = torch.empty_like(x, dtype=torch.int8), x.new_empty(leading, dtype=torch.float32)
    block = min(BLOCK, triton.next_power_of_2(max(width, 256)))
    constants = meta(threads=block // 8, WHOLE=width <= block, BLOCK=block)
    launch(_quantize, math.prod(leading), constants, x, out, scale, width)
    return out, scale


def linear_int8(x, x_scale, weight, scale, bias, dtype):
    if weight.dim() == 3:
        raise ValueError("linear_int8: packed must not be given here: it is the layout of the CPU; use unpack_int8")
    x, x_scale = quantize_rows(x) if x_scale is None else (dense(x), dense(x_scale))
    width, leading, columns = x.shape[-1], x.shape[:-1], len(scale)
    rows = math.prod(leading)
    tile = UNALIGNED if width % 16 else next((tile for tile in TILES if rows <= tile[0]), TILES[-1])
    tiles = cdiv(columns, tile[1])
    out = x.new_empty(*leading, columns, dtype=dtype)
    constants = meta(threads=tile[3], ROWS=tile[0], COLUMNS=tile[1], DEPTH=tile[2])
    launch(
        _product, cdiv(rows, tile[0]) * tiles, constants, x, x_scale, dense(weight), dense(scale), dense(bias), out,
        rows, columns, width, tiles,
    )  # fmt: skip
    return out


def td_norm_int8(x, scale, offset, residual, eps, center):
    """In one launch; a row that is wide, or the concatenation of a list, is quantized by a second one."""
    y, row_scale, summed = norm_int8(x, scale, offset, residual, eps, center)
    return (*quantize_rows(y), summed) if row_scale is None else (y, row_scale, summed)
