// The sampler's step on a GPU: state, low-precision copy, guidance and statistics in one launch.
#pragma once
#include "device.cuh"

namespace fmk {

// Any of v_prev, v_uncond, low and stats may be left out. dt_at, if given, holds dt.
template <class A>
struct Step {
  typename A::Wide x;
  typename A::In v, v_prev, v_uncond;
  Source dt_at;
  double dt, a, b, guidance, gain;
  typename A::Out low;
  Sink stats;
  int64_t stats_stride[2];
};
// What is summed for the statistics: |x| before, |v|, delta^2, non-finite elements after.
enum StepSum { kSumAbsX, kSumAbsV, kSumDelta2, kSumNonfinite, kStepSums };

// kStats: statistics are wanted; then tiles are those of sums.
template <class A, bool kStats>
__global__ void __launch_bounds__(kWideThreads<typename A::Compute>, kWideBlocks<A>)
    step_kernel(Tiles tiles, const __grid_constant__ Step<A> step, Partials partials) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  const double dt = step.dt_at.data ? read_one<double>(step.dt_at, 0) : step.dt;
  const C guidance = C(step.guidance), ca = C(step.gain * dt * step.a), cb = C(step.gain * dt * step.b);
  const auto load = [&](Index at, auto count) {
    using Other = decltype(fetch<C>(step.v, at, count));
    auto loaded = Several{fetch<C, false>(source_of(step.x), at, count), fetch<C>(step.v, at, count), Other{}, Other{}};
    if (step.v_uncond.data) loaded.third = fetch<C>(step.v_uncond, at, count);
    if (step.v_prev.data) loaded.fourth = fetch<C>(step.v_prev, at, count);
    return loaded;
  };
  const auto take = [&](Index at, auto count, const auto& loaded, C(&sums)[kStepSums]) {
    C x[kPack], v[kPack], other[kPack], delta[kPack], nothing = 0;
    loaded.first.to(x);
    loaded.second.to(v);
    if (step.v_uncond.data) {
      loaded.third.to(other);
#pragma unroll
      for (int k = 0; k < kPack; k++) v[k] = other[k] + guidance * (v[k] - other[k]);
    }
#pragma unroll
    for (int k = 0; k < kPack; k++) delta[k] = ca * v[k];
    if (step.v_prev.data) {
      loaded.fourth.to(other);
#pragma unroll
      for (int k = 0; k < kPack; k++) delta[k] += cb * other[k];
    }
#pragma unroll
    for (int k = 0; k < kPack; k++) {
      if (k < count) {
        sums[kSumAbsX] += absolute(x[k]);
        sums[kSumAbsV] += absolute(v[k]);
        sums[kSumDelta2] += delta[k] * delta[k];
        x[k] += delta[k];
        nothing += x[k] * C(0);
      }
    }
    write(step.x, at, count, x);
    if (step.low.data) write(step.low, at, count, x);
    if (nothing == 0) return;  // else NaN
#pragma unroll
    for (int k = 0; k < kPack; k++)
      if (k < count) sums[kSumNonfinite] += finite(x[k]) ? C(0) : C(1);
  };
  if constexpr (kStats) {
    for_sums<Sum, kStepSums, OneInFlight<A>>(tiles, partials, load, take, [&](int64_t sample, const auto& totals) {
      const double n = double(tiles.n);
      const double row[kStepColumns] = {totals[kSumAbsX] / n, totals[kSumAbsV] / n, sqrt(totals[kSumDelta2] / n),
                                        totals[kSumNonfinite], dt};
#pragma unroll
      for (int c = 0; c < kStepColumns; c++)
        write_one(step.stats, sample * step.stats_stride[0] + c * step.stats_stride[1], row[c]);
    });
  } else {
    const Index n = Index(tiles.n);
    for_all_packs<OneInFlight<A>>(
        tiles, [&](Index sample, Index i, auto count) { return load(sample * n + i, count); },
        [&](Index sample, Index i, auto count, const auto& loaded) {
          C unused[kStepSums] = {};
          take(sample * n + i, count, loaded, unused);
        });
  }
}

}  // namespace fmk
