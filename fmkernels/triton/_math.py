"""What every kernel reads, computes and writes with: fp32 inside, one rounding on store, no approximate instruction.

exp and the normal distribution are csrc/shared/scalar.h's polynomials, not ``tl.exp``, whose error grows with the
argument; so the interpreter runs what a device runs, but for the order inside a block's sum. bf16 is read and
rounded by integer operations for the same reason: the interpreter's conversion truncates, and loses subnormals.
"""

import triton
import triton.language as tl


@triton.jit
def get(pointer, offsets, inside):
    """The elements at ``offsets`` in fp32; 0 where not ``inside``."""
    x = tl.load(pointer + offsets, mask=inside, other=0.0)
    if x.dtype == tl.bfloat16:
        wide = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def put(pointer, offsets, x, inside):
    """Stores x, rounded once to the pointer's dtype, to nearest even."""
    if pointer.dtype.element_ty == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        half = tl.where(x == x, rounded, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        tl.store(pointer + offsets, half, mask=inside)
    else:
        tl.store(pointer + offsets, x.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def block_of(chunk, begin, n, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """The columns of one block of a chunk of n elements, and which of them are inside."""
    column = chunk * CHUNK + begin + tl.arange(0, BLOCK)
    return column, column < n


@triton.jit
def leave(parts, stride, values):
    """Partial sums for a second launch: one number a column, ``stride`` apart."""
    for k in tl.static_range(len(values)):
        tl.store(parts + k * stride, values[k])


@triton.jit
def nonfinite(x, inside):
    """1 where x is inside, and infinite or NaN; else 0."""
    return tl.where((tl.abs(x) < float("inf")) | ~inside, 0.0, 1.0)


@triton.jit
def abs_without_nan(x):
    """|x|, and 0 for NaN: what a maximum is taken of."""
    return tl.where(x == x, tl.abs(x), 0.0)


@triton.jit
def power_of_two(shifted):
    """2^n from 1.5 * 2^23 + n, whose low bits hold n."""
    return ((shifted.to(tl.uint32, bitcast=True) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exp_minus(x):
    """exp(-x) for x >= 0 to about 1 ulp; 0 above 87, where floats end."""
    shifted = x * -1.44269504 + 12582912.0
    n = shifted - 12582912.0
    r = (-x - n * 0.693145752) - n * 1.42860677e-6
    p = 0.0013813144760206342 * r + 0.008369418792426586
    p = p * r + 0.04166845604777336
    p = p * r + 0.16666515171527863
    p = p * r + 0.4999999403953552
    p = p * (r * r) + r + 1.0
    return tl.where(x > 87.0, 0.0, p * power_of_two(shifted))


@triton.jit
def exp(x):
    e = exp_minus(tl.abs(x))
    return tl.where(x < 0, e, tl.div_rn(1.0, e))


@triton.jit
def sigmoid_pair(x):
    """sigmoid(x) and 1 - sigmoid(x), each to full relative accuracy: 1/(1+e) and e/(1+e) with e = exp(-|x|)."""
    e = exp_minus(tl.abs(x))
    large = tl.div_rn(1.0, 1.0 + e)
    small = e * large
    return tl.where(x < 0, small, large), tl.where(x < 0, large, small)


@triton.jit
def normal(x):
    """The normal distribution's cumulative and density, for gelu(x) = x Phi(x) and its derivative."""
    y = x * x * 0.721347520
    shifted = 12582912.0 - y
    f = (12582912.0 - shifted) - y
    q = 0.00132647274 * f + 0.00967151297
    q = q * f + 0.0555073375
    q = q * f + 0.240222421
    q = q * f + 0.693146978
    q = q * f + 1.0
    e = tl.where(y > 125.0, 0.0, q * power_of_two(shifted))
    t = tl.div_rn(1.0, 1.0 + 0.3 * tl.abs(x))
    p = 0.0359317153 * t - 0.158275914
    p = p * t + 0.208206452
    p = p * t - 0.0553937016
    p = p * t + 0.129469122
    p = p * t + 0.0996375173
    p = p * t + 0.120798354
    p = p * t + 0.11962639
    tail = e * t * p
    return tl.where(x < 0, tail, 1.0 - tail), 0.398942280 * e


@triton.jit
def add_up(parts, count, USED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """The sums of USED rows of ``count`` partial sums, in fp64 and always in the same order.

    COLUMNS is the power of two that holds them.
    """
    row = tl.arange(0, COLUMNS)[:, None]
    total = tl.zeros([COLUMNS, BLOCK], tl.float64)
    for begin in range(0, count, BLOCK):
        i = begin + tl.arange(0, BLOCK)[None, :]
        total += tl.load(parts + row * count + i, mask=(row < USED) & (i < count), other=0.0).to(tl.float64)
    return tl.sum(total, 1)


@triton.jit
def largest(row, count, BLOCK: tl.constexpr):
    """The largest of ``count`` partial maxima, 0 if there are none."""
    found = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, count, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        found = tl.maximum(found, tl.load(row + i, mask=i < count, other=0.0))
    return tl.max(found)
