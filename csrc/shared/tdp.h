// tdp: out[k] = p1 + sigmoid(times[k] * (weight + offset) + bias) * (p0 - p1), for one parameter or for all of a
// model's in one pass: the ops on any device.
#pragma once
#include "tensors.h"

namespace fmk {

// One parameter: p0, p1, weight, bias of n elements each, and the column of the output where it starts.
struct Param {
  const void* data[4];
  Dtype dtype[4];
  int64_t n, column;
};

// Parameters side by side, without owning references to the dense ones: created for every call.
struct Group {
  std::vector<Param> params;
  std::vector<Tensor> copies;  // of what was not dense
  int64_t width = 0;
  bool in_double = false;
  Dtype out_dtype = Dtype::f32;   // promotion of every p0 and p1
  Dtype grad_dtype = Dtype::f32;  // and of every weight and bias too

  // `shape`: the one that all four must have; p0's if it is left out.
  void add(const Tensor& p0, const Tensor& p1, const Tensor& weight, const Tensor& bias,
           const std::vector<int64_t>* shape = nullptr) {
    static const char* const names[] = {"param0", "param1", "weight", "bias"};
    const Tensor* tensors[] = {&p0, &p1, &weight, &bias};
    Param param;
    param.n = p0.numel();
    param.column = width;
    for (int j = 0; j < 4; j++) {
      const Tensor* x = tensors[j];
      FMK_CHECK(is_here(*x), names[j], " must be on ", Here::name);
      FMK_CHECK(shape ? has_sizes(*x, *shape) : j == 0 || same_shape(*x, p0), names[j], " has another shape");
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

// out is (T, width), dense.
void run_tdp(const Device& device, const Group& group, const Tensor& times, double weight_offset, const Tensor& out);

// grad is (T, width); the gradients of the four go to `grads`, (width,) each, that of times to `to_times`.
struct Output {
  void* data;
  Dtype dtype;
};
void run_tdp_backward(const Device& device, const Group& group, const Tensor& grad, const Tensor& times,
                      double weight_offset, const std::array<Output, 4>& grads, const Tensor& to_times);

inline std::vector<int64_t> result_sizes(const Tensor& times, const Tensor& param) {
  std::vector<int64_t> sizes{times.numel()};
  sizes.insert(sizes.end(), param.sizes().begin(), param.sizes().end());
  return sizes;
}

inline Tensor tdp(Tensor p0, Tensor p1, Tensor weight, Tensor bias, Tensor times, double weight_offset) {
  const Device device(p0, "param0");
  check_times(times, weight_offset);
  Group group;
  group.add(p0, p1, weight, bias);
  Tensor out = fresh(result_sizes(times, p0), group.out_dtype);
  run_tdp(device, group, times, weight_offset, out);
  return out;
}

inline void tdp_out(Tensor p0, Tensor p1, Tensor weight, Tensor bias, Tensor times, double weight_offset, Tensor out) {
  const Device device(p0, "param0");
  check_times(times, weight_offset);
  Group group;
  group.add(p0, p1, weight, bias);
  check_tensor(out, "out");
  FMK_CHECK(dtype_of(out) == group.out_dtype, "out has another dtype");
  FMK_CHECK(has_sizes(out, result_sizes(times, p0)), "out has another shape");
  check_writable(out, "out", {&p0, &p1, &weight, &bias, &times});
  InPlace target(out);
  run_tdp(device, group, times, weight_offset, *target.work);
  target.commit();
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> tdp_backward(Tensor grad, Tensor p0, Tensor p1,
                                                                       Tensor weight, Tensor bias, Tensor times,
                                                                       double weight_offset) {
  const Device device(p0, "param0");
  check_times(times, weight_offset);
  check_tensor(grad, "grad");
  Group group;
  group.add(p0, p1, weight, bias);
  FMK_CHECK(grad.numel() == times.numel() * group.width, "grad has another shape");
  const std::array<Tensor, 4> grads{fresh_like(p0), fresh_like(p1), fresh_like(weight), fresh_like(bias)};
  std::array<Output, 4> outputs;
  for (int j = 0; j < 4; j++) outputs[j] = {grads[j].mutable_data_ptr(), dtype_of(grads[j])};
  Tensor to_times = fresh_like(times);
  run_tdp_backward(device, group, grad, times, weight_offset, outputs, to_times);
  return {grads[0], grads[1], grads[2], grads[3], to_times};
}

inline Tensor tdp_group(std::vector<Tensor> p0, std::vector<Tensor> p1, std::vector<Tensor> weight,
                        std::vector<Tensor> bias, Tensor times, double weight_offset) {
  const Device device(times, "times");
  check_times(times, weight_offset);
  Group group;
  group.add(p0, p1, weight, bias);
  Tensor out = fresh({times.numel(), group.width}, group.out_dtype);
  run_tdp(device, group, times, weight_offset, out);
  return out;
}

inline void check_group_out(const Tensor& out, const Tensor& times, const Group& group) {
  check_tensor(out, "out");
  FMK_CHECK(dtype_of(out) == group.out_dtype && out.is_contiguous() && out.dim() == 2 &&
                out.size(0) == times.numel() && out.size(1) == group.width,
            "out must be a dense (T, total) buffer of the parameters' dtype");
  const char* const begin = static_cast<const char*>(out.const_data_ptr());
  const char* const end = begin + out.numel() * size_of(group.out_dtype);
  for (const Param& param : group.params)
    for (int j = 0; j < 4; j++) {
      const char* const other = static_cast<const char*>(param.data[j]);
      FMK_CHECK(end <= other || other + param.n * size_of(param.dtype[j]) <= begin,
                "out may share memory with a parameter");
    }
  check_writable(out, "out", {&times});
}

inline void tdp_group_out(std::vector<Tensor> p0, std::vector<Tensor> p1, std::vector<Tensor> weight,
                          std::vector<Tensor> bias, Tensor times, double weight_offset, Tensor out) {
  const Device device(times, "times");
  check_times(times, weight_offset);
  Group group;
  group.add(p0, p1, weight, bias);
  check_group_out(out, times, group);
  run_tdp(device, group, times, weight_offset, out);
}

inline std::tuple<Tensor, Tensor> tdp_group_backward(Tensor grad, std::vector<Tensor> p0, std::vector<Tensor> p1,
                                                     std::vector<Tensor> weight, std::vector<Tensor> bias,
                                                     Tensor times, double weight_offset) {
  const Device device(times, "times");
  check_times(times, weight_offset);
  check_tensor(grad, "grad");
  Group group;
  group.add(p0, p1, weight, bias);
  FMK_CHECK(grad.numel() == times.numel() * group.width, "grad has another shape");
  Tensor grads = fresh({4, group.width}, group.grad_dtype), to_times = fresh_like(times);
  std::array<Output, 4> outputs;
  for (int j = 0; j < 4; j++) {
    char* const rows = static_cast<char*>(grads.mutable_data_ptr());
    outputs[j] = {rows + j * group.width * size_of(group.grad_dtype), group.grad_dtype};
  }
  run_tdp_backward(device, group, grad, times, weight_offset, outputs, to_times);
  return {grads, to_times};
}

STABLE_TORCH_LIBRARY_IMPL(fmkernels, FMK_KEY, m) {
  m.impl("tdp", TORCH_BOX(&tdp));
  m.impl("tdp_out", TORCH_BOX(&tdp_out));
  m.impl("tdp_backward", TORCH_BOX(&tdp_backward));
  m.impl("tdp_group", TORCH_BOX(&tdp_group));
  m.impl("tdp_group_out", TORCH_BOX(&tdp_group_out));
  m.impl("tdp_group_backward", TORCH_BOX(&tdp_group_backward));
}

}  // namespace fmk
