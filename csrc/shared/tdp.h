// What tdp and its groups ask of their arguments, on any device.
#pragma once
#include "tensors.h"

namespace fmk {

// One parameter: p0, p1, weight, bias of n elements each, and the column of the output where it starts.
struct Param {
  const void* data[4];
  Dtype dtype[4];
  int64_t n, column;
};

// Parameters side by side, without references of its own to the dense ones: made anew for every call.
struct Group {
  std::vector<Param> params;
  std::vector<Tensor> copies;  // of what was not dense
  int64_t width = 0;
  bool in_double = false;
  Dtype out_dtype = Dtype::f32;   // promotion of every p0 and p1
  Dtype grad_dtype = Dtype::f32;  // and of every weight and bias too

  // `pinned`: shapes were compared when the group was made, and only sizes are now.
  void add(const Tensor& p0, const Tensor& p1, const Tensor& weight, const Tensor& bias, bool pinned = false) {
    static const char* const names[] = {"param0", "param1", "weight", "bias"};
    const Tensor* tensors[] = {&p0, &p1, &weight, &bias};
    Param param;
    param.n = p0.numel();
    param.column = width;
    for (int j = 0; j < 4; j++) {
      const Tensor* x = tensors[j];
      FMK_CHECK(is_here(*x), names[j], " must be on ", Here::name);
      FMK_CHECK(j == 0 || (pinned ? x->numel() == param.n : same_shape(*x, p0)), names[j], " has another shape");
      param.dtype[j] = dtype_of(*x);
      FMK_CHECK(param.dtype[j] != Dtype::other, names[j], " must be floating point");
      if (!x->is_contiguous()) {
        copies.push_back(torch::stable::contiguous(*x));
        x = &copies.back();
      }
      param.data[j] = x->const_data_ptr();
      in_double |= param.dtype[j] == Dtype::f64;
    }
    const Dtype dtype = promote(param.dtype[0], param.dtype[1]);
    const Dtype wide = promote(dtype, promote(param.dtype[2], param.dtype[3]));
    out_dtype = params.empty() ? dtype : promote(out_dtype, dtype);
    grad_dtype = params.empty() ? wide : promote(grad_dtype, wide);
    width += param.n;
    params.push_back(param);
  }
  void add(const std::vector<Tensor>& p0, const std::vector<Tensor>& p1, const std::vector<Tensor>& weight,
           const std::vector<Tensor>& bias) {
    FMK_CHECK(p0.size() == p1.size() && p0.size() == weight.size() && p0.size() == bias.size(),
              "params: lists of different lengths");
    params.reserve(p0.size());
    for (size_t i = 0; i < p0.size(); i++) add(p0[i], p1[i], weight[i], bias[i]);
  }
};

inline void check_times(const Tensor& times, double weight_offset) {
  check_finite(weight_offset, "weight_offset");
  check_tensor(times, "times");
  FMK_CHECK(times.dim() == 1, "times must be one-dimensional");
}

inline std::vector<int64_t> rows_of(const Tensor& times, const Tensor& param) {
  std::vector<int64_t> sizes{times.numel()};
  sizes.insert(sizes.end(), param.sizes().begin(), param.sizes().end());
  return sizes;
}

// An out of the single op.
inline void check_out(const Tensor& out, const Group& group, const Tensor& p0, const Tensor& p1, const Tensor& weight,
                      const Tensor& bias, const Tensor& times) {
  check_tensor(out, "out");
  const auto rows = rows_of(times, p0);
  FMK_CHECK(dtype_of(out) == group.out_dtype, "out has another dtype");
  FMK_CHECK(out.sizes().size() == rows.size() && std::equal(rows.begin(), rows.end(), out.sizes().begin()),
            "out has another shape");
  check_writable(out, "out", {&p0, &p1, &weight, &bias, &times});
}

// An out of the group.
inline void check_rows(const Tensor& out, const Tensor& times, const Group& group) {
  check_tensor(out, "out");
  FMK_CHECK(dtype_of(out) == group.out_dtype && out.is_contiguous() && out.dim() == 2 &&
                out.size(0) == times.numel() && out.size(1) == group.width,
            "out must be a dense (T, total) buffer of the parameters' dtype");
}

}  // namespace fmk
