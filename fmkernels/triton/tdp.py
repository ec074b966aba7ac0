"""tdp: out[k] = p1 + sigmoid(times[k] * (weight + offset) + bias) * (p0 - p1), for one parameter or a group.

A group is one launch: its table has a row for every block of every parameter, with the addresses of its p0, p1, weight
and bias. The program that has read a block computes it for all times.
"""

import functools
from operator import attrgetter
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fmkernels.triton._launch import DTYPES, InPlace, Meta, adding, aligned, cdiv, dense, launch, meta, promoted
from fmkernels.triton._math import add_up, get, put, sigmoid_pair
from fmkernels.triton._table import planned, reusable_in, table

LANES = 1024  # elements of a parameter per program
# Columns of the table: elements, four addresses and dtype codes of the parameter; first element of the block in the
# parameter; first column of the parameter in the output.
COLUMNS = tl.constexpr(8)
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
    """The gradients of one block to its parameters, summed over the times; stores its part of those to the times."""
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
    """A block at an address; its dtype is DTYPE or, if the dtypes of the parameters differ, given by the code."""
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
    """The four blocks of this program's row of the table, their columns in the output, which elements are inside."""
    row = rows + tl.program_id(0).to(tl.int64) * COLUMNS
    n, code, begin, column = tl.load(row), tl.load(row + 5), tl.load(row + 6), tl.load(row + 7)
    if ALIGNED:
        n, column = tl.multiple_of(n, 8), tl.multiple_of(column, 8)
    i = tl.multiple_of(begin, BLOCK) + tl.arange(0, BLOCK)
    p0 = _read(tl.load(row + 1), code & 3, i, i < n, T0, ALIGNED, BLOCK)
    p1 = _read(tl.load(row + 2), (code >> 2) & 3, i, i < n, T1, ALIGNED, BLOCK)
    weight = _read(tl.load(row + 3), (code >> 4) & 3, i, i < n, T2, ALIGNED, BLOCK)
    bias = _read(tl.load(row + 4), (code >> 6) & 3, i, i < n, T3, ALIGNED, BLOCK)
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
    n = param0.numel()
    launch(
        _tdp, cdiv(n, LANES), meta(BLOCK=LANES), dense(param0), dense(param1), dense(weight), dense(bias), dense(times),
        out, n, times.shape[0], weight_offset,
    )  # fmt: skip


def tdp_backward(grad, param0, param1, weight, bias, times, weight_offset):
    n, steps = param0.numel(), times.shape[0]
    four = [dense(x) for x in (param0, param1, weight, bias)]
    grads, blocks = [torch.empty_like(x) for x in four], cdiv(n, LANES)
    shares, to_times = times.new_empty(steps, blocks, dtype=torch.float32), times.new_empty(steps)
    launch(
        _tdp_backward, blocks, meta(BLOCK=LANES), dense(grad), *four, dense(times), *grads, shares, n, steps,
        weight_offset,
    )  # fmt: skip
    launch(_to_times, steps, adding(blocks), shares, to_times, blocks)
    return *grads, to_times


def tdp_group(param0, param1, weight, bias, times, weight_offset):
    group, _kept = _group_of(param0, param1, weight, bias)
    out = times.new_empty((times.shape[0], group.total), dtype=group.dtype)
    _run_group(group, times, weight_offset, out)
    return out


def tdp_group_out(param0, param1, weight, bias, times, weight_offset, out):
    group, _kept = _group_of(param0, param1, weight, bias)
    target = InPlace(out)
    _run_group(group, times, weight_offset, target.work)
    target.commit()


def _run_group(group, times, weight_offset, out):
    launch(_group, group.blocks, group.meta, group.rows, dense(times), out, group.total, times.shape[0], weight_offset)


def tdp_group_backward(grad, param0, param1, weight, bias, times, weight_offset):
    group, _kept = _group_of(param0, param1, weight, bias)
    blocks, total, steps = group.blocks, group.total, times.shape[0]
    grads = grad.new_empty((4, total), dtype=group.grad_dtype)
    shares, to_times = times.new_empty((steps, blocks), dtype=torch.float32), times.new_empty(steps)
    launch(
        _group_backward, blocks, group.meta, group.rows, dense(grad), dense(times), grads, shares, total, steps,
        weight_offset,
    )  # fmt: skip
    launch(_to_times, steps, adding(blocks), shares, to_times, blocks)
    return grads, to_times


class Group(NamedTuple):
    """The table of a group and its rows, the Meta of the kernels that read it, columns and dtypes of their results."""

    rows: Tensor
    blocks: int
    meta: Meta
    total: int
    dtype: torch.dtype
    grad_dtype: torch.dtype


class Known(NamedTuple):
    """A group that was used before, and what must be unchanged to use it again."""

    addresses: list[int]
    guards: object | None  # of sizes, strides, dtypes and devices, compared in C++; made when it is used again
    group: Group


_dtype = attrgetter("dtype")
_known: dict[tuple, Known] = {}  # by stream, first address, number of tensors, and mode
_MOST_KNOWN = 64


def _group_of(*lists):
    """Return the group and the tensors (possibly dense copies) whose addresses are in its table.

    Addresses, sizes and dtypes are compared in every call: ``.data`` of a parameter may have been replaced.
    """
    flat = [*lists[0], *lists[1], *lists[2], *lists[3]]
    addresses, device = list(map(Tensor.data_ptr, flat)), flat[0].device
    stream = reusable_in(device)
    # Guards also compare what depends on the mode: which dispatch keys are active and whether gradients are recorded.
    mode = torch._C._dispatch_tls_local_exclude_set().raw_repr(), torch.is_grad_enabled()
    place = device, stream, addresses[0], len(flat), mode
    known = _known.get(place) if stream is not None else None
    again = known is not None and known.addresses == addresses
    if again and known.guards is not None and known.guards.check(*flat):
        return known.group, flat
    if not all(map(Tensor.is_contiguous, flat)):
        flat = [dense(x) for x in flat]
        addresses, stream = list(map(Tensor.data_ptr, flat)), None  # guards would not notice another copy
    sizes = tuple(map(Tensor.numel, lists[0]))
    group = planned(_make_group, device, tuple(addresses), sizes, tuple(map(_dtype, flat)))
    if stream is not None:
        while len(_known) >= _MOST_KNOWN:
            del _known[next(iter(_known))]
        _known[place] = Known(addresses, _guards(flat) if again else None, group)  # guards of 684 tensors take 0.2 ms
    return group, flat


def _guards(tensors):
    """torch.compile's check of sizes, strides, dtypes and devices; None if this torch has another one."""
    try:
        from torch._C._dynamo.guards import TensorGuards

        sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
        return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    except (ImportError, TypeError, RuntimeError):
        return None


def _make_group(device, addresses, sizes, dtypes):
    count = len(sizes)
    codes, *rest = _constants(sizes, dtypes, aligned(addresses, 16))
    rows = table(device, sizes, [*(addresses[j * count : (j + 1) * count] for j in range(4)), codes], LANES)
    return Group(rows, len(rows), *rest)


@functools.lru_cache(maxsize=256)
def _constants(sizes, dtypes, addresses_aligned):
    """The dtype codes of the parameters, and what a Group holds apart from its table."""
    count = len(sizes)
    codes = [sum(CODES[dtype] << 2 * j for j, dtype in enumerate(dtypes[p::count])) for p in range(count)]
    kinds = [set(dtypes[j * count : (j + 1) * count]) for j in range(4)]
    types = {f"T{j}": DTYPES[next(iter(kind))] if len(kind) == 1 else None for j, kind in enumerate(kinds)}
    constants = meta(**types, ALIGNED=addresses_aligned and aligned(sizes, 8), BLOCK=LANES)
    dtype, grad_dtype = (functools.reduce(torch.promote_types, set().union(*some)) for some in (kinds[:2], kinds))
    return codes, constants, sum(sizes), dtype, grad_dtype
