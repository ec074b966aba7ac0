// Linear layers in int8, for inference: rows quantized symmetrically with a scale each, int32 products, and
// (row scale * column scale) * sum + bias in fp32. The ops on any device; td_norm_int8 is in norm.h.
#pragma once
#include "limits.h"
#include "tensors.h"

namespace fmk {

constexpr int64_t kWidest = 131071;  // 128 * 128 * kWidest still fits in int32

inline void check_rows(const Tensor& x) {
  check_tensor(x, "x");
  FMK_CHECK(dtype_of(x) != Dtype::f64, "x must not be float64");
  FMK_CHECK(x.dim() >= 1, "x must have at least one dimension");
}
inline void check_int8(const Tensor& x, const char* name) {
  FMK_CHECK(is_here(x), name, " must be on ", Here::name);
  FMK_CHECK(is_int8(x), name, " must be int8");
}
inline void check_scale(const Tensor& x, const char* name) {
  check_tensor(x, name);
  FMK_CHECK(dtype_of(x) == Dtype::f32, name, " must be float32");
}

// x: dense (rows, width), of a floating dtype, or int8 with x_scale. weight: dense, (columns, width) or packed.
struct LinearInt8 {
  Tensor x, weight, scale;
  OptTensor x_scale, bias;
  int64_t rows, width, columns;
  bool packed;
};

inline LinearInt8 check_linear_int8(const Tensor& x, const OptTensor& x_scale, const Tensor& weight,
                                    const Tensor& scale, const OptTensor& bias, Dtype dtype) {
  if (x_scale) {
    check_int8(x, "x");
    FMK_CHECK(x.dim() >= 1, "x must have at least one dimension");
    check_scale(*x_scale, "x_scale");
    FMK_CHECK(has_sizes(*x_scale, Sizes(x.sizes().data(), x.sizes().size() - 1)), "x_scale has another shape");
  } else {
    check_rows(x);
  }
  check_int8(weight, "weight");
  check_scale(scale, "scale");
  FMK_CHECK(scale.dim() == 1, "scale must be (out,)");
  const int64_t width = x.size(x.dim() - 1), columns = scale.size(0);
  FMK_CHECK(width <= kWidest, "x has too many columns");
  const bool packed = weight.dim() == 3;
  const std::array<int64_t, 3> panels{(columns + kPanel - 1) / kPanel, (width + kDepth - 1) / kDepth + 1, kGroup};
  const std::array<int64_t, 2> plain{columns, width};
  FMK_CHECK(packed ? has_sizes(weight, Sizes(panels.data(), 3)) : has_sizes(weight, Sizes(plain.data(), 2)),
            "weight must be (out, in), or packed from that");
  if (bias) {
    check_tensor(*bias, "bias");
    FMK_CHECK(dtype_of(*bias) != Dtype::f64 && has_sizes(*bias, scale.sizes()), "bias must be (out,), not float64");
  }
  FMK_CHECK(dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16, "dtype must be f32, bf16 or f16");
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < x.dim(); i++) rows *= x.size(i);
  return {dense(x), dense(weight), dense(scale), dense(x_scale), dense(bias), rows, width, columns, packed};
}

// x, out and scale are dense.
void run_quantize_rows(const Device& device, const Tensor& x, const Tensor& out, const Tensor& scale);
void run_linear_int8(const Device& device, const LinearInt8& call, const Tensor& out);

inline std::tuple<Tensor, Tensor> quantize_rows(Tensor x) {
  const Device device(x, "x");
  check_rows(x);
  Tensor rows = fresh_int8(x.sizes()), scale = fresh(Sizes(x.sizes().data(), x.sizes().size() - 1), Dtype::f32);
  run_quantize_rows(device, dense(x), rows, scale);
  return {rows, scale};
}

inline Tensor linear_int8(Tensor x, OptTensor x_scale, Tensor weight, Tensor scale, OptTensor bias,
                          torch::headeronly::ScalarType dtype) {
  const Device device(x, "x");
  const LinearInt8 call = check_linear_int8(x, x_scale, weight, scale, bias, dtype_of(dtype));
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = call.columns;
  Tensor out = fresh(sizes, dtype_of(dtype));
  if (out.numel() > 0) run_linear_int8(device, call, out);
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(fmkernels, FMK_KEY, m) {
  m.impl("quantize_rows", TORCH_BOX(&quantize_rows));
  m.impl("linear_int8", TORCH_BOX(&linear_int8));
}

}  // namespace fmk
