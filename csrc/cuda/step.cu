// The sampler's step on a GPU: launch.
#include "step.cuh"

#include "launch.h"

#include "../shared/step.h"

namespace fmk {

void run_step(const Device& device, const StepArguments& step) {
  const Batch batch(step.x);
  const Tiles tiles = step.stats ? Tiles::of_sums(batch.samples, batch.n, is_double(step.x))
                                 : Tiles::of_elements(batch.samples, batch.n);
  Tensor memory;
  const Partials partials = step.stats ? device.partials(tiles, kStepSums, memory) : Partials{};
  with_access<Second::floats>(
      is_double(step.x), {source(step.v), source(step.v_prev), source(step.v_uncond), source(step.low)},
      {source(step.x)}, {batch.n}, step.x.numel(), [&](auto access) {
    using A = decltype(access);
    Step<A> on{};
    on.x = sink(step.x);
    on.v = source(step.v);
    on.v_prev = source(step.v_prev);
    on.v_uncond = source(step.v_uncond);
    on.dt_at = source(step.dt_tensor);
    on.dt = step.dt;
    on.a = step.a;
    on.b = step.b;
    on.guidance = step.guidance;
    on.gain = step.gain;
    on.low = sink(step.low);
    on.stats = sink(step.stats);
    for (int i = 0; i < 2 && step.stats; i++) on.stats_stride[i] = step.stats->stride(i);
    const auto kernel = step.stats ? step_kernel<A, true> : step_kernel<A, false>;
    device.launch(kernel, tiles.count(), tiles.threads, 0, tiles, on, partials);
  });
}

}  // namespace fmk
