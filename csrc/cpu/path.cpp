// The path psi and its derivative, and what training reads off a predicted velocity.
// psi = (t (r - 1) + 1) x0 + t x1 and Dt_psi = (r - 1) x0 + x1, with r = sigma_min / sigma_max.
#include "common.h"

#include "../shared/path.h"

namespace fmk {
namespace {

// out = c0 * x0 + c1 * x1
template <class C>
FMK_CLONES void combine_tile(C c0, const C* __restrict x0, C c1, const C* __restrict x1, C* __restrict out,
                             int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = c0 * x0[i] + c1 * x1[i];
}

// x_t = c0 * x0 + c1 * x1 and v = ratio * x0 + x1, both from one read.
template <class C>
FMK_CLONES void pair_tile(C c0, C c1, C ratio, const C* __restrict x0, const C* __restrict x1, C* __restrict x_t,
                          C* __restrict v, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const C start = x0[i], end = x1[i];
    x_t[i] = c0 * start + c1 * end;
    v[i] = ratio * start + end;
  }
}

template <class C>
FMK_CLONES void scale_tile(C c, const C* __restrict x, C* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = c * x[i];
}

// Either output may be left out; both together are made in one pass over x0 and x1.
void run_path(const OptTensor& t, const Tensor& x0, const Tensor& x1, double sigma_min, double sigma_max,
              const OptTensor& x_t, const OptTensor& velocity) {
  const Tensor start = dense(x0), end = dense(x1);
  const Batch batch(x0);
  const double sigma_ratio = ratio_of(sigma_min, sigma_max);
  with_compute_type(is_double(x0) || is_double(x1), [&](auto zero) {
    using C = decltype(zero);
    const std::optional<Values<C>> times = t ? std::make_optional<Values<C>>(*t) : std::nullopt;
    const C ratio = C(sigma_ratio);
    const Source<C> from(start), to(end);
    const Sink<C> x_out = x_t ? Sink<C>(*x_t) : Sink<C>(), v_out = velocity ? Sink<C>(*velocity) : Sink<C>();
    for_tiles(batch.samples, batch.n, [&](int64_t sample, int64_t i, int64_t n, int64_t) {
      Tile<C> a, b, x_tile, v_tile;
      const int64_t at = sample * batch.n + i;
      const C *first = from.at(at, n, a), *last = to.at(at, n, b);
      C *x = x_out.at(at, x_tile), *v = v_out.at(at, v_tile);
      const C time = times ? (*times)[sample] : C(0), c0 = time * ratio + C(1);
      if (x_t && velocity)
        pair_tile(c0, time, ratio, first, last, x, v, n);
      else if (x_t)
        combine_tile(c0, first, time, last, x, n);
      else
        combine_tile(ratio, first, C(1), last, v, n);
      if (x_t) x_out.put(at, x, n);
      if (velocity) v_out.put(at, v, n);
    });
  });
}

Tensor psi(Tensor t, Tensor x0, Tensor x1, double sigma_min, double sigma_max) {
  check_ends(x0, x1);
  check_t(t, Batch(x0));
  Tensor out = fresh_like(x0, promote(dtype_of(x0), dtype_of(x1)));
  run_path(t, x0, x1, sigma_min, sigma_max, out, std::nullopt);
  return out;
}

Tensor dt_psi(Tensor x0, Tensor x1, double sigma_min, double sigma_max) {
  check_ends(x0, x1);
  Tensor out = fresh_like(x0, promote(dtype_of(x0), dtype_of(x1)));
  run_path(std::nullopt, x0, x1, sigma_min, sigma_max, std::nullopt, out);
  return out;
}

std::tuple<Tensor, Tensor> flow_pair(Tensor t, Tensor x0, Tensor x1, double sigma_min, double sigma_max,
                                     std::optional<torch::headeronly::ScalarType> dtype) {
  check_ends(x0, x1);
  check_t(t, Batch(x0));
  const Dtype out = dtype ? dtype_of(*dtype) : promote(dtype_of(x0), dtype_of(x1));
  FMK_CHECK(out != Dtype::other, "dtype must be floating point");
  Tensor x_t = fresh_like(x0, out), velocity = fresh_like(x0, out);
  run_path(t, x0, x1, sigma_min, sigma_max, x_t, velocity);
  return {x_t, velocity};
}

// The gradient of psi to x0 and x1, in the dtypes of `x0` and `x1`.
std::tuple<Tensor, Tensor> psi_backward(Tensor grad, Tensor t, Tensor x0, Tensor x1, double sigma_min,
                                        double sigma_max) {
  check_ends(x0, x1);
  check_like(grad, x0, "grad");
  const Batch batch(x0);
  check_t(t, batch);
  const Tensor g = dense(grad);
  Tensor grad0 = fresh_like(x0), grad1 = fresh_like(x1);
  with_compute_type(is_double(x0) || is_double(x1) || is_double(grad), [&](auto zero) {
    using C = decltype(zero);
    const Values<C> times(t);
    const C ratio = C(ratio_of(sigma_min, sigma_max));
    const Source<C> source(g);
    const Sink<C> to0(grad0), to1(grad1);
    for_tiles(batch.samples, batch.n, [&](int64_t sample, int64_t i, int64_t n, int64_t) {
      Tile<C> a, result;
      const int64_t at = sample * batch.n + i;
      const C* tile = source.at(at, n, a);
      for (int which = 0; which < 2; which++) {
        const Sink<C>& sink = which ? to1 : to0;
        C* out = sink.at(at, result);
        scale_tile(which ? times[sample] : times[sample] * ratio + C(1), tile, out, n);
        sink.put(at, out, n);
      }
    });
  });
  return {grad0, grad1};
}

// ---- velocity statistics: one pass, the target never written to memory ----
// The target is x1, or (kPair) ratio * x0 + x1.
template <bool kPair, class C>
FMK_FN C target_at(const C* x0, const C* x1, C ratio, int64_t i) {
  return kPair ? ratio * x0[i] + x1[i] : x1[i];
}

template <bool kPair, class C>
FMK_CLONES void velocity_tile(const C* __restrict pred, const C* __restrict x0, const C* __restrict x1, C ratio,
                              int64_t n, double* __restrict out) {
  C error = 0, pred2 = 0, target2 = 0, dot = 0, abs_pred = 0, abs_target = 0;
  decltype(magnitude(C(0))) max_pred = 0, max_target = 0;
#pragma omp simd reduction(+ : error, pred2, target2, dot, abs_pred, abs_target) reduction(max : max_pred, max_target)
  for (int64_t i = 0; i < n; i++) {
    const C p = pred[i], v = target_at<kPair>(x0, x1, ratio, i), d = p - v;
    error += d * d;
    pred2 += p * p;
    target2 += v * v;
    dot += p * v;
    abs_pred += absolute(p);
    abs_target += absolute(v);
    max_pred = std::max(max_pred, magnitude(p));
    max_target = std::max(max_target, magnitude(v));
  }
  const C columns[kVelocityColumns] = {error,      pred2,      target2,
                                       dot,        abs_pred,   abs_target,
                                       bit_cast<C>(max_pred), bit_cast<C>(max_target), 0};
  for (int c = 0; c < kVelocityColumns; c++) out[c] = double(columns[c]);
  if (finite(bit_cast<C>(max_pred)) && finite(bit_cast<C>(max_target))) return;
  // Something is not finite: count it, and take the maxima over what is a number.
  out[kMaxPred] = out[kMaxTarget] = 0;
  for (int64_t i = 0; i < n; i++) {
    const C p = pred[i], v = target_at<kPair>(x0, x1, ratio, i);
    out[kNonfinite] += finite(p) && finite(v) ? 0 : 1;
    out[kMaxPred] = std::max(out[kMaxPred], double(absolute(p)));
    out[kMaxTarget] = std::max(out[kMaxTarget], double(absolute(v)));
  }
}

// (B, 9) sums of every sample, row-major.
std::vector<double> velocity_sums(const Tensor& v_pred, const Target& target, double ratio) {
  const Batch batch(v_pred);
  const Tensor pred = dense(v_pred);
  const int64_t per_sample = tiles_of(batch.n);
  std::vector<double> tiles(size_t(batch.samples * per_sample * kVelocityColumns));
  with_compute_type(is_double(v_pred) || target.in_double(), [&](auto zero) {
    using C = decltype(zero);
    const Source<C> source(pred), x0(target.x0), x1(target.x1), given(target.given);
    for_tiles(batch.samples, batch.n, [&](int64_t sample, int64_t i, int64_t n, int64_t tile) {
      Tile<C> a, b, c;
      const int64_t at = sample * batch.n + i;
      const C* predicted = source.at(at, n, a);
      double* sums = &tiles[tile * kVelocityColumns];
      if (given.data)
        velocity_tile<false>(predicted, predicted, given.at(at, n, b), C(0), n, sums);
      else
        velocity_tile<true>(predicted, x0.at(at, n, b), x1.at(at, n, c), C(ratio), n, sums);
    });
  });
  std::vector<double> sums(size_t(batch.samples * kVelocityColumns));
  for (int64_t k = 0; k < batch.samples * per_sample; k++)
    for (int c = 0; c < kVelocityColumns; c++) {
      double& sum = sums[k / per_sample * kVelocityColumns + c];
      const double part = tiles[k * kVelocityColumns + c];
      sum = c == kMaxPred || c == kMaxTarget ? std::max(sum, part) : sum + part;
    }
  return sums;
}

Tensor velocity_stats(Tensor v_pred, OptTensor x0, OptTensor x1, OptTensor v_target, double sigma_min,
                      double sigma_max) {
  const Target target(x0, x1, v_target, v_pred);
  return tensor_of(velocity_sums(v_pred, target, ratio_of(sigma_min, sigma_max)),
                   {Batch(v_pred).samples, kVelocityColumns}, stats_dtype(v_pred, target));
}

// What people log, from the (B, 9) sums: rows of nmse (pooled), cos, speed_ratio (means) and the number of
// samples; first of the whole batch, then of the slices (k/bins, (k+1)/bins] of t. No samples: NaN.
Tensor velocity_summary(Tensor sums, OptTensor t, int64_t n, int64_t bins) {
  check_summary(sums, t, bins);
  const int64_t samples = sums.size(0);
  const Values<double> rows(sums);
  const std::vector<double> times = t ? Values<double>(*t).copy() : std::vector<double>();
  const int64_t slices = t ? bins : 0;
  struct Slice {
    double error = 0, target = 0, cos = 0, speed = 0, count = 0;
  };
  std::vector<Slice> totals(size_t(1 + slices));
  for (int64_t b = 0; b < samples; b++) {
    const double* row = rows.data() + b * kVelocityColumns;
    const double pred = std::sqrt(row[kSquaredPred]), target = std::sqrt(row[kSquaredTarget]);
    const double cos = row[kDot] / (std::max(pred, 1e-8) * std::max(target, 1e-8));
    const double speed = pred / (target + 1e-12);
    int64_t slice = 0;
    if (t) {
      // Edges are compared in the precision t came in: 0.3f is in the slice that ends at 0.3f.
      const auto above = [&](int64_t k) {
        const double edge = double(k) / double(bins);
        return times[b] > (is_double(t) ? edge : double(float(edge)));
      };
      while (slice + 1 < bins && above(slice + 1)) slice++;
    }
    for (const int64_t k : {int64_t(0), 1 + slice}) {
      if (k > slices || (k > 0 && std::isnan(times[b]))) break;  // no t is in no slice
      Slice& total = totals[k];
      total.error += row[kSquaredError];
      total.target += row[kSquaredTarget];
      total.cos += cos;
      total.speed += speed;
      total.count += 1;
    }
  }
  std::vector<double> out;
  for (const Slice& total : totals) {
    out.push_back(total.error / std::max(total.target, 1e-12 * double(n) * total.count));
    out.push_back(total.cos / total.count);
    out.push_back(total.speed / total.count);
    out.push_back(total.count);
  }
  return tensor_of(out, {1 + slices, 4}, dtype_of(sums));
}

std::tuple<Tensor, Tensor> flow_loss(Tensor v_pred, OptTensor x0, OptTensor x1, OptTensor v_target,
                                     OptTensor weight, double sigma_min, double sigma_max) {
  const Target target(x0, x1, v_target, v_pred);
  const Batch batch(v_pred);
  check_weight(weight, batch);
  const auto sums = velocity_sums(v_pred, target, ratio_of(sigma_min, sigma_max));
  auto loss = weight ? Values<double>(*weight).copy() : std::vector<double>(size_t(batch.samples), 1.0);
  for (int64_t b = 0; b < batch.samples; b++)
    loss[b] *= sums[b * kVelocityColumns + kSquaredError] / double(batch.n);
  const Dtype dtype = stats_dtype(v_pred, target);
  return {tensor_of(loss, {batch.samples}, dtype), tensor_of(sums, {batch.samples, kVelocityColumns}, dtype)};
}

template <bool kPair, class C>
FMK_CLONES void error_tile(C factor, const C* __restrict pred, const C* __restrict x0, const C* __restrict x1, C ratio,
                           C* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = factor * (pred[i] - target_at<kPair>(x0, x1, ratio, i));
}

// d loss[b] / d v_pred = 2 weight[b] / n (v_pred - v_target)
Tensor flow_loss_backward(Tensor grad, Tensor v_pred, OptTensor x_0, OptTensor x_1, OptTensor v_target,
                          OptTensor weight, double sigma_min, double sigma_max) {
  const Target target(x_0, x_1, v_target, v_pred);
  const Batch batch(v_pred);
  check_weight(weight, batch);
  check_tensor(grad, "grad");
  FMK_CHECK(grad.numel() == batch.samples, "grad must be (B,)");
  auto factors = Values<double>(grad).copy();
  if (weight) {
    const Values<double> weights(*weight);
    for (int64_t b = 0; b < batch.samples; b++) factors[b] *= weights[b];
  }
  for (double& factor : factors) factor *= 2 / double(batch.n);
  const double ratio = ratio_of(sigma_min, sigma_max);
  const Tensor pred = dense(v_pred);
  Tensor out = fresh_like(v_pred);
  with_compute_type(is_double(v_pred) || target.in_double(), [&](auto zero) {
    using C = decltype(zero);
    const Source<C> source(pred), x0(target.x0), x1(target.x1), given(target.given);
    const Sink<C> sink(out);
    for_tiles(batch.samples, batch.n, [&](int64_t sample, int64_t i, int64_t n, int64_t) {
      Tile<C> a, b, c, result;
      const int64_t at = sample * batch.n + i;
      const C factor = C(factors[sample]);
      const C* predicted = source.at(at, n, a);
      C* tile = sink.at(at, result);
      if (given.data)
        error_tile<false>(factor, predicted, predicted, given.at(at, n, b), C(0), tile, n);
      else
        error_tile<true>(factor, predicted, x0.at(at, n, b), x1.at(at, n, c), C(ratio), tile, n);
      sink.put(at, tile, n);
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CPU, m) {
  m.impl("psi", TORCH_BOX(&psi));
  m.impl("dt_psi", TORCH_BOX(&dt_psi));
  m.impl("flow_pair", TORCH_BOX(&flow_pair));
  m.impl("psi_backward", TORCH_BOX(&psi_backward));
  m.impl("velocity_stats", TORCH_BOX(&velocity_stats));
  m.impl("velocity_summary", TORCH_BOX(&velocity_summary));
  m.impl("flow_loss", TORCH_BOX(&flow_loss));
  m.impl("flow_loss_backward", TORCH_BOX(&flow_loss_backward));
}

}  // namespace fmk
