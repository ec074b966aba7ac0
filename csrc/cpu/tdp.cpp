// tdp: out[k] = p1 + sigmoid(times[k] * (weight + offset) + bias) * (p0 - p1), for one parameter or for
// all of a model's in one pass. A parameter is cut into segments of at most a tile; the group is the
// list of all segments, so that one parallel loop serves 171 parameters as it serves one.
#include <mutex>
#include <unordered_map>

#include "common.h"

namespace fmk {
namespace {

template <class C>
FMK_CLONES void tdp_tile(const C* __restrict p0, const C* __restrict p1, const C* __restrict weight,
                         const C* __restrict bias, C time, C offset, C* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    out[i] = p1[i] + sigmoid(time * (weight[i] + offset) + bias[i]) * (p0[i] - p1[i]);
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
    const C x = time * w + bias[i];
    const C s = sigmoid(x), one_minus_s = sigmoid(-x);
    const C g = grad[i];
    const C to_x = g * (p0[i] - p1[i]) * s * one_minus_s;
    g0[i] += g * s;
    g1[i] += g * one_minus_s;
    gw[i] += to_x * time;
    gb[i] += to_x;
    to_time += to_x * w;
  }
  return to_time;
}

// One parameter: four tensors of n elements, and the column of the output where it starts.
template <class C>
struct Param {
  Source<C> p0, p1, weight, bias;
  int64_t n, column;
};

template <class C>
struct Segment {
  const Param<C>* param;
  int64_t begin, n;
};

template <class C>
std::vector<Segment<C>> segments_of(const std::vector<Param<C>>& params) {
  std::vector<Segment<C>> segments;
  for (const auto& param : params)
    for (int64_t i = 0; i < param.n; i += kTile)
      segments.push_back({&param, i, std::min(kTile, param.n - i)});
  return segments;
}

// out is (T, width); `params` may have more elements than a tile each.
template <class C>
void forward(const std::vector<Param<C>>& params, const std::vector<C>& times, double weight_offset,
             const Sink<C>& out, int64_t width) {
  const auto segments = segments_of(params);
  const int64_t steps = int64_t(times.size());
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(steps, 1));
  torch::stable::parallel_for(0, int64_t(segments.size()), grain, [&](int64_t first, int64_t last) {
    Tile<C> a, b, c, d, result;
    for (int64_t s = first; s < last; s++) {
      const auto& [param, begin, n] = segments[s];
      const C* p0 = param->p0.at(begin, n, a);
      const C* p1 = param->p1.at(begin, n, b);
      const C* weight = param->weight.at(begin, n, c);
      const C* bias = param->bias.at(begin, n, d);
      for (int64_t k = 0; k < steps; k++) {
        const int64_t at = k * width + param->column + begin;
        C* tile = out.at(at, result);
        tdp_tile(p0, p1, weight, bias, times[k], C(weight_offset), tile, n);
        out.put(at, tile, n);
      }
    }
  });
}

// grad is (T, width); grads[0..3] are (width,) each; returns the gradient to times.
template <class C>
std::vector<double> backward(const Source<C>& grad, const std::vector<Param<C>>& params,
                             const std::vector<C>& times, double weight_offset,
                             const std::array<Sink<C>, 4>& grads, int64_t width) {
  const auto segments = segments_of(params);
  const int64_t steps = int64_t(times.size());
  std::vector<double> shares(segments.size() * steps);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(steps, 1));
  torch::stable::parallel_for(0, int64_t(segments.size()), grain, [&](int64_t first, int64_t last) {
    Tile<C> a, b, c, d, g, sums[4];
    for (int64_t s = first; s < last; s++) {
      const auto& [param, begin, n] = segments[s];
      const C* p0 = param->p0.at(begin, n, a);
      const C* p1 = param->p1.at(begin, n, b);
      const C* weight = param->weight.at(begin, n, c);
      const C* bias = param->bias.at(begin, n, d);
      const int64_t column = param->column + begin;
      for (auto& sum : sums) std::fill_n(sum.data, n, C(0));
      for (int64_t k = 0; k < steps; k++)
        shares[s * steps + k] =
            tdp_tile_backward(grad.at(k * width + column, n, g), p0, p1, weight, bias, times[k],
                              C(weight_offset), sums[0].data, sums[1].data, sums[2].data, sums[3].data, n);
      for (int j = 0; j < 4; j++) grads[j].write(column, sums[j].data, n);
    }
  });
  std::vector<double> to_times(steps);
  for (size_t s = 0; s < segments.size(); s++)
    for (int64_t k = 0; k < steps; k++) to_times[k] += shares[s * steps + k];
  return to_times;
}

// The four lists as dense tensors; owns what it had to copy.
struct Group {
  std::vector<Tensor> lists[4];
  int64_t width = 0;
  bool in_double = false;
  Dtype out_dtype = Dtype::f32;  // promotion of every p0 and p1

  void add(const Tensor& p0, const Tensor& p1, const Tensor& weight, const Tensor& bias) {
    check_tensor(p0, "param0");
    check_like(p1, p0, "param1");
    check_like(weight, p0, "weight");
    check_like(bias, p0, "bias");
    const Dtype dtype = promote(dtype_of(p0), dtype_of(p1));
    out_dtype = lists[0].empty() ? dtype : promote(out_dtype, dtype);
    in_double |= dtype == Dtype::f64 || is_double(weight) || is_double(bias);
    width += p0.numel();
    int j = 0;
    for (const Tensor* x : {&p0, &p1, &weight, &bias}) lists[j++].push_back(dense(*x));
  }
  void add(const std::vector<Tensor>& p0, const std::vector<Tensor>& p1, const std::vector<Tensor>& weight,
           const std::vector<Tensor>& bias) {
    FMK_CHECK(p0.size() == p1.size() && p0.size() == weight.size() && p0.size() == bias.size(),
              "params: lists of different lengths");
    for (auto& list : lists) list.reserve(p0.size());
    for (size_t i = 0; i < p0.size(); i++) add(p0[i], p1[i], weight[i], bias[i]);
  }
  template <class C>
  std::vector<Param<C>> params() const {
    std::vector<Param<C>> out;
    out.reserve(lists[0].size());
    int64_t column = 0;
    for (size_t i = 0; i < lists[0].size(); i++) {
      const int64_t n = lists[0][i].numel();
      out.push_back({Source<C>(lists[0][i]), Source<C>(lists[1][i]), Source<C>(lists[2][i]),
                     Source<C>(lists[3][i]), n, column});
      column += n;
    }
    return out;
  }
};

void check_times(const Tensor& times) {
  check_tensor(times, "times");
  FMK_CHECK(times.dim() == 1, "times must be one-dimensional");
}

void run(const Group& group, const Tensor& times, double weight_offset, const Tensor& out) {
  with_compute_type(group.in_double, [&](auto zero) {
    using C = decltype(zero);
    forward(group.params<C>(), values_of<C>(times), weight_offset, Sink<C>(out), group.width);
  });
}

std::vector<int64_t> rows_of(const Tensor& times, const Tensor& param) {
  std::vector<int64_t> sizes{times.numel()};
  sizes.insert(sizes.end(), param.sizes().begin(), param.sizes().end());
  return sizes;
}

Tensor tdp(Tensor p0, Tensor p1, Tensor weight, Tensor bias, Tensor times, double weight_offset) {
  check_times(times);
  Group group;
  group.add(p0, p1, weight, bias);
  Tensor out = fresh(rows_of(times, p0), group.out_dtype);
  run(group, times, weight_offset, out);
  return out;
}

void tdp_out(Tensor p0, Tensor p1, Tensor weight, Tensor bias, Tensor times, double weight_offset, Tensor out) {
  check_times(times);
  check_tensor(out, "out");
  Group group;
  group.add(p0, p1, weight, bias);
  const auto rows = rows_of(times, p0);
  FMK_CHECK(dtype_of(out) == group.out_dtype, "out has another dtype");
  FMK_CHECK(out.sizes().size() == rows.size() && std::equal(rows.begin(), rows.end(), out.sizes().begin()),
            "out has another shape");
  check_writable(out, "out", {&p0, &p1, &weight, &bias, &times});
  InPlace target(out);
  run(group, times, weight_offset, target.work);
  target.commit();
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> tdp_backward(Tensor grad, Tensor p0, Tensor p1,
                                                                Tensor weight, Tensor bias, Tensor times,
                                                                double weight_offset) {
  check_times(times);
  check_tensor(grad, "grad");
  Group group;
  group.add(p0, p1, weight, bias);
  FMK_CHECK(grad.numel() == times.numel() * group.width, "grad has another shape");
  std::array<Tensor, 4> grads;
  int j = 0;
  for (const Tensor* x : {&p0, &p1, &weight, &bias}) grads[j++] = fresh_like(*x);
  const Tensor g = dense(grad);
  const auto to_times = with_compute_type(group.in_double || is_double(grad), [&](auto zero) {
    using C = decltype(zero);
    const std::array<Sink<C>, 4> sinks{Sink<C>(grads[0]), Sink<C>(grads[1]), Sink<C>(grads[2]),
                                       Sink<C>(grads[3])};
    return backward(Source<C>(g), group.params<C>(), values_of<C>(times), weight_offset, sinks, group.width);
  });
  return {grads[0], grads[1], grads[2], grads[3], tensor_of(to_times, {times.numel()}, dtype_of(times))};
}

Tensor tdp_group(std::vector<Tensor> p0, std::vector<Tensor> p1, std::vector<Tensor> weight,
                 std::vector<Tensor> bias, Tensor times, double weight_offset) {
  check_times(times);
  Group group;
  group.add(p0, p1, weight, bias);
  Tensor out = fresh({times.numel(), group.width}, group.out_dtype);
  run(group, times, weight_offset, out);
  return out;
}

std::tuple<Tensor, Tensor> tdp_group_backward(Tensor grad, std::vector<Tensor> p0, std::vector<Tensor> p1,
                                              std::vector<Tensor> weight, std::vector<Tensor> bias,
                                              Tensor times, double weight_offset) {
  check_times(times);
  check_tensor(grad, "grad");
  Group group;
  group.add(p0, p1, weight, bias);
  FMK_CHECK(grad.numel() == times.numel() * group.width, "grad has another shape");
  const Tensor g = dense(grad);
  Tensor grads = fresh({4, group.width}, group.out_dtype);
  const auto to_times = with_compute_type(group.in_double || is_double(grad), [&](auto zero) {
    using C = decltype(zero);
    std::array<Sink<C>, 4> sinks;
    for (int j = 0; j < 4; j++) {
      sinks[j] = Sink<C>(grads);
      sinks[j].data = static_cast<char*>(sinks[j].data) + j * group.width * size_of(group.out_dtype);
    }
    return backward(Source<C>(g), group.params<C>(), values_of<C>(times), weight_offset, sinks, group.width);
  });
  return {grads, tensor_of(to_times, {times.numel()}, dtype_of(times))};
}

// ---- pinned groups ----
// Passing 684 tensors through the dispatcher costs more than the arithmetic on them. A pinned group
// holds references to the parameters, and reads their addresses anew on every call, so a parameter
// whose storage moved (.to(), load_state_dict, p.data = ...) is followed, not remembered.
std::mutex pinned_lock;
std::unordered_map<int64_t, std::shared_ptr<const std::vector<Tensor>>> pinned;

int64_t tdp_pin(std::vector<Tensor> params) {
  FMK_CHECK(params.size() % 4 == 0, "params must be p0, p1, weight, bias, p0, ...");
  static int64_t next = 0;
  const std::lock_guard<std::mutex> guard(pinned_lock);
  pinned[++next] = std::make_shared<const std::vector<Tensor>>(std::move(params));
  return next;
}

void tdp_unpin(int64_t id) {
  const std::lock_guard<std::mutex> guard(pinned_lock);
  pinned.erase(id);
}

void tdp_pinned(int64_t id, Tensor times, double weight_offset, Tensor out) {
  std::shared_ptr<const std::vector<Tensor>> params;
  {
    const std::lock_guard<std::mutex> guard(pinned_lock);
    const auto found = pinned.find(id);
    FMK_CHECK(found != pinned.end(), "the group was never pinned or is unpinned already");
    params = found->second;
  }
  check_times(times);
  check_tensor(out, "out");
  Group group;
  for (auto& list : group.lists) list.reserve(params->size() / 4);
  for (size_t i = 0; i < params->size(); i += 4)
    group.add((*params)[i], (*params)[i + 1], (*params)[i + 2], (*params)[i + 3]);
  FMK_CHECK(dtype_of(out) == group.out_dtype && out.is_contiguous() && out.dim() == 2 &&
                out.size(0) == times.numel() && out.size(1) == group.width,
            "out must be a dense (T, total) buffer of the parameters' dtype");
  run(group, times, weight_offset, out);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CPU, m) {
  m.impl("tdp", TORCH_BOX(&tdp));
  m.impl("tdp_out", TORCH_BOX(&tdp_out));
  m.impl("tdp_backward", TORCH_BOX(&tdp_backward));
  m.impl("tdp_group", TORCH_BOX(&tdp_group));
  m.impl("tdp_group_backward", TORCH_BOX(&tdp_group_backward));
  m.impl("tdp_pin", TORCH_BOX(&tdp_pin));
  m.impl("tdp_pinned", TORCH_BOX(&tdp_pinned));
}

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CompositeExplicitAutograd, m) { m.impl("tdp_unpin", TORCH_BOX(&tdp_unpin)); }

}  // namespace fmk
