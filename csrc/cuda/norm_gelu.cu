// The gate for CUDA tensors: checks, launch, registration.
#include "norm_gelu.cuh"

#include "launch.h"

#include "../shared/norm.h"

namespace fmk {
namespace {

GeluRows rows_of(const Gate& gate) { return {source(gate.a), source(gate.b), gate.stride, gate.b_shift}; }

Tensor gelu_mul(Tensor a, OptTensor b) {
  const OnDevice device(a, "a");
  const Gate gate(a, b);
  std::vector<int64_t> sizes(a.sizes().begin(), a.sizes().end());
  if (!b) sizes.back() = gate.width;
  Tensor y = fresh(sizes, promote(dtype_of(a), dtype_of(gate.b)));
  const Tiles tiles(gate.rows, gate.width);
  with_compute_type(is_double(y), [&](auto zero) {
    using C = decltype(zero);
    device.launch(gelu_mul_kernel<C>, tiles.count(), tiles.threads, 0, tiles, rows_of(gate), sink(y));
  });
  return y;
}

// The gradient to a and b; for halves of one tensor, the gradient to it and nothing.
std::tuple<Tensor, Tensor> gelu_mul_backward(Tensor grad, Tensor a, OptTensor b) {
  const OnDevice device(a, "a");
  const Gate gate(a, b);
  check_tensor(grad, "grad");
  FMK_CHECK(grad.numel() == gate.rows * gate.width, "grad has another shape");
  const Tensor g = dense(grad);
  Tensor grad_a = fresh_like(a), grad_b = b ? fresh_like(*b) : nothing();
  const Tiles tiles(gate.rows, gate.width);
  with_compute_type(is_double(gate.a) || is_double(gate.b) || is_double(g), [&](auto zero) {
    using C = decltype(zero);
    device.launch(gelu_mul_backward_kernel<C>, tiles.count(), tiles.threads, 0, tiles, source(g), rows_of(gate),
                  sink(grad_a), sink(b ? grad_b : grad_a));
  });
  return {grad_a, grad_b};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CUDA, m) {
  m.impl("gelu_mul", TORCH_BOX(&gelu_mul));
  m.impl("gelu_mul_backward", TORCH_BOX(&gelu_mul_backward));
}

}  // namespace fmk
