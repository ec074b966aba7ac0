// The norms' backward on a GPU, for rows too wide to be kept in shared memory: two kernels, and s and the gradient read
// three times.
#pragma once
#include "norm.cuh"

namespace fmk {

// A block has a row and reads it for each of its passes; the gradients to scale and offset are the next kernel's.
template <class A>
__global__ void __launch_bounds__(kWideThreads<typename A::Compute>, kWideBlocks<A>)
    norm_wide_backward_kernel(const __grid_constant__ RowParts rows, const __grid_constant__ NormBackward<A> norm) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  for (Index row = blockIdx.x; row < Index(rows.rows); row += gridDim.x) {
    const Index base = row * Index(rows.width), scale_at = norm.scale.begin(row);
    const auto load_s = [&](const RowPack<Index>& pack) { return fetch_row<A>(rows, row, pack); };
    RowGradient<C, Team<true>> of_row;
    RowMoments<C> moments(norm.center);
    if (norm.rounded)
      for_row<A>(rows, load_s, [&](const RowPack<Index>& pack, const auto& loaded) {
        C s[kPack];
        loaded.to(s);
        moments.add(s, count_in<A>(rows, pack));
      });
    of_row.of_stat(norm, row, moments);
    if (threadIdx.x == 0) {
      store(norm.own_stat + 2 * row, of_row.mean);
      store(norm.own_stat + 2 * row + 1, of_row.rstd);
    }
    const auto load_all = [&](const RowPack<Index>& pack) {
      const auto count = count_in<A>(rows, pack);
      return Several{load_s(pack), fetch<C>(norm.grad, base + pack.column, count),
                     fetch<C>(norm.scale.source, scale_at + pack.column, count)};
    };
    const auto numbers = [&](const auto& loaded, auto count, C(&g)[kPack], C(&h)[kPack]) {
      C scale[kPack];
      loaded.first.to(h);
      loaded.second.to(g);
      loaded.third.to(scale);
      of_row.normalize(norm.center, count, h);
#pragma unroll
      for (int i = 0; i < kPack; i++) g[i] *= scale[i];
    };
    C sum_g = 0, sum_gh = 0;
    for_row<A>(rows, load_all, [&](const RowPack<Index>& pack, const auto& loaded) {
      C g[kPack], h[kPack];
      numbers(loaded, count_in<A>(rows, pack), g, h);
#pragma unroll
      for (int i = 0; i < kPack; i++) {
        sum_g += g[i];
        sum_gh += g[i] * h[i];
      }
    });
    of_row.of_sums(norm, sum_g, sum_gh);
    for_row<A>(rows, load_all, [&](const RowPack<Index>& pack, const auto& loaded) {
      const auto count = count_in<A>(rows, pack);
      FetchedIn<A> more{};
      if (norm.more.data) more = fetch<C>(norm.more, base + pack.column, count);
      C g[kPack], h[kPack];
      numbers(loaded, count, g, h);
      of_row.write_grad(norm, base + pack.column, count, g, h, more);
    });
  }
}

// The gradients to scale and offset of wide rows: a warp has 32 packs and every eighth row of a row of scale.
// stat: own_stat of the kernel before. Tasks: for each row of scale, each run of its rows, each 32 packs.
template <class A>
__global__ void __launch_bounds__(kTileThreads, kLargeTileBlocks<A>)
    norm_wide_columns_kernel(const __grid_constant__ RowParts rows, typename A::In grad,
                             const typename A::Compute* stat, int64_t groups, int64_t repeat, int64_t run, int64_t runs,
                             typename A::Wide to_scale, typename A::Wide to_offset) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  constexpr int kWarps = kTileThreads / kWarp;
  FMK_SHARED(C, kTileThreads * kPack, others);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Index width = Index(rows.width), packs = Index(rows.packs), blocks = (packs + kWarp - 1) / kWarp;
  for (Index task = blockIdx.x; task < Index(groups) * Index(runs) * blocks; task += gridDim.x) {
    const Index line = task / blocks, number = (task - line * blocks) * kWarp + lane, group = line / Index(runs);
    const Index begin = group * Index(repeat) + (line - group * Index(runs)) * Index(run);
    const Index end = least(least(begin + Index(run), (group + 1) * Index(repeat)), Index(rows.rows));
    const RowPack<Index> pack = RowWalk<A, RowParts>{rows}.at(least(number, packs - 1));
    const auto count = count_in<A>(rows, pack);
    C sums[2][kPack] = {};
    if (number < packs)
#pragma unroll 2
      for (Index row = begin + warp; row < end; row += kWarps) {
        const auto x = fetch_row<A>(rows, row, pack);
        const auto grads = fetch<C>(grad, row * width + pack.column, count);
        const C mean = load(stat + 2 * row), rstd = load(stat + 2 * row + 1);
        C s[kPack], g[kPack];
        x.to(s);
        grads.to(g);
#pragma unroll
        for (int i = 0; i < kPack; i++) {
          sums[0][i] += g[i] * ((s[i] - mean) * rstd);
          sums[1][i] += g[i];
        }
      }
#pragma unroll
    for (int which = 0; which < 2; which++) {
      // The warps' sums meet in the first warp, in the order of the warps.
#pragma unroll
      for (int i = 0; i < kPack; i++) others[(warp * kPack + i) * kWarp + lane] = sums[which][i];
      __syncthreads();
      if (warp == 0 && number < packs) {
        for (int w = 1; w < kWarps; w++)
#pragma unroll
          for (int i = 0; i < kPack; i++) sums[which][i] += others[(w * kPack + i) * kWarp + lane];
        write(which == 0 ? to_scale : to_offset, line * width + pack.column, count, sums[which]);
      }
      __syncthreads();
    }
  }
}

}  // namespace fmk
