// tdp on the CPU. Parameters are divided into segments of at most one tile. A group is the list of all segments, so one
// parallel loop handles any number of parameters.
#include <mutex>
#include <unordered_map>

#include "common.h"

#include "../shared/tdp.h"

namespace fmk {
namespace {

// kReady: p0 and weight contain p0 - p1 and weight + offset, computed once for several times.
template <bool kReady, class C>
FMK_CLONES void tdp_tile(const C* __restrict p0, const C* __restrict p1, const C* __restrict weight,
                         const C* __restrict bias, C time, C offset, C* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const C w = kReady ? weight[i] : weight[i] + offset, spread = kReady ? p0[i] : p0[i] - p1[i];
    out[i] = p1[i] + sigmoid(time * w + bias[i]) * spread;
  }
}

template <class C>
FMK_CLONES void prepare_tile(const C* __restrict p0, const C* __restrict p1, const C* __restrict weight, C offset,
                             C* __restrict spread, C* __restrict shifted, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    spread[i] = p0[i] - p1[i];
    shifted[i] = weight[i] + offset;
  }
}

// Adds one time's share to the four gradients; returns its share of the gradient to that time.
template <class C>
FMK_CLONES C tdp_tile_backward(const C* __restrict grad, const C* __restrict p0, const C* __restrict p1,
                               const C* __restrict weight, const C* __restrict bias, C time, C offset,
                               C* __restrict g0, C* __restrict g1, C* __restrict gw, C* __restrict gb,
                               int64_t n) {
  C to_time = 0;
#pragma omp simd reduction(+ : to_time)
  for (int64_t i = 0; i < n; i++) {
    const C w = weight[i] + offset;
    const auto s = sigmoid_pair(time * w + bias[i]);
    const C g = grad[i];
    const C to_x = g * (p0[i] - p1[i]) * s.value * s.complement;
    g0[i] += g * s.value;
    g1[i] += g * s.complement;
    gw[i] += to_x * time;
    gb[i] += to_x;
    to_time += to_x * w;
  }
  return to_time;
}

// n elements, from i on, of one of the four tensors of a parameter.
template <class C>
const C* values_of(const Param& param, int which, int64_t i, int64_t n, C* tile) {
  return Source<C>(param.data[which], param.dtype[which]).at(i, n, tile);
}

// Runs body(param, begin, n) over every segment of at most a tile, in parallel. `steps` is the work per element.
template <class F>
void for_segments(const std::vector<Param>& params, int64_t steps, const F& body) {
  struct Segment {
    const Param* param;
    int64_t begin;
  };
  std::vector<Segment> segments;
  for (const auto& param : params)
    for (int64_t i = 0; i < param.n; i += kTile) segments.push_back({&param, i});
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(steps, 1));
  parallel(int64_t(segments.size()), grain, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; s++) {
      const auto [param, begin] = segments[s];
      body(*param, begin, std::min(kTile, param->n - begin), s);
    }
  });
}
int64_t count_segments(const std::vector<Param>& params) {
  int64_t count = 0;
  for (const auto& param : params) count += tiles_of(param.n);
  return count;
}

// out is (T, width).
template <class C>
void forward(const Group& group, const Values<C>& times, double weight_offset, const Sink<C>& out) {
  const int64_t steps = times.size();
  for_segments(group.params, steps, [&](const Param& param, int64_t begin, int64_t n, int64_t) {
    Tile<C> a, b, c, d, spread, shifted, result;
    const C *p0 = values_of<C>(param, 0, begin, n, a), *p1 = values_of<C>(param, 1, begin, n, b);
    const C *weight = values_of<C>(param, 2, begin, n, c), *bias = values_of<C>(param, 3, begin, n, d);
    const C offset = C(weight_offset);
    if (steps > 1) prepare_tile(p0, p1, weight, offset, spread.data, shifted.data, n);
    for (int64_t k = 0; k < steps; k++) {
      const int64_t at = k * group.width + param.column + begin;
      C* tile = out.at(at, result);
      if (steps > 1)
        tdp_tile<true>(spread.data, p1, shifted.data, bias, times[k], offset, tile, n);
      else
        tdp_tile<false>(p0, p1, weight, bias, times[k], offset, tile, n);
      out.put(at, tile, n);
    }
  });
}

// grad is (T, width); grads[0..3] are (width,) each; returns the gradient to times.
template <class C>
std::vector<double> backward(const Source<C>& grad, const Group& group, const Values<C>& times,
                             double weight_offset, const std::array<Sink<C>, 4>& grads) {
  const int64_t steps = times.size();
  std::vector<double> shares(size_t(count_segments(group.params) * steps));
  for_segments(group.params, steps, [&](const Param& param, int64_t begin, int64_t n, int64_t segment) {
    Tile<C> a, b, c, d, g, sums[4];
    const C *p0 = values_of<C>(param, 0, begin, n, a), *p1 = values_of<C>(param, 1, begin, n, b);
    const C *weight = values_of<C>(param, 2, begin, n, c), *bias = values_of<C>(param, 3, begin, n, d);
    const int64_t column = param.column + begin;
    for (auto& sum : sums) std::fill_n(sum.data, n, C(0));
    for (int64_t k = 0; k < steps; k++)
      shares[segment * steps + k] =
          tdp_tile_backward(grad.at(k * group.width + column, n, g), p0, p1, weight, bias, times[k],
                            C(weight_offset), sums[0].data, sums[1].data, sums[2].data, sums[3].data, n);
    for (int j = 0; j < 4; j++) grads[j].write(column, sums[j].data, n);
  });
  std::vector<double> to_times(steps);
  for (size_t k = 0; k < shares.size(); k++) to_times[k % steps] += shares[k];
  return to_times;
}

}  // namespace

void run_tdp(const Device&, const Group& group, const Tensor& times, double weight_offset, const Tensor& out) {
  with_compute_type(group.in_double, [&](auto zero) {
    using C = decltype(zero);
    forward(group, Values<C>(times), weight_offset, Sink<C>(out));
  });
}

void run_tdp_backward(const Device&, const Group& group, const Tensor& grad, const Tensor& times,
                      double weight_offset, const std::array<Output, 4>& grads, const Tensor& to_times) {
  const Tensor g = dense(grad);
  with_compute_type(group.in_double || is_double(grad), [&](auto zero) {
    using C = decltype(zero);
    std::array<Sink<C>, 4> sinks;
    for (int j = 0; j < 4; j++) sinks[j] = Sink<C>(grads[j].data, grads[j].dtype);
    put_values(backward(Source<C>(g), group, Values<C>(times), weight_offset, sinks), to_times);
  });
}

namespace {

// ---- pinned groups ----
// Passing 684 tensors through the dispatcher costs more than the arithmetic on them. A pinned group
// holds references to the parameters and reads their addresses at every call, so a parameter
// whose storage moved (.to(), load_state_dict, p.data = ...) is followed, not remembered. Its shape must stay.
struct Pinned {
  std::vector<Tensor> params;
  std::vector<std::vector<int64_t>> shapes;  // one for four params
};
std::mutex pinned_lock;
std::unordered_map<int64_t, std::shared_ptr<const Pinned>> pinned;

int64_t tdp_pin(std::vector<Tensor> params) {
  FMK_CHECK(params.size() % 4 == 0, "params must be p0, p1, weight, bias, p0, ...");
  std::vector<std::vector<int64_t>> shapes;
  for (size_t i = 0; i < params.size(); i += 4) shapes.emplace_back(params[i].sizes().begin(), params[i].sizes().end());
  static int64_t next = 0;
  const std::lock_guard<std::mutex> guard(pinned_lock);
  pinned[++next] = std::make_shared<const Pinned>(Pinned{std::move(params), std::move(shapes)});
  return next;
}

void tdp_unpin(int64_t id) {
  const std::lock_guard<std::mutex> guard(pinned_lock);
  pinned.erase(id);
}

void tdp_pinned(int64_t id, Tensor times, double weight_offset, Tensor out) {
  std::shared_ptr<const Pinned> held;
  {
    const std::lock_guard<std::mutex> guard(pinned_lock);
    const auto found = pinned.find(id);
    FMK_CHECK(found != pinned.end(), "the group was never pinned or is unpinned already");
    held = found->second;
  }
  check_times(times, weight_offset);
  Group group;
  const auto& [params, shapes] = *held;
  group.params.reserve(shapes.size());
  for (size_t i = 0; i < params.size(); i += 4)
    group.add(params[i], params[i + 1], params[i + 2], params[i + 3], &shapes[i / 4]);
  const Device device(times, "times");
  check_group_out(out, times, group);
  run_tdp(device, group, times, weight_offset, out);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CPU, m) {
  m.impl("tdp_pin", TORCH_BOX(&tdp_pin));
  m.impl("tdp_pinned", TORCH_BOX(&tdp_pinned));
}

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CompositeExplicitAutograd, m) { m.impl("tdp_unpin", TORCH_BOX(&tdp_unpin)); }

}  // namespace fmk
