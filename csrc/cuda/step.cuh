// One step of the sampler: x += gain * dt * (a * v + b * v_prev), with v = vu + s (vc - vu) when guided; in
// the same launch the low-precision copy for the next forward and the numbers people print.
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
  double* parts;  // (tiles, 4): sums of |x| before, |v|, delta^2, non-finite elements after
};
constexpr int kStepParts = 4;

template <class C>
__global__ void __launch_bounds__(kTileThreads, kLargeTileBlocks<C>)
    step_kernel(Tiles tiles, const __grid_constant__ Step step, unsigned ticket) {
  const double dt = step.dt_at.data ? read_one<double>(step.dt_at, 0) : step.dt;
  const C guidance = C(step.guidance), ca = C(step.gain * dt * step.a), cb = C(step.gain * dt * step.b);
  const int64_t count_all = tiles.samples * tiles.per_sample;
  for (int64_t tile = blockIdx.x; tile < count_all; tile += gridDim.x) {
    C sums[kStepParts] = {};
    for_packs(tiles, tile, [&](int64_t sample, int64_t i, int count) {
      const int64_t at = sample * tiles.n + i;
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
        if (k >= count) break;
        sums[0] += absolute(x[k]);
        sums[1] += absolute(v[k]);
        sums[2] += delta[k] * delta[k];
        x[k] += delta[k];
        sums[3] += finite(x[k]) ? C(0) : C(1);
      }
      write(step.x, at, count, x);
      if (step.low.data) write(step.low, at, count, x);
    });
    if (!step.stats.data) continue;
    double total[kStepParts];
    block_reduce<Sum>(sums, total);
    leave_row(step.parts + tile * kStepParts, total);
  }
  if (!step.stats.data || !is_last_block(ticket)) return;
  for (int64_t sample = threadIdx.x / kWarp; sample < tiles.samples; sample += blockDim.x / kWarp) {
    double total[kStepParts] = {};
    collect_rows<Sum>(step.parts + sample * tiles.per_sample * kStepParts, tiles.per_sample, total);
    if (threadIdx.x % kWarp != 0) continue;
    const double n = double(tiles.n);
    const double row[kStepColumns] = {total[0] / n, total[1] / n, sqrt(total[2] / n), total[3], dt};
#pragma unroll
    for (int c = 0; c < kStepColumns; c++)
      write_one(step.stats, sample * step.stats_stride[0] + c * step.stats_stride[1], row[c]);
  }
}

}  // namespace fmk
