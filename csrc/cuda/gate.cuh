// The gates on a GPU.
#pragma once
#include "device.cuh"
#include "runs.cuh"

namespace fmk {

// Rows of gates and ups `stride` apart; either begins at its shift.
template <class A>
struct GateRows {
  typename A::In gate, up;
  int64_t stride, gate_shift, up_shift;
};

template <class A, Activation kAct>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<A>)
    gate_mul_kernel(Tiles tiles, GateRows<A> in, typename A::Out out) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  const auto load = [&](Index row, Index i, auto count) {
    const Index from = row * Index(in.stride) + i;
    return Several{fetch<C>(in.gate, from + Index(in.gate_shift), count),
                   fetch<C>(in.up, from + Index(in.up_shift), count)};
  };
  for_all_packs<A>(tiles, load, [&](Index row, Index i, auto count, const auto& loaded) {
    C gate[kPack], up[kPack];
    loaded.first.to(gate);
    loaded.second.to(up);
#pragma unroll
    for (int k = 0; k < kPack; k++) gate[k] = activated<kAct>(gate[k]).value * up[k];
    write(out, row * Index(tiles.n) + i, count, gate);
  });
}

template <class A, Activation kAct>
__global__ void __launch_bounds__(kTileThreads, kLargeTileBlocks<A>)
    gate_mul_backward_kernel(Tiles tiles, typename A::In grad, GateRows<A> in, typename A::Out to_gate,
                             typename A::Out to_up) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  const auto load = [&](Index row, Index i, auto count) {
    const Index from = row * Index(in.stride) + i;
    return Several{fetch<C>(in.gate, from + Index(in.gate_shift), count),
                   fetch<C>(in.up, from + Index(in.up_shift), count),
                   fetch<C>(grad, row * Index(tiles.n) + i, count)};
  };
  for_all_packs<A>(tiles, load, [&](Index row, Index i, auto count, const auto& loaded) {
    const Index from = row * Index(in.stride) + i;
    C g[kPack], gate[kPack], up[kPack];
    loaded.first.to(gate);
    loaded.second.to(up);
    loaded.third.to(g);
#pragma unroll
    for (int k = 0; k < kPack; k++) {
      const auto act = activated<kAct>(gate[k]);
      gate[k] = g[k] * up[k] * act.slope;
      up[k] = g[k] * act.value;
    }
    write(to_gate, from + Index(in.gate_shift), count, gate);
    write(to_up, from + Index(in.up_shift), count, up);
  });
}

// Rows of gates `stride` apart, each for `repeat` rows.
template <class A>
struct GateSource {
  typename A::Parameter source;
  int64_t stride, repeat;
};

// Tiles of rows. out may be x, so x is not read through the read-only path.
template <class A>
__global__ void __launch_bounds__(kTileThreads, kLargeTileBlocks<A>)
    gated_add_kernel(Tiles tiles, typename A::In x, GateSource<A> gate, typename A::In y, typename A::Out out) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  const auto load = [&](Index row, Index i, auto count) {
    const Index at = row * Index(tiles.n) + i;
    return Several{fetch<C, false>(x, at, count), fetch<C>(y, at, count),
                   fetch<C>(gate.source, row / Index(gate.repeat) * Index(gate.stride) + i, count)};
  };
  for_all_packs<A>(tiles, load, [&](Index row, Index i, auto count, const auto& loaded) {
    C sum[kPack], by[kPack], add[kPack];
    loaded.first.to(sum);
    loaded.second.to(add);
    loaded.third.to(by);
#pragma unroll
    for (int k = 0; k < kPack; k++) sum[k] += by[k] * add[k];
    write(out, row * Index(tiles.n) + i, count, sum);
  });
}

// A warp has 32 packs and every eighth row of a run of rows that share a gate; the warps' sums of grad * y meet in the
// first warp, in the order of the warps. Tasks: for each gate, each run of its rows, each 32 packs.
template <class A>
__global__ void __launch_bounds__(kTileThreads, kLargeTileBlocks<A>)
    gated_add_backward_kernel(int64_t width, int64_t rows, typename A::In grad, GateSource<A> gate, typename A::In y,
                              int64_t groups, int64_t run, int64_t runs, typename A::Out to_y,
                              typename A::Wide to_gate) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  constexpr int kWarps = kTileThreads / kWarp;
  FMK_SHARED(C, kTileThreads * kPack, others);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Index packs = (Index(width) + kPack - 1) / kPack, blocks = (packs + kWarp - 1) / kWarp;
  for (Index task = blockIdx.x; task < Index(groups) * Index(runs) * blocks; task += gridDim.x) {
    const Index line = task / blocks, number = (task - line * blocks) * kWarp + lane, group = line / Index(runs);
    const Index begin = group * Index(gate.repeat) + (line - group * Index(runs)) * Index(run);
    const Index end = least(least(begin + Index(run), (group + 1) * Index(gate.repeat)), Index(rows));
    const Index column = least(number, packs - 1) * kPack;
    const auto count = count_for<A>(column, Index(width));
    C sum[kPack] = {};
    if (number < packs) {
      C by[kPack];
      read(gate.source, group * Index(gate.stride) + column, count, by);
#pragma unroll (A::kWhole ? 2 : 1)
      for (Index row = begin + warp; row < end; row += kWarps) {
        const Index at = row * Index(width) + column;
        const auto fetched_grad = fetch<C>(grad, at, count);
        const auto fetched_y = fetch<C>(y, at, count);
        C g[kPack], values[kPack];
        fetched_grad.to(g);
        fetched_y.to(values);
#pragma unroll
        for (int i = 0; i < kPack; i++) {
          sum[i] += g[i] * values[i];
          g[i] *= by[i];
        }
        write(to_y, at, count, g);
      }
    }
#pragma unroll
    for (int i = 0; i < kPack; i++) others[(warp * kPack + i) * kWarp + lane] = sum[i];
    __syncthreads();
    if (warp == 0 && number < packs) {
      for (int w = 1; w < kWarps; w++)
#pragma unroll
        for (int i = 0; i < kPack; i++) sum[i] += others[(w * kPack + i) * kWarp + lane];
      write(to_gate, line * Index(width) + column, count, sum);
    }
    __syncthreads();
  }
}

}  // namespace fmk
