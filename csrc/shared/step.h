// One step of the sampler: x += gain * dt * (a * v + b * v_prev), with v = vu + s (vc - vu) when guided, and in the
// same pass the low-precision copy for the next forward and the numbers people print: the op on any device.
#pragma once
#include "tensors.h"

namespace fmk {

// All dense but stats. dt comes as a number or as a one-element tensor (`dt_tensor`, which then counts).
struct StepArguments {
  Tensor x, v;
  OptTensor v_prev, v_uncond, dt_tensor;
  double dt, a, b, guidance, gain;
  OptTensor low, stats;
};
void run_step(const Device& device, const StepArguments& step);

inline void step_(Tensor x, Tensor v, OptTensor v_prev, OptTensor v_uncond, double dt, OptTensor dt_tensor, double a,
                  double b, double guidance, double gain, OptTensor low, OptTensor stats) {
  const Device device(x, "x");
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
  check_tensor(dt_tensor, "dt");
  FMK_CHECK(!dt_tensor || dt_tensor->numel() == 1, "dt must have one element");
  if (!dt_tensor) check_finite(dt, "dt");
  check_finite(a, "a");
  check_finite(b, "b");
  check_finite(guidance, "guidance");
  check_finite(gain, "gain");

  const Tensor *prev_at = pointer_to(v_prev), *uncond_at = pointer_to(v_uncond), *dt_at = pointer_to(dt_tensor),
               *low_at = pointer_to(low), *stats_at = pointer_to(stats);
  check_writable(x, "x", {&v, prev_at, uncond_at, dt_at, low_at, stats_at});
  if (low) check_writable(*low, "low", {&v, prev_at, uncond_at, dt_at, stats_at});
  if (stats) check_writable(*stats, "stats", {&v, prev_at, uncond_at, dt_at});

  InPlace state(x), copy(low);
  run_step(device, {*state.work, dense(v), dense(v_prev), dense(v_uncond), dt_tensor, dt, a, b, guidance, gain,
                    copy.work, stats});
  state.commit();
  copy.commit();
}

STABLE_TORCH_LIBRARY_IMPL(fmkernels, FMK_KEY, m) { m.impl("step_", TORCH_BOX(&step_)); }

}  // namespace fmk
