// The norms' backward on a GPU, for rows too wide to be kept in shared memory: two kernels, and s and the gradient
// read three times.
#pragma once
#include "norm.cuh"

namespace fmk {

// A block has a row and reads it for each of its passes; the gradients to scale and offset are the next kernel's.
template <class C, class Rows>
__global__ void __launch_bounds__(kWideThreads<C>, 1)
    norm_wide_backward_kernel(const __grid_constant__ Rows rows, const __grid_constant__ NormBackward norm) {
  for (int64_t row = blockIdx.x; row < rows.rows; row += gridDim.x) {
    const int64_t base = row * rows.width;
    RowGradient<C> of_row;
    of_row.of_stat(norm, row, [&](const auto& body) {
      for_row(rows, [&](const RowPack& pack) {
        C s[kPack];
        fetch_row<C>(rows, row, pack).to(s);
        body(pack, s);
      });
    });
    if (threadIdx.x == 0) {
      write_one(norm.own_stat, 2 * row, of_row.mean);
      write_one(norm.own_stat, 2 * row + 1, of_row.rstd);
    }
    const auto read_pack = [&](const RowPack& pack, C(&g)[kPack], C(&h)[kPack]) {
      const auto s = fetch_row<C>(rows, row, pack);
      const auto grad = fetch<C>(norm.grad, base + pack.column, pack.count);
      C scale[kPack];
      norm.scale.read_at(row, pack, scale);
      s.to(h);
      grad.to(g);
#pragma unroll
      for (int i = 0; i < kPack; i++) {
        h[i] = of_row.h(h[i]);
        g[i] *= scale[i];
      }
    };
    C sum_g = 0, sum_gh = 0;
    for_row(rows, [&](const RowPack& pack) {
      C g[kPack], h[kPack];
      read_pack(pack, g, h);
#pragma unroll
      for (int i = 0; i < kPack; i++) {
        if (i < pack.count) {
          sum_g += g[i];
          sum_gh += g[i] * h[i];
        }
      }
    });
    of_row.of_sums(norm, sum_g, sum_gh);
    for_row(rows, [&](const RowPack& pack) {
      C g[kPack], h[kPack];
      read_pack(pack, g, h);
      of_row.write_grad(norm, base + pack.column, pack.count, g, h);
    });
  }
}

// The gradients to scale and offset of wide rows: a warp has 32 packs and every eighth row of a row of scale.
// stat: own_stat of the kernel before. Tasks: for each row of scale, each run of its rows, each 32 packs.
template <class C, class Rows>
__global__ void __launch_bounds__(kTileThreads)
    norm_wide_columns_kernel(const __grid_constant__ Rows rows, Source grad, Source stat, int64_t groups,
                             int64_t repeat, int64_t run, int64_t runs, Sink to_scale, Sink to_offset) {
  constexpr int kWarps = kTileThreads / kWarp;
  FMK_SHARED(C, kTileThreads * kPack, others);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t blocks = (rows.packs + kWarp - 1) / kWarp;
  for (int64_t task = blockIdx.x; task < groups * runs * blocks; task += gridDim.x) {
    const int64_t line = task / blocks, number = task % blocks * kWarp + lane;
    const int64_t begin = line / runs * repeat + line % runs * run;
    const int64_t end = least(least(begin + run, (line / runs + 1) * repeat), rows.rows);
    const RowPack pack = RowWalk<Rows>{rows}.at(least(number, rows.packs - 1));
    const int count = number < rows.packs ? pack.count : 0;
    C sums[2][kPack] = {};
    for (int64_t row = begin + warp; row < end; row += kWarps) {
      const C mean = read_one<C>(stat, 2 * row), rstd = read_one<C>(stat, 2 * row + 1);
      const auto x = fetch<C>(Source{pack.part.data, rows.dtype}, row * pack.part.width + pack.at, count);
      const auto grads = fetch<C>(grad, row * rows.width + pack.column, count);
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
      if (warp == 0 && count > 0) {
        for (int w = 1; w < kWarps; w++)
#pragma unroll
          for (int i = 0; i < kPack; i++) sums[which][i] += others[(w * kPack + i) * kWarp + lane];
        write(which == 0 ? to_scale : to_offset, line * rows.width + pack.column, count, sums[which]);
      }
      __syncthreads();
    }
  }
}

}  // namespace fmk
