// The gates on the CPU.
#include "common.h"

#include "../shared/gate.h"

namespace fmk {
namespace {

template <Activation kAct, class C>
FMK_CLONES void gate_mul_tile(const C* __restrict gate, const C* __restrict up, C* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = activated<kAct>(gate[i]).value * up[i];
}

template <Activation kAct, class C>
FMK_CLONES void gate_mul_tile_backward(const C* __restrict grad, const C* __restrict gate, const C* __restrict up,
                                       C* __restrict to_gate, C* __restrict to_up, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const auto act = activated<kAct>(gate[i]);
    to_gate[i] = grad[i] * up[i] * act.slope;
    to_up[i] = grad[i] * act.value;
  }
}

template <class C>
FMK_CLONES void gated_add_tile(const C* x, const C* __restrict gate, const C* __restrict y, C* out,
                               int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) out[i] = x[i] + gate[i] * y[i];
}

// to_gate is added to.
template <class C>
FMK_CLONES void gated_add_tile_backward(const C* __restrict grad, const C* __restrict gate, const C* __restrict y,
                                        C* __restrict to_gate, C* __restrict to_y, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    to_gate[i] += grad[i] * y[i];
    to_y[i] = grad[i] * gate[i];
  }
}

}  // namespace

void run_gate_mul(const Device&, const Gate& gate, const Tensor& y) {
  with_compute_type(is_double(y), [&](auto zero) {
    using C = decltype(zero);
    const Source<C> gates(gate.gate), ups(gate.up);
    const Sink<C> out(y);
    with_activation(gate.act, [&](auto act) {
      for_tiles(gate.rows, gate.width, [&](int64_t row, int64_t i, int64_t n, int64_t) {
        Tile<C> gate_tile, up_tile, result;
        const int64_t from = row * gate.stride + i, to = row * gate.width + i;
        C* tile = out.at(to, result);
        gate_mul_tile<decltype(act)::value>(gates.at(from + gate.gate_shift, n, gate_tile),
                                            ups.at(from + gate.up_shift, n, up_tile), tile, n);
        out.put(to, tile, n);
      });
    });
  });
}

void run_gate_mul_backward(const Device&, const Gate& gate, const Tensor& grad, const Tensor& to_gate,
                           const Tensor& to_up) {
  with_compute_type(is_double(gate.gate) || is_double(gate.up) || is_double(grad), [&](auto zero) {
    using C = decltype(zero);
    const Source<C> gates(gate.gate), ups(gate.up), grads(grad);
    const Sink<C> gate_sink(to_gate), up_sink(to_up);
    with_activation(gate.act, [&](auto act) {
      for_tiles(gate.rows, gate.width, [&](int64_t row, int64_t i, int64_t n, int64_t) {
        Tile<C> grad_tile, gate_tile, up_tile, to_gate_tile, to_up_tile;
        const int64_t gate_at = row * gate.stride + i + gate.gate_shift, up_at = row * gate.stride + i + gate.up_shift;
        C* gate_out = gate_sink.at(gate_at, to_gate_tile);
        C* up_out = up_sink.at(up_at, to_up_tile);
        gate_mul_tile_backward<decltype(act)::value>(grads.at(row * gate.width + i, n, grad_tile),
                                                     gates.at(gate_at, n, gate_tile), ups.at(up_at, n, up_tile),
                                                     gate_out, up_out, n);
        gate_sink.put(gate_at, gate_out, n);
        up_sink.put(up_at, up_out, n);
      });
    });
  });
}

void run_gated_add(const Device&, const GatedRows& rows, const Tensor& x, const Tensor& gate, const Tensor& y,
                   const Tensor& out) {
  with_compute_type(is_double(x) || is_double(y), [&](auto zero) {
    using C = decltype(zero);
    const Source<C> xs(x), ys(y);
    const ParameterRows<C> gates(gate);
    const Sink<C> sink(out);
    for_tiles(rows.count, rows.width, [&](int64_t row, int64_t column, int64_t n, int64_t) {
      Tile<C> x_tile, y_tile, result;
      const int64_t at = row * rows.width + column;
      C* tile = sink.at(at, result);
      gated_add_tile(xs.at(at, n, x_tile), gates.row(row / rows.rows_per_gate()) + column, ys.at(at, n, y_tile), tile,
                     n);
      sink.put(at, tile, n);
    });
  });
}

void run_gated_add_backward(const Device&, const GatedRows& rows, const Tensor& grad, const Tensor& gate,
                            const Tensor& y, const Tensor& to_gate, const Tensor& to_y) {
  with_compute_type(is_double(to_gate), [&](auto zero) {
    using C = decltype(zero);
    const Source<C> grads(grad), ys(y);
    const ParameterRows<C> gates(gate);
    const Sink<C> sink(to_y);
    RunSums<C> sums(rows.count, rows.width, rows.gates, 1);
    sums.each([&](int64_t group, int64_t begin, int64_t end, C* sum) {
      Tile<C> grad_tile, y_tile, result;
      for (int64_t row = begin; row < end; row++)
        for (int64_t column = 0; column < rows.width; column += kTile) {
          const int64_t n = std::min(kTile, rows.width - column), at = row * rows.width + column;
          C* tile = sink.at(at, result);
          gated_add_tile_backward(grads.at(at, n, grad_tile), gates.row(group) + column, ys.at(at, n, y_tile),
                                  sum + column, tile, n);
          sink.put(at, tile, n);
        }
    });
    sums.write(0, to_gate);
  });
}

}  // namespace fmk
