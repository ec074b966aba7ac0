// The gate on a GPU: launches.
#include "norm_gelu.cuh"

#include "launch.h"

#include "../shared/norm_gelu.h"

namespace fmk {
namespace {

template <class A>
GeluRows<A> rows_of(const Gate& gate) {
  return {source(gate.a), source(gate.b), gate.stride, gate.b_shift};
}

}  // namespace

void run_gelu_mul(const Device& device, const Gate& gate, const Tensor& y) {
  const Tiles tiles = Tiles::of_elements(gate.rows, gate.width);
  with_access<Second::none>(
      is_double(y), {source(gate.a), source(gate.b), source(y)}, {}, {gate.width}, gate.a.numel(), [&](auto access) {
        using A = decltype(access);
        device.launch(gelu_mul_kernel<A>, tiles.count(), tiles.threads, 0, tiles, rows_of<A>(gate), sink(y));
      });
}

void run_gelu_mul_backward(const Device& device, const Gate& gate, const Tensor& grad, const Tensor& to_a,
                           const Tensor& to_b) {
  const Tiles tiles = Tiles::of_elements(gate.rows, gate.width);
  const bool in_double = is_double(gate.a) || is_double(gate.b) || is_double(grad);
  with_access<Second::none>(
      in_double, {source(gate.a), source(gate.b), source(grad), source(to_a), source(to_b)}, {}, {gate.width},
      gate.a.numel(), [&](auto access) {
        using A = decltype(access);
        device.launch(gelu_mul_backward_kernel<A>, tiles.count(), tiles.threads, 0, tiles, source(grad),
                      rows_of<A>(gate), sink(to_a), sink(to_b));
      });
}

}  // namespace fmk
