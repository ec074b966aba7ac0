// The product of int8 rows and a packed int8 weight, in int32: the inner loops, one per instruction set. Without torch.
//
// The weight is packed in panels of kPanel columns of the result. For every group of kDepth elements, a panel has the
// group of each column, 128 bytes in all, and behind them an int32 per column, -128 times the column's sum. The sums
// begin with these: rows are multiplied as x + 128, because the instructions multiply unsigned by signed bytes. Sums
// are modulo 2^32, so overflow on the way to a result that fits in int32 does no harm.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../shared/limits.h"
#include "int8_kernel.h"

#ifdef FMK_INT8_X86
#include <immintrin.h>
#endif

namespace fmk {

constexpr int64_t kRows = 14;  // at once: with a panel, their sums take 28 of the 32 registers of AVX-512

constexpr int64_t kPiece = 64, kPieceDepth = kPiece / kDepth;  // elements and groups of a row side by side

// The sums of `rows` rows (1 to kRows) and a panel over `depth` groups. x: a piece of every row, then the next pieces;
// the last is as long as the others. from, to: (rows, kPanel). If `begins`, from has one row, which all begin with.
struct ProductCall {
  const uint8_t* x;
  const int8_t* panel;
  int64_t depth, rows;
  const int32_t* from;
  bool begins;
  int32_t* to;
  const int32_t* start(int64_t row) const { return from + (begins ? 0 : row * kPanel); }
};

inline void product_plain(const ProductCall& call) {
  for (int64_t r = 0; r < call.rows; r++) {
    uint32_t sums[kPanel];
    std::memcpy(sums, call.start(r), sizeof(sums));
    for (int64_t k = 0; k < call.depth; k++) {
      const uint8_t* x = call.x + (k / kPieceDepth * call.rows + r) * kPiece + k % kPieceDepth * kDepth;
      const int8_t* w = call.panel + k * kGroup;
      for (int64_t c = 0; c < kPanel; c++)
        for (int64_t j = 0; j < kDepth; j++) sums[c] += uint32_t(int32_t(x[j]) * w[c * kDepth + j]);
    }
    std::memcpy(call.to + r * kPanel, sums, sizeof(sums));
  }
}

#ifdef FMK_INT8_X86

// Calls f with the number of rows as a constant; if there are more than kMost, several times.
template <int kMost, class F>
inline void with_rows(int64_t rows, F&& f, int64_t first = 0) {
  for (; rows - first >= kMost; first += kMost) f(std::integral_constant<int, kMost>{}, first);
  if constexpr (kMost > 1)
    if (first < rows) with_rows<kMost - 1>(rows, f, first);
}

inline int32_t load_group(const uint8_t* x) {
  int32_t group;
  std::memcpy(&group, x, sizeof(group));
  return group;
}

template <int kCount>
__attribute__((target("avx512f,avx512vnni"))) void rows_avx512_vnni(const ProductCall& call, int64_t first) {
  __m512i sums[kCount][2];
#pragma GCC unroll 16
  for (int r = 0; r < kCount; r++) {
    sums[r][0] = _mm512_loadu_si512(call.start(first + r));
    sums[r][1] = _mm512_loadu_si512(call.start(first + r) + 16);
  }
  const uint8_t* piece = call.x + first * kPiece;
  const int8_t* w = call.panel;
  for (int64_t left = call.depth; left > 0; left -= kPieceDepth, piece += call.rows * kPiece) {
    const uint8_t* x = piece;
    for (const uint8_t* end = x + std::min(left, kPieceDepth) * kDepth; x < end; x += kDepth, w += kGroup) {
      const __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
#pragma GCC unroll 16
      for (int r = 0; r < kCount; r++) {
        const __m512i a = _mm512_set1_epi32(load_group(x + r * kPiece));
        sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], a, w0);
        sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], a, w1);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kCount; r++) {
    _mm512_storeu_si512(call.to + (first + r) * kPanel, sums[r][0]);
    _mm512_storeu_si512(call.to + (first + r) * kPanel + 16, sums[r][1]);
  }
}

// As above with half the width and half the registers: half a panel, and at most five rows at once (kRows = 5 + 5 + 4).
template <int kCount>
__attribute__((target("avx2,avxvnni"))) void rows_avx_vnni(const ProductCall& call, int64_t first) {
  for (int64_t half = 0; half < kPanel; half += 16) {
    __m256i sums[kCount][2];
#pragma GCC unroll 16
    for (int r = 0; r < kCount; r++)
      for (int v = 0; v < 2; v++)
        sums[r][v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(call.start(first + r) + half + 8 * v));
    const uint8_t* piece = call.x + first * kPiece;
    const int8_t* w = call.panel + half * kDepth;
    for (int64_t left = call.depth; left > 0; left -= kPieceDepth, piece += call.rows * kPiece) {
      const uint8_t* x = piece;
      for (const uint8_t* end = x + std::min(left, kPieceDepth) * kDepth; x < end; x += kDepth, w += kGroup) {
        const __m256i w0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
        const __m256i w1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32));
#pragma GCC unroll 16
        for (int r = 0; r < kCount; r++) {
          const __m256i a = _mm256_set1_epi32(load_group(x + r * kPiece));
          sums[r][0] = _mm256_dpbusd_avx_epi32(sums[r][0], a, w0);
          sums[r][1] = _mm256_dpbusd_avx_epi32(sums[r][1], a, w1);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kCount; r++)
      for (int v = 0; v < 2; v++)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(call.to + (first + r) * kPanel + half + 8 * v), sums[r][v]);
  }
}

// Without VNNI, in 16 bits: pairs of products are added without saturation. x: the pieces in 16 bits.
template <int kCount>
__attribute__((target("avx2"))) void rows_avx2(const ProductCall& call, const int16_t* x, int64_t first) {
  for (int64_t column = 0; column < kPanel; column += 8) {
    __m256i sums[kCount][2] = {};  // of four columns each: elements 0 and 1, elements 2 and 3 of every group
    const int16_t* piece = x + first * kPiece;
    const int8_t* w = call.panel + column * kDepth;
    for (int64_t left = call.depth; left > 0; left -= kPieceDepth, piece += call.rows * kPiece) {
      const int16_t* groups = piece;
      const int16_t* const end = groups + std::min(left, kPieceDepth) * kDepth;
      for (; groups < end; groups += kDepth, w += kGroup) {
        const __m256i w0 = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w)));
        const __m256i w1 = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w + 16)));
#pragma GCC unroll 16
        for (int r = 0; r < kCount; r++) {
          int64_t group;
          std::memcpy(&group, groups + r * kPiece, sizeof(group));
          const __m256i a = _mm256_set1_epi64x(group);
          sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(a, w0));
          sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(a, w1));
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kCount; r++) {
      const __m256i pairs = _mm256_permute4x64_epi64(_mm256_hadd_epi32(sums[r][0], sums[r][1]), 0xD8);
      const __m256i start = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(call.start(first + r) + column));
      __m256i* to = reinterpret_cast<__m256i*>(call.to + (first + r) * kPanel + column);
      _mm256_storeu_si256(to, _mm256_add_epi32(start, pairs));
    }
  }
}

inline void product_avx512_vnni(const ProductCall& call) {
  with_rows<kRows>(call.rows, [&](auto n, int64_t first) { rows_avx512_vnni<decltype(n)::value>(call, first); });
}
inline void product_avx_vnni(const ProductCall& call) {
  with_rows<5>(call.rows, [&](auto n, int64_t first) { rows_avx_vnni<decltype(n)::value>(call, first); });
}
inline void product_avx2(ProductCall call) {
  constexpr int64_t kWidened = 4;  // pieces at once, so that they stay in L1
  alignas(32) int16_t x[kWidened * kRows * kPiece];
  for (int64_t left = call.depth; left > 0 || call.begins; left -= kWidened * kPieceDepth) {
    call.depth = std::min(left, kWidened * kPieceDepth);
    const int64_t bytes = (call.depth + kPieceDepth - 1) / kPieceDepth * call.rows * kPiece;
    for (int64_t i = 0; i < bytes; i++) x[i] = call.x[i];
    with_rows<5>(call.rows, [&](auto n, int64_t first) { rows_avx2<decltype(n)::value>(call, x, first); });
    call.x += bytes;
    call.panel += call.depth * kGroup;
    call.from = call.to;
    call.begins = false;
  }
}
#endif

using Product = void (*)(const ProductCall&);
inline Product product_of(Int8Kernel kernel) {
#ifdef FMK_INT8_X86
  switch (kernel) {
    case Int8Kernel::avx512_vnni: return product_avx512_vnni;
    case Int8Kernel::avx_vnni: return product_avx_vnni;
    case Int8Kernel::avx2: return [](const ProductCall& call) { product_avx2(call); };
    default: break;
  }
#endif
  return product_plain;
}

}  // namespace fmk
