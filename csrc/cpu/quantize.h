// Rows quantized to int8 on the CPU.
#pragma once
#include "common.h"

#if defined(__clang__)
#pragma clang fp contract(off)
#define FMK_SEPARATE
#else
#define FMK_SEPARATE __attribute__((optimize("fp-contract=off")))
#endif

namespace fmk {

// The largest magnitude of a tile, as the bits of a float: NaN above infinity above every number.
template <class C>
FMK_CLONES int32_t largest_tile(const C* __restrict x, int64_t n) {
  int32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; i++) largest = std::max(largest, magnitude(x[i]));
  return largest;
}

// kUnsigned: the elements plus 128.
template <bool kUnsigned, class C>
FMK_CLONES FMK_SEPARATE void quantize_tile(const C* __restrict x, C inverse, int8_t* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    out[i] = int8_t(int32_t(__builtin_nearbyintf(x[i] * inverse)) ^ (kUnsigned ? 0x80 : 0));
}

// Quantizes a row to `out` and returns its scale.
inline float quantize_row(const float* row, int64_t width, int8_t* out) {
  const RowScale by = row_scale(largest_tile(row, width));
  if (by.finite)
    quantize_tile<false>(row, by.inverse, out, width);
  else
    std::fill_n(out, width, int8_t(0));
  return by.scale;
}
inline float quantize_row(const double*, int64_t, int8_t*) { return 0; }  // no op quantizes float64

}  // namespace fmk
