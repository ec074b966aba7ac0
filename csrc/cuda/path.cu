// The path ops for CUDA tensors: checks, launch, registration.
#include "path.cuh"

#include "launch.h"

#include "../shared/path.h"

namespace fmk {
namespace {

// Either output may be left out.
void run_path(const OnDevice& device, const OptTensor& t, const Tensor& x0, const Tensor& x1, double sigma_min,
              double sigma_max, const OptTensor& x_t, const OptTensor& velocity) {
  const Tensor start = dense(x0), end = dense(x1);
  const OptTensor times = dense(t);
  const Batch batch(x0);
  const Tiles tiles(batch.samples, batch.n);
  const double ratio = ratio_of(sigma_min, sigma_max);
  with_compute_type(is_double(x0) || is_double(x1), [&](auto zero) {
    using C = decltype(zero);
    device.launch(path_kernel<C>, tiles.count(), tiles.threads, 0, tiles, source(times), source(start), source(end),
                  C(ratio), sink(x_t), sink(velocity));
  });
}

Tensor psi(Tensor t, Tensor x0, Tensor x1, double sigma_min, double sigma_max) {
  const OnDevice device(x0, "x0");
  check_ends(x0, x1);
  check_t(t, Batch(x0));
  Tensor out = fresh_like(x0, promote(dtype_of(x0), dtype_of(x1)));
  run_path(device, t, x0, x1, sigma_min, sigma_max, out, std::nullopt);
  return out;
}

Tensor dt_psi(Tensor x0, Tensor x1, double sigma_min, double sigma_max) {
  const OnDevice device(x0, "x0");
  check_ends(x0, x1);
  Tensor out = fresh_like(x0, promote(dtype_of(x0), dtype_of(x1)));
  run_path(device, std::nullopt, x0, x1, sigma_min, sigma_max, std::nullopt, out);
  return out;
}

std::tuple<Tensor, Tensor> flow_pair(Tensor t, Tensor x0, Tensor x1, double sigma_min, double sigma_max,
                                     std::optional<torch::headeronly::ScalarType> dtype) {
  const OnDevice device(x0, "x0");
  check_ends(x0, x1);
  check_t(t, Batch(x0));
  const Dtype out = dtype ? dtype_of(*dtype) : promote(dtype_of(x0), dtype_of(x1));
  FMK_CHECK(out != Dtype::other, "dtype must be floating point");
  Tensor x_t = fresh_like(x0, out), velocity = fresh_like(x0, out);
  run_path(device, t, x0, x1, sigma_min, sigma_max, x_t, velocity);
  return {x_t, velocity};
}

// The gradient of psi to x0 and x1, in the dtypes of `x0` and `x1`.
std::tuple<Tensor, Tensor> psi_backward(Tensor grad, Tensor t, Tensor x0, Tensor x1, double sigma_min,
                                        double sigma_max) {
  const OnDevice device(x0, "x0");
  check_ends(x0, x1);
  check_like(grad, x0, "grad");
  const Batch batch(x0);
  check_t(t, batch);
  const double ratio = ratio_of(sigma_min, sigma_max);
  const Tensor g = dense(grad), times = dense(t);
  Tensor grad0 = fresh_like(x0), grad1 = fresh_like(x1);
  const Tiles tiles(batch.samples, batch.n);
  with_compute_type(is_double(x0) || is_double(x1) || is_double(grad), [&](auto zero) {
    using C = decltype(zero);
    device.launch(psi_backward_kernel<C>, tiles.count(), tiles.threads, 0, tiles, source(g), source(times), C(ratio),
                  sink(grad0), sink(grad1));
  });
  return {grad0, grad1};
}

template <class C>
VelocityTarget<C> target_of(const Target& target, double ratio) {
  return {source(target.x0), source(target.x1), source(target.given), C(ratio)};
}

// The (B, 9) sums, and the loss if there is a place for it.
void run_velocity(const OnDevice& device, const Tensor& v_pred, const Target& target, double ratio, const Tensor& sums,
                  const OptTensor& weight, const OptTensor& loss) {
  const Batch batch(v_pred);
  if (batch.samples == 0) return;
  const Tensor pred = dense(v_pred);
  const OptTensor weights = dense(weight);
  const Tiles tiles(batch.samples, batch.n);
  const Tensor parts = fresh({tiles.count(), kVelocityColumns}, Dtype::f64);
  const VelocityOut out{sink(sums), sink(loss), source(weights)};
  with_compute_type(is_double(sums), [&](auto zero) {
    using C = decltype(zero);
    device.launch(velocity_kernel<C>, std::max<int64_t>(1, tiles.count()), tiles.threads, 0, tiles, source(pred),
                  target_of<C>(target, ratio), static_cast<double*>(parts.mutable_data_ptr()), out, next_ticket());
  });
}

Tensor velocity_stats(Tensor v_pred, OptTensor x0, OptTensor x1, OptTensor v_target, double sigma_min,
                      double sigma_max) {
  const OnDevice device(v_pred, "v_pred");
  const Target target(x0, x1, v_target, v_pred);
  Tensor sums = fresh({Batch(v_pred).samples, kVelocityColumns}, stats_dtype(v_pred, target));
  run_velocity(device, v_pred, target, ratio_of(sigma_min, sigma_max), sums, std::nullopt, std::nullopt);
  return sums;
}

Tensor velocity_summary(Tensor sums, OptTensor t, int64_t n, int64_t bins) {
  const OnDevice device(sums, "sums");
  check_summary(sums, t, bins);
  const Tensor rows = dense(sums);
  const OptTensor times = dense(t);
  const int64_t made = t ? 1 + bins : 1;
  Tensor out = fresh({made, 4}, dtype_of(sums));
  device.launch(velocity_summary_kernel, (made + kWarp - 1) / kWarp, kWarp, 0, source(rows), source(times),
                sums.size(0), n, made, sink(out));
  return out;
}

std::tuple<Tensor, Tensor> flow_loss(Tensor v_pred, OptTensor x0, OptTensor x1, OptTensor v_target, OptTensor weight,
                                     double sigma_min, double sigma_max) {
  const OnDevice device(v_pred, "v_pred");
  const Target target(x0, x1, v_target, v_pred);
  const Batch batch(v_pred);
  check_weight(weight, batch);
  const Dtype dtype = stats_dtype(v_pred, target);
  Tensor loss = fresh({batch.samples}, dtype), sums = fresh({batch.samples, kVelocityColumns}, dtype);
  run_velocity(device, v_pred, target, ratio_of(sigma_min, sigma_max), sums, weight, loss);
  return {loss, sums};
}

Tensor flow_loss_backward(Tensor grad, Tensor v_pred, OptTensor x0, OptTensor x1, OptTensor v_target, OptTensor weight,
                          double sigma_min, double sigma_max) {
  const OnDevice device(v_pred, "v_pred");
  const Target target(x0, x1, v_target, v_pred);
  const Batch batch(v_pred);
  check_weight(weight, batch);
  check_tensor(grad, "grad");
  FMK_CHECK(grad.numel() == batch.samples, "grad must be (B,)");
  const double ratio = ratio_of(sigma_min, sigma_max);
  const Tensor g = dense(grad), pred = dense(v_pred);
  const OptTensor weights = dense(weight);
  Tensor out = fresh_like(v_pred);
  const Tiles tiles(batch.samples, batch.n);
  with_compute_type(is_double(v_pred) || target.in_double(), [&](auto zero) {
    using C = decltype(zero);
    device.launch(flow_loss_backward_kernel<C>, tiles.count(), tiles.threads, 0, tiles, source(g), source(pred),
                  target_of<C>(target, ratio), source(weights), sink(out));
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CUDA, m) {
  m.impl("psi", TORCH_BOX(&psi));
  m.impl("dt_psi", TORCH_BOX(&dt_psi));
  m.impl("flow_pair", TORCH_BOX(&flow_pair));
  m.impl("psi_backward", TORCH_BOX(&psi_backward));
  m.impl("velocity_stats", TORCH_BOX(&velocity_stats));
  m.impl("velocity_summary", TORCH_BOX(&velocity_summary));
  m.impl("flow_loss", TORCH_BOX(&flow_loss));
  m.impl("flow_loss_backward", TORCH_BOX(&flow_loss_backward));
}

}  // namespace fmk
