"""y = (s - mean) * rstd * scale + offset with s = x + residual; RMS norm and layer norm are one kernel.

Rows up to ROW wide are held in registers, a few at a time. Wider ones, and those given as a list of tensors, are gone
through in tiles by a table of the tiles' addresses, twice: for the moments, and to normalise.
"""

import torch
import triton
import triton.language as tl

from fmkernels.triton._launch import DTYPES, InPlace, aligned, dense, launch, table, tunable
from fmkernels.triton._math import get, put

ROW = 4096
# Widest row (a power of two) -> rows a program takes at a time, threads.
ROWS = {128: (16, 256), 256: (8, 256), 512: (4, 256), 1024: (2, 256), 2048: (1, 256), ROW: (1, 512)}
TILE = 1024  # columns of a wide row at a time
RUNS = 128  # programs at most that share the rows under one row of scale, each with partial sums of its own


@triton.jit
def _rstd(power, eps, CENTER: tl.constexpr):
    """1 / sqrt(var + eps), or 1 / (rms + eps)."""
    power = tl.where(power < 0, 0.0, power)  # by a rounding; NaN stays
    return tl.div_rn(1.0, tl.sqrt_rn(power + eps) if CENTER else tl.sqrt_rn(power) + eps)


@triton.jit
def _moments(s, inside, one_of, eps, CENTER: tl.constexpr):
    """(mean, rstd) of rows in registers. Centred by a rounded mean first: rows far from zero lose nothing.

    one_of: 1 / width. (True divisions are calls, and what is held during one goes to the stack.)
    """
    if CENTER:
        near = (tl.sum(s, 1) * one_of)[:, None]
        rest = tl.where(inside, s - near, 0.0)
        shift = (tl.sum(rest, 1) * one_of)[:, None]
        power = (tl.sum(rest * rest, 1) * one_of)[:, None] - shift * shift
        mean = near + shift
    else:
        power = (tl.sum(s * s, 1) * one_of)[:, None]
        mean = tl.zeros_like(power)
    return mean, _rstd(power, eps, CENTER)


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
    x, residual, scale, offset, y, total, stat, rows, width, per_scale, scale_stride, offset_stride, eps, one_of,
    CENTER: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside, i = (row < rows) & (column < width), row * width + column
    s = get(x, i, inside)
    if residual is not None:
        s += get(residual, i, inside)
        put(total, i, s, inside)
    mean, rstd = _moments(s, inside, one_of, eps, CENTER)
    result = (s - mean) * rstd * _parameter(scale, row, per_scale, scale_stride, column, width, inside, SHARED)
    if offset is not None:
        result += _parameter(offset, row, per_scale, offset_stride, column, width, inside, SHARED)
    put(y, i, result, inside)
    tl.store(stat + 2 * row, mean, mask=row < rows)
    tl.store(stat + 2 * row + 1, rstd, mask=row < rows)


@triton.jit
def _tile(rows, k, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Tile k of rows that are given in parts: where it is in the first, how far rows are apart, its size and column."""
    at = rows + k * 4
    address, stride, n, column = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    pointer = address.to(tl.pointer_type(DTYPE), bitcast=True)
    if ALIGNED:
        pointer, stride = tl.multiple_of(pointer, 16), tl.multiple_of(stride, 8)
        n, column = tl.multiple_of(n, 8), tl.multiple_of(column, 8)
    return pointer, stride, n, column


@triton.jit
def _part(rows, k, row, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr):
    """The elements of tile k, their columns, and which of them are inside."""
    pointer, stride, n, column = _tile(rows, k, DTYPE, ALIGNED)
    i = tl.arange(0, TILE)
    return get(pointer, row * stride + i, i < n), column + i, i < n, n


@triton.jit
def _wide_moments(
    rows, tiles, residual, total, row, width, eps, CENTER: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """(mean, rstd) of a row in tiles, put together in fp64 (Chan's update); leaves x + residual in ``total``."""
    mean, squares, count = tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64)
    for k in range(tiles):
        s, column, inside, n = _part(rows, k, row, DTYPE, ALIGNED, TILE)
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
    return mean.to(tl.float32), _rstd(power, eps, CENTER)


@triton.jit
def _wide(
    rows, residual, scale, offset, y, total, stat, tiles, width, per_scale, scale_stride, offset_stride, eps,
    CENTER: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if ALIGNED:
        width = tl.multiple_of(width, 8)
    mean, rstd = _wide_moments(rows, tiles, residual, total, row, width, eps, CENTER, DTYPE, ALIGNED, TILE)
    tl.store(stat + 2 * row, mean)
    tl.store(stat + 2 * row + 1, rstd)
    for k in range(tiles):
        s, column, inside, _ = _part(rows, k, row, DTYPE, ALIGNED, TILE)
        if residual is not None:
            s += get(residual, row * width + column, inside)
        result = (s - mean) * rstd * get(scale, row // per_scale * scale_stride + column, inside)
        if offset is not None:
            result += get(offset, row // per_scale * offset_stride + column, inside)
        put(y, row * width + column, result, inside)


@triton.jit
def _along(mean_gh, rstd, eps, CENTER: tl.constexpr):
    """What of h goes back: d rms / d s = s / (D rms) and rms * rstd = 1 - eps * rstd, zero for a row of zeros."""
    if not CENTER:
        share = 1.0 - eps * rstd
        mean_gh = tl.where(share > 0, tl.div_rn(mean_gh, tl.where(share > 0, share, 1.0)), 0.0)
    return mean_gh


@tunable("width")
def _rows_backward(
    grad, more, s_in, scale, stat, to_s, parts, group, width, scale_stride, run, runs, eps, one_of,
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
        here = (local < group) & (begin + tl.arange(0, ROWS)[:, None] < run)
        row = which * group + local
        inside, i = here & (column < width), row * width + column
        g, s = get(grad, i, inside), get(s_in, i, inside)
        if ROUNDED:  # stat belongs to the unrounded s
            mean, rstd = _moments(s, inside, one_of, eps, CENTER)
        else:
            mean = tl.load(stat + 2 * row, mask=here, other=0.0)
            rstd = tl.load(stat + 2 * row + 1, mask=here, other=0.0)
        h, gs = tl.where(inside, (s - mean) * rstd, 0.0), g * weight
        result = gs - h * _along((tl.sum(gs * h, 1) * one_of)[:, None], rstd, eps, CENTER)
        if CENTER:
            result -= (tl.sum(gs, 1) * one_of)[:, None]
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
def _add_runs(parts, to_scale, to_offset, width, tiles, runs, TILE: tl.constexpr):
    """The runs' shares added up in their order."""
    pid = tl.program_id(0).to(tl.int64)
    which, column = pid // tiles, pid % tiles * TILE + tl.arange(0, TILE)
    inside = column < width
    scale_sum, offset_sum = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
    for run in range(runs):
        at = (which * runs + run) * 2 * width + column
        scale_sum += get(parts, at, inside)
        offset_sum += get(parts, at + width, inside)
    put(to_scale, which * width + column, scale_sum, inside)
    put(to_offset, which * width + column, offset_sum, inside)


@triton.jit
def _wide_backward(
    rows, grad, more, scale, stat, to_s, used, tiles, width, per_scale, scale_stride, eps,
    CENTER: tl.constexpr, ROUNDED: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gradient to s of one row; leaves the moments it used for ``_wide_columns``."""
    row = tl.program_id(0).to(tl.int64)
    if ALIGNED:
        width = tl.multiple_of(width, 8)
    if ROUNDED:
        mean, rstd = _wide_moments(rows, tiles, None, None, row, width, eps, CENTER, DTYPE, ALIGNED, TILE)
    else:
        mean, rstd = tl.load(stat + 2 * row), tl.load(stat + 2 * row + 1)
    tl.store(used + 2 * row, mean)
    tl.store(used + 2 * row + 1, rstd)
    sum_g, sum_gh = tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64)
    for k in range(tiles):
        s, column, inside, _ = _part(rows, k, row, DTYPE, ALIGNED, TILE)
        gs = get(grad, row * width + column, inside) * get(scale, row // per_scale * scale_stride + column, inside)
        sum_g += tl.sum(gs).to(tl.float64)
        sum_gh += tl.sum(tl.where(inside, gs * (s - mean) * rstd, 0.0)).to(tl.float64)
    mean_g = (sum_g / width).to(tl.float32) if CENTER else 0.0
    along = _along((sum_gh / width).to(tl.float32), rstd, eps, CENTER)
    for k in range(tiles):
        s, column, inside, _ = _part(rows, k, row, DTYPE, ALIGNED, TILE)
        gs = get(grad, row * width + column, inside) * get(scale, row // per_scale * scale_stride + column, inside)
        result = rstd * (gs - mean_g - (s - mean) * rstd * along)
        if more is not None:
            result += get(more, row * width + column, inside)
        put(to_s, row * width + column, result, inside)


@triton.jit
def _wide_columns(
    rows, grad, used, to_scale, to_offset, tiles, width, group, DTYPE: tl.constexpr, ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """The gradients to one tile of one row of scale and offset: its rows added up in their order."""
    pid = tl.program_id(0).to(tl.int64)
    which, k = pid // tiles, pid % tiles
    if ALIGNED:
        width = tl.multiple_of(width, 8)
    scale_sum, offset_sum = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
    pointer, stride, n, column = _tile(rows, k, DTYPE, ALIGNED)
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


class Shape:
    """What the kernels need to know of x (a list of dense tensors) and of how many rows scale has."""

    def __init__(self, x, scale):
        self.x = [dense(part) for part in x]
        self.widths = tuple(part.shape[-1] for part in x)
        self.width = sum(self.widths)
        self.rows = x[0].shape[:-1].numel()
        self.scales = scale.shape[0] if scale.dim() == 2 else 1
        self.per_scale = max(1, self.rows // max(1, self.scales))
        self.in_registers = len(x) == 1 and self.width <= ROW

    def row_tile(self):
        """Rows and columns a program holds at a time."""
        block = next(widest for widest in ROWS if self.width <= widest)
        rows, threads = ROWS[block]
        return {"ROWS": rows, "BLOCK": block, "threads": threads}

    def parts(self):
        """The table of the row's tiles, and the constants of the kernels that read it."""
        first, addresses = self.x[0], tuple(part.data_ptr() for part in self.x)
        rows = table(first.device, _make_parts, addresses, self.widths, first.element_size())
        meta = {"DTYPE": DTYPES[first.dtype], "ALIGNED": aligned(addresses, self.widths), "TILE": TILE}
        return rows, meta


def _make_parts(addresses, widths, itemsize):
    rows, column = [], 0
    for address, width in zip(addresses, widths, strict=True):
        for begin in range(0, width, TILE):
            rows.append([address + begin * itemsize, width, min(TILE, width - begin), column + begin])
        column += width
    return rows


def _row_stride(parameter):
    """(the parameter, or a copy with dense rows, and the distance between its rows)"""
    if parameter is None:
        return None, 0
    if parameter.shape[-1] > 1 and parameter.stride(-1) != 1:
        parameter = parameter.contiguous()
    return parameter, parameter.stride(0) if parameter.dim() == 2 and parameter.shape[0] > 1 else 0


def _dtype(x, residual):
    return x[0].dtype if residual is None else torch.promote_types(x[0].dtype, residual.dtype)


def _run(x, scale, offset, residual, eps, center, y, summed):
    """Fills y, and summed if there is a residual, both dense; returns (mean, rstd) of each row."""
    shape = Shape(x, scale)
    stat = x[0].new_empty((shape.rows, 2), dtype=torch.float32)
    residual = dense(residual)
    (scale, scale_stride), (offset, offset_stride) = _row_stride(scale), _row_stride(offset)
    strides = shape.per_scale, scale_stride, offset_stride
    if shape.width == 0:
        stat[:, 0], stat[:, 1] = (
            float("nan") if center else 0.0,
            float("nan") if center else 1 / eps if eps else torch.inf,
        )
    elif shape.in_registers:
        tile = shape.row_tile()
        launch(
            _rows, triton.cdiv(shape.rows, tile["ROWS"]), shape.x[0], residual, scale, offset, y, summed, stat,
            shape.rows, shape.width, *strides, eps, 1 / shape.width, CENTER=center, SHARED=shape.scales == 1, **tile,
        )  # fmt: skip
    else:
        parts, meta = shape.parts()
        launch(
            _wide, shape.rows, parts, residual, scale, offset, y, summed, stat, len(parts), shape.width, *strides, eps,
            CENTER=center, **meta,
        )  # fmt: skip
    return stat


def td_norm(x, scale, offset, residual, eps, center):
    sizes, dtype = (*x[0].shape[:-1], sum(part.shape[-1] for part in x)), _dtype(x, residual)
    y = x[0].new_empty(sizes, dtype=dtype)
    summed = x[0].new_empty(
        sizes if residual is not None else 0, dtype=dtype if residual is not None else torch.float32
    )
    stat = _run(x, scale, offset, residual, eps, center, y, summed if residual is not None else None)
    return y, summed, stat


def td_norm_out(x, scale, offset, residual, eps, center, y, sum):
    y_target, sum_target = InPlace(y), InPlace(sum)
    _run(x, scale, offset, residual, eps, center, y_target.work, sum_target.work)
    y_target.commit()
    sum_target.commit()


def td_norm_backward(grad_y, grad_sum, s, scale, stat, eps, center):
    shape, wide = Shape(s, scale), {"dtype": torch.float32, "device": scale.device}
    to_s = s[0].new_empty((*s[0].shape[:-1], shape.width))
    to_scale, to_offset = torch.empty(scale.shape, **wide), torch.empty(scale.shape, **wide)
    if shape.rows == 0 or shape.width == 0:
        return to_s, to_scale.zero_(), to_offset.zero_()
    scale, stride = _row_stride(scale)
    grad, more, stat, group = dense(grad_y), dense(grad_sum), dense(stat), shape.per_scale
    rounded = s[0].dtype in (torch.float16, torch.bfloat16)
    if shape.in_registers:
        tile = shape.row_tile()
        run = triton.cdiv(max(tile["ROWS"], triton.cdiv(group, RUNS)), tile["ROWS"]) * tile["ROWS"]
        runs, tiles = triton.cdiv(group, run), triton.cdiv(shape.width, TILE)
        parts = torch.empty((shape.scales * runs, 2, shape.width), **wide)
        launch(
            _rows_backward, len(parts), grad, more, shape.x[0], scale, stat, to_s, parts, group, shape.width, stride,
            run, runs, eps, 1 / shape.width, CENTER=center, ROUNDED=rounded, **tile,
        )  # fmt: skip
        launch(_add_runs, shape.scales * tiles, parts, to_scale, to_offset, shape.width, tiles, runs, TILE=TILE)
    else:
        parts, meta = shape.parts()
        used = torch.empty((shape.rows, 2), **wide)
        launch(
            _wide_backward, shape.rows, parts, grad, more, scale, stat, to_s, used, len(parts), shape.width, group,
            stride, eps, CENTER=center, ROUNDED=rounded, **meta,
        )  # fmt: skip
        launch(
            _wide_columns, shape.scales * len(parts), parts, grad, used, to_scale, to_offset, len(parts), shape.width,
            group, **meta,
        )  # fmt: skip
    return to_s, to_scale, to_offset
