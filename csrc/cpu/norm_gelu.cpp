// gelu(a) * b with the exact gelu, forward and backward: the gate of a feed-forward layer.
#include "common.h"

#include "../shared/norm.h"

namespace fmk {
namespace {

template <class C>
FMK_CLONES void gelu_mul_tile(const C* __restrict a, const C* __restrict b, C* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = a[i] * normal(a[i]).cdf * b[i];
}

template <class C>
FMK_CLONES void gelu_mul_tile_backward(const C* __restrict grad, const C* __restrict a, const C* __restrict b,
                                       C* __restrict to_a, C* __restrict to_b, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const auto phi = normal(a[i]);
    to_a[i] = grad[i] * b[i] * (phi.cdf + a[i] * phi.pdf);
    to_b[i] = grad[i] * a[i] * phi.cdf;
  }
}

Tensor gelu_mul(Tensor a, OptTensor b) {
  const Gate gate(a, b);
  std::vector<int64_t> sizes(a.sizes().begin(), a.sizes().end());
  if (!b) sizes.back() = gate.width;
  Tensor y = fresh(sizes, promote(dtype_of(a), dtype_of(gate.b)));
  with_compute_type(is_double(y), [&](auto zero) {
    using C = decltype(zero);
    const Source<C> left(gate.a), right(gate.b);
    const Sink<C> out(y);
    for_tiles(gate.rows, gate.width, [&](int64_t row, int64_t i, int64_t n, int64_t) {
      Tile<C> at, bt, result;
      const int64_t from = row * gate.stride + i, to = row * gate.width + i;
      C* tile = out.at(to, result);
      gelu_mul_tile(left.at(from, n, at), right.at(from + gate.b_shift, n, bt), tile, n);
      out.put(to, tile, n);
    });
  });
  return y;
}

// The gradient to a and b; for halves of one tensor, the gradient to it and nothing.
std::tuple<Tensor, Tensor> gelu_mul_backward(Tensor grad, Tensor a, OptTensor b) {
  const Gate gate(a, b);
  check_tensor(grad, "grad");
  FMK_CHECK(grad.numel() == gate.rows * gate.width, "grad has another shape");
  const Tensor g = dense(grad);
  Tensor grad_a = fresh_like(a), grad_b = b ? fresh_like(*b) : nothing();
  with_compute_type(is_double(gate.a) || is_double(gate.b) || is_double(g), [&](auto zero) {
    using C = decltype(zero);
    const Source<C> left(gate.a), right(gate.b), grads(g);
    const Sink<C> to_left(grad_a), to_right(b ? grad_b : grad_a);
    for_tiles(gate.rows, gate.width, [&](int64_t row, int64_t i, int64_t n, int64_t) {
      Tile<C> gt, at, bt, left_tile, right_tile;
      const int64_t from = row * gate.stride + i;
      C* left_out = to_left.at(from, left_tile);
      C* right_out = to_right.at(from + gate.b_shift, right_tile);
      gelu_mul_tile_backward(grads.at(row * gate.width + i, n, gt), left.at(from, n, at),
                             right.at(from + gate.b_shift, n, bt), left_out, right_out, n);
      to_left.put(from, left_out, n);
      to_right.put(from + gate.b_shift, right_out, n);
    });
  });
  return {grad_a, grad_b};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CPU, m) {
  m.impl("gelu_mul", TORCH_BOX(&gelu_mul));
  m.impl("gelu_mul_backward", TORCH_BOX(&gelu_mul_backward));
}

}  // namespace fmk
