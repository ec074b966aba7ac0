// tdp on a GPU. The list of parameters travels in the launch's own arguments (32 KB of them since CUDA 12.1): no
// table to upload, nothing to keep alive, and a CUDA graph holds its copy.
#pragma once
#include "device.cuh"

namespace fmk {

constexpr int kTdpThreads = 128, kTdpTile = kTdpThreads * kPack;

// One parameter: where its four tensors are, its first column in the output, its first tile.
struct TdpParam {
  const void* data[4];  // p0, p1, weight, bias
  int64_t column;
  int32_t tile;
  uint8_t dtype[4];

  __device__ Source source(int which) const { return {data[which], Dtype(dtype[which])}; }
};

// `count` parameters and an end, whose column and tile are the next to come.
template <int kCapacity>
struct TdpList {
  int count;
  TdpParam params[kCapacity + 1];

  FMK_FN int32_t tiles() const { return params[count].tile; }
  // The one a tile belongs to: the last that begins at it or before. (One of no elements has no tile.)
  __device__ const TdpParam& of_tile(int32_t tile) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (params[middle].tile <= tile ? low : high) = middle;
    }
    return params[low];
  }
};

template <class A>
struct TdpPack {
  using C = typename A::Compute;
  C spread[kPack], p1[kPack], weight[kPack], bias[kPack];

  template <class Count>
  __device__ __forceinline__ TdpPack(const TdpParam& param, typename A::Index at, Count count, C offset) {
    const typename A::In from[] = {param.source(0), param.source(1), param.source(2), param.source(3)};
    const auto first = fetch<C>(from[0], at, count), second = fetch<C>(from[1], at, count);
    const auto weights = fetch<C>(from[2], at, count), biases = fetch<C>(from[3], at, count);
    C p0[kPack];
    first.to(p0);
    second.to(p1);
    weights.to(weight);
    biases.to(bias);
#pragma unroll
    for (int i = 0; i < kPack; i++) {
      spread[i] = p0[i] - p1[i];
      weight[i] += offset;
      keep_in_register(spread[i]);
      keep_in_register(p1[i]);
      keep_in_register(weight[i]);
      keep_in_register(bias[i]);
    }
  }
};

// out is (steps, width).
template <class A, class List>
__global__ void __launch_bounds__(kTdpThreads, 2 * kLargeTileBlocks<A>)
    tdp_kernel(const __grid_constant__ List list, Source times, int64_t steps, typename A::Compute offset,
               typename A::Out out, int64_t width) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  for (int32_t tile = blockIdx.x; tile < list.tiles(); tile += gridDim.x) {
    const TdpParam& param = list.of_tile(tile);
    const Index column = Index(param.column), n = Index((&param)[1].column) - column;
    const Index at = Index(tile - param.tile) * kTdpTile + Index(threadIdx.x) * kPack;
    if (at >= n) continue;
    const auto count = count_for<A>(at, n);
    const TdpPack<A> pack(param, at, count, offset);
    for (Index k = 0; k < Index(steps); k++) {
      const C time = read_one<C>(times, k);
      C result[kPack];
#pragma unroll
      for (int i = 0; i < kPack; i++)
        result[i] = pack.p1[i] + sigmoid(time * pack.weight[i] + pack.bias[i]) * pack.spread[i];
      write(out, k * Index(width) + column + at, count, result);
    }
  }
}

// The gradients of the four are summed over the steps, and go to four[j] from each parameter's column on. Every warp
// leaves its share of the gradient to each time, this launch's tiles coming after `before` others of `tiles` in all;
// the last block of a group's last launch adds them up into to_times, which the others do not have.
struct TdpGradients {
  Sink four[4], to_times;
  Partials shares;  // rows: (steps, tiles, warps)
  int64_t before, tiles;
};
constexpr int kTdpWarps = kTdpThreads / kWarp;

template <class C, class List>
__global__ void __launch_bounds__(kTdpThreads, 2 * kLargeTileBlocks<Any<C>>)
    tdp_backward_kernel(const __grid_constant__ List list, Source grad, Source times, int64_t steps, C offset,
                        int64_t width, const __grid_constant__ TdpGradients out) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int32_t tile = blockIdx.x; tile < list.tiles(); tile += gridDim.x) {
    const TdpParam& param = list.of_tile(tile);
    const int64_t n = (&param)[1].column - param.column;
    const int64_t at = int64_t(tile - param.tile) * kTdpTile + threadIdx.x * kPack;
    const int count = at < n ? count_of(at, n) : 0;
    const TdpPack<Any<C>> pack(param, at, count, offset);
    C sums[4][kPack] = {};
    for (int64_t k = 0; k < steps; k++) {
      const C time = read_one<C>(times, k);
      C g[kPack], share[1] = {0};
      read(grad, k * width + param.column + at, count, g);
#pragma unroll
      for (int i = 0; i < kPack; i++) {
        if (i < count) {  // 0 * infinity would be NaN beyond the end
          const auto s = sigmoid_pair(time * pack.weight[i] + pack.bias[i]);
          const C to_x = g[i] * pack.spread[i] * s.value * s.complement;
          sums[0][i] += g[i] * s.value;
          sums[1][i] += g[i] * s.complement;
          sums[2][i] += to_x * time;
          sums[3][i] += to_x;
          share[0] += to_x * pack.weight[i];
        }
      }
      warp_reduce<Sum>(share);
      if (lane == 0) leave(out.shares.rows + (k * out.tiles + out.before + tile) * kTdpWarps + warp, share[0]);
    }
    if (count > 0)
#pragma unroll
      for (int j = 0; j < 4; j++) write(out.four[j], param.column + at, count, sums[j]);
  }
  if (!out.to_times.data || !is_last_block(out.shares)) return;
  const int64_t shares = out.tiles * kTdpWarps;
  for (int64_t k = warp; k < steps; k += kTdpWarps) {
    double total[1] = {0};
    collect_rows<Sum>(out.shares.rows + k * shares, shares, total);
    if (lane == 0) write_one(out.to_times, k, total[0]);
  }
}

}  // namespace fmk
