// What the norms and the gate ask of their arguments, on any device.
#pragma once
#include "tensors.h"

namespace fmk {

struct Shape {
  std::vector<Tensor> x;
  int64_t rows = 0, width = 0, scale_rows = 1;
  int64_t rows_per_scale() const { return std::max<int64_t>(1, rows / scale_rows); }
};

// scale (and offset, if given): (D,), (1, D) or (B, D).
inline void check_rows(const Tensor& scale, const Shape& shape, int64_t batch, const char* name) {
  check_tensor(scale, name);
  const int64_t dim = scale.dim();
  FMK_CHECK((dim == 1 || dim == 2) && scale.size(dim - 1) == shape.width &&
                (dim == 1 || scale.size(0) == 1 || scale.size(0) == batch),
            name, " must be (D,), (1, D) or (B, D)");
}

inline Shape check_norm(const std::vector<Tensor>& x, const Tensor& scale, const OptTensor& offset) {
  Shape shape;
  FMK_CHECK(!x.empty(), "x is an empty list");
  const Tensor& first = x[0];
  for (const Tensor& part : x) {
    check_tensor(part, "x");
    FMK_CHECK(part.dim() >= 1 && part.dim() == first.dim(), "x: tensors of different dimensions");
    FMK_CHECK(std::equal(part.sizes().begin(), part.sizes().end() - 1, first.sizes().begin()),
              "x: tensors differ before the last dimension");
    FMK_CHECK(dtype_of(part) == dtype_of(first), "x: tensors of different dtypes");
    shape.width += part.size(part.dim() - 1);
    shape.x.push_back(dense(part));
  }
  shape.rows = 1;
  for (int64_t i = 0; i + 1 < first.dim(); i++) shape.rows *= first.size(i);
  const int64_t batch = first.dim() > 1 ? first.size(0) : 1;
  check_rows(scale, shape, batch, "scale");
  if (offset) {
    check_rows(*offset, shape, batch, "offset");
    FMK_CHECK(offset->numel() == scale.numel(), "offset must have as many rows as scale");
  }
  shape.scale_rows = scale.dim() == 1 ? 1 : std::max<int64_t>(1, scale.size(0));
  return shape;
}

inline std::vector<int64_t> sizes_of(const Shape& shape) {
  std::vector<int64_t> sizes(shape.x[0].sizes().begin(), shape.x[0].sizes().end());
  sizes.back() = shape.width;
  return sizes;
}

inline Dtype out_dtype(const std::vector<Tensor>& x, const OptTensor& residual) {
  return residual ? promote(dtype_of(x[0]), dtype_of(*residual)) : dtype_of(x[0]);
}

inline Tensor fresh_stat(const Shape& shape, Dtype dtype) {
  return fresh({shape.rows, 2}, dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32);
}

inline Shape check_norm(const std::vector<Tensor>& x, const Tensor& scale, const OptTensor& offset,
                        const OptTensor& residual, double eps, bool center) {
  const Shape shape = check_norm(x, scale, offset);
  FMK_CHECK(offset || !center, "a layer norm has a bias");
  check_finite(eps, "eps");
  if (residual) {
    FMK_CHECK(x.size() == 1, "residual goes with a single x");
    check_like(*residual, x[0], "residual");
  }
  return shape;
}

// y, and sum if there is a residual.
inline void check_norm_out(const Shape& shape, const std::vector<Tensor>& x, const Tensor& scale,
                           const OptTensor& offset, const OptTensor& residual, const Tensor& y, const OptTensor& sum) {
  const Dtype dtype = out_dtype(x, residual);
  const auto sizes = sizes_of(shape);
  FMK_CHECK(sum.has_value() == residual.has_value(), "out has a place for the sum if there is a residual");
  std::vector<const Tensor*> inputs{&scale, offset ? &*offset : nullptr, residual ? &*residual : nullptr};
  for (const Tensor& part : x) inputs.push_back(&part);
  for (const Tensor* out : {&y, sum ? &*sum : nullptr}) {
    if (!out) continue;
    check_tensor(*out, "out");
    FMK_CHECK(dtype_of(*out) == dtype, "out has another dtype");
    FMK_CHECK(out->sizes().size() == sizes.size() && std::equal(sizes.begin(), sizes.end(), out->sizes().begin()),
              "out has another shape");
    check_writable(*out, "out", inputs);
    inputs.push_back(out);
  }
}

inline void check_norm_backward(const Shape& shape, const Tensor& grad_y, const OptTensor& grad_sum,
                                const Tensor& stat) {
  check_tensor(grad_y, "grad_y");
  check_tensor(grad_sum, "grad_sum");
  check_tensor(stat, "stat");
  const int64_t total = shape.rows * shape.width;
  FMK_CHECK(grad_y.numel() == total && (!grad_sum || grad_sum->numel() == total), "grad_y or grad_sum has another shape");
  FMK_CHECK(stat.numel() == 2 * shape.rows, "stat has another shape");
}

// Gate and up as rows of one width: two tensors, or (b absent) the halves of each row of one.
struct Gate {
  Tensor a, b;
  int64_t rows = 1, width, stride, b_shift;
  Gate(const Tensor& first, const OptTensor& second) : a(dense(first)), b(second ? dense(*second) : a) {
    check_tensor(first, "a");
    check_like(second, first, "b");
    if (second) {
      width = stride = a.numel();
      b_shift = 0;
    } else {
      FMK_CHECK(a.dim() >= 1 && a.size(a.dim() - 1) % 2 == 0, "a must have an even last dimension");
      stride = a.size(a.dim() - 1);
      width = b_shift = stride / 2;
      rows = stride == 0 ? 0 : a.numel() / stride;
    }
  }
};

}  // namespace fmk
