// What the path, its statistics and its loss ask of their arguments, on any device.
#pragma once
#include "tensors.h"

namespace fmk {

// Samples of one batch: (B, n) whatever the shape behind the first dimension.
struct Batch {
  int64_t samples, n;
  explicit Batch(const Tensor& x) {
    FMK_CHECK(x.dim() >= 1, "a batch dimension is needed");
    samples = x.size(0);
    n = samples == 0 ? 0 : x.numel() / samples;
  }
};

inline void check_t(const Tensor& t, const Batch& batch) {
  check_tensor(t, "t");
  FMK_CHECK(t.dim() >= 1 && t.size(0) == batch.samples && t.numel() == batch.samples,
            "t must have one element a sample");
}

inline double ratio_of(double sigma_min, double sigma_max) {
  const double ratio = sigma_min / sigma_max - 1.0;
  FMK_CHECK(finite(sigma_min) && finite(sigma_max) && finite(ratio), "sigma_min or sigma_max is no scale");
  return ratio;
}

inline void check_ends(const Tensor& x0, const Tensor& x1) {
  check_tensor(x0, "x0");
  check_like(x1, x0, "x1");
}

// The target velocity, given or made from x0 and x1, tile by tile.
struct Target {
  OptTensor x0, x1, given;
  Target(const OptTensor& start, const OptTensor& end, const OptTensor& target, const Tensor& pred)
      : x0(dense(start)), x1(dense(end)), given(dense(target)) {
    check_tensor(pred, "v_pred");
    FMK_CHECK(given ? !x0 && !x1 : x0 && x1, "give x0 and x1, or v_target");
    check_like(x0, pred, "x0");
    check_like(x1, pred, "x1");
    check_like(given, pred, "v_target");
  }
  bool in_double() const { return is_double(x0) || is_double(x1) || is_double(given); }
};

inline Dtype stats_dtype(const Tensor& v_pred, const Target& target) {
  return is_double(v_pred) || target.in_double() ? Dtype::f64 : Dtype::f32;
}

inline void check_weight(const OptTensor& weight, const Batch& batch) {
  check_tensor(weight, "weight");
  FMK_CHECK(!weight || (weight->dim() == 1 && weight->numel() == batch.samples), "weight must be (B,)");
}

inline void check_summary(const Tensor& sums, const OptTensor& t, int64_t bins) {
  check_tensor(sums, "sums");
  check_tensor(t, "t");
  FMK_CHECK(sums.dim() == 2 && sums.size(1) == kVelocityColumns, "sums must be (B, 9)");
  FMK_CHECK(!t || t->numel() == sums.size(0), "t must have one element a sample");
  FMK_CHECK(bins >= (t ? 1 : 0), "bins must be at least 1");
}

}  // namespace fmk
