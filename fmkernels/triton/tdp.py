"""tdp: out[k] = p1 + sigmoid(times[k] * (weight + offset) + bias) * (p0 - p1), for one parameter or a model's.

The group is one launch: its table has a row for every block of every parameter, with the addresses of the block's
p0, p1, weight and bias. All times are worked through by the program that has read the block.
"""

import torch
import triton
import triton.language as tl

from fmkernels.triton._launch import DTYPES, PARTS, InPlace, aligned, dense, launch, promoted, table
from fmkernels.triton._math import add_up, get, put, sigmoid_pair

LANES = 1024  # elements of a parameter a program takes
COLUMNS = tl.constexpr(7)  # of the table: four addresses, the elements, the output's column, the dtypes' codes
CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


@triton.jit
def _evaluate(p0, p1, weight, bias, times, steps, offset, out, stride, i, inside):
    """One block at every time, into rows of ``out`` that are ``stride`` apart."""
    for k in range(steps):
        time = tl.load(times + k).to(tl.float32)
        share, _ = sigmoid_pair(time * (weight + offset) + bias)
        put(out, tl.cast(k, tl.int64) * stride + i, p1 + share * (p0 - p1), inside)


@triton.jit
def _gradients(p0, p1, weight, bias, times, steps, offset, grad, stride, i, inside, shares, blocks):
    """The gradients of one block to its parameters, summed over the times; its share of that to each time."""
    zero = tl.zeros_like(p0)
    to_p0, to_p1, to_weight, to_bias = zero, zero, zero, zero
    for k in range(steps):
        time = tl.load(times + k).to(tl.float32)
        value, complement = sigmoid_pair(time * (weight + offset) + bias)
        g = get(grad, tl.cast(k, tl.int64) * stride + i, inside)
        to_x = g * (p0 - p1) * value * complement
        to_p0 += g * value
        to_p1 += g * complement
        to_weight += to_x * time
        to_bias += to_x
        tl.store(shares + tl.cast(k, tl.int64) * blocks, tl.sum(tl.where(inside, to_x * (weight + offset), 0.0)))
    return to_p0, to_p1, to_weight, to_bias


@triton.jit(do_not_specialize=["steps"])
def _tdp(p0, p1, weight, bias, times, out, n, steps, offset, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x0, x1, w, b = get(p0, i, inside), get(p1, i, inside), get(weight, i, inside), get(bias, i, inside)
    _evaluate(x0, x1, w, b, times, steps, offset, out, n, i, inside)


@triton.jit(do_not_specialize=["steps"])
def _tdp_backward(
    grad, p0, p1, weight, bias, times, to_p0, to_p1, to_weight, to_bias, shares, n, steps, offset, BLOCK: tl.constexpr
):
    pid = tl.program_id(0)
    i = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x0, x1, w, b = get(p0, i, inside), get(p1, i, inside), get(weight, i, inside), get(bias, i, inside)
    g0, g1, gw, gb = _gradients(
        x0, x1, w, b, times, steps, offset, grad, n, i, inside, shares + pid, tl.num_programs(0)
    )
    put(to_p0, i, g0, inside)
    put(to_p1, i, g1, inside)
    put(to_weight, i, gw, inside)
    put(to_bias, i, gb, inside)


@triton.jit
def _to_times(shares, out, blocks, BLOCK: tl.constexpr):
    k = tl.program_id(0)
    row = tl.arange(0, 1)
    total = add_up(shares + tl.cast(k, tl.int64) * blocks, blocks, 1, 1, BLOCK)
    put(out, k + row, total.to(tl.float32), row == 0)


@triton.jit
def _read(address, code, i, inside, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """A block at an address; its dtype is DTYPE or, where parameters differ, told by the code."""
    if DTYPE is None:
        x = tl.zeros([BLOCK], tl.float32)
        if code == 0:
            x = get(address.to(tl.pointer_type(tl.float32), bitcast=True), i, inside)
        elif code == 1:
            x = get(address.to(tl.pointer_type(tl.float16), bitcast=True), i, inside)
        else:
            x = get(address.to(tl.pointer_type(tl.bfloat16), bitcast=True), i, inside)
    else:
        pointer = address.to(tl.pointer_type(DTYPE), bitcast=True)
        x = get(tl.multiple_of(pointer, 16) if ALIGNED else pointer, i, inside)
    return x


@triton.jit
def _row(
    rows, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, T3: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """This program's row of the table: its four blocks, its column, and which elements are inside."""
    row = rows + tl.program_id(0).to(tl.int64) * COLUMNS
    n, column, code = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    if ALIGNED:
        n, column = tl.multiple_of(n, 8), tl.multiple_of(column, 8)
    i = tl.arange(0, BLOCK)
    p0 = _read(tl.load(row), code & 3, i, i < n, T0, ALIGNED, BLOCK)
    p1 = _read(tl.load(row + 1), (code >> 2) & 3, i, i < n, T1, ALIGNED, BLOCK)
    weight = _read(tl.load(row + 2), (code >> 4) & 3, i, i < n, T2, ALIGNED, BLOCK)
    bias = _read(tl.load(row + 3), (code >> 6) & 3, i, i < n, T3, ALIGNED, BLOCK)
    return p0, p1, weight, bias, column + i, i < n


@triton.jit(do_not_specialize=["steps"])
def _group(
    rows, times, out, total, steps, offset, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, T3: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    p0, p1, weight, bias, i, inside = _row(rows, T0, T1, T2, T3, ALIGNED, BLOCK)
    _evaluate(p0, p1, weight, bias, times, steps, offset, out, total, i, inside)


@triton.jit(do_not_specialize=["steps"])
def _group_backward(
    rows, grad, times, grads, shares, total, steps, offset, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr,
    T3: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    p0, p1, weight, bias, i, inside = _row(rows, T0, T1, T2, T3, ALIGNED, BLOCK)
    g0, g1, gw, gb = _gradients(
        p0, p1, weight, bias, times, steps, offset, grad, total, i, inside, shares + pid, tl.num_programs(0)
    )
    put(grads, i, g0, inside)
    put(grads, i + total, g1, inside)
    put(grads, i + 2 * tl.cast(total, tl.int64), gw, inside)
    put(grads, i + 3 * tl.cast(total, tl.int64), gb, inside)


def tdp(param0, param1, weight, bias, times, weight_offset):
    out = param0.new_empty((times.shape[0], *param0.shape), dtype=promoted(param0, param1))
    _run(param0, param1, weight, bias, times, weight_offset, out)
    return out


def tdp_out(param0, param1, weight, bias, times, weight_offset, out):
    target = InPlace(out)
    _run(param0, param1, weight, bias, times, weight_offset, target.work)
    target.commit()


def _run(param0, param1, weight, bias, times, weight_offset, out):
    n, four = param0.numel(), [dense(x) for x in (param0, param1, weight, bias)]
    blocks, steps = triton.cdiv(n, LANES), times.shape[0]
    launch(_tdp, blocks, *four, dense(times), out, n, steps, weight_offset, BLOCK=LANES)


def tdp_backward(grad, param0, param1, weight, bias, times, weight_offset):
    n, steps = param0.numel(), times.shape[0]
    four = [dense(x) for x in (param0, param1, weight, bias)]
    grads, blocks = [torch.empty_like(x) for x in four], triton.cdiv(n, LANES)
    shares, to_times = times.new_empty((steps, blocks), dtype=torch.float32), times.new_empty(steps)
    launch(
        _tdp_backward, blocks, dense(grad), *four, dense(times), *grads, shares, n, steps, weight_offset, BLOCK=LANES
    )
    launch(_to_times, steps, shares, to_times, blocks, BLOCK=PARTS)
    return *grads, to_times


def tdp_group(param0, param1, weight, bias, times, weight_offset):
    out = times.new_empty((times.shape[0], sum(p.numel() for p in param0)), dtype=promoted(*param0, *param1))
    tdp_group_out(param0, param1, weight, bias, times, weight_offset, out)
    return out


def tdp_group_out(param0, param1, weight, bias, times, weight_offset, out):
    rows, meta, _kept = _rows_of(param0, param1, weight, bias)
    target, steps = InPlace(out), times.shape[0]
    launch(_group, len(rows), rows, dense(times), target.work, out.shape[1], steps, weight_offset, **meta)
    target.commit()


def tdp_group_backward(grad, param0, param1, weight, bias, times, weight_offset):
    rows, meta, _kept = _rows_of(param0, param1, weight, bias)
    total, steps = grad.shape[1], times.shape[0]
    grads = grad.new_empty((4, total), dtype=promoted(*param0, *param1, *weight, *bias))
    shares, to_times = times.new_empty((steps, len(rows)), dtype=torch.float32), times.new_empty(steps)
    launch(
        _group_backward, len(rows), rows, dense(grad), dense(times), grads, shares, total, steps, weight_offset, **meta
    )
    launch(_to_times, steps, shares, to_times, len(rows), BLOCK=PARTS)
    return grads, to_times


def _rows_of(*lists):
    """The group's table, the kernel's constants, and the dense copies, if any, the table has addresses of."""
    kept = [[dense(x) for x in column] for column in lists]
    flat = [x for column in kept for x in column]
    addresses, sizes = tuple(x.data_ptr() for x in flat), tuple(x.numel() for x in kept[0])
    dtypes = tuple(x.dtype for x in flat)
    rows = table(flat[0].device, _make_rows, addresses, sizes, dtypes)
    kinds = [{x.dtype for x in column} for column in kept]
    meta = {f"T{j}": DTYPES[kind.pop()] if len(kind) == 1 else None for j, kind in enumerate(kinds)}
    return rows, meta | {"ALIGNED": aligned(addresses, sizes), "BLOCK": LANES}, kept


def _make_rows(addresses, sizes, dtypes):
    count, column, rows = len(sizes), 0, []
    for p, n in enumerate(sizes):
        four = [(addresses[j * count + p], dtypes[j * count + p]) for j in range(4)]
        code = sum(CODES[dtype] << 2 * j for j, (_, dtype) in enumerate(four))
        for begin in range(0, n, LANES):
            starts = [address + begin * dtype.itemsize for address, dtype in four]
            rows.append([*starts, min(LANES, n - begin), column + begin, code])
        column += n
    return rows
