// What the sampler's step asks of its arguments, on any device.
#pragma once
#include "tensors.h"

namespace fmk {

// numbers: dt, a, b, guidance, gain. The value of a dt that comes as a tensor is not looked at.
inline void check_step(const Tensor& x, const Tensor& v, const OptTensor& v_prev, const OptTensor& v_uncond,
                       const OptTensor& dt, const std::array<double, 5>& numbers, const OptTensor& low,
                       const OptTensor& stats) {
  check_tensor(x, "x");
  FMK_CHECK(dtype_of(x) == Dtype::f32 || dtype_of(x) == Dtype::f64, "x must be float32 or float64");
  FMK_CHECK(x.dim() >= 1, "x needs a batch dimension");
  check_like(v, x, "v");
  check_like(v_prev, x, "v_prev");
  check_like(v_uncond, x, "v_uncond");
  check_like(low, x, "low");
  check_tensor(stats, "stats");
  FMK_CHECK(!stats || (dtype_of(*stats) == Dtype::f32 && stats->dim() == 2 && stats->size(0) == x.size(0) &&
                       stats->size(1) == kStepColumns),
            "stats must be (B, 5) float32");
  check_tensor(dt, "dt");
  FMK_CHECK(!dt || dt->numel() == 1, "dt must have one element");
  static const char* const names[] = {"dt", "a", "b", "guidance", "gain"};
  for (int i = dt ? 1 : 0; i < 5; i++) check_finite(numbers[i], names[i]);

  const Tensor *prev_at = pointer_to(v_prev), *uncond_at = pointer_to(v_uncond), *dt_at = pointer_to(dt),
               *low_at = pointer_to(low), *stats_at = pointer_to(stats);
  check_writable(x, "x", {&v, prev_at, uncond_at, dt_at, low_at, stats_at});
  if (low) check_writable(*low, "low", {&v, prev_at, uncond_at, dt_at, stats_at});
  if (stats) check_writable(*stats, "stats", {&v, prev_at, uncond_at, dt_at});
}

}  // namespace fmk
