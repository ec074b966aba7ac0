// The path psi and its derivative, and what training reads off a predicted velocity: the ops on any device.
// psi = (t (r - 1) + 1) x0 + t x1 and Dt_psi = (r - 1) x0 + x1, with r = sigma_min / sigma_max; `ratio` is r - 1.
#pragma once
#include "tensors.h"

namespace fmk {

inline void check_t(const Tensor& t, const Batch& batch) {
  check_tensor(t, "t");
  FMK_CHECK(t.dim() >= 1 && t.size(0) == batch.samples && t.numel() == batch.samples,
            "t must have one element a sample");
}

inline double ratio_of(double sigma_min, double sigma_max) {
  const double ratio = sigma_min / sigma_max - 1.0;
  FMK_CHECK(finite(sigma_min) && finite(sigma_max) && finite(ratio), "sigma_min or sigma_max is no scale");
  return ratio;
}

inline void check_ends(const Tensor& x0, const Tensor& x1) {
  check_tensor(x0, "x0");
  check_like(x1, x0, "x1");
}

// The target velocity, given or to be made from x0 and x1.
struct Target {
  OptTensor x0, x1, given;
  Target(const OptTensor& start, const OptTensor& end, const OptTensor& target, const Tensor& pred) {
    check_tensor(pred, "v_pred");
    FMK_CHECK(target ? !start && !end : start && end, "give x0 and x1, or v_target");
    check_like(start, pred, "x0");
    check_like(end, pred, "x1");
    check_like(target, pred, "v_target");
    x0 = dense(start);
    x1 = dense(end);
    given = dense(target);
  }
  bool in_double() const { return is_double(x0) || is_double(x1) || is_double(given); }
};

inline Dtype stats_dtype(const Tensor& v_pred, const Target& target) {
  return wide_dtype(is_double(v_pred) || target.in_double());
}

inline void check_weight(const OptTensor& weight, const Batch& batch) {
  check_tensor(weight, "weight");
  FMK_CHECK(!weight || (weight->dim() == 1 && weight->numel() == batch.samples), "weight must be (B,)");
}

// Either output may be left out, and t with x_t; both together are made in one pass over x0 and x1.
void run_path(const Device& device, const OptTensor& t, const Tensor& x0, const Tensor& x1, double ratio,
              const OptTensor& x_t, const OptTensor& velocity);
void run_psi_backward(const Device& device, const Tensor& grad, const Tensor& t, double ratio, const Tensor& to_x0,
                      const Tensor& to_x1);
// The (B, 9) sums of the columns of columns.h, and (if there is a place) weight[b] * mean((v_pred - v_target)^2).
void run_velocity(const Device& device, const Tensor& v_pred, const Target& target, double ratio, const Tensor& sums,
                  const OptTensor& weight, const OptTensor& loss);
void run_velocity_summary(const Device& device, const Tensor& sums, const OptTensor& t, int64_t n, const Tensor& out);
// d loss[b] / d v_pred = 2 weight[b] / n (v_pred - v_target)
void run_flow_loss_backward(const Device& device, const Tensor& grad, const Tensor& v_pred, const Target& target,
                            double ratio, const OptTensor& weight, const Tensor& out);

inline Tensor psi(Tensor t, Tensor x0, Tensor x1, double sigma_min, double sigma_max) {
  const Device device(x0, "x0");
  check_ends(x0, x1);
  check_t(t, Batch(x0));
  Tensor out = fresh_like(x0, promote(dtype_of(x0), dtype_of(x1)));
  run_path(device, t, x0, x1, ratio_of(sigma_min, sigma_max), out, std::nullopt);
  return out;
}

inline Tensor dt_psi(Tensor x0, Tensor x1, double sigma_min, double sigma_max) {
  const Device device(x0, "x0");
  check_ends(x0, x1);
  Tensor out = fresh_like(x0, promote(dtype_of(x0), dtype_of(x1)));
  run_path(device, std::nullopt, x0, x1, ratio_of(sigma_min, sigma_max), std::nullopt, out);
  return out;
}

inline std::tuple<Tensor, Tensor> flow_pair(Tensor t, Tensor x0, Tensor x1, double sigma_min, double sigma_max,
                                            std::optional<torch::headeronly::ScalarType> dtype) {
  const Device device(x0, "x0");
  check_ends(x0, x1);
  check_t(t, Batch(x0));
  const Dtype out = dtype ? dtype_of(*dtype) : promote(dtype_of(x0), dtype_of(x1));
  FMK_CHECK(out != Dtype::other, "dtype must be floating point");
  Tensor x_t = fresh_like(x0, out), velocity = fresh_like(x0, out);
  run_path(device, t, x0, x1, ratio_of(sigma_min, sigma_max), x_t, velocity);
  return {x_t, velocity};
}

// The gradient of psi to x0 and x1, in the dtypes of `x0` and `x1`.
inline std::tuple<Tensor, Tensor> psi_backward(Tensor grad, Tensor t, Tensor x0, Tensor x1, double sigma_min,
                                               double sigma_max) {
  const Device device(x0, "x0");
  check_ends(x0, x1);
  check_like(grad, x0, "grad");
  check_t(t, Batch(x0));
  Tensor to_x0 = fresh_like(x0), to_x1 = fresh_like(x1);
  run_psi_backward(device, dense(grad), t, ratio_of(sigma_min, sigma_max), to_x0, to_x1);
  return {to_x0, to_x1};
}

inline Tensor velocity_stats(Tensor v_pred, OptTensor x0, OptTensor x1, OptTensor v_target, double sigma_min,
                             double sigma_max) {
  const Device device(v_pred, "v_pred");
  const Target target(x0, x1, v_target, v_pred);
  Tensor sums = fresh({Batch(v_pred).samples, kVelocityColumns}, stats_dtype(v_pred, target));
  run_velocity(device, v_pred, target, ratio_of(sigma_min, sigma_max), sums, std::nullopt, std::nullopt);
  return sums;
}

// What people log, from the (B, 9) sums: rows of nmse (pooled), cos, speed_ratio (means) and the number of
// samples; first of the whole batch, then of the slices (k/bins, (k+1)/bins] of t. No samples: NaN.
inline Tensor velocity_summary(Tensor sums, OptTensor t, int64_t n, int64_t bins) {
  const Device device(sums, "sums");
  check_tensor(sums, "sums");
  check_tensor(t, "t");
  FMK_CHECK(sums.dim() == 2 && sums.size(1) == kVelocityColumns, "sums must be (B, 9)");
  FMK_CHECK(!t || t->numel() == sums.size(0), "t must have one element a sample");
  FMK_CHECK(bins >= (t ? 1 : 0) && bins < (int64_t(1) << 31), "bins must be at least 1");
  Tensor out = fresh({t ? 1 + bins : 1, 4}, dtype_of(sums));
  run_velocity_summary(device, sums, t, n, out);
  return out;
}

inline std::tuple<Tensor, Tensor> flow_loss(Tensor v_pred, OptTensor x0, OptTensor x1, OptTensor v_target,
                                            OptTensor weight, double sigma_min, double sigma_max) {
  const Device device(v_pred, "v_pred");
  const Target target(x0, x1, v_target, v_pred);
  const Batch batch(v_pred);
  check_weight(weight, batch);
  const Dtype dtype = stats_dtype(v_pred, target);
  Tensor loss = fresh({batch.samples}, dtype), sums = fresh({batch.samples, kVelocityColumns}, dtype);
  run_velocity(device, v_pred, target, ratio_of(sigma_min, sigma_max), sums, weight, loss);
  return {loss, sums};
}

inline Tensor flow_loss_backward(Tensor grad, Tensor v_pred, OptTensor x0, OptTensor x1, OptTensor v_target,
                                 OptTensor weight, double sigma_min, double sigma_max) {
  const Device device(v_pred, "v_pred");
  const Target target(x0, x1, v_target, v_pred);
  const Batch batch(v_pred);
  check_weight(weight, batch);
  check_tensor(grad, "grad");
  FMK_CHECK(grad.numel() == batch.samples, "grad must be (B,)");
  Tensor out = fresh_like(v_pred);
  run_flow_loss_backward(device, grad, v_pred, target, ratio_of(sigma_min, sigma_max), weight, out);
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(fmkernels, FMK_KEY, m) {
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
