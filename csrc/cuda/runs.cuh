// The second half of sums over many rows on a GPU: blocks leave a row of sums for each run of rows.
#pragma once
#include "device.cuh"

namespace fmk {

// Adds up the runs of each line, `all` being (lines, runs, width). The first `groups` lines are those of `first`, the
// others those of `second`. A warp has 32 columns and every eighth run.
template <class C>
__global__ void __launch_bounds__(kTileThreads) runs_kernel(int64_t lines, int64_t groups, int64_t runs, int64_t width,
                                                            const C* all, C* first, C* second) {
  constexpr int kWarps = kTileThreads / kWarp;
  FMK_SHARED(double, kTileThreads, sums);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t blocks = (width + kWarp - 1) / kWarp;
  for (int64_t task = blockIdx.x; task < lines * blocks; task += gridDim.x) {
    const int64_t line = task / blocks, column = task % blocks * kWarp + lane;
    double sum = 0;
    if (column < width)
#pragma unroll 8
      for (int64_t r = warp; r < runs; r += kWarps) sum += load(all + (line * runs + r) * width + column);
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp == 0 && column < width) {
      for (int w = 1; w < kWarps; w++) sum += sums[w * kWarp + lane];
      store((line < groups ? first : second) + line % groups * width + column, C(sum));
    }
    __syncthreads();
  }
}

}  // namespace fmk
