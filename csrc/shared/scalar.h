// Scalar math that the CPU and the GPU both compile: half-precision conversions by integer
// operations, exp / sigmoid / gelu as branch-free expressions a compiler can vectorise.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__CUDACC__)
#define FMK_FN __host__ __device__ __forceinline__
#else
#define FMK_FN inline __attribute__((always_inline))
#endif

namespace fmk {

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

template <class To, class From>
FMK_FN To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// ---- widening: exact ----
FMK_FN double widen(double x) { return x; }
FMK_FN float widen(float x) { return x; }
FMK_FN float widen(bf16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }
FMK_FN float widen(f16 x) {
#if defined(__CUDA_ARCH__)
  float wide;  // one instruction there
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  // Shift exponent and mantissa into place and let a multiplication by 2^112 re-bias them: it also
  // normalises subnormals. Infinity and NaN (exponent 31) get the full exponent instead.
  const int32_t magnitude = int32_t(x.bits & 0x7fff) << 13;
  const uint32_t finite = bit_cast<uint32_t>(bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = uint32_t(magnitude) | 0x7f800000u;
  const uint32_t bits = magnitude >= 0x0f800000 ? special : finite;
  return bit_cast<float>(bits | uint32_t(x.bits & 0x8000) << 16);
#endif
}

// ---- narrowing: round to nearest even, once ----
FMK_FN void narrow(double x, double& out) { out = x; }
FMK_FN void narrow(double x, float& out) { out = float(x); }
FMK_FN void narrow(float x, float& out) { out = x; }
FMK_FN void narrow(float x, double& out) { out = x; }
FMK_FN void narrow(float x, bf16& out) {
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
#else
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const int32_t magnitude = int32_t(bits & 0x7fffffffu);  // signed: vector units compare no unsigned ones
  out.bits = uint16_t(magnitude > 0x7f800000 ? 0x7fc0u : rounded);
#endif
}
FMK_FN void narrow(float x, f16& out) {
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
#else
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const int32_t magnitude = int32_t(bits & 0x7fffffffu);
  const uint32_t normal = (uint32_t(magnitude) - (112u << 23) + 0xfffu + ((bits >> 13) & 1u)) >> 13;
  // Below 2^-14 the float adder does the rounding: 0.5 has the ulp of the smallest half.
  const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t special = magnitude > 0x7f800000 ? 0x7e00u : 0x7c00u;
  uint32_t half = magnitude < (113 << 23) ? subnormal : normal;
  half = magnitude >= (143 << 23) ? special : half;
  out.bits = uint16_t(half | sign);
#endif
}
FMK_FN void narrow(double x, bf16& out) { narrow(float(x), out); }
FMK_FN void narrow(double x, f16& out) { narrow(float(x), out); }

// Two numbers as neighbours in memory, `low` first. A GPU rounds both in one instruction.
template <class S>
FMK_FN uint32_t narrow_two(float low, float high) {
  static_assert(sizeof(S) == 2, "two of 16 bits make a word");
#if defined(__CUDA_ARCH__)
  uint32_t word;
  if constexpr (std::is_same_v<S, bf16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  S first, second;
  narrow(low, first);
  narrow(high, second);
  return first.bits | uint32_t(second.bits) << 16;
#endif
}

// 1 / x for 1 <= x < 8e37. On a GPU the division by IEEE's rules is a subroutine, which keeps neighbouring elements
// from overlapping: there it is the approximate instruction and a step of Newton's, good to 1 ulp. Beyond 8e37, where
// the approximation is 0, and for infinity the result is unspecified; callers select.
FMK_FN float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return fmaf(r, fmaf(-x, r, 1.0f), r);
#else
  return 1.0f / x;
#endif
}
FMK_FN double reciprocal(double x) { return 1.0 / x; }

// ---- exp(-x) for |x| <= 87, about 1 ulp; NaN for NaN, and beyond 87 whatever: callers select ----
// -x = n ln2 + r with |r| <= ln2/2; e^r = 1 + r + r^2 P(r), P minimax of degree 4 (3e-9 relative).
// The rounding constant 1.5 * 2^23 leaves n in the low bits of the sum, so that no conversion to
// integers is needed. There is no clamp in front: a compiler turns each into several vector selects,
// one select behind does the same.
FMK_FN float exp_core(float x) {
  const float round = 12582912.0f;
  const float shifted = x * -1.44269504f + round;
  const float n = shifted - round;
  const float r = (-x - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 0.0013813144760206342f;
  p = p * r + 0.008369418792426586f;
  p = p * r + 0.04166845604777336f;
  p = p * r + 0.16666515171527863f;
  p = p * r + 0.4999999403953552f;
  p = p * (r * r) + r + 1.0f;
  return p * bit_cast<float>((bit_cast<uint32_t>(shifted) + 127u) << 23);
}

// exp(-x) for x >= 0; 0 above 87, where floats end.
FMK_FN float exp_minus(float x) {
  const float e = exp_core(x);
  return x > 87.0f ? 0.0f : e;
}
FMK_FN double exp_minus(double x) { return std::exp(-x); }

FMK_FN float absolute(float x) { return bit_cast<float>(bit_cast<uint32_t>(x) & 0x7fffffffu); }
FMK_FN double absolute(double x) { return x < 0 ? -x : x; }

FMK_FN float exp(float x) {
  const float e = exp_minus(absolute(x));
  return x < 0 ? e : 1.0f / e;
}
FMK_FN double exp(double x) { return std::exp(x); }

FMK_FN float sigmoid(float x) {
  const float s = reciprocal(1.0f + exp_core(x));
  const float above = x > 87.0f ? 1.0f : s;
  return x < -87.0f ? 0.0f : above;
}
FMK_FN double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// sigmoid(x) and 1 - sigmoid(x), each to full relative accuracy: with e = exp(-|x|) they are 1/(1+e)
// and e/(1+e), in the order of x's sign.
template <class C>
struct SigmoidPair {
  C value, complement;
};
template <class C>
FMK_FN SigmoidPair<C> sigmoid_pair(C x) {
  const C e = exp_minus(absolute(x));
  const C large = reciprocal(C(1) + e), small = e * large;
  return {x < 0 ? small : large, x < 0 ? large : small};
}

// The normal distribution's cumulative and density, for gelu(x) = x Phi(x) and its derivative.
// Phi(-|x|) = exp(-x^2/2) t P(t) with t = 1 / (1 + 0.3 |x|), P minimax of degree 7 (1.3e-7 relative, so
// that the tail keeps its digits), and exp(-x^2/2) = 2^-y with 2^f minimax of degree 5 (9e-8 relative). A GPU has an
// instruction for 2^-y (2e-7 relative), which is 0 for large y.
template <class C>
struct Normal {
  C cdf, pdf;
};
FMK_FN float normal_polynomial(float t) {
  float p = 0.0359317153f;
  p = p * t - 0.158275914f;
  p = p * t + 0.208206452f;
  p = p * t - 0.0553937016f;
  p = p * t + 0.129469122f;
  p = p * t + 0.0996375173f;
  p = p * t + 0.120798354f;
  return p * t + 0.11962639f;
}
FMK_FN Normal<float> normal(float x) {
  const float y = x * x * 0.721347520f;
#if defined(__CUDA_ARCH__)
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-y));
  const float t = reciprocal(1.0f + 0.3f * fminf(absolute(x), 1e30f));  // unspecified for larger values
  const float tail = e * t * normal_polynomial(t);
#else
  const float round = 12582912.0f;
  const float shifted = y + round;
  const float f = (shifted - round) - y;
  float q = 0.00132647274f;
  q = q * f + 0.00967151297f;
  q = q * f + 0.0555073375f;
  q = q * f + 0.240222421f;
  q = q * f + 0.693146978f;
  q = q * f + 1.0f;
  const float power = q * bit_cast<float>((127u - bit_cast<uint32_t>(shifted)) << 23);
  const float e = y > 125.0f ? 0.0f : power;
  const float t = reciprocal(1.0f + 0.3f * absolute(x));
  const float tail = y > 125.0f ? 0.0f : power * t * normal_polynomial(t);
#endif
  return {x < 0 ? tail : 1.0f - tail, 0.398942280f * e};
}
FMK_FN Normal<double> normal(double x) {
  return {0.5 * std::erfc(-x * 0.70710678118654752440), 0.39894228040143267794 * std::exp(-0.5 * x * x)};
}

// ---- activations: x P(x) with a P that goes from 0 to 1 ----
enum class Activation : int32_t { gelu, gelu_tanh, silu };

// act(x) and its derivative.
template <class C>
struct Activated {
  C value, slope;
};
template <Activation kAct, class C>
FMK_FN Activated<C> activated(C x) {
  if constexpr (kAct == Activation::gelu) {
    const auto phi = normal(x);
    return {x * phi.cdf, phi.cdf + x * phi.pdf};
  } else {
    // 1 + tanh(u) = 2 sigmoid(2 u).
    const C root = C(1.59576912160573071), square = x * x;
    const bool tanh = kAct == Activation::gelu_tanh;
    const C inner = tanh ? root * (x + C(0.044715) * x * square) : x;
    const C slope = tanh ? root * (C(1) + C(0.134145) * square) : C(1);
    const auto share = sigmoid_pair(inner);
    return {x * share.value, share.value + x * (share.value * share.complement * slope)};
  }
}
// f(std::integral_constant<Activation, act>{})
template <class F>
void with_activation(Activation act, const F& f) {
  switch (act) {
    case Activation::gelu: return f(std::integral_constant<Activation, Activation::gelu>{});
    case Activation::gelu_tanh: return f(std::integral_constant<Activation, Activation::gelu_tanh>{});
    default: return f(std::integral_constant<Activation, Activation::silu>{});
  }
}

// |x| as an integer: in the order of the magnitudes, NaN above infinity above every number. A maximum of
// these is one integer instruction, and tells whether anything was not finite.
FMK_FN int32_t magnitude(float x) { return bit_cast<int32_t>(x) & 0x7fffffff; }
FMK_FN int64_t magnitude(double x) { return bit_cast<int64_t>(x) & 0x7fffffffffffffffll; }

// False for infinity and NaN, without a library call.
FMK_FN bool finite(float x) { return (bit_cast<uint32_t>(x) & 0x7f800000u) != 0x7f800000u; }
FMK_FN bool finite(double x) {
  return (bit_cast<uint64_t>(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
}

// The scale of a row that is quantized to int8, from its largest magnitude, and its inverse: elements become
// round(x * inverse), half to even. Both are 0 for a row of zeros, or of magnitudes below 2^-100, where 127 / x could
// overflow. The scale of a row that is not finite is NaN, its elements are 0.
struct RowScale {
  float scale, inverse;
  bool finite;
};
FMK_FN RowScale row_scale(int32_t largest) {
  if (largest >= 0x7f800000) return {bit_cast<float>(0x7fc00000), 0.0f, false};
  const float x = bit_cast<float>(largest);
  if (x < 0x1p-100f) return {0.0f, 0.0f, true};
  return {x / 127.0f, 127.0f / x, true};
}

}  // namespace fmk
