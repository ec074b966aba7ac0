// gelu(a) * b with the exact gelu, forward and backward, the gate of a feed-forward layer: the ops on any device.
#pragma once
#include "tensors.h"

namespace fmk {

// Gate and up as rows of one width: two tensors, or (b absent) the halves of each row of one.
struct Gate {
  Tensor a, b;
  int64_t rows = 1, width, stride, b_shift;
  Gate(const Tensor& first, const OptTensor& second) {
    check_tensor(first, "a");
    check_like(second, first, "b");
    a = dense(first);
    b = second ? dense(*second) : a;
    if (second) {
      width = stride = a.numel();
      b_shift = 0;
    } else {
      FMK_CHECK(a.dim() >= 1 && a.size(a.dim() - 1) % 2 == 0, "a must have an even last dimension");
      stride = a.size(a.dim() - 1);
      width = b_shift = stride / 2;
      rows = stride == 0 ? 0 : a.numel() / stride;
    }
  }
};

void run_gelu_mul(const Device& device, const Gate& gate, const Tensor& y);
// to_a and to_b are laid out as a and b of the gate: for halves of one tensor, they are one.
void run_gelu_mul_backward(const Device& device, const Gate& gate, const Tensor& grad, const Tensor& to_a,
                           const Tensor& to_b);

inline Tensor gelu_mul(Tensor a, OptTensor b) {
  const Device device(a, "a");
  const Gate gate(a, b);
  std::vector<int64_t> sizes(a.sizes().begin(), a.sizes().end());
  if (!b) sizes.back() = gate.width;
  Tensor y = fresh(sizes, promote(dtype_of(a), dtype_of(gate.b)));
  run_gelu_mul(device, gate, y);
  return y;
}

// The gradient to a and b; for halves of one tensor, the gradient to it and nothing.
inline std::tuple<Tensor, Tensor> gelu_mul_backward(Tensor grad, Tensor a, OptTensor b) {
  const Device device(a, "a");
  const Gate gate(a, b);
  check_tensor(grad, "grad");
  FMK_CHECK(grad.numel() == gate.rows * gate.width, "grad has another shape");
  Tensor grad_a = fresh_like(a), grad_b = b ? fresh_like(*b) : nothing();
  run_gelu_mul_backward(device, gate, dense(grad), grad_a, b ? grad_b : grad_a);
  return {grad_a, grad_b};
}

STABLE_TORCH_LIBRARY_IMPL(fmkernels, FMK_KEY, m) {
  m.impl("gelu_mul", TORCH_BOX(&gelu_mul));
  m.impl("gelu_mul_backward", TORCH_BOX(&gelu_mul_backward));
}

}  // namespace fmk
