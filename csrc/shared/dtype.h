// The element types of a tensor, for host and device alike.
#pragma once
#include <type_traits>

#include "scalar.h"

namespace fmk {

enum class Dtype : int32_t { f64, f32, f16, bf16, other };

FMK_FN constexpr int64_t size_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }

// torch's promotion for floating types: the wider one, fp16 with bf16 giving fp32.
constexpr Dtype promote(Dtype a, Dtype b) {
  if (a == b) return a;
  return a == Dtype::f64 || b == Dtype::f64 ? Dtype::f64 : Dtype::f32;
}

template <class C>
constexpr Dtype compute_dtype = std::is_same_v<C, double> ? Dtype::f64 : Dtype::f32;

// Calls f with a value of the type the arithmetic is done in: double when asked, else float.
template <class F>
decltype(auto) with_compute_type(bool in_double, F&& f) {
  if (in_double) return f(double{});
  return f(float{});
}

}  // namespace fmk
