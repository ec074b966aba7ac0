"""x += gain * dt * (a * v + b * v_prev) in place; with guidance, v is v_uncond + guidance * (v - v_uncond).

The same pass writes the low-precision copy and the partial sums of the statistics; a second, small launch adds them up.
"""

import triton
import triton.language as tl

from fmkernels.triton._launch import InPlace, adding, cut, dense, launch, tunable
from fmkernels.triton._math import add_up, block_of, get, leave, nonfinite, place, put, sum_fours

SUMS = tl.constexpr(4)  # |x| before, |v|, change^2, non-finite elements after


@tunable("n", blocks=(512, 1024), written=("x",))
def _step(
    x,
    v,
    v_prev,
    v_uncond,
    dt,
    low,
    sums,
    n,
    chunks,
    ca,
    cb,
    guidance,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
):
    """x += ca v + cb v_prev, (B, n) each; low: the new x in its own dtype. sums: (B, 4, chunks), or None.

    ca, cb: gain a dt and gain b dt; without dt if dt is a tensor.
    """
    sample, chunk = place(chunks)
    if dt is not None:
        ca, cb = ca * tl.load(dt).to(tl.float32), cb * tl.load(dt).to(tl.float32)
    zero = tl.zeros([BLOCK // 4], tl.float32)
    abs_x, abs_v, squares, bad = zero, zero, zero, zero
    for begin in range(0, CHUNK, BLOCK):
        column, inside = block_of(chunk, begin, n, CHUNK, BLOCK, EVEN)
        i = sample * n + column
        before, velocity = get(x, i, inside), get(v, i, inside)
        if v_uncond is not None:
            free = get(v_uncond, i, inside)
            velocity = free + guidance * (velocity - free)
        change = ca * velocity
        if v_prev is not None:
            change += cb * get(v_prev, i, inside)
        after = before + change
        put(x, i, after, inside)
        if low is not None:
            put(low, i, after, inside)
        if sums is not None:
            abs_x += sum_fours(tl.abs(before))
            abs_v += sum_fours(tl.abs(velocity))
            squares += sum_fours(change * change)
            bad += sum_fours(nonfinite(after, inside))
    if sums is not None:
        row = sums + sample * SUMS * chunks + chunk
        leave(row, chunks, (tl.sum(abs_x), tl.sum(abs_v), tl.sum(squares), tl.sum(bad)))


@triton.jit
def _statistics(sums, dt, stats, n, chunks, dt_number, row, column, BLOCK: tl.constexpr):
    """stats[b] = mean|x|, mean|v|, rms of the change, number of non-finite elements, dt."""
    sample, which = tl.program_id(0).to(tl.int64), tl.arange(0, 8)
    total = add_up(sums + sample * SUMS * chunks, chunks, SUMS, 8, BLOCK)
    value = tl.where(which == 3, total, total / n)
    value = tl.where(which == 2, tl.sqrt(value), value).to(tl.float32)
    if dt is not None:
        dt_number = tl.load(dt).to(tl.float32)
    tl.store(stats + sample * row + which * column, tl.where(which == 4, dt_number, value), mask=which < 5)


def step_(x, v, v_prev, v_uncond, dt, dt_tensor, a, b, guidance, gain, low, stats):
    n, chunks, grid, tile = cut(x.shape)
    state, copy = InPlace(x), InPlace(low)
    sums = None if stats is None else x.new_empty(x.shape[0], SUMS.value, chunks)
    factor = gain if dt_tensor is not None else gain * dt
    launch(
        _step, grid, tile, state.work, dense(v), dense(v_prev), dense(v_uncond), dt_tensor, copy.work, sums,
        n, chunks, factor * a, factor * b, guidance,
    )  # fmt: skip
    state.commit()
    copy.commit()
    if stats is not None:
        launch(_statistics, x.shape[0], adding(chunks), sums, dt_tensor, stats, n, chunks, dt, *stats.stride())
