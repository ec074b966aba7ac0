// The gates on a GPU: launches.
#include "gate.cuh"

#include "launch.h"

#include "../shared/gate.h"

namespace fmk {
namespace {

constexpr int64_t kRuns = 64, kRun = 64;  // of rows that share a gate: at most so many runs, of so many rows or more

template <class A>
GateRows<A> rows_of(const Gate& gate) {
  return {source(gate.gate), source(gate.up), gate.stride, gate.gate_shift, gate.up_shift};
}

// Dense rows of gates.
struct Gates {
  Tensor gate;
  int64_t stride, repeat;
  Gates(const Tensor& x, const GatedRows& rows)
      : gate(dense(x)), stride(rows.gates > 1 ? rows.width : 0), repeat(rows.rows_per_gate()) {}
  template <class A>
  GateSource<A> as() const {
    return {source(gate), stride, repeat};
  }
};

}  // namespace

void run_gate_mul(const Device& device, const Gate& gate, const Tensor& y) {
  const Tiles tiles = Tiles::of_elements(gate.rows, gate.width);
  with_access<Second::none>(
      is_double(y), {source(gate.gate), source(gate.up), source(y)}, {}, {gate.width}, gate.gate.numel(),
      [&](auto access) {
        using A = decltype(access);
        with_activation(gate.act, [&](auto act) {
          device.launch(gate_mul_kernel<A, decltype(act)::value>, tiles.count(), tiles.threads, 0, tiles,
                        rows_of<A>(gate), sink(y));
        });
      });
}

void run_gate_mul_backward(const Device& device, const Gate& gate, const Tensor& grad, const Tensor& to_gate,
                           const Tensor& to_up) {
  const Tiles tiles = Tiles::of_elements(gate.rows, gate.width);
  const bool in_double = is_double(gate.gate) || is_double(gate.up) || is_double(grad);
  with_access<Second::none>(
      in_double, {source(gate.gate), source(gate.up), source(grad), source(to_gate), source(to_up)}, {}, {gate.width},
      gate.gate.numel(), [&](auto access) {
        using A = decltype(access);
        with_activation(gate.act, [&](auto act) {
          device.launch(gate_mul_backward_kernel<A, decltype(act)::value>, tiles.count(), tiles.threads, 0, tiles,
                        source(grad), rows_of<A>(gate), sink(to_gate), sink(to_up));
        });
      });
}

void run_gated_add(const Device& device, const GatedRows& rows, const Tensor& x, const Tensor& gate, const Tensor& y,
                   const Tensor& out) {
  const Gates gates(gate, rows);
  const Tiles tiles = Tiles::of_elements(rows.count, rows.width);
  with_access<Second::same_or_float>(
      is_double(x) || is_double(y), {source(x), source(y), source(out)}, {source(gates.gate)}, {rows.width}, x.numel(),
      [&](auto access) {
        using A = decltype(access);
        device.launch(gated_add_kernel<A>, tiles.count(), tiles.threads, 0, tiles, source(x), gates.as<A>(), source(y),
                      sink(out));
      });
}

void run_gated_add_backward(const Device& device, const GatedRows& rows, const Tensor& grad, const Tensor& gate,
                            const Tensor& y, const Tensor& to_gate, const Tensor& to_y) {
  const Gates gates(gate, rows);
  const Dtype wide = dtype_of(to_gate);
  const int64_t run = std::max(kRun, (gates.repeat + kRuns - 1) / kRuns), runs = (gates.repeat + run - 1) / run;
  const int64_t groups = gate.numel() == 0 ? 0 : rows.gates, packs = (rows.width + kPack - 1) / kPack;
  // One run writes the gradient itself; several are added up.
  const Tensor memory = fresh({runs == 1 ? 0 : groups * runs * rows.width}, wide);
  with_access<Second::same_or_float>(
      wide == Dtype::f64, {source(grad), source(y), source(to_y)}, {source(gates.gate)}, {rows.width}, y.numel(),
      [&](auto access) {
        using A = decltype(access);
        using C = typename A::Compute;
        device.launch(gated_add_backward_kernel<A>, groups * runs * ((packs + kWarp - 1) / kWarp), kTileThreads, 0,
                      rows.width, rows.count, source(grad), gates.as<A>(), source(y), groups, run, runs, sink(to_y),
                      sink(runs == 1 ? to_gate : memory));
        if (runs != 1) {
          C* const result = static_cast<C*>(to_gate.mutable_data_ptr());
          device.launch(runs_kernel<C>, groups * ((rows.width + kWarp - 1) / kWarp), kTileThreads, 0, groups, groups,
                        runs, rows.width, static_cast<const C*>(memory.const_data_ptr()), result, result);
        }
      });
}

}  // namespace fmk
