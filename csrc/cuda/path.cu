// The path ops on a GPU: launches.
#include "path.cuh"

#include "launch.h"

#include "../shared/path.h"

namespace fmk {
namespace {

template <class A>
VelocityTarget<A> target_of(const Target& target, double ratio) {
  return {source(target.x0), source(target.x1), source(target.given), typename A::Compute(ratio)};
}

}  // namespace

void run_path(const Device& device, const OptTensor& t, const Tensor& x0, const Tensor& x1, double ratio,
              const OptTensor& x_t, const OptTensor& velocity) {
  const Tensor start = dense(x0), end = dense(x1);
  const OptTensor times = dense(t);
  const Batch batch(x0);
  const Tiles tiles = Tiles::of_elements(batch.samples, batch.n);
  with_access<Second::same_or_float>(
      is_double(x0) || is_double(x1), {source(x_t), source(velocity)}, {source(start), source(end)}, {batch.n},
      x0.numel(), [&](auto access) {
        using A = decltype(access);
        device.launch(path_kernel<A>, tiles.count(), tiles.threads, 0, tiles, source(times), source(start), source(end),
                      typename A::Compute(ratio), sink(x_t), sink(velocity));
      });
}

void run_psi_backward(const Device& device, const Tensor& grad, const Tensor& t, double ratio, const Tensor& to_x0,
                      const Tensor& to_x1) {
  const Tensor times = dense(t);
  const Batch batch(grad);
  const Tiles tiles = Tiles::of_elements(batch.samples, batch.n);
  const bool in_double = is_double(to_x0) || is_double(to_x1) || is_double(grad);
  with_access<Second::none>(
      in_double, {source(grad), source(to_x0), source(to_x1)}, {}, {batch.n}, grad.numel(), [&](auto access) {
        using A = decltype(access);
        device.launch(psi_backward_kernel<A>, tiles.count(), tiles.threads, 0, tiles, source(grad), source(times),
                      typename A::Compute(ratio), sink(to_x0), sink(to_x1));
      });
}

void run_velocity(const Device& device, const Tensor& v_pred, const Target& target, double ratio, const Tensor& sums,
                  const OptTensor& weight, const OptTensor& loss) {
  const Tensor pred = dense(v_pred);
  const OptTensor weights = dense(weight);
  const Batch batch(v_pred);
  const Tiles tiles = Tiles::of_sums(batch.samples, batch.n, is_double(sums));
  Tensor memory;
  const Partials partials = device.partials(tiles, kVelocityColumns, memory);
  with_access<Second::same_or_float>(
      is_double(sums), {source(pred)}, {source(target.x0), source(target.x1), source(target.given)}, {batch.n},
      pred.numel(), [&](auto access) {
        using A = decltype(access);
        device.launch(velocity_kernel<A>, tiles.count(), tiles.threads, 0, tiles, source(pred),
                      target_of<A>(target, ratio), partials, VelocityOut{sink(sums), sink(loss), source(weights)});
      });
}

void run_velocity_summary(const Device& device, const Tensor& sums, const OptTensor& t, int64_t n, const Tensor& out) {
  const Tensor rows = dense(sums);
  const OptTensor times = dense(t);
  device.launch(velocity_summary_kernel, (out.size(0) + kWarp - 1) / kWarp, kWarp, 0, source(rows), source(times),
                sums.size(0), n, out.size(0), sink(out));
}

void run_flow_loss_backward(const Device& device, const Tensor& grad, const Tensor& v_pred, const Target& target,
                            double ratio, const OptTensor& weight, const Tensor& out) {
  const Tensor g = dense(grad), pred = dense(v_pred);
  const OptTensor weights = dense(weight);
  const Batch batch(v_pred);
  const Tiles tiles = Tiles::of_elements(batch.samples, batch.n);
  with_access<Second::same_or_float>(
      is_double(v_pred) || target.in_double(), {source(pred), source(out)},
      {source(target.x0), source(target.x1), source(target.given)}, {batch.n}, pred.numel(), [&](auto access) {
        using A = decltype(access);
        device.launch(flow_loss_backward_kernel<A>, tiles.count(), tiles.threads, 0, tiles, source(g), source(pred),
                      target_of<A>(target, ratio), source(weights), 2 / double(batch.n), sink(out));
      });
}

}  // namespace fmk
