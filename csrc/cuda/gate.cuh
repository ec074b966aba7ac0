// The gate on a GPU. a and b are rows `stride` apart, b `shift` elements behind.
#pragma once
#include "device.cuh"

namespace fmk {

template <class A>
struct GeluRows {
  typename A::In a, b;
  int64_t stride, shift;
};

template <class A>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<A>)
    gelu_mul_kernel(Tiles tiles, GeluRows<A> in, typename A::Out out) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  const auto load = [&](Index row, Index i, auto count) {
    const Index from = row * Index(in.stride) + i;
    return Several{fetch<C>(in.a, from, count), fetch<C>(in.b, from + Index(in.shift), count)};
  };
  for_all_packs<A>(tiles, load, [&](Index row, Index i, auto count, const auto& loaded) {
    C a[kPack], b[kPack];
    loaded.first.to(a);
    loaded.second.to(b);
#pragma unroll
    for (int k = 0; k < kPack; k++) a[k] = a[k] * normal(a[k]).cdf * b[k];
    write(out, row * Index(tiles.n) + i, count, a);
  });
}

template <class A>
__global__ void __launch_bounds__(kTileThreads, kLargeTileBlocks<A>)
    gelu_mul_backward_kernel(Tiles tiles, typename A::In grad, GeluRows<A> in, typename A::Out to_a,
                             typename A::Out to_b) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  const auto load = [&](Index row, Index i, auto count) {
    const Index from = row * Index(in.stride) + i;
    return Several{fetch<C>(in.a, from, count), fetch<C>(in.b, from + Index(in.shift), count),
                   fetch<C>(grad, row * Index(tiles.n) + i, count)};
  };
  for_all_packs<A>(tiles, load, [&](Index row, Index i, auto count, const auto& loaded) {
    const Index from = row * Index(in.stride) + i;
    C g[kPack], a[kPack], b[kPack];
    loaded.first.to(a);
    loaded.second.to(b);
    loaded.third.to(g);
#pragma unroll
    for (int k = 0; k < kPack; k++) {
      const auto phi = normal(a[k]);
      const C to_up = g[k] * a[k] * phi.cdf;
      a[k] = g[k] * b[k] * (phi.cdf + a[k] * phi.pdf);
      b[k] = to_up;
    }
    write(to_a, from, count, a);
    write(to_b, from + Index(in.shift), count, b);
  });
}

}  // namespace fmk
