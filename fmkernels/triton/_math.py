"""Loads, stores and arithmetic that all kernels share: fp32 inside, one rounding on store.

exp and the normal distribution are the polynomials of csrc/shared/scalar.h, not ``tl.exp``, whose error grows with the
argument. On NVIDIA GPUs, 1 / x is the approximate instruction followed by a Newton step, because the correctly rounded
division is a subroutine. In the interpreter, bf16 is converted by integer operations, because the interpreter's
conversion truncates and loses subnormal numbers; devices have instructions for it.
"""

import os

import triton
import triton.language as tl
from triton.language import target_info

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
# With r = rcp(x), which is accurate to 1 ulp: r + r (1 - x r).
RECIPROCAL = tl.constexpr(
    "{ .reg .f32 r, n, e; rcp.approx.ftz.f32 r, $1; neg.f32 n, $1; "
    "fma.rn.f32 e, n, r, 0f3F800000; fma.rn.f32 $0, r, e, r; }"
)


@triton.jit
def get(pointer, offsets, inside):
    """The elements at ``offsets`` in fp32; 0 where not ``inside``."""
    return widen(tl.load(pointer + offsets, mask=inside, other=0.0))


@triton.jit
def widen(x):
    """x in fp32, which is exact."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        wide = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def put(pointer, offsets, x, inside):
    """Store x, rounded once to the pointer's dtype, to nearest even."""
    if INTERPRETED and pointer.dtype.element_ty == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        half = tl.where(x == x, rounded, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        tl.store(pointer + offsets, half, mask=inside)
    else:
        tl.store(pointer + offsets, x.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def place(chunks):
    """The sample, in int64, and the chunk that this program processes."""
    pid = tl.program_id(0)
    return (pid // chunks).to(tl.int64), pid % chunks


@triton.jit
def block_of(chunk, begin, n, CHUNK: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """The columns of one block of a chunk of n elements, and which of them are inside; all if n is EVEN."""
    column = chunk.to(tl.int64) * CHUNK + begin + tl.arange(0, BLOCK)
    if EVEN:
        inside = tl.full([BLOCK], True, tl.int1)
    else:
        inside = column < n
    return column, inside


@triton.jit
def leave(parts, stride, values):
    """Store partial sums for a second launch: one number per column, ``stride`` apart."""
    for k in tl.static_range(len(values)):
        tl.store(parts + k * stride, values[k])


@triton.jit
def fours(x):
    """Rows of four neighbouring elements. One thread has them, so a sum over them needs no exchange between threads."""
    return tl.reshape(x, [x.shape[0] // 4, 4])


@triton.jit
def sum_fours(x):
    """The sums of four neighbouring elements each; a quarter of the registers of x."""
    return tl.sum(fours(x), 1)


@triton.jit
def nonfinite(x, inside):
    """1 where x is inside and infinite or NaN, 0 elsewhere."""
    return tl.where((tl.abs(x) < float("inf")) | ~inside, 0.0, 1.0)


@triton.jit
def reciprocal(x):
    """1 / x for 1 <= x < 1e37, to 1 ulp."""
    if not INTERPRETED and target_info.is_cuda():
        r = tl.inline_asm_elementwise(RECIPROCAL, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        r = tl.div_rn(1.0, x)
    return r


@triton.jit
def times(x, y):
    """x * y, rounded by itself: it does not become a part of a fused multiply-add."""
    return tl.fma(x, y, 0.0)


@triton.jit
def magnitude(x):
    """|x| as an integer, in the order of the magnitudes: NaN above infinity above every number."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def row_scale(largest):
    """(scale, its inverse) of rows quantized to int8, from their largest magnitudes: csrc/shared/scalar.h."""
    finite, x = largest < 0x7F800000, largest.to(tl.float32, bitcast=True)
    used = finite & (x >= 7.888609052210118e-31)  # 2^-100
    safe = tl.where(used, x, 1.0)
    scale = tl.where(used, tl.div_rn(safe, 127.0), tl.where(finite, 0.0, float("nan")))
    return scale, tl.where(used, tl.div_rn(127.0, safe), 0.0)


@triton.jit
def quantized(x, scale, inverse):
    """round(x * inverse) in int8, half to even: the low bits of the sum with 1.5 * 2^23; 0 if the scale is NaN."""
    shifted = times(tl.where(scale == scale, x, 0.0), inverse) + 12582912.0
    return shifted.to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def power_of_two(shifted):
    """2^n from 1.5 * 2^23 + n, whose low bits contain n."""
    return ((shifted.to(tl.uint32, bitcast=True) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exp_minus(x):
    """exp(-x) for x >= 0, to about 1 ulp; 0 above 87, where the result would be subnormal."""
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
    large = reciprocal(1.0 + e)
    small = e * large
    return tl.where(x < 0, small, large), tl.where(x < 0, large, small)


@triton.jit
def normal(x):
    """The normal distribution function and its density, for gelu(x) = x Phi(x) and its derivative."""
    y = x * x * 0.721347520
    shifted = 12582912.0 - y
    f = (12582912.0 - shifted) - y
    q = 0.00132647274 * f + 0.00967151297
    q = q * f + 0.0555073375
    q = q * f + 0.240222421
    q = q * f + 0.693146978
    q = q * f + 1.0
    e = tl.where(y > 125.0, 0.0, q * power_of_two(shifted))
    t = reciprocal(1.0 + 0.3 * tl.minimum(tl.abs(x), 1e4))  # e is 0 beyond
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
def activated(x, ACT: tl.constexpr):
    """act(x) and its derivative for gelu (0), its approximation with tanh (1) and silu (2); each is x P(x)."""
    if ACT == 0:
        share, pdf = normal(x)
        slope = share + x * pdf
    else:
        inner, slope_of_inner = x, 1.0
        if ACT == 1:  # 1 + tanh(u) = 2 sigmoid(2 u)
            square = x * x
            inner = 1.59576912160573071 * (x + 0.044715 * x * square)
            slope_of_inner = 1.59576912160573071 * (1.0 + 0.134145 * square)
        share, rest = sigmoid_pair(inner)
        slope = share + x * (share * rest * slope_of_inner)
    return x * share, slope


@triton.jit
def add_up(parts, count, USED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """The sums of USED rows of ``count`` partial sums, in fp64 and always in the same order.

    COLUMNS: USED rounded up to a power of two.
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
