"""y = (s - mean) * rstd * scale + offset with s = gate * x + residual; RMS norm and layer norm are one kernel.

RMS norm: mean = 0. rstd = 1 / sqrt(power + eps), or with eps outside the root 1 / (sqrt(power) + eps).
Rows up to ROW wide are kept in registers, several at a time if they are short; ``norm_wide`` has the kernels for wider
rows and for lists of tensors.
"""

import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fmkernels.triton import norm_wide
from fmkernels.triton._launch import InPlace, Meta, cdiv, dense, empty, launch, meta, promoted, tunable
from fmkernels.triton._math import get, magnitude, put, quantized, row_scale
from fmkernels.triton.norm_wide import along_h, rstd_of

ROW = 4096
# Maximum width (a power of two) -> rows at a time and threads per program of the forward, and of the backward.
ROWS = {
    128: (16, 256, 16, 256),
    256: (8, 256, 8, 256),
    512: (4, 256, 8, 512),
    1024: (2, 256, 4, 512),
    2048: (1, 256, 2, 512),
    ROW: (1, 512, 1, 512),
}
STEPS = 8  # maximum number of rows (or groups of rows) that a program of the backward processes one after another ...
PROGRAMS = 264  # ... fewer if there are fewer programs than this: two per multiprocessor of an H100
COLUMNS, RUNS = 32, 64  # columns and partial sums per column that a program adds up at a time


@triton.jit
def _moments(s, inside, inverse_width, eps, CENTER: tl.constexpr, INSIDE: tl.constexpr):
    """(mean, rstd) of rows in registers. A rounded mean is subtracted first, so that rows far from zero stay accurate.

    inverse_width: 1 / width. A division is a call, which would move registers to the stack.
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
    return mean, rstd_of(power, eps, INSIDE)


@triton.jit
def _parameter(pointer, row, per_scale, stride, column, width, inside, SHARED: tl.constexpr):
    """The rows of scale, offset or gate for these rows; a shared row is read once."""
    if SHARED:
        values = get(pointer, column, column < width)
    else:
        values = get(pointer, (row // per_scale) * stride + column, inside)
    return values


@tunable("width")
def _rows(
    x, residual, scale, offset, gate, y, total, stat, int8_scale, rows, width, per_scale, scale_stride, offset_stride,
    gate_stride, eps, inverse_width, CENTER: tl.constexpr, INSIDE: tl.constexpr, SHARED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x, residual, y, total: (rows, width). stat: (rows, 2). ``per_scale`` rows share a row of scale and offset.

    With int8_scale (rows,), y is quantized, and there is no stat.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside, i = (row < rows) & (column < width), row * width + column
    s = get(x, i, inside)
    if residual is not None:
        if gate is not None:
            s *= _parameter(gate, row, per_scale, gate_stride, column, width, inside, SHARED)
        s += get(residual, i, inside)
        put(total, i, s, inside)
    mean, rstd = _moments(s, inside, inverse_width, eps, CENTER, INSIDE)
    result = (s - mean) * rstd * _parameter(scale, row, per_scale, scale_stride, column, width, inside, SHARED)
    if offset is not None:
        result += _parameter(offset, row, per_scale, offset_stride, column, width, inside, SHARED)
    if int8_scale is not None:
        by, inverse = row_scale(tl.max(tl.where(inside, magnitude(result), 0), 1)[:, None])
        tl.store(int8_scale + row, by, mask=row < rows)
        tl.store(y + i, quantized(result, by, inverse), mask=inside)
    else:
        put(y, i, result, inside)
        tl.store(stat + 2 * row, mean, mask=row < rows)
        tl.store(stat + 2 * row + 1, rstd, mask=row < rows)


@tunable("width")
def _rows_backward(
    grad, more, s_in, scale, stat, to_s, parts, group, width, scale_stride, run, runs, eps, inverse_width,
    CENTER: tl.constexpr, INSIDE: tl.constexpr, ROUNDED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient to s of a run of rows that share a row of scale; the partial sums of those to scale and offset."""
    pid = tl.program_id(0)
    which, first = (pid // runs).to(tl.int64), pid % runs * run
    column = tl.arange(0, BLOCK)[None, :]
    weight = get(scale, which * scale_stride + column, column < width)
    # Rows are added up at the end: a sum over them is exchanged between threads.
    to_scale, to_offset = tl.zeros([ROWS, BLOCK], tl.float32), tl.zeros([ROWS, BLOCK], tl.float32)
    for begin in range(0, run, ROWS):
        local = first + begin + tl.arange(0, ROWS)[:, None]
        here = local < group
        row = which * group + local
        inside, i = here & (column < width), row * width + column
        g, s = get(grad, i, inside), get(s_in, i, inside)
        if ROUNDED:  # stat is that of s before rounding
            mean, rstd = _moments(s, inside, inverse_width, eps, CENTER, INSIDE)
        else:
            mean = tl.load(stat + 2 * row, mask=here, other=0.0)
            rstd = tl.load(stat + 2 * row + 1, mask=here, other=0.0)
        h, gs = tl.where(inside, (s - mean) * rstd, 0.0), g * weight
        result = gs - h * along_h((tl.sum(gs * h, 1) * inverse_width)[:, None], rstd, eps, INSIDE)
        if CENTER:
            result -= (tl.sum(gs, 1) * inverse_width)[:, None]
        result *= rstd
        if more is not None:
            result += get(more, i, inside)
        put(to_s, i, result, inside)
        to_scale += g * h
        to_offset += g
    at = parts + pid.to(tl.int64) * 2 * width + tl.arange(0, BLOCK)
    tl.store(at, tl.sum(to_scale, 0), mask=tl.arange(0, BLOCK) < width)
    tl.store(at + width, tl.sum(to_offset, 0), mask=tl.arange(0, BLOCK) < width)


@triton.jit
def _add_runs(parts, to_scale, to_offset, width, tiles, runs, COLUMNS: tl.constexpr, RUNS: tl.constexpr):
    """Add up the partial sums of the runs in fp64, in a fixed order."""
    pid = tl.program_id(0)
    which, column = (pid // tiles).to(tl.int64), pid % tiles * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    scale_sum, offset_sum = tl.zeros([RUNS, COLUMNS], tl.float64), tl.zeros([RUNS, COLUMNS], tl.float64)
    for begin in range(0, runs, RUNS):
        run = begin + tl.arange(0, RUNS)[:, None]
        inside, at = (run < runs) & (column < width), (which * runs + run) * 2 * width + column
        scale_sum += get(parts, at, inside).to(tl.float64)
        offset_sum += get(parts, at + width, inside).to(tl.float64)
    column = pid % tiles * COLUMNS + tl.arange(0, COLUMNS)
    put(to_scale, which * width + column, tl.sum(scale_sum, 0).to(tl.float32), column < width)
    put(to_offset, which * width + column, tl.sum(offset_sum, 0).to(tl.float32), column < width)


class Shape(NamedTuple):
    """What the launches need to know about the sizes of x (a list of tensors) and of scale."""

    sizes: tuple[int, ...]  # of the result
    widths: tuple[int, ...]  # of the tensors
    rows: int
    width: int
    inverse_width: float
    scales: int
    per_scale: int
    programs: int
    by_kind: dict[tuple[bool, bool], Meta] | None  # of the forward, for (center, inside); None if a row does not fit


@functools.lru_cache(maxsize=1024)
def _shape(leading, widths, scale):
    """The Shape for tensors with these leading sizes and widths, and a scale of this size."""
    rows, width, scales = math.prod(leading), sum(widths), scale[0] if len(scale) == 2 else 1
    programs, by_kind = 0, None
    if len(widths) == 1 and width <= ROW:
        block = _block(width)
        at_once, threads, *_ = ROWS[block]
        programs = cdiv(rows, at_once)
        by_kind = {
            (center, inside): meta(
                threads=threads, CENTER=center, INSIDE=inside, SHARED=scales == 1, ROWS=at_once, BLOCK=block
            )
            for center in (False, True)
            for inside in (False, True)
        }
    per_scale = max(1, rows // max(1, scales))
    return Shape((*leading, width), widths, rows, width, 1 / max(1, width), scales, per_scale, programs, by_kind)


def _block(width):
    return next(widest for widest in ROWS if width <= widest)


def _shape_of(x, scale):
    """Return the list of dense tensors and its Shape."""
    if len(x) == 1:
        first = x[0]
        if not first.is_contiguous():
            x = [first.contiguous()]
        sizes = first.shape
        return x, _shape_of_one(sizes, scale.shape)
    if not all(map(Tensor.is_contiguous, x)):
        x = [dense(part) for part in x]
    return x, _shape_of_many(x[0].shape, tuple(map(Tensor.numel, x)), scale.shape) or _shape(
        x[0].shape[:-1], tuple(part.shape[-1] for part in x), scale.shape
    )


@functools.lru_cache(maxsize=1024)
def _shape_of_one(sizes, scale):
    return _shape(sizes[:-1], sizes[-1:], scale)


@functools.lru_cache(maxsize=1024)
def _shape_of_many(first, counts, scale):
    """The Shape from the sizes of the first tensor and the numbers of elements of all; None if there are no rows."""
    rows = math.prod(first[:-1])
    return _shape(first[:-1], tuple(count // rows for count in counts), scale) if rows else None


def _row_stride(parameter, shape):
    """Return the parameter, or a copy with dense rows, and the distance between its rows."""
    if parameter is None:
        return None, 0
    if parameter.is_contiguous():
        return parameter, shape.width if shape.scales > 1 else 0
    strides = parameter.stride()
    if strides[-1] != 1 and shape.width > 1:
        parameter = parameter.contiguous()
        strides = parameter.stride()
    return parameter, strides[0] if shape.scales > 1 else 0


def _run(x, shape, scale, offset, residual, gate, eps, center, inside, y, summed):
    """Fill y and, with a residual, summed, both dense; return (mean, rstd) of each row."""
    stat = y.new_empty(shape.rows, 2, dtype=torch.float32)
    if shape.width == 0:
        return stat.fill_(torch.nan)  # of no elements
    if shape.by_kind is None:
        (scale, scale_stride), (offset, offset_stride) = _row_stride(scale, shape), _row_stride(offset, shape)
        gate, gate_stride = _row_stride(gate, shape)
        strides = scale_stride, offset_stride, gate_stride
        norm_wide.forward(x, shape, dense(residual), scale, offset, gate, y, summed, stat, strides, eps, center, inside)
        return stat
    _launch_rows(x, shape, scale, offset, residual, gate, eps, center, inside, y, summed, stat, None)
    return stat


def _launch_rows(x, shape, scale, offset, residual, gate, eps, center, inside, y, summed, stat, int8_scale):
    (scale, scale_stride), (offset, offset_stride) = _row_stride(scale, shape), _row_stride(offset, shape)
    gate, gate_stride = _row_stride(gate, shape)
    launch(
        _rows, shape.programs, shape.by_kind[center, inside], x[0], dense(residual), scale, offset, gate, y, summed,
        stat, int8_scale, shape.rows, shape.width, shape.per_scale, scale_stride, offset_stride, gate_stride, eps,
        shape.inverse_width,
    )  # fmt: skip


def td_norm(x, scale, offset, residual, gate, eps, center, inside):
    x, shape = _shape_of(x, scale)
    first = x[0]
    if residual is None:
        y = torch.empty_like(first) if len(x) == 1 else first.new_empty(shape.sizes)
        stat = _run(x, shape, scale, offset, None, None, eps, center, inside, y, None)
        return y, stat.new_empty(0), stat
    y = first.new_empty(shape.sizes, dtype=promoted(first, residual))
    summed = torch.empty_like(y)
    return y, summed, _run(x, shape, scale, offset, residual, gate, eps, center, inside, y, summed)


def norm_int8(x, scale, offset, residual, eps, center):
    """Return (int8 rows, their scales, x + residual), or (fp32 rows, None, x + residual) if rows do not fit."""
    x, shape = _shape_of(x, scale)
    dtype = torch.float32 if residual is None else promoted(x[0], residual)
    summed = x[0].new_empty(0 if residual is None else shape.sizes, dtype=dtype)
    total = None if residual is None else summed
    if shape.by_kind is None or shape.width == 0:
        y = x[0].new_empty(shape.sizes, dtype=torch.float32)
        _run(x, shape, scale, offset, residual, None, eps, center, center, y, total)
        return y, None, summed
    y, int8_scale = x[0].new_empty(shape.sizes, dtype=torch.int8), x[0].new_empty(shape.sizes[:-1], dtype=torch.float32)
    _launch_rows(x, shape, scale, offset, residual, None, eps, center, center, y, total, None, int8_scale)
    return y, int8_scale, summed


def td_norm_out(x, scale, offset, residual, gate, eps, center, inside, y, sum):
    x, shape = _shape_of(x, scale)
    y_target, sum_target = InPlace(y), InPlace(sum)
    _run(x, shape, scale, offset, residual, gate, eps, center, inside, y_target.work, sum_target.work)
    y_target.commit()
    sum_target.commit()


def td_norm_backward(grad_y, grad_sum, s, scale, stat, eps, center, inside):
    s, shape = _shape_of(s, scale)
    to_s = torch.empty_like(s[0]) if len(s) == 1 else s[0].new_empty(shape.sizes)
    to_scale, to_offset = empty(scale, torch.float32), empty(scale, torch.float32)
    if shape.rows == 0 or shape.width == 0:
        return to_s, to_scale.zero_(), to_offset.zero_()
    scale, stride = _row_stride(scale, shape)
    grad, more, stat, group = dense(grad_y), dense(grad_sum), dense(stat), shape.per_scale
    rounded = s[0].dtype in (torch.float16, torch.bfloat16)
    if shape.by_kind is None:
        norm_wide.backward(
            s, shape, grad, more, scale, stat, to_s, to_scale, to_offset, stride, eps, center, inside, rounded
        )
        return to_s, to_scale, to_offset
    run, runs, constants = _runs(shape.width, shape.rows, group, center, inside, rounded)
    tiles = cdiv(shape.width, COLUMNS)
    parts = stat.new_empty(shape.scales * runs, 2, shape.width)
    launch(
        _rows_backward, shape.scales * runs, constants, grad, more, s[0], scale, stat, to_s, parts, group, shape.width,
        stride, run, runs, eps, shape.inverse_width,
    )  # fmt: skip
    constants = meta(COLUMNS=COLUMNS, RUNS=RUNS)
    launch(_add_runs, shape.scales * tiles, constants, parts, to_scale, to_offset, shape.width, tiles, runs)
    return to_s, to_scale, to_offset


def _runs(width, rows, group, center, inside, rounded):
    """Rows per program of the backward, programs per row of scale, and the Meta of the launch."""
    block = _block(width)
    *_, at_once, threads = ROWS[block]
    run = at_once * min(STEPS, max(1, rows // (at_once * PROGRAMS)))
    constants = {"CENTER": center, "INSIDE": inside, "ROUNDED": rounded, "ROWS": at_once, "BLOCK": block}
    return run, cdiv(group, run), meta(threads=threads, **constants)
