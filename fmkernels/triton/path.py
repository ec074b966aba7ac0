"""psi = (t (r - 1) + 1) x0 + t x1,  Dt_psi = (r - 1) x0 + x1,  r = sigma_min / sigma_max; the loss and statistics."""

import torch
import triton
import triton.language as tl

from fmkernels.triton._launch import adding, cdiv, cut, dense, empty, launch, meta, promoted, tunable
from fmkernels.triton._math import add_up, block_of, fours, get, largest, leave, place, put, sum_fours

COLUMNS = tl.constexpr(9)  # of the sums, in the order of csrc/shared/columns.h


@tunable("n", blocks=(512, 1024))
def _path(t, x0, x1, x_t, velocity, n, chunks, ratio, CHUNK: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Write psi to x_t and Dt_psi to velocity, unless they are None; x0 and x1 are read once."""
    sample, chunk = place(chunks)
    if x_t is not None:
        time = tl.load(t + sample).to(tl.float32)
    for begin in range(0, CHUNK, BLOCK):
        column, inside = block_of(chunk, begin, n, CHUNK, BLOCK, EVEN)
        i = sample * n + column
        start, end = get(x0, i, inside), get(x1, i, inside)
        if x_t is not None:
            put(x_t, i, (time * ratio + 1.0) * start + time * end, inside)
        if velocity is not None:
            put(velocity, i, ratio * start + end, inside)


@tunable("n", blocks=(512, 1024))
def _psi_backward(
    grad, t, to_x0, to_x1, n, chunks, ratio, CHUNK: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr
):
    """to_x0 = (t ratio + 1) grad, to_x1 = t grad."""
    sample, chunk = place(chunks)
    time = tl.load(t + sample).to(tl.float32)
    for begin in range(0, CHUNK, BLOCK):
        column, inside = block_of(chunk, begin, n, CHUNK, BLOCK, EVEN)
        i = sample * n + column
        g = get(grad, i, inside)
        put(to_x0, i, (time * ratio + 1.0) * g, inside)
        put(to_x1, i, time * g, inside)


@triton.jit
def _target(x0, x1, v_target, ratio, i, inside):
    if v_target is not None:
        target = get(v_target, i, inside)
    else:
        target = ratio * get(x0, i, inside) + get(x1, i, inside)
    return target


@tunable("n", blocks=(512, 1024))
def _sums(
    v_pred, x0, x1, v_target, sums, n, chunks, ratio, CHUNK: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr
):
    """sums: the partial sums of each chunk for the nine columns, (B, 9, chunks)."""
    sample, chunk = place(chunks)
    zero = tl.zeros([BLOCK // 4], tl.float32)
    error, pred2, target2, dot, abs_p, abs_v, max_p, max_v, bad = zero, zero, zero, zero, zero, zero, zero, zero, zero
    for begin in range(0, CHUNK, BLOCK):
        column, inside = block_of(chunk, begin, n, CHUNK, BLOCK, EVEN)
        i = sample * n + column
        p, v = get(v_pred, i, inside), _target(x0, x1, v_target, ratio, i, inside)
        size_p, size_v = tl.abs(p), tl.abs(v)
        error += sum_fours((p - v) * (p - v))
        pred2 += sum_fours(p * p)
        target2 += sum_fours(v * v)
        dot += sum_fours(p * v)
        abs_p += sum_fours(size_p)
        abs_v += sum_fours(size_v)
        # Of a number and NaN, the maximum is the number.
        max_p = tl.maximum(max_p, tl.max(fours(size_p), 1))
        max_v = tl.maximum(max_v, tl.max(fours(size_v), 1))
        bad += sum_fours(tl.where((size_p < float("inf")) & (size_v < float("inf")), 0.0, 1.0))
    row = sums + sample * COLUMNS * chunks + chunk
    leave(row, chunks, (tl.sum(error), tl.sum(pred2), tl.sum(target2), tl.sum(dot), tl.sum(abs_p), tl.sum(abs_v)))
    leave(row + 6 * chunks, chunks, (tl.max(max_p), tl.max(max_v), tl.sum(bad)))


@triton.jit
def _combine(parts, weight, sums, loss, n, chunks, BLOCK: tl.constexpr):
    """Add up the partial sums of one sample to its nine columns; its loss follows from the first column."""
    sample, which = tl.program_id(0).to(tl.int64), tl.arange(0, 16)
    row = parts + sample * COLUMNS * chunks
    total = add_up(row, chunks, COLUMNS, 16, BLOCK)
    value = tl.where(which == 6, largest(row + 6 * chunks, chunks, BLOCK), total.to(tl.float32))
    value = tl.where(which == 7, largest(row + 7 * chunks, chunks, BLOCK), value)
    tl.store(sums + sample * COLUMNS + which, value, mask=which < COLUMNS)
    if loss is not None:
        mean = total / n
        if weight is not None:
            mean *= tl.load(weight + sample).to(tl.float64)
        tl.store(loss + sample + which, mean.to(tl.float32), mask=which == 0)


@tunable("n", blocks=(512, 1024))
def _loss_backward(
    grad,
    v_pred,
    x0,
    x1,
    v_target,
    weight,
    to_pred,
    n,
    chunks,
    ratio,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
):
    """to_pred = 2 grad weight (v_pred - target) / n; grad, weight: (B,)."""
    sample, chunk = place(chunks)
    factor = tl.load(grad + sample).to(tl.float32) * 2.0
    if weight is not None:
        factor *= tl.load(weight + sample).to(tl.float32)
    factor = tl.div_rn(factor, tl.cast(n, tl.float32))
    for begin in range(0, CHUNK, BLOCK):
        column, inside = block_of(chunk, begin, n, CHUNK, BLOCK, EVEN)
        i = sample * n + column
        error = get(v_pred, i, inside) - _target(x0, x1, v_target, ratio, i, inside)
        put(to_pred, i, factor * error, inside)


@triton.jit
def _summary(sums, t, out, samples, n, bins, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Row 0: nmse (pooled), cos and speed_ratio (means), number of samples of the batch; row 1 + k: of slice k of t."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    error, target2 = tl.zeros([ROWS, BLOCK], tl.float64), tl.zeros([ROWS, BLOCK], tl.float64)
    cos, speed = tl.zeros([ROWS, BLOCK], tl.float64), tl.zeros([ROWS, BLOCK], tl.float64)
    count = tl.zeros([ROWS, BLOCK], tl.float64)
    for begin in range(0, samples, BLOCK):
        sample = begin + tl.arange(0, BLOCK)[None, :]
        inside = sample < samples
        at = sums + sample.to(tl.int64) * COLUMNS
        here = inside & (row <= bins)
        if t is not None:
            time = get(t, sample, inside)
            # Edges are compared in fp32, like t: 0.3f is in the slice that ends at 0.3f.
            low, high = ((row - 1).to(tl.float64) / bins).to(tl.float32), (row.to(tl.float64) / bins).to(tl.float32)
            within = ((time > low) | (row == 1)) & ((time <= high) | (row == bins)) & (time == time)
            here = here & ((row == 0) | within)
        squares = tl.load(at + 2, mask=inside, other=0.0).to(tl.float64)
        pred, target = tl.sqrt(tl.load(at + 1, mask=inside, other=0.0).to(tl.float64)), tl.sqrt(squares)
        dot = tl.load(at + 3, mask=inside, other=0.0).to(tl.float64)
        # tl.where, not a product with the mask: because of 0 * NaN, one bad sample would affect every slice.
        error += tl.where(here, tl.load(at, mask=inside, other=0.0).to(tl.float64), 0.0)
        target2 += tl.where(here, squares, 0.0)
        cos += tl.where(here, dot / (tl.maximum(pred, 1e-8) * tl.maximum(target, 1e-8)), 0.0)
        speed += tl.where(here, pred / (target + 1e-12), 0.0)
        count += tl.where(here, 1.0, 0.0)
    total = tl.sum(count, 1)
    nmse = tl.sum(error, 1) / tl.maximum(tl.sum(target2, 1), 1e-12 * n * total)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    put(out, row * 4, nmse.to(tl.float32), row <= bins)
    put(out, row * 4 + 1, (tl.sum(cos, 1) / total).to(tl.float32), row <= bins)
    put(out, row * 4 + 2, (tl.sum(speed, 1) / total).to(tl.float32), row <= bins)
    put(out, row * 4 + 3, total.to(tl.float32), row <= bins)


def _run_path(t, x0, x1, sigma_min, sigma_max, x_t, velocity):
    n, chunks, grid, tile = cut(x0.shape)
    ratio = _ratio(sigma_min, sigma_max)
    launch(_path, grid, tile, dense(t), dense(x0), dense(x1), x_t, velocity, n, chunks, ratio)


def _ratio(sigma_min, sigma_max):
    return sigma_min / sigma_max - 1


def psi(t, x0, x1, sigma_min, sigma_max):
    out = empty(x0, promoted(x0, x1))
    _run_path(t, x0, x1, sigma_min, sigma_max, out, None)
    return out


def dt_psi(x0, x1, sigma_min, sigma_max):
    out = empty(x0, promoted(x0, x1))
    _run_path(None, x0, x1, sigma_min, sigma_max, None, out)
    return out


def flow_pair(t, x0, x1, sigma_min, sigma_max, dtype):
    x_t, velocity = (empty(x0, dtype or promoted(x0, x1)) for _ in range(2))
    _run_path(t, x0, x1, sigma_min, sigma_max, x_t, velocity)
    return x_t, velocity


def psi_backward(grad, t, x0, x1, sigma_min, sigma_max):
    n, chunks, grid, tile = cut(x0.shape)
    to_x0, to_x1 = empty(x0), empty(x1)
    ratio = _ratio(sigma_min, sigma_max)
    launch(_psi_backward, grid, tile, dense(grad), dense(t), to_x0, to_x1, n, chunks, ratio)
    return to_x0, to_x1


def _statistics(v_pred, x0, x1, v_target, weight, loss, sigma_min, sigma_max):
    count, (n, chunks, grid, tile) = v_pred.shape[0], cut(v_pred.shape)
    parts = v_pred.new_empty(count, COLUMNS.value, chunks, dtype=torch.float32)
    sums = v_pred.new_empty(count, COLUMNS.value, dtype=torch.float32)
    target = dense(x0), dense(x1), dense(v_target)
    ratio = _ratio(sigma_min, sigma_max)
    launch(_sums, grid, tile, dense(v_pred), *target, parts, n, chunks, ratio)
    launch(_combine, count, adding(chunks), parts, dense(weight), sums, loss, n, chunks)
    return sums


def velocity_stats(v_pred, x0, x1, v_target, sigma_min, sigma_max):
    return _statistics(v_pred, x0, x1, v_target, None, None, sigma_min, sigma_max)


def flow_loss(v_pred, x0, x1, v_target, weight, sigma_min, sigma_max):
    loss = v_pred.new_empty(v_pred.shape[:1], dtype=torch.float32)
    return loss, _statistics(v_pred, x0, x1, v_target, weight, loss, sigma_min, sigma_max)


def flow_loss_backward(grad, v_pred, x0, x1, v_target, weight, sigma_min, sigma_max):
    n, chunks, grid, tile = cut(v_pred.shape)
    to_pred, target = empty(v_pred), (dense(x0), dense(x1), dense(v_target))
    ratio = _ratio(sigma_min, sigma_max)
    launch(_loss_backward, grid, tile, dense(grad), dense(v_pred), *target, dense(weight), to_pred, n, chunks, ratio)
    return to_pred


def velocity_summary(sums, t, n, bins):
    bins = bins if t is not None else 0
    out = sums.new_empty((1 + bins, 4))
    constants = meta(ROWS=16, BLOCK=64)
    launch(_summary, cdiv(1 + bins, 16), constants, dense(sums), dense(t), out, sums.shape[0], n, bins)
    return out
