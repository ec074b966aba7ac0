"""y = (s - mean) * rstd * scale + offset with s = x + residual; RMS norm and layer norm are one kernel.

RMS norm: mean = 0, rstd = 1 / (|s| d^(-1/2) + eps). Layer norm: rstd = 1 / sqrt(var + eps).
Rows up to ROW wide are held in registers, a few at a time; wider ones and lists of tensors are ``norm_wide``'s.
"""

import functools
import math
from operator import attrgetter
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fmkernels.triton import norm_wide
from fmkernels.triton._launch import InPlace, cdiv, dense, empty, launch, promoted, tunable
from fmkernels.triton._math import get, put
from fmkernels.triton.norm_wide import along_h, rstd_of

ROW = 4096
# Widest row (a power of two) -> rows a program takes at a time, threads.
ROWS = {128: (16, 256), 256: (8, 256), 512: (4, 256), 1024: (2, 256), 2048: (1, 256), ROW: (1, 512)}
COLUMNS = 128  # columns whose partial sums one program adds up
RUNS = 128  # programs at most that share the rows under one row of scale, each with partial sums of its own


@triton.jit
def _moments(s, inside, inverse_width, eps, CENTER: tl.constexpr):
    """(mean, rstd) of rows in registers. Centred by a rounded mean first: rows far from zero lose nothing.

    inverse_width: 1 / width. (True divisions are calls, and what is held during one goes to the stack.)
    """
    if CENTER:
        near = (tl.sum(s, 1) * inverse_width)[:, None]
        rest = tl.where(inside, s - near, 0.0)
        shift = (tl.sum(rest, 1) * inverse_width)[:, None]
        power = (tl.sum(rest * rest, 1) * inverse_width)[:, None] - shift * shift
        mean = near + shift
    else:
        power = (tl.sum(s * s, 1) * inverse_width)[:, None]
        mean = tl.zeros_like(power)
    return mean, rstd_of(power, eps, CENTER)


@triton.jit
def _parameter(pointer, row, per_scale, stride, column, width, inside, SHARED: tl.constexpr):
    """The rows of scale or offset that belong to these rows; if all share one, it is read once."""
    if SHARED:
        values = get(pointer, column, column < width)
    else:
        values = get(pointer, (row // per_scale) * stride + column, inside)
    return values


@tunable("width")
def _rows(
    x, residual, scale, offset, y, total, stat, rows, width, per_scale, scale_stride, offset_stride, eps, inverse_width,
    CENTER: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x, residual, y, total: (rows, width). stat: (rows, 2). A row of scale and offset for each ``per_scale`` rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside, i = (row < rows) & (column < width), row * width + column
    s = get(x, i, inside)
    if residual is not None:
        s += get(residual, i, inside)
        put(total, i, s, inside)
    mean, rstd = _moments(s, inside, inverse_width, eps, CENTER)
    result = (s - mean) * rstd * _parameter(scale, row, per_scale, scale_stride, column, width, inside, SHARED)
    if offset is not None:
        result += _parameter(offset, row, per_scale, offset_stride, column, width, inside, SHARED)
    put(y, i, result, inside)
    tl.store(stat + 2 * row, mean, mask=row < rows)
    tl.store(stat + 2 * row + 1, rstd, mask=row < rows)


@tunable("width")
def _rows_backward(
    grad, more, s_in, scale, stat, to_s, parts, group, width, scale_stride, run, runs, eps, inverse_width,
    CENTER: tl.constexpr, ROUNDED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient to s of a run of rows under one row of scale, and the run's share of those to scale and offset."""
    pid = tl.program_id(0).to(tl.int64)
    which, first = pid // runs, pid % runs * run
    column = tl.arange(0, BLOCK)[None, :]
    weight = get(scale, which * scale_stride + column, column < width)
    to_scale, to_offset = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for begin in range(0, run, ROWS):
        local = first + begin + tl.arange(0, ROWS)[:, None]
        here = local < group
        row = which * group + local
        inside, i = here & (column < width), row * width + column
        g, s = get(grad, i, inside), get(s_in, i, inside)
        if ROUNDED:  # stat belongs to the unrounded s
            mean, rstd = _moments(s, inside, inverse_width, eps, CENTER)
        else:
            mean = tl.load(stat + 2 * row, mask=here, other=0.0)
            rstd = tl.load(stat + 2 * row + 1, mask=here, other=0.0)
        h, gs = tl.where(inside, (s - mean) * rstd, 0.0), g * weight
        result = gs - h * along_h((tl.sum(gs * h, 1) * inverse_width)[:, None], rstd, eps, CENTER)
        if CENTER:
            result -= (tl.sum(gs, 1) * inverse_width)[:, None]
        result *= rstd
        if more is not None:
            result += get(more, i, inside)
        put(to_s, i, result, inside)
        to_scale += tl.sum(g * h, 0)
        to_offset += tl.sum(g, 0)
    at = parts + pid * 2 * width + tl.arange(0, BLOCK)
    tl.store(at, to_scale, mask=tl.arange(0, BLOCK) < width)
    tl.store(at + width, to_offset, mask=tl.arange(0, BLOCK) < width)


@triton.jit
def _add_runs(parts, to_scale, to_offset, width, tiles, runs, COLUMNS: tl.constexpr):
    """The runs' shares added up in their order, in fp64."""
    pid = tl.program_id(0).to(tl.int64)
    which, column = pid // tiles, pid % tiles * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    scale_sum, offset_sum = tl.zeros([COLUMNS], tl.float64), tl.zeros([COLUMNS], tl.float64)
    for run in range(runs):
        at = (which * runs + run) * 2 * width + column
        scale_sum += get(parts, at, inside).to(tl.float64)
        offset_sum += get(parts, at + width, inside).to(tl.float64)
    put(to_scale, which * width + column, scale_sum.to(tl.float32), inside)
    put(to_offset, which * width + column, offset_sum.to(tl.float32), inside)


class Shape(NamedTuple):
    """What the kernels need to know of the sizes of x (a list of tensors) and of how many rows scale has."""

    sizes: tuple[int, ...]  # of the result
    widths: tuple[int, ...]  # of the tensors
    rows: int
    width: int
    scales: int
    per_scale: int
    tile: dict[str, int] | None  # rows and columns a program holds at a time; None if registers do not hold a row


@functools.lru_cache(maxsize=1024)
def _shape(sizes, scale):
    """The Shape for tensors and a scale of these sizes."""
    widths, leading = tuple(size[-1] for size in sizes), sizes[0][:-1]
    rows, width, scales, tile = math.prod(leading), sum(widths), scale[0] if len(scale) == 2 else 1, None
    if len(sizes) == 1 and width <= ROW:
        block = next(widest for widest in ROWS if width <= widest)
        tile = {"ROWS": ROWS[block][0], "BLOCK": block, "threads": ROWS[block][1]}
    return Shape((*leading, width), widths, rows, width, scales, max(1, rows // max(1, scales)), tile)


_size = attrgetter("shape")


def _shape_of(x, scale):
    """The list of dense tensors, and its Shape."""
    if not all(map(Tensor.is_contiguous, x)):
        x = [dense(part) for part in x]
    return x, _shape(tuple(map(_size, x)), scale.shape)


def _row_stride(parameter, shape):
    """(the parameter, or a copy with dense rows, and the distance between its rows)"""
    if parameter is None:
        return None, 0
    strides = parameter.stride()
    if strides[-1] != 1 and shape.width > 1:
        parameter = parameter.contiguous()
        strides = parameter.stride()
    return parameter, strides[0] if shape.scales > 1 else 0


def _run(x, shape, scale, offset, residual, eps, center, y, summed):
    """Fills y, and summed if there is a residual, both dense; returns (mean, rstd) of each row."""
    stat = x[0].new_empty(shape.rows, 2, dtype=torch.float32)
    if shape.width == 0:
        return stat.fill_(torch.nan)  # of nothing
    residual = dense(residual)
    (scale, scale_stride), (offset, offset_stride) = _row_stride(scale, shape), _row_stride(offset, shape)
    strides = scale_stride, offset_stride
    if shape.tile is None:
        norm_wide.forward(x, shape, residual, scale, offset, y, summed, stat, strides, eps, center)
        return stat
    launch(
        _rows, cdiv(shape.rows, shape.tile["ROWS"]), x[0], residual, scale, offset, y, summed, stat, shape.rows,
        shape.width, shape.per_scale, *strides, eps, 1 / shape.width, CENTER=center, SHARED=shape.scales == 1,
        **shape.tile,
    )  # fmt: skip
    return stat


def td_norm(x, scale, offset, residual, eps, center):
    x, shape = _shape_of(x, scale)
    dtype = x[0].dtype if residual is None else promoted(x[0], residual)
    y = x[0].new_empty(*shape.sizes, dtype=dtype)
    summed = None if residual is None else torch.empty_like(y)
    stat = _run(x, shape, scale, offset, residual, eps, center, y, summed)
    return y, x[0].new_empty(0, dtype=torch.float32) if summed is None else summed, stat


def td_norm_out(x, scale, offset, residual, eps, center, y, sum):
    x, shape = _shape_of(x, scale)
    y_target, sum_target = InPlace(y), InPlace(sum)
    _run(x, shape, scale, offset, residual, eps, center, y_target.work, sum_target.work)
    y_target.commit()
    sum_target.commit()


def td_norm_backward(grad_y, grad_sum, s, scale, stat, eps, center):
    s, shape = _shape_of(s, scale)
    to_s = s[0].new_empty(*shape.sizes)
    to_scale, to_offset = empty(scale, torch.float32), empty(scale, torch.float32)
    if shape.rows == 0 or shape.width == 0:
        return to_s, to_scale.zero_(), to_offset.zero_()
    scale, stride = _row_stride(scale, shape)
    grad, more, stat, group = dense(grad_y), dense(grad_sum), dense(stat), shape.per_scale
    rounded = s[0].dtype in (torch.float16, torch.bfloat16)
    if shape.tile is None:
        norm_wide.backward(s, shape, grad, more, scale, stat, to_s, to_scale, to_offset, stride, eps, center, rounded)
        return to_s, to_scale, to_offset
    at_once = shape.tile["ROWS"]
    run = cdiv(max(at_once, cdiv(group, RUNS)), at_once) * at_once
    runs, tiles = cdiv(group, run), cdiv(shape.width, COLUMNS)
    parts = scale.new_empty(shape.scales * runs, 2, shape.width, dtype=torch.float32)
    launch(
        _rows_backward, shape.scales * runs, grad, more, s[0], scale, stat, to_s, parts, group, shape.width, stride,
        run, runs, eps, 1 / shape.width, CENTER=center, ROUNDED=rounded, **shape.tile,
    )  # fmt: skip
    launch(_add_runs, shape.scales * tiles, parts, to_scale, to_offset, shape.width, tiles, runs, COLUMNS=COLUMNS)
    return to_s, to_scale, to_offset
