// The norms for CUDA tensors: checks, launch, registration.
#include "norm.cuh"

#include "launch.h"

#include "../shared/norm.h"

namespace fmk {
namespace {

// Lists of these lengths travel with a launch.
constexpr int kFew = 4, kMost = 1024;
constexpr int64_t kTasks = 512;  // runs of rows in a backward, about: their sums are written and read once more

template <int kCapacity>
RowParts<kCapacity> parts_of(const Shape& shape) {
  RowParts<kCapacity> rows{};
  rows.rows = shape.rows;
  rows.width = shape.width;
  rows.dtype = dtype_of(shape.x[0]);
  int64_t column = 0;
  for (const Tensor& x : shape.x) {
    const int64_t width = x.size(x.dim() - 1);
    if (width > 0) rows.parts[rows.count++] = {x.const_data_ptr(), width, column};
    rows.packs += packs_of(width);
    column += width;
  }
  return rows;
}

// f(zero of the compute type, the rows)
template <class F>
void with_rows(const Shape& shape, bool in_double, const F& f) {
  FMK_CHECK(shape.x.size() <= kMost, "x: at most 1024 tensors on a GPU");
  with_compute_type(in_double, [&](auto zero) {
    if (shape.x.size() <= kFew)
      f(zero, parts_of<kFew>(shape));
    else
      f(zero, parts_of<kMost>(shape));
  });
}

// Rows of a scale or offset where they are, if each is dense: the values of a group are columns of one tensor,
// so theirs are far apart. Otherwise of a dense copy, which `copy` keeps.
ParameterRows rows_of(const Tensor& x, const Shape& shape, Tensor& copy) {
  const bool there = x.dim() == 2 && (x.stride(1) == 1 || shape.width <= 1);
  copy = there ? x : dense(x);
  return {source(copy), there ? x.stride(0) : shape.width, shape.rows_per_scale()};
}

// y, sum (if there is a residual) and stat (if wanted) are dense and of the right sizes.
void run(const OnDevice& device, const Tensor& scale, const OptTensor& offset, const OptTensor& residual, double eps,
         bool center, const Shape& shape, const Tensor& y, const OptTensor& sum, const OptTensor& stat) {
  const OptTensor res = dense(residual);
  Tensor scale_copy, offset_copy;
  Norm norm{};
  norm.residual = source(res);
  norm.scale = rows_of(scale, shape, scale_copy);
  if (offset) norm.offset = rows_of(*offset, shape, offset_copy);
  norm.eps = eps;
  norm.center = center;
  norm.y = sink(y);
  norm.sum = sink(sum);
  norm.stat = sink(stat);
  with_rows(shape, is_double(y), [&](auto zero, const auto& rows) {
    using C = decltype(zero);
    const int64_t bytes = rows.packs * kPack * int64_t(sizeof(C));
    norm.kept = bytes <= kSharedBytes;
    device.launch(norm_kernel<C, std::decay_t<decltype(rows)>>, rows.rows, rows.threads_for(rows.width),
                  norm.kept ? bytes : 0, rows, norm);
  });
}

std::tuple<Tensor, Tensor, Tensor> td_norm(std::vector<Tensor> x, Tensor scale, OptTensor offset, OptTensor residual,
                                           double eps, bool center) {
  FMK_CHECK(!x.empty(), "x is an empty list");
  const OnDevice device(x[0], "x");
  const Shape shape = check_norm(x, scale, offset, residual, eps, center);
  const Dtype dtype = out_dtype(x, residual);
  const auto sizes = sizes_of(shape);
  Tensor y = fresh(sizes, dtype), stat = fresh_stat(shape, dtype);
  const OptTensor sum = residual ? OptTensor(fresh(sizes, dtype)) : std::nullopt;
  run(device, scale, offset, residual, eps, center, shape, y, sum, stat);
  return {y, sum ? *sum : nothing(), stat};
}

void td_norm_out(std::vector<Tensor> x, Tensor scale, OptTensor offset, OptTensor residual, double eps, bool center,
                 Tensor y, OptTensor sum) {
  FMK_CHECK(!x.empty(), "x is an empty list");
  const OnDevice device(x[0], "x");
  const Shape shape = check_norm(x, scale, offset, residual, eps, center);
  check_norm_out(shape, x, scale, offset, residual, y, sum);
  InPlace y_target(y), sum_target(sum ? *sum : y);
  run(device, scale, offset, residual, eps, center, shape, y_target.work,
      sum ? OptTensor(sum_target.work) : std::nullopt, std::nullopt);
  y_target.commit();
  if (sum) sum_target.commit();
}

// s is what was normalised (x, or x + residual). stat belongs to the unrounded s: one that was rounded to half
// precision gets its own. The gradients to scale and offset have scale's shape and the compute type.
std::tuple<Tensor, Tensor, Tensor> td_norm_backward(Tensor grad_y, OptTensor grad_sum, std::vector<Tensor> s,
                                                    Tensor scale, Tensor stat, double eps, bool center) {
  FMK_CHECK(!s.empty(), "s is an empty list");
  const OnDevice device(s[0], "s");
  const Shape shape = check_norm(s, scale, std::nullopt);
  check_norm_backward(shape, grad_y, grad_sum, stat);
  const Tensor gy = dense(grad_y), stats = dense(stat);
  const OptTensor gs = dense(grad_sum);
  const bool in_double = is_double(s[0]) || is_double(grad_y);
  const Dtype wide = in_double ? Dtype::f64 : Dtype::f32;
  Tensor grad_s = fresh(sizes_of(shape), dtype_of(s[0]));
  Tensor grad_scale = fresh_like(scale, wide), grad_offset = fresh_like(scale, wide);
  Tensor scale_copy;
  NormBackward norm{};
  norm.grad = source(gy);
  norm.more = source(gs);
  norm.stat = source(stats);
  norm.scale = rows_of(scale, shape, scale_copy);
  norm.eps = eps;
  norm.center = center;
  norm.rounded = size_of(dtype_of(s[0])) == 2;
  norm.grad_s = sink(grad_s);
  norm.to_scale = sink(grad_scale);
  norm.to_offset = sink(grad_offset);
  const int64_t repeat = shape.rows_per_scale(), groups = scale.numel() == 0 ? 0 : shape.scale_rows;
  with_rows(shape, in_double, [&](auto zero, const auto& rows) {
    using C = decltype(zero);
    using Rows = std::decay_t<decltype(rows)>;
    const int threads = rows.threads_for(rows.width);
    const int64_t bytes = 4 * rows.packs * kPack * int64_t(sizeof(C));
    if (bytes > kSharedBytes) {
      const Tensor own = fresh({rows.rows, 2}, wide);
      norm.own_stat = sink(own);
      device.launch(norm_wide_backward_kernel<C, Rows>, rows.rows, threads, 0, rows, norm);
      device.launch(norm_wide_columns_kernel<C, Rows>, (rows.width + kWarp * kPack - 1) / (kWarp * kPack), kWarp, 0,
                    rows, norm.grad, source(own), groups, repeat, norm.to_scale, norm.to_offset);
      return;
    }
    norm.run = std::max<int64_t>(1, (rows.rows + kTasks - 1) / kTasks);
    norm.runs = rows.rows == 0 ? 0 : (repeat + norm.run - 1) / norm.run;
    const OptTensor runs = norm.runs == 1 ? std::nullopt : OptTensor(fresh({2, groups, norm.runs, rows.width}, wide));
    if (runs) {
      C* const room = static_cast<C*>(runs->mutable_data_ptr());
      norm.to_scale = {room, wide};
      norm.to_offset = {room + groups * norm.runs * rows.width, wide};
    }
    device.launch(norm_backward_kernel<C, Rows>, norm.runs * groups, threads, bytes, rows, norm);
    if (runs)
      device.launch(norm_runs_kernel<C>, 2 * groups * ((rows.width + kWarp - 1) / kWarp), 8 * kWarp, 0, groups,
                    norm.runs, rows.width, source(runs), sink(grad_scale), sink(grad_offset));
  });
  return {grad_s, grad_scale, grad_offset};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CUDA, m) {
  m.impl("td_norm", TORCH_BOX(&td_norm));
  m.impl("td_norm_out", TORCH_BOX(&td_norm_out));
  m.impl("td_norm_backward", TORCH_BOX(&td_norm_backward));
}

}  // namespace fmk
