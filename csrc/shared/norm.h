// The time-dependent norms, with and without a residual, over one tensor or a list of them: the ops on any device.
// RMS norm and layer norm are one op: y = (s - mean) * rstd * scale + offset, with s = gate * x + residual; RMS norm has
// mean = 0. rstd is 1 / sqrt(power + eps), or with eps outside the root 1 / (sqrt(power) + eps).
#pragma once
#include "tensors.h"

namespace fmk {

// The rows that are normalized: of one tensor, or of the concatenation of several, all dense.
struct NormRows {
  std::vector<Tensor> x;
  int64_t count = 0, width = 0, scale_rows = 1;
  int64_t rows_per_scale() const { return std::max<int64_t>(1, count / scale_rows); }
};

// scale, offset and gate: (D,), (1, D) or (B, D).
inline void check_parameter(const Tensor& scale, const NormRows& rows, int64_t batch, const char* name) {
  check_tensor(scale, name);
  const int64_t dim = scale.dim();
  FMK_CHECK((dim == 1 || dim == 2) && scale.size(dim - 1) == rows.width &&
                (dim == 1 || scale.size(0) == 1 || scale.size(0) == batch),
            name, " must be (D,), (1, D) or (B, D)");
}

inline NormRows check_norm(const std::vector<Tensor>& x, const Tensor& scale, const OptTensor& offset) {
  NormRows rows;
  FMK_CHECK(!x.empty(), "x is an empty list");
  const Tensor& first = x[0];
  for (const Tensor& part : x) {
    check_tensor(part, "x");
    FMK_CHECK(part.dim() >= 1 && part.dim() == first.dim(), "x: tensors of different dimensions");
    FMK_CHECK(std::equal(part.sizes().begin(), part.sizes().end() - 1, first.sizes().begin()),
              "x: tensors differ before the last dimension");
    FMK_CHECK(dtype_of(part) == dtype_of(first), "x: tensors of different dtypes");
    rows.width += part.size(part.dim() - 1);
    rows.x.push_back(dense(part));
  }
  rows.count = 1;
  for (int64_t i = 0; i + 1 < first.dim(); i++) rows.count *= first.size(i);
  const int64_t batch = first.dim() > 1 ? first.size(0) : 1;
  check_parameter(scale, rows, batch, "scale");
  if (offset) {
    check_parameter(*offset, rows, batch, "offset");
    FMK_CHECK(offset->numel() == scale.numel(), "offset must have as many rows as scale");
  }
  rows.scale_rows = scale.dim() == 1 ? 1 : std::max<int64_t>(1, scale.size(0));
  return rows;
}

inline std::vector<int64_t> sizes_of(const NormRows& rows) {
  std::vector<int64_t> sizes(rows.x[0].sizes().begin(), rows.x[0].sizes().end());
  sizes.back() = rows.width;
  return sizes;
}

inline Dtype out_dtype(const std::vector<Tensor>& x, const OptTensor& residual) {
  return residual ? promote(dtype_of(x[0]), dtype_of(*residual)) : dtype_of(x[0]);
}

inline NormRows check_norm(const std::vector<Tensor>& x, const Tensor& scale, const OptTensor& offset,
                        const OptTensor& residual, const OptTensor& gate, double eps) {
  const NormRows rows = check_norm(x, scale, offset);
  check_finite(eps, "eps");
  if (gate) {
    FMK_CHECK(residual, "gate goes with residual");
    check_parameter(*gate, rows, x[0].dim() > 1 ? x[0].size(0) : 1, "gate");
    FMK_CHECK(gate->numel() == scale.numel(), "gate must have as many rows as scale");
  }
  if (residual) {
    FMK_CHECK(x.size() == 1, "residual goes with a single x");
    check_like(*residual, x[0], "residual");
  }
  return rows;
}

// y, and sum if there is a residual.
inline void check_norm_out(const NormRows& rows, const std::vector<Tensor>& x, const Tensor& scale,
                           const OptTensor& offset, const OptTensor& residual, const OptTensor& gate, const Tensor& y,
                           const OptTensor& sum) {
  const Dtype dtype = out_dtype(x, residual);
  const auto sizes = sizes_of(rows);
  FMK_CHECK(sum.has_value() == residual.has_value(), "out has a place for the sum if there is a residual");
  std::vector<const Tensor*> inputs{&scale, pointer_to(offset), pointer_to(residual), pointer_to(gate)};
  for (const Tensor& part : x) inputs.push_back(&part);
  for (const Tensor* out : {&y, pointer_to(sum)}) {
    if (!out) continue;
    check_tensor(*out, "out");
    FMK_CHECK(dtype_of(*out) == dtype, "out has another dtype");
    FMK_CHECK(has_sizes(*out, sizes), "out has another shape");
    check_writable(*out, "out", inputs);
    inputs.push_back(out);
  }
}

inline void check_norm_backward(const NormRows& rows, const Tensor& grad_y, const OptTensor& grad_sum,
                                const Tensor& stat) {
  check_tensor(grad_y, "grad_y");
  check_tensor(grad_sum, "grad_sum");
  check_tensor(stat, "stat");
  const int64_t total = rows.count * rows.width;
  FMK_CHECK(grad_y.numel() == total && (!grad_sum || grad_sum->numel() == total), "grad_y or grad_sum has another shape");
  FMK_CHECK(stat.numel() == 2 * rows.count, "stat has another shape");
}

// y, sum (if there is a residual) and stat (if requested: mean and rstd of each row, in the compute type) are dense.
// If there is row_scale, y is int8: the rows of the unrounded norm, quantized.
struct NormCall {
  const NormRows& rows;
  const Tensor& scale;
  const OptTensor &offset, &residual, &gate;
  double eps;
  bool center, inside;  // inside: eps is inside the root
  const Tensor& y;
  const OptTensor &sum, &stat, &row_scale;
};
void run_norm(const Device& device, const NormCall& call);

// grad_y and grad_sum are (rows, width); rows are what was normalized (x, or x + residual). stat belongs to the
// unrounded s: for an s that was rounded to half precision it is recomputed. grad_scale and grad_offset have scale's
// shape and the compute type.
struct NormBackwardCall {
  const NormRows& rows;
  const Tensor& grad_y;
  const OptTensor& grad_sum;
  const Tensor &scale, &stat;
  double eps;
  bool center, inside;
  const Tensor &grad_s, &grad_scale, &grad_offset;
};
void run_norm_backward(const Device& device, const NormBackwardCall& call);

inline const Tensor& first_of(const std::vector<Tensor>& list, const char* name) {
  FMK_CHECK(!list.empty(), name, " is an empty list");
  return list[0];
}

inline std::tuple<Tensor, Tensor, Tensor> td_norm(std::vector<Tensor> x, Tensor scale, OptTensor offset,
                                                  OptTensor residual, OptTensor gate, double eps, bool center,
                                                  bool inside) {
  const Device device(first_of(x, "x"), "x");
  const NormRows rows = check_norm(x, scale, offset, residual, gate, eps);
  const Dtype dtype = out_dtype(x, residual);
  const auto sizes = sizes_of(rows);
  Tensor y = fresh(sizes, dtype), stat = fresh({rows.count, 2}, wide_dtype(dtype == Dtype::f64));
  const OptTensor sum = residual ? OptTensor(fresh(sizes, dtype)) : std::nullopt;
  run_norm(device, {rows, scale, offset, residual, gate, eps, center, inside, y, sum, stat, std::nullopt});
  return {y, sum ? *sum : nothing(), stat};
}

inline void td_norm_out(std::vector<Tensor> x, Tensor scale, OptTensor offset, OptTensor residual, OptTensor gate,
                        double eps, bool center, bool inside, Tensor y, OptTensor sum) {
  const Device device(first_of(x, "x"), "x");
  const NormRows rows = check_norm(x, scale, offset, residual, gate, eps);
  check_norm_out(rows, x, scale, offset, residual, gate, y, sum);
  InPlace y_target(y), sum_target(sum);
  run_norm(device, {rows, scale, offset, residual, gate, eps, center, inside, *y_target.work, sum_target.work, std::nullopt,
                    std::nullopt});
  y_target.commit();
  sum_target.commit();
}

// Registered by the CPU object alone.
inline std::tuple<Tensor, Tensor, Tensor> td_norm_int8(std::vector<Tensor> x, Tensor scale, OptTensor offset,
                                                       OptTensor residual, double eps, bool center) {
  const Device device(first_of(x, "x"), "x");
  const NormRows rows = check_norm(x, scale, offset, residual, std::nullopt, eps);
  const Dtype dtype = out_dtype(x, residual);
  FMK_CHECK(dtype != Dtype::f64, "x and residual must not be float64");
  const auto sizes = sizes_of(rows);
  Tensor y = fresh_int8(sizes);
  const OptTensor row_scale = fresh(Sizes(sizes.data(), sizes.size() - 1), Dtype::f32);
  const OptTensor sum = residual ? OptTensor(fresh(sizes, dtype)) : std::nullopt;
  run_norm(device, {rows, scale, offset, residual, std::nullopt, eps, center, center, y, sum, std::nullopt, row_scale});
  return {y, *row_scale, sum ? *sum : nothing()};
}

inline std::tuple<Tensor, Tensor, Tensor> td_norm_backward(Tensor grad_y, OptTensor grad_sum, std::vector<Tensor> s,
                                                           Tensor scale, Tensor stat, double eps, bool center,
                                                           bool inside) {
  const Device device(first_of(s, "s"), "s");
  const NormRows rows = check_norm(s, scale, std::nullopt);
  check_norm_backward(rows, grad_y, grad_sum, stat);
  const Dtype wide = wide_dtype(is_double(s[0]) || is_double(grad_y));
  Tensor grad_s = fresh(sizes_of(rows), dtype_of(s[0]));
  Tensor grad_scale = fresh_like(scale, wide), grad_offset = fresh_like(scale, wide);
  run_norm_backward(
      device, {rows, grad_y, grad_sum, scale, stat, eps, center, inside, grad_s, grad_scale, grad_offset});
  return {grad_s, grad_scale, grad_offset};
}

STABLE_TORCH_LIBRARY_IMPL(fmkernels, FMK_KEY, m) {
  m.impl("td_norm", TORCH_BOX(&td_norm));
  m.impl("td_norm_out", TORCH_BOX(&td_norm_out));
  m.impl("td_norm_backward", TORCH_BOX(&td_norm_backward));
}

}  // namespace fmk
