// The norms on a GPU: launches.
#include "norm.cuh"
#include "norm_wide.cuh"

#include "launch.h"

#include "../shared/norm.h"

namespace fmk {
namespace {

// Lists of these lengths travel with a launch.
constexpr int kFew = 4, kMost = 256;
constexpr int64_t kRuns = 256;  // of rows in a backward, about: their sums are written and read once more

template <int kCapacity>
RowParts<kCapacity> parts_of(const NormRows& rows) {
  RowParts<kCapacity> parts{};
  parts.rows = rows.count;
  parts.width = rows.width;
  parts.dtype = dtype_of(rows.x[0]);
  int64_t column = 0;
  for (const Tensor& x : rows.x) {
    const int64_t width = x.size(x.dim() - 1);
    if (width > 0) parts.parts[parts.count++] = {x.const_data_ptr(), width, column};
    parts.packs += packs_of(width);
    column += width;
  }
  return parts;
}

// f(zero of the compute type, the rows)
template <class F>
void with_parts(const NormRows& rows, bool in_double, const F& f) {
  FMK_CHECK(rows.x.size() <= kMost, "x: at most 256 tensors on a GPU");
  with_compute_type(in_double, [&](auto zero) {
    if (rows.x.size() <= kFew)
      f(zero, parts_of<kFew>(rows));
    else
      f(zero, parts_of<kMost>(rows));
  });
}

// Rows of a scale or offset where they are, if each is dense: the values of a group are columns of one tensor,
// so theirs are far apart. Otherwise of a dense copy, which `copy` keeps.
ParameterRows parameter_rows(const Tensor& x, const NormRows& rows, Tensor& copy) {
  const bool there = x.dim() == 2 && (x.stride(1) == 1 || rows.width <= 1);
  copy = there ? x : dense(x);
  return {source(copy), there ? x.stride(0) : rows.width, rows.rows_per_scale()};
}

}  // namespace

void run_norm(const Device& device, const NormRows& rows, const Tensor& scale, const OptTensor& offset,
              const OptTensor& residual, double eps, bool center, const Tensor& y, const OptTensor& sum,
              const OptTensor& stat) {
  const OptTensor res = dense(residual);
  Tensor scale_copy, offset_copy;
  Norm norm{};
  norm.residual = source(res);
  norm.scale = parameter_rows(scale, rows, scale_copy);
  if (offset) norm.offset = parameter_rows(*offset, rows, offset_copy);
  norm.eps = eps;
  norm.per_column = 1 / double(rows.width);
  norm.center = center;
  norm.y = sink(y);
  norm.sum = sink(sum);
  norm.stat = sink(stat);
  with_parts(rows, is_double(y), [&](auto zero, const auto& parts) {
    using C = decltype(zero);
    const int64_t bytes = parts.packs * kPack * int64_t(sizeof(C));
    norm.kept = bytes <= kKeptBytes;
    device.launch(norm_kernel<C, std::decay_t<decltype(parts)>>, parts.rows, parts.template threads<C>(), norm.kept ? bytes : 0,
                  parts, norm);
  });
}

void run_norm_backward(const Device& device, const NormRows& rows, const Tensor& grad_y, const OptTensor& grad_sum,
                       const Tensor& scale, const Tensor& stat, double eps, bool center, const Tensor& grad_s,
                       const Tensor& grad_scale, const Tensor& grad_offset) {
  const Tensor gy = dense(grad_y), stats = dense(stat);
  const OptTensor gs = dense(grad_sum);
  const Dtype wide = dtype_of(grad_scale);
  const int64_t repeat = rows.rows_per_scale(), groups = scale.numel() == 0 ? 0 : rows.scale_rows;
  Tensor scale_copy;
  NormBackward norm{};
  norm.grad = source(gy);
  norm.more = source(gs);
  norm.stat = source(stats);
  norm.scale = parameter_rows(scale, rows, scale_copy);
  norm.eps = eps;
  norm.per_column = 1 / double(rows.width);
  norm.center = center;
  norm.rounded = size_of(dtype_of(grad_s)) == 2;
  norm.grad_s = sink(grad_s);
  norm.to_scale = sink(grad_scale);
  norm.to_offset = sink(grad_offset);
  with_parts(rows, wide == Dtype::f64, [&](auto zero, const auto& parts) {
    using C = decltype(zero);
    using Parts = std::decay_t<decltype(parts)>;
    const int64_t bytes = 4 * parts.packs * kPack * int64_t(sizeof(C));
    const bool kept = bytes <= kKeptBytes;
    norm.run = std::max<int64_t>(kept ? 1 : 64, (parts.rows + kRuns - 1) / kRuns);
    norm.runs = kept && parts.rows == 0 ? 0 : (repeat + norm.run - 1) / norm.run;
    // One run writes the gradients themselves; several are added up.
    const Tensor runs = fresh({norm.runs == 1 ? 0 : 2 * groups * norm.runs * parts.width}, wide);
    C* const all = static_cast<C*>(runs.mutable_data_ptr());
    if (norm.runs != 1) {
      norm.to_scale = {all, wide};
      norm.to_offset = {all + groups * norm.runs * parts.width, wide};
    }
    if (kept) {
      device.launch(norm_backward_kernel<C, Parts>, norm.runs * groups, parts.template threads<C>(), bytes, parts, norm);
    } else {
      const Tensor own = fresh({parts.rows, 2}, wide);
      norm.own_stat = sink(own);
      device.launch(norm_wide_backward_kernel<C, Parts>, parts.rows, parts.template threads<C>(), 0, parts, norm);
      device.launch(norm_wide_columns_kernel<C, Parts>, groups * norm.runs * ((parts.packs + kWarp - 1) / kWarp),
                    kTileThreads, 0, parts, norm.grad, source(own), groups, repeat, norm.run, norm.runs, norm.to_scale,
                    norm.to_offset);
    }
    if (norm.runs != 1)
      device.launch(norm_runs_kernel<C>, 2 * groups * ((parts.width + kWarp - 1) / kWarp), kTileThreads, 0, groups,
                    norm.runs, parts.width, static_cast<const C*>(all), static_cast<C*>(grad_scale.mutable_data_ptr()),
                    static_cast<C*>(grad_offset.mutable_data_ptr()));
  });
}

}  // namespace fmk
