// The sampler's step for CUDA tensors: checks, launch, registration.
#include "step.cuh"

#include "launch.h"

#include "../shared/step.h"

namespace fmk {
namespace {

// dt comes as a number or as a one-element tensor (`dt_tensor`, which then counts).
void step_(Tensor x, Tensor v, OptTensor v_prev, OptTensor v_uncond, double dt, OptTensor dt_tensor, double a,
           double b, double guidance, double gain, OptTensor low, OptTensor stats) {
  const OnDevice device(x, "x");
  check_step(x, v, v_prev, v_uncond, dt_tensor, {dt, a, b, guidance, gain}, low, stats);
  const int64_t samples = x.size(0), n = samples == 0 ? 0 : x.numel() / samples;
  if (samples == 0) return;
  InPlace state(x);
  std::optional<InPlace> copy;
  if (low) copy.emplace(*low);
  const Tensor cond = dense(v);
  const OptTensor uncond = dense(v_uncond), prev = dense(v_prev);
  const Tiles tiles(samples, n);
  Step step{sink(state.work), source(cond), source(prev), source(uncond), source(dt_tensor), dt, a, b, guidance, gain,
            sink(copy ? OptTensor(copy->work) : std::nullopt), sink(stats), {0, 0}, nullptr};
  OptTensor parts;
  if (stats) {
    parts = fresh({tiles.count(), kStepParts}, Dtype::f64);
    step.parts = static_cast<double*>(parts->mutable_data_ptr());
    for (int i = 0; i < 2; i++) step.stats_stride[i] = stats->stride(i);
  }
  with_compute_type(is_double(x), [&](auto zero) {
    using C = decltype(zero);
    device.launch(step_kernel<C>, stats ? std::max<int64_t>(1, tiles.count()) : tiles.count(), tiles.threads, 0, tiles,
                  step, next_ticket());
  });
  state.commit();
  if (copy) copy->commit();
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CUDA, m) { m.impl("step_", TORCH_BOX(&step_)); }

}  // namespace fmk
