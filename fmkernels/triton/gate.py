"""act(a) * b, and x + gate * y with rows of gates."""

import math

import torch
import triton
import triton.language as tl

from fmkernels.triton._launch import InPlace, cdiv, cut, dense, empty, launch, meta, promoted, tunable
from fmkernels.triton._math import activated, block_of, get, place, put

ROWS, COLUMNS, STEPS = 8, 256, 32  # of a program of gated_add's backward: rows and columns at a time, maximum of steps
SUM_RUNS, SUM_COLUMNS = 32, 32  # partial sums and columns that a program adds up at a time


@tunable("n", blocks=(512, 1024))
def _gate_mul(
    gate, up, out, n, stride, chunks, ACT: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr
):
    """Rows of n gates and n ups that are ``stride`` apart; one row if they are tensors of their own."""
    row, chunk = place(chunks)
    for begin in range(0, CHUNK, BLOCK):
        column, inside = block_of(chunk, begin, n, CHUNK, BLOCK, EVEN)
        i = row * stride + column
        value, _ = activated(get(gate, i, inside), ACT)
        put(out, row * n + column, value * get(up, i, inside), inside)


@tunable("n", blocks=(512, 1024))
def _gate_mul_backward(
    grad, gate, up, to_gate, to_up, n, stride, chunks,
    ACT: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """to_gate = grad up act'(gate), to_up = grad act(gate)."""
    row, chunk = place(chunks)
    for begin in range(0, CHUNK, BLOCK):
        column, inside = block_of(chunk, begin, n, CHUNK, BLOCK, EVEN)
        i = row * stride + column
        value, slope = activated(get(gate, i, inside), ACT)
        g = get(grad, row * n + column, inside)
        put(to_gate, i, g * get(up, i, inside) * slope, inside)
        put(to_up, i, g * value, inside)


@tunable("width")
def _gated_add(
    x, gate, y, out, width, per_gate, gate_stride, chunks,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Rows of ``width`` elements, of which ``per_gate`` share a row of gate; out may be x."""
    row, chunk = place(chunks)
    for begin in range(0, CHUNK, BLOCK):
        column, inside = block_of(chunk, begin, width, CHUNK, BLOCK, EVEN)
        i = row * width + column
        by = get(gate, row // per_gate * gate_stride + column, inside)
        put(out, i, get(x, i, inside) + by * get(y, i, inside), inside)


@tunable("width")
def _gated_add_backward(
    grad, gate, y, to_y, parts, group, width, gate_stride, run, runs, tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """to_y = grad gate for a run of rows that share a row of gate and for a tile of columns; sums of grad y."""
    pid = tl.program_id(0)
    which, first = (pid // (runs * tiles)).to(tl.int64), pid // tiles % runs * run
    column = pid % tiles * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    by = get(gate, which * gate_stride + column, column < width)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, run, ROWS):
        local = first + begin + tl.arange(0, ROWS)[:, None]
        inside, i = (local < group) & (column < width), (which * group + local) * width + column
        g = get(grad, i, inside)
        put(to_y, i, g * by, inside)
        total += g * get(y, i, inside)
    column = pid % tiles * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(parts + (pid // tiles).to(tl.int64) * width + column, tl.sum(total, 0), mask=column < width)


@triton.jit
def _add_runs(parts, out, width, tiles, runs, RUNS: tl.constexpr, COLUMNS: tl.constexpr):
    """out[g] = the sum of the ``runs`` rows of group g in parts, in fp64 and in a fixed order."""
    pid = tl.program_id(0)
    group, column = (pid // tiles).to(tl.int64), pid % tiles * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros([RUNS, COLUMNS], tl.float64)
    for begin in range(0, runs, RUNS):
        run = begin + tl.arange(0, RUNS)[:, None]
        total += get(parts, (group * runs + run) * width + column, (run < runs) & (column < width)).to(tl.float64)
    column = pid % tiles * COLUMNS + tl.arange(0, COLUMNS)
    put(out, group * width + column, tl.sum(total, 0).to(tl.float32), column < width)


def add_runs(parts, out, groups, runs, width):
    """Add up ``parts``, (groups, runs, width), over the runs."""
    tiles = cdiv(width, SUM_COLUMNS)
    constants = meta(RUNS=SUM_RUNS, COLUMNS=SUM_COLUMNS)
    launch(_add_runs, groups * tiles, constants, parts, out, width, tiles, runs)


def _halves(a, b, gate_first):
    """(gate, up, (rows, elements of a row), distance of rows), dense."""
    a = dense(a)
    if b is not None:
        pair, sizes, stride = (a, dense(b)), (1, a.numel()), 0
    else:
        n = a.shape[-1] // 2
        pair, sizes, stride = (a, a[..., n:]), (math.prod(a.shape[:-1]), n), 2 * n
    return *(pair if gate_first else pair[::-1]), sizes, stride


def _constants(launch_meta, act):
    return meta(launch_meta.threads, ACT=act, **launch_meta.constants)


def gate_mul(a, b, act, gate_first):
    gate, up, sizes, stride = _halves(a, b, gate_first)
    n, chunks, grid, tile = cut(sizes)
    if b is not None:
        out = empty(gate, promoted(gate, up))
    else:
        out = a.new_empty(*a.shape[:-1], sizes[1])  # cut returns n = 0 for an empty batch
    launch(_gate_mul, grid, _constants(tile, act), gate, up, out, n, stride, chunks)
    return out


def gate_mul_backward(grad, a, b, act, gate_first):
    gate, up, sizes, stride = _halves(a, b, gate_first)
    n, chunks, grid, tile = cut(sizes)
    to_a = empty(a)
    to_b = empty(b) if b is not None else to_a[..., sizes[1] :]
    to_gate, to_up = (to_a, to_b) if gate_first else (to_b, to_a)
    launch(_gate_mul_backward, grid, _constants(tile, act), dense(grad), gate, up, to_gate, to_up, n, stride, chunks)
    return to_a, to_b if b is not None else a.new_empty(0, dtype=torch.float32)


def _shape(y, gate):
    """(rows, width, rows of gate, rows that share one)."""
    rows, gates = math.prod(y.shape[:-1]), gate.shape[0] if gate.dim() == 2 else 1
    return rows, y.shape[-1], gates, max(1, rows // max(1, gates))


def _add(x, gate, y, out):
    rows, width, gates, per_gate = _shape(y, gate)
    gate, stride = dense(gate), width if gates > 1 else 0
    width, chunks, grid, tile = cut((rows, width))
    launch(_gated_add, grid, tile, x, gate, dense(y), out, width, per_gate, stride, chunks)


def gated_add(x, gate, y):
    out = empty(x, promoted(x, y))
    _add(dense(x), gate, y, out)
    return out


def gated_add_(x, gate, y):
    target = InPlace(x)
    _add(target.work, gate, y, target.work)
    target.commit()


def gated_add_backward(grad, gate, y):
    rows, width, gates, group = _shape(y, gate)
    to_gate, to_y = empty(gate, torch.float32), empty(y)
    if rows == 0 or width == 0:
        return to_gate.zero_(), to_y
    run = ROWS * min(STEPS, cdiv(group, ROWS))
    runs, tiles, stride = cdiv(group, run), cdiv(width, COLUMNS), width if gates > 1 else 0
    parts = gate.new_empty(gates, runs, width, dtype=torch.float32)
    launch(
        _gated_add_backward, gates * runs * tiles, meta(ROWS=ROWS, COLUMNS=COLUMNS), dense(grad), dense(gate),
        dense(y), to_y, parts, group, width, stride, run, runs, tiles,
    )  # fmt: skip
    add_runs(parts, to_gate, gates, runs, width)
    return to_gate, to_y
