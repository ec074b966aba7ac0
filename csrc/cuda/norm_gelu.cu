// The gate on a GPU: launches.
#include "norm_gelu.cuh"

#include "launch.h"

#include "../shared/norm_gelu.h"

namespace fmk {
namespace {

GeluRows rows_of(const Gate& gate) { return {source(gate.a), source(gate.b), gate.stride, gate.b_shift}; }

}  // namespace

void run_gelu_mul(const Device& device, const Gate& gate, const Tensor& y) {
  const Tiles tiles = Tiles::of_elements(gate.rows, gate.width);
  with_compute_type(is_double(y), [&](auto zero) {
    using C = decltype(zero);
    device.launch(gelu_mul_kernel<C>, tiles.count(), tiles.threads, 0, tiles, rows_of(gate), sink(y));
  });
}

void run_gelu_mul_backward(const Device& device, const Gate& gate, const Tensor& grad, const Tensor& to_a,
                           const Tensor& to_b) {
  const Tiles tiles = Tiles::of_elements(gate.rows, gate.width);
  with_compute_type(is_double(gate.a) || is_double(gate.b) || is_double(grad), [&](auto zero) {
    using C = decltype(zero);
    device.launch(gelu_mul_backward_kernel<C>, tiles.count(), tiles.threads, 0, tiles, source(grad), rows_of(gate),
                  sink(to_a), sink(to_b));
  });
}

}  // namespace fmk
