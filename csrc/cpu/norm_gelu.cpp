// gelu_mul on the CPU.
#include "common.h"

#include "../shared/norm_gelu.h"

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

}  // namespace

void run_gelu_mul(const Device&, const Gate& gate, const Tensor& y) {
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
}

void run_gelu_mul_backward(const Device&, const Gate& gate, const Tensor& grad, const Tensor& to_a,
                           const Tensor& to_b) {
  with_compute_type(is_double(gate.a) || is_double(gate.b) || is_double(grad), [&](auto zero) {
    using C = decltype(zero);
    const Source<C> left(gate.a), right(gate.b), grads(grad);
    const Sink<C> to_left(to_a), to_right(to_b);
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
}

}  // namespace fmk
