// tdp on a GPU: launches.
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
    FMK_CHECK(tile < (int64_t(1) << 30), "parameters of more than 10^12 elements");
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

}  // namespace

void run_tdp(const Device& device, const Group& group, const Tensor& times, double weight_offset, const Tensor& out) {
  const Tensor t = dense(times);
  std::vector<Source> params;
  int64_t odd = 0;  // elements beyond the last whole pack, of any parameter
  for (const Param& param : group.params) {
    for (int j = 0; j < 4; j++) params.push_back({param.data[j], param.dtype[j]});
    odd |= param.n % kPack;
  }
  params.push_back(source(out));
  with_access<Second::none>(group.in_double, params, {}, {odd}, out.numel(), [&](auto access) {
    using A = decltype(access);
    for_lists(group, [&](const auto& list, bool) {
      device.launch(tdp_kernel<A, std::decay_t<decltype(list)>>, list.tiles(), kTdpThreads, 0, list, source(t),
                    t.numel(), typename A::Compute(weight_offset), sink(out), group.width);
    });
  });
}

void run_tdp_backward(const Device& device, const Group& group, const Tensor& grad, const Tensor& times,
                      double weight_offset, const std::array<Output, 4>& grads, const Tensor& to_times) {
  const Tensor t = dense(times), g = dense(grad);
  TdpGradients out{};
  for (int j = 0; j < 4; j++) out.four[j] = {grads[j].data, grads[j].dtype};
  for (const Param& param : group.params) out.tiles += tiles_of(param);
  Tensor memory;
  out.shares = device.partials(t.numel() * out.tiles * kTdpWarps, memory);
  with_compute_type(group.in_double || is_double(grad), [&](auto zero) {
    using C = decltype(zero);
    for_lists(group, [&](const auto& list, bool last) {
      if (last) out.to_times = sink(to_times);
      device.launch(tdp_backward_kernel<C, std::decay_t<decltype(list)>>, std::max(1, list.tiles()), kTdpThreads, 0,
                    list, source(g), source(t), t.numel(), C(weight_offset), group.width, out);
      out.before += list.tiles();
    });
  });
}

}  // namespace fmk
