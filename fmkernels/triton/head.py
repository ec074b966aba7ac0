"""z = mu + exp(logvar / 2) * eps with logvar clamped; KL of N(mu, sigma^2) to N(0, I); statistics of both.

A program has a block of columns and loops over the samples, so that the same pass gives the standard deviation of each
latent dimension over the batch.
"""

import torch
import triton
import triton.language as tl

from fmkernels.triton._launch import adding, cdiv, cut, dense, empty, launch, meta, promoted, samples, tunable
from fmkernels.triton._math import add_up, block_of, exp, fours, get, largest, leave, nonfinite, place, put, sum_fours

WIDTH = 512  # columns per program: few, because latents are small and a program loops over the samples
# In the order of csrc/shared/columns.h; of a block, 6 and 7 are its mean and the sum of squared deviations from it.
SUMS = tl.constexpr(11)


@triton.jit
def _std(logvar, low, high):
    """The clamped logvar, where NaN stays NaN, and its standard deviation."""
    clamped = tl.where(logvar < low, low, logvar)
    clamped = tl.where(clamped > high, high, clamped)
    return clamped, exp(clamped * 0.5)


@triton.jit
def _reparameterize(mu, logvar, eps, z, kl, sums, samples, n, blocks, low, high, BLOCK: tl.constexpr):
    """kl: (B, blocks). sums: (11, blocks)."""
    block = tl.program_id(0)
    column = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    zero, mean, m2 = tl.zeros([BLOCK // 4], tl.float32), tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    abs_mu, mu2, sum_logvar, sum_std, outside, bad = zero, zero, zero, zero, zero, zero
    std_min, std_max = zero + float("inf"), zero
    for sample in range(samples):
        i = tl.cast(sample, tl.int64) * n + column
        m, raw = get(mu, i, inside), get(logvar, i, inside)
        clamped, std = _std(raw, low, high)
        value = m + std * get(eps, i, inside)
        put(z, i, value, inside)
        share = tl.where(inside, 0.5 * (m * m + std * std - 1.0 - clamped), 0.0)
        tl.store(kl + tl.cast(sample, tl.int64) * blocks + block, tl.sum(share))
        abs_mu += sum_fours(tl.abs(m))
        mu2 += sum_fours(m * m)
        sum_logvar += sum_fours(tl.where(inside, clamped, 0.0))
        sum_std += sum_fours(tl.where(inside, std, 0.0))
        std_min = tl.minimum(std_min, tl.min(fours(tl.where(inside, std, float("inf"))), 1))
        std_max = tl.maximum(std_max, tl.max(fours(tl.where(inside, std, 0.0)), 1))
        outside += sum_fours(tl.where(inside & (clamped != raw), 1.0, 0.0))
        bad += sum_fours(nonfinite(value, inside))
        change = value - mean
        mean += tl.div_rn(change, tl.cast(sample, tl.float32) + 1.0)
        m2 += change * (value - mean)
    width = tl.sum(tl.where(inside, 1.0, 0.0))
    centre = tl.div_rn(tl.sum(tl.where(inside, mean, 0.0)), width)
    spread = tl.where(inside, m2 + (mean - centre) * (mean - centre) * samples, 0.0)
    std_of_dims = tl.where(inside, tl.sqrt_rn(tl.div_rn(m2, tl.cast(samples, tl.float32))), 0.0)
    leave(sums + block, blocks, (tl.sum(abs_mu), tl.sum(mu2), tl.sum(sum_logvar), tl.sum(sum_std)))
    leave(sums + 4 * blocks + block, blocks, (tl.min(std_min), tl.max(std_max), centre, tl.sum(spread)))
    leave(sums + 8 * blocks + block, blocks, (tl.sum(std_of_dims), tl.sum(outside), tl.sum(bad)))


@triton.jit
def _smallest(row, count, BLOCK: tl.constexpr):
    """The smallest of ``count`` partial minima, infinity if there are none."""
    found = tl.zeros([BLOCK], tl.float32) + float("inf")
    for begin in range(0, count, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        found = tl.minimum(found, tl.load(row + i, mask=i < count, other=float("inf")))
    return tl.min(found)


@triton.jit
def _moments_of_z(sums, samples, n, blocks, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Mean and variance of all z from the means and squared deviations of the blocks."""
    total = tl.zeros([BLOCK], tl.float64)
    for begin in range(0, blocks, BLOCK):
        i = begin + tl.arange(0, BLOCK).to(tl.int64)
        width = tl.where(i < blocks, tl.minimum(n - i * WIDTH, WIDTH), 0).to(tl.float64)
        total += width * get(sums + 6 * blocks, i, i < blocks).to(tl.float64)
    mean = tl.sum(total) / n
    total = tl.zeros([BLOCK], tl.float64)
    for begin in range(0, blocks, BLOCK):
        i = begin + tl.arange(0, BLOCK).to(tl.int64)
        width = tl.where(i < blocks, tl.minimum(n - i * WIDTH, WIDTH), 0).to(tl.float64)
        off = get(sums + 6 * blocks, i, i < blocks).to(tl.float64) - mean
        total += get(sums + 7 * blocks, i, i < blocks).to(tl.float64) / samples + width * off * off
    return mean, tl.sum(total) / n


@triton.jit
def _statistics(kl, sums, kl_out, out, samples, n, blocks, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One program per sample for its KL, and a last one for the statistics."""
    sample, which = tl.program_id(0).to(tl.int64), tl.arange(0, 16)
    if sample < samples:
        total = add_up(kl + sample * blocks, blocks, 1, 16, BLOCK)
        tl.store(kl_out + sample + which, total.to(tl.float32), mask=which == 0)
    else:
        total = add_up(sums, blocks, SUMS, 16, BLOCK)
        value = total / (tl.cast(samples, tl.float64) * n)
        value = tl.where(which == 1, tl.sqrt(value), value)
        std = tl.sum(tl.where(which == 3, total, 0.0))
        known = std == std  # a minimum ignores NaN
        value = tl.where(which == 4, tl.where(known, _smallest(sums + 4 * blocks, blocks, BLOCK), std), value)
        value = tl.where(which == 5, tl.where(known, largest(sums + 5 * blocks, blocks, BLOCK), std), value)
        mean, variance = _moments_of_z(sums, samples, n, blocks, WIDTH, BLOCK)
        value = tl.where(which == 6, mean, tl.where(which == 7, variance, value))
        value = tl.where(which == 8, total / n, tl.where(which == 10, total, value))
        tl.store(out + which, value.to(tl.float32), mask=which < SUMS)


@tunable("n", blocks=(512, 1024))
def _reparameterize_backward(
    grad_z,
    grad_kl,
    mu,
    logvar,
    eps,
    to_mu,
    to_logvar,
    n,
    chunks,
    low,
    high,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Outside the clamp, the gradient to logvar is 0 unless a descent step leads back inside."""
    sample, chunk = place(chunks)
    for begin in range(0, CHUNK, BLOCK):
        column, inside = block_of(chunk, begin, n, CHUNK, BLOCK, EVEN)
        i = sample * n + column
        raw = get(logvar, i, inside)
        _, std = _std(raw, low, high)
        to_m, to_l = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        if grad_z is not None:
            to_m = get(grad_z, i, inside)
            to_l = to_m * 0.5 * std * get(eps, i, inside)
        if grad_kl is not None:
            weight = tl.load(grad_kl + sample).to(tl.float32)
            to_m += weight * get(mu, i, inside)
            to_l += weight * 0.5 * (std * std - 1.0)
        held = ((raw < low) & (to_l > 0)) | ((raw > high) & (to_l < 0))
        put(to_mu, i, to_m, inside)
        put(to_logvar, i, tl.where(held, 0.0, to_l), inside)


def reparameterize(mu, logvar, eps, low, high):
    count, n = samples(mu.shape)
    blocks = cdiv(n, WIDTH)
    z = empty(mu, promoted(mu, logvar))
    parts, sums, kl, stats = (
        mu.new_empty(*sizes, dtype=torch.float32)
        for sizes in ((count, blocks), (SUMS.value, blocks), (count,), (SUMS.value,))
    )
    inputs = dense(mu), dense(logvar), dense(eps)
    launch(_reparameterize, blocks, meta(threads=64, BLOCK=WIDTH), *inputs, z, parts, sums, count, n, blocks, low, high)
    launch(_statistics, count + 1, adding(blocks, WIDTH=WIDTH), parts, sums, kl, stats, count, n, blocks)
    return z, kl, stats


def reparameterize_backward(grad_z, grad_kl, mu, logvar, eps, low, high):
    n, chunks, grid, tile = cut(mu.shape)
    to_mu, to_logvar = empty(mu), empty(logvar)
    inputs = (dense(x) for x in (grad_z, grad_kl, mu, logvar, eps))
    launch(_reparameterize_backward, grid, tile, *inputs, to_mu, to_logvar, n, chunks, low, high)
    return to_mu, to_logvar
