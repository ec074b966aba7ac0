// act(a) * b, the gate of a feed-forward layer, and x + gate * y, the end of a block: the ops on any device.
#pragma once
#include "tensors.h"

namespace fmk {

// Gate (which gets the activation) and up as rows of one width: two tensors, or (second absent) the halves of each row
// of one. Row r begins at r * stride plus the shift.
struct Gate {
  Tensor gate, up;
  Activation act;
  int64_t rows = 1, width, stride, gate_shift = 0, up_shift = 0;
  Gate(const Tensor& first, const OptTensor& second, int64_t activation, bool gate_first) {
    check_tensor(first, "a");
    check_like(second, first, "b");
    FMK_CHECK(activation >= 0 && activation <= int64_t(Activation::silu), "act must be 0, 1 or 2");
    act = Activation(activation);
    gate = dense(first);
    up = second ? dense(*second) : gate;
    if (second) {
      width = stride = gate.numel();
      if (!gate_first) std::swap(gate, up);
    } else {
      FMK_CHECK(gate.dim() >= 1 && gate.size(gate.dim() - 1) % 2 == 0, "a must have an even last dimension");
      stride = gate.size(gate.dim() - 1);
      width = stride / 2;
      (gate_first ? up_shift : gate_shift) = width;
      rows = stride == 0 ? 0 : gate.numel() / stride;
    }
  }
};

void run_gate_mul(const Device& device, const Gate& gate, const Tensor& y);
// to_gate and to_up are laid out as those of the gate: for halves of one tensor, they are one.
void run_gate_mul_backward(const Device& device, const Gate& gate, const Tensor& grad, const Tensor& to_gate,
                           const Tensor& to_up);

inline Tensor gate_mul(Tensor a, OptTensor b, int64_t act, bool gate_first) {
  const Device device(a, "a");
  const Gate gate(a, b, act, gate_first);
  std::vector<int64_t> sizes(a.sizes().begin(), a.sizes().end());
  if (!b) sizes.back() = gate.width;
  Tensor y = fresh(sizes, promote(dtype_of(gate.gate), dtype_of(gate.up)));
  run_gate_mul(device, gate, y);
  return y;
}

// The gradient to a and b; for halves of one tensor, the gradient to it and nothing.
inline std::tuple<Tensor, Tensor> gate_mul_backward(Tensor grad, Tensor a, OptTensor b, int64_t act, bool gate_first) {
  const Device device(a, "a");
  const Gate gate(a, b, act, gate_first);
  check_tensor(grad, "grad");
  FMK_CHECK(grad.numel() == gate.rows * gate.width, "grad has another shape");
  Tensor grad_a = fresh_like(a), grad_b = b ? fresh_like(*b) : nothing();
  const Tensor& other = b ? grad_b : grad_a;
  run_gate_mul_backward(device, gate, dense(grad), gate_first ? grad_a : other, gate_first ? other : grad_a);
  return {grad_a, grad_b};
}

// Rows of y, of which groups share a row of gate: (D,), (1, D) or (B, D).
struct GatedRows {
  int64_t width, count, gates;
  GatedRows(const Tensor& y, const Tensor& gate) {
    check_tensor(y, "y");
    check_tensor(gate, "gate");
    FMK_CHECK(y.dim() >= 1, "y must have at least one dimension");
    const int64_t batch = y.dim() > 1 ? y.size(0) : 1;
    width = y.size(y.dim() - 1);
    count = 1;
    for (int64_t i = 0; i + 1 < y.dim(); i++) count *= y.size(i);
    FMK_CHECK((gate.dim() == 1 || gate.dim() == 2) && gate.size(gate.dim() - 1) == width &&
                  (gate.dim() == 1 || gate.size(0) == 1 || gate.size(0) == batch),
              "gate must be (D,), (1, D) or (B, D)");
    gates = gate.dim() == 1 ? 1 : std::max<int64_t>(1, gate.size(0));
  }
  int64_t rows_per_gate() const { return std::max<int64_t>(1, count / gates); }
};

// All but gate are dense; out may be x.
void run_gated_add(const Device& device, const GatedRows& rows, const Tensor& x, const Tensor& gate, const Tensor& y,
                   const Tensor& out);
// to_gate has gate's shape and the compute type.
void run_gated_add_backward(const Device& device, const GatedRows& rows, const Tensor& grad, const Tensor& gate,
                            const Tensor& y, const Tensor& to_gate, const Tensor& to_y);

inline Tensor gated_add(Tensor x, Tensor gate, Tensor y) {
  const Device device(x, "x");
  check_like(y, x, "y");
  const GatedRows rows(y, gate);
  check_tensor(x, "x");
  Tensor out = fresh_like(x, promote(dtype_of(x), dtype_of(y)));
  run_gated_add(device, rows, dense(x), gate, dense(y), out);
  return out;
}

inline void gated_add_in_place(Tensor x, Tensor gate, Tensor y) {
  const Device device(x, "x");
  check_like(y, x, "y");
  const GatedRows rows(y, gate);
  check_tensor(x, "x");
  check_writable(x, "x", {&gate, &y});
  InPlace target(x);
  run_gated_add(device, rows, *target.work, gate, dense(y), *target.work);
  target.commit();
}

inline std::tuple<Tensor, Tensor> gated_add_backward(Tensor grad, Tensor gate, Tensor y) {
  const Device device(y, "y");
  const GatedRows rows(y, gate);
  check_tensor(grad, "grad");
  FMK_CHECK(grad.numel() == y.numel(), "grad has another shape");
  Tensor to_gate = fresh_like(gate, wide_dtype(is_double(grad) || is_double(y))), to_y = fresh_like(y);
  run_gated_add_backward(device, rows, dense(grad), gate, dense(y), to_gate, to_y);
  return {to_gate, to_y};
}

STABLE_TORCH_LIBRARY_IMPL(fmkernels, FMK_KEY, m) {
  m.impl("gate_mul", TORCH_BOX(&gate_mul));
  m.impl("gate_mul_backward", TORCH_BOX(&gate_mul_backward));
  m.impl("gated_add", TORCH_BOX(&gated_add));
  m.impl("gated_add_", TORCH_BOX(&gated_add_in_place));
  m.impl("gated_add_backward", TORCH_BOX(&gated_add_backward));
}

}  // namespace fmk
