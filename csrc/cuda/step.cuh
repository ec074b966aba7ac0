// The sampler's step on a GPU: state, low-precision copy, guidance and statistics in one launch.
#pragma once
#include "device.cuh"

namespace fmk {

// Any of v_prev, v_uncond, low and stats may be left out. dt_at, if given, holds dt.
struct Step {
  Sink x;
  Source v, v_prev, v_uncond, dt_at;
  double dt, a, b, guidance, gain;
  Sink low, stats;
  int64_t stats_stride[2];
};
// What is summed for the statistics: |x| before, |v|, delta^2, non-finite elements after.
enum StepSum { kSumAbsX, kSumAbsV, kSumDelta2, kSumNonfinite, kStepSums };

// kStats: statistics are wanted; then tiles are those of sums.
template <class C, bool kStats>
__global__ void __launch_bounds__(kWideThreads<C>, 1)
    step_kernel(Tiles tiles, const __grid_constant__ Step step, Partials partials) {
  const double dt = step.dt_at.data ? read_one<double>(step.dt_at, 0) : step.dt;
  const C guidance = C(step.guidance), ca = C(step.gain * dt * step.a), cb = C(step.gain * dt * step.b);
  const auto take = [&](int64_t at, int count, C(&sums)[kStepSums]) {
    const auto before = fetch<C, false>(Source{step.x.data, step.x.dtype}, at, count);
    const auto cond = fetch<C>(step.v, at, count);
    C x[kPack], v[kPack], other[kPack], delta[kPack];
    if (step.v_uncond.data) {
      const auto uncond = fetch<C>(step.v_uncond, at, count);
      cond.to(v);
      uncond.to(other);
#pragma unroll
      for (int k = 0; k < kPack; k++) v[k] = other[k] + guidance * (v[k] - other[k]);
    } else {
      cond.to(v);
    }
    before.to(x);
#pragma unroll
    for (int k = 0; k < kPack; k++) delta[k] = ca * v[k];
    if (step.v_prev.data) {
      read(step.v_prev, at, count, other);
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
        sums[kSumNonfinite] += finite(x[k]) ? C(0) : C(1);
      }
    }
    write(step.x, at, count, x);
    if (step.low.data) write(step.low, at, count, x);
  };
  if constexpr (kStats) {
    for_sums<Sum, kStepSums, C>(tiles, partials, take, [&](int64_t sample, const auto& totals) {
      const double n = double(tiles.n);
      const double row[kStepColumns] = {totals[kSumAbsX] / n, totals[kSumAbsV] / n, sqrt(totals[kSumDelta2] / n),
                                        totals[kSumNonfinite], dt};
#pragma unroll
      for (int c = 0; c < kStepColumns; c++)
        write_one(step.stats, sample * step.stats_stride[0] + c * step.stats_stride[1], row[c]);
    });
  } else {
    for_all_packs(tiles, [&](int64_t sample, int64_t at, int count) {
      C unused[kStepSums] = {};
      take(sample * tiles.n + at, count, unused);
    });
  }
}

}  // namespace fmk
