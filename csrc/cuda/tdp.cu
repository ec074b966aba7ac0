// The tdp ops for CUDA tensors: checks, launch, registration.
#include "tdp.cuh"

#include "launch.h"

#include "../shared/tdp.h"

namespace fmk {
namespace {

// Lists of these lengths travel with a launch; the middle one is a model's, the last all that 32 KB hold. A
// longer group takes several launches.
constexpr int kShort = 1, kModel = 192, kLongest = 640;

int64_t tiles_of(const Param& param) { return (param.n + kTdpTile - 1) / kTdpTile; }

// The parameters of `group` from `first` on, as many as fit.
template <int kCapacity>
TdpList<kCapacity> list_of(const Group& group, size_t first) {
  TdpList<kCapacity> list{};
  int64_t tile = 0;
  for (size_t i = first; i < group.params.size() && list.count < kCapacity; i++) {
    const Param& param = group.params[i];
    TdpParam& entry = list.params[list.count++];
    for (int j = 0; j < 4; j++) {
      entry.data[j] = param.data[j];
      entry.dtype[j] = uint8_t(param.dtype[j]);
    }
    entry.column = param.column;
    tile += tiles_of(param);
    FMK_CHECK(tile < (int64_t(1) << 31), "parameters of more than 2 * 10^12 elements");
    (&entry)[1].column = param.column + param.n;
    (&entry)[1].tile = int32_t(tile);
  }
  return list;
}

// body(list, whether it is the last) for each launch of a group.
template <class F>
void for_lists(const Group& group, const F& body) {
  const size_t count = group.params.size();
  if (count <= kShort) return body(list_of<kShort>(group, 0), true);
  if (count <= kModel) return body(list_of<kModel>(group, 0), true);
  for (size_t first = 0; first < count; first += kLongest)
    body(list_of<kLongest>(group, first), first + kLongest >= count);
}

// out is (T, width), dense.
void run(const OnDevice& device, const Group& group, const Tensor& times, double weight_offset, const Tensor& out) {
  const Tensor t = dense(times);
  with_compute_type(group.in_double, [&](auto zero) {
    using C = decltype(zero);
    for_lists(group, [&](const auto& list, bool) {
      device.launch(tdp_kernel<C, std::decay_t<decltype(list)>>, list.tiles(), kTdpThreads, 0, list, source(t),
                    t.numel(), C(weight_offset), sink(out), group.width);
    });
  });
}

// grads: four of (width,). Returns the gradient to times.
Tensor run_backward(const OnDevice& device, const Tensor& grad, const Group& group, const Tensor& times,
                    double weight_offset, const std::array<Sink, 4>& grads) {
  const Tensor t = dense(times), g = dense(grad);
  Tensor to_times = fresh({times.numel()}, dtype_of(times));
  TdpGradients out{{grads[0], grads[1], grads[2], grads[3]}, {nullptr, Dtype::f32}, nullptr, 0, 0};
  for (const Param& param : group.params) out.tiles += tiles_of(param);
  const Tensor shares = fresh({times.numel(), out.tiles}, Dtype::f64);
  out.shares = static_cast<double*>(shares.mutable_data_ptr());
  with_compute_type(group.in_double || is_double(grad), [&](auto zero) {
    using C = decltype(zero);
    for_lists(group, [&](const auto& list, bool last) {
      if (last) out.to_times = sink(to_times);
      device.launch(tdp_backward_kernel<C, std::decay_t<decltype(list)>>, std::max(1, list.tiles()), kTdpThreads, 0,
                    list, source(g), source(t), t.numel(), C(weight_offset), group.width, out, next_ticket());
      out.before += list.tiles();
    });
  });
  return to_times;
}

Tensor tdp(Tensor p0, Tensor p1, Tensor weight, Tensor bias, Tensor times, double weight_offset) {
  const OnDevice device(p0, "param0");
  check_times(times, weight_offset);
  Group group;
  group.add(p0, p1, weight, bias);
  Tensor out = fresh(rows_of(times, p0), group.out_dtype);
  run(device, group, times, weight_offset, out);
  return out;
}

void tdp_out(Tensor p0, Tensor p1, Tensor weight, Tensor bias, Tensor times, double weight_offset, Tensor out) {
  const OnDevice device(p0, "param0");
  check_times(times, weight_offset);
  Group group;
  group.add(p0, p1, weight, bias);
  check_out(out, group, p0, p1, weight, bias, times);
  InPlace target(out);
  run(device, group, times, weight_offset, target.work);
  target.commit();
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> tdp_backward(Tensor grad, Tensor p0, Tensor p1, Tensor weight,
                                                                Tensor bias, Tensor times, double weight_offset) {
  const OnDevice device(p0, "param0");
  check_times(times, weight_offset);
  check_tensor(grad, "grad");
  Group group;
  group.add(p0, p1, weight, bias);
  FMK_CHECK(grad.numel() == times.numel() * group.width, "grad has another shape");
  const std::array<Tensor, 4> grads{fresh_like(p0), fresh_like(p1), fresh_like(weight), fresh_like(bias)};
  const Tensor to_times = run_backward(device, grad, group, times, weight_offset,
                                       {sink(grads[0]), sink(grads[1]), sink(grads[2]), sink(grads[3])});
  return {grads[0], grads[1], grads[2], grads[3], to_times};
}

Tensor tdp_group(std::vector<Tensor> p0, std::vector<Tensor> p1, std::vector<Tensor> weight, std::vector<Tensor> bias,
                 Tensor times, double weight_offset) {
  const OnDevice device(times, "times");
  check_times(times, weight_offset);
  Group group;
  group.add(p0, p1, weight, bias);
  Tensor out = fresh({times.numel(), group.width}, group.out_dtype);
  run(device, group, times, weight_offset, out);
  return out;
}

void tdp_group_out(std::vector<Tensor> p0, std::vector<Tensor> p1, std::vector<Tensor> weight,
                   std::vector<Tensor> bias, Tensor times, double weight_offset, Tensor out) {
  const OnDevice device(times, "times");
  check_times(times, weight_offset);
  Group group;
  group.add(p0, p1, weight, bias);
  check_rows(out, times, group);
  run(device, group, times, weight_offset, out);
}

std::tuple<Tensor, Tensor> tdp_group_backward(Tensor grad, std::vector<Tensor> p0, std::vector<Tensor> p1,
                                              std::vector<Tensor> weight, std::vector<Tensor> bias, Tensor times,
                                              double weight_offset) {
  const OnDevice device(times, "times");
  check_times(times, weight_offset);
  check_tensor(grad, "grad");
  Group group;
  group.add(p0, p1, weight, bias);
  FMK_CHECK(grad.numel() == times.numel() * group.width, "grad has another shape");
  Tensor grads = fresh({4, group.width}, group.grad_dtype);
  std::array<Sink, 4> rows;
  for (int j = 0; j < 4; j++) {
    char* const row = static_cast<char*>(grads.mutable_data_ptr()) + j * group.width * size_of(group.grad_dtype);
    rows[j] = {row, group.grad_dtype};
  }
  const Tensor to_times = run_backward(device, grad, group, times, weight_offset, rows);
  return {grads, to_times};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CUDA, m) {
  m.impl("tdp", TORCH_BOX(&tdp));
  m.impl("tdp_out", TORCH_BOX(&tdp_out));
  m.impl("tdp_backward", TORCH_BOX(&tdp_backward));
  m.impl("tdp_group", TORCH_BOX(&tdp_group));
  m.impl("tdp_group_out", TORCH_BOX(&tdp_group_out));
  m.impl("tdp_group_backward", TORCH_BOX(&tdp_group_backward));
}

}  // namespace fmk
