// The gate on a GPU. a and b are rows `stride` apart, b `shift` elements behind.
#pragma once
#include "device.cuh"

namespace fmk {

struct GeluRows {
  Source a, b;
  int64_t stride, shift;
};

template <class C>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<C>) gelu_mul_kernel(Tiles tiles, GeluRows in, Sink out) {
  for_all_packs(tiles, [&](int64_t row, int64_t i, int count) {
    const int64_t from = row * in.stride + i;
    const auto gate = fetch<C>(in.a, from, count), up = fetch<C>(in.b, from + in.shift, count);
    C a[kPack], b[kPack];
    gate.to(a);
    up.to(b);
#pragma unroll
    for (int k = 0; k < kPack; k++) a[k] = a[k] * normal(a[k]).cdf * b[k];
    write(out, row * tiles.n + i, count, a);
  });
}

template <class C>
__global__ void __launch_bounds__(kTileThreads, kLargeTileBlocks<C>)
    gelu_mul_backward_kernel(Tiles tiles, Source grad, GeluRows in, Sink to_a, Sink to_b) {
  for_all_packs(tiles, [&](int64_t row, int64_t i, int count) {
    const int64_t from = row * in.stride + i;
    const auto gate = fetch<C>(in.a, from, count), up = fetch<C>(in.b, from + in.shift, count);
    const auto grads = fetch<C>(grad, row * tiles.n + i, count);
    C g[kPack], a[kPack], b[kPack];
    gate.to(a);
    up.to(b);
    grads.to(g);
#pragma unroll
    for (int k = 0; k < kPack; k++) {
      const auto phi = normal(a[k]);
      const C to_up = g[k] * a[k] * phi.cdf;
      a[k] = g[k] * b[k] * (phi.cdf + a[k] * phi.pdf);
      b[k] = to_up;
    }
    write(to_a, from, count, a);
    write(to_b, from + in.shift, count, b);
  });
}

}  // namespace fmk
