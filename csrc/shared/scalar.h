// Scalar math that the CPU and the GPU both compile: half-precision conversions by integer
// operations, exp / sigmoid / gelu as branch-free expressions a compiler can vectorise.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

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
  // Shift exponent and mantissa into place and let a multiplication by 2^112 re-bias them: it also
  // normalises subnormals. Infinity and NaN (exponent 31) get the full exponent instead.
  const uint32_t magnitude = uint32_t(x.bits & 0x7fff) << 13;
  const uint32_t finite = bit_cast<uint32_t>(bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u;
  const uint32_t bits = magnitude >= 0x0f800000u ? special : finite;
  return bit_cast<float>(bits | uint32_t(x.bits & 0x8000) << 16);
}

// ---- narrowing: round to nearest even, once ----
FMK_FN void narrow(double x, double& out) { out = x; }
FMK_FN void narrow(double x, float& out) { out = float(x); }
FMK_FN void narrow(float x, float& out) { out = x; }
FMK_FN void narrow(float x, double& out) { out = x; }
FMK_FN void narrow(float x, bf16& out) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  out.bits = uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}
FMK_FN void narrow(float x, f16& out) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14 the float adder does the rounding: 0.5 has the ulp of the smallest half.
  const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  uint32_t half = magnitude < (113u << 23) ? subnormal : normal;
  half = magnitude >= (143u << 23) ? special : half;
  out.bits = uint16_t(half | sign);
}
FMK_FN void narrow(double x, bf16& out) { narrow(float(x), out); }
FMK_FN void narrow(double x, f16& out) { narrow(float(x), out); }

// ---- exp: about 1 ulp; 0 below 2^-125, infinity above the largest float, NaN stays NaN ----
// x = n ln2 + r with |r| <= ln2/2; e^r = 1 + r + r^2 P(r), P minimax of degree 4 (3e-9 relative).
// The rounding constant 1.5 * 2^23 leaves n in the low bits of the sum, so no float-to-int conversion.
FMK_FN float exp(float x) {
  const float low = -87.0f, high = 89.0f, round = 12582912.0f;
  float clamped = x < low ? low : x;
  clamped = clamped > high ? high : clamped;
  const float shifted = clamped * 1.44269504f + round;
  const float n = shifted - round;
  const float r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 0.0013813144760206342f;
  p = p * r + 0.008369418792426586f;
  p = p * r + 0.04166845604777336f;
  p = p * r + 0.16666515171527863f;
  p = p * r + 0.4999999403953552f;
  p = p * (r * r) + r + 1.0f;
  // 2^n as 2 * 2^(n-1): n = 128 then overflows to infinity by itself.
  const float scale = bit_cast<float>((bit_cast<uint32_t>(shifted) + 126u) << 23);
  return x < low ? 0.0f : p * scale * 2.0f;
}
FMK_FN double exp(double x) { return std::exp(x); }

template <class C>
FMK_FN C sigmoid(C x) {
  return C(1) / (C(1) + fmk::exp(-x));
}

// ---- erfc(z) for z >= 0: exp(-z^2) P(q) / (1 + 2z), q = (z-2)/(z+2), P minimax of degree 9 ----
FMK_FN float erfc_positive(float z, float exp_minus_z2) {
  const float zc = z > 10.2f ? 10.2f : z;
  const float a = zc + 2.0f, b = 1.0f + 2.0f * zc;
  const float inverse = 1.0f / (a * b);
  const float q = (zc - 2.0f) * b * inverse;
  float p = -0.000399446573f;
  p = p * q - 0.00122799848f;
  p = p * q + 0.00131330725f;
  p = p * q + 0.00863009366f;
  p = p * q - 0.00806014213f;
  p = p * q - 0.0542038828f;
  p = p * q + 0.164055425f;
  p = p * q - 0.166031461f;
  p = p * q - 0.092763985f;
  p = p * q + 1.27697839f;
  return exp_minus_z2 * p * a * inverse;
}

// The normal distribution's cumulative and density, for gelu(x) = x Phi(x) and its derivative.
struct NormalF {
  float cdf, pdf;
};
FMK_FN NormalF normal(float x) {
  const float z = (x < 0 ? -x : x) * 0.707106781f;
  const float e = fmk::exp(-0.5f * x * x);
  const float tail = 0.5f * erfc_positive(z, e);
  return {x < 0 ? tail : 1.0f - tail, 0.398942280f * e};
}
struct NormalD {
  double cdf, pdf;
};
FMK_FN NormalD normal(double x) {
  return {0.5 * std::erfc(-x * 0.70710678118654752440), 0.39894228040143267794 * std::exp(-0.5 * x * x)};
}

// False for infinity and NaN, without a library call.
FMK_FN bool finite(float x) { return (bit_cast<uint32_t>(x) & 0x7f800000u) != 0x7f800000u; }
FMK_FN bool finite(double x) {
  return (bit_cast<uint64_t>(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
}

}  // namespace fmk
