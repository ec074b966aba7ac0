// The path ops on the CPU.
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

// x_t = c0 * x0 + c1 * x1 and v = ratio * x0 + x1, from one read of x0 and x1.
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

}  // namespace

void run_path(const Device&, const OptTensor& t, const Tensor& x0, const Tensor& x1, double sigma_ratio,
              const OptTensor& x_t, const OptTensor& velocity) {
  const Tensor start = dense(x0), end = dense(x1);
  const Batch batch(x0);
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

void run_psi_backward(const Device&, const Tensor& grad, const Tensor& t, double sigma_ratio, const Tensor& to_x0,
                      const Tensor& to_x1) {
  const Batch batch(grad);
  with_compute_type(is_double(to_x0) || is_double(to_x1) || is_double(grad), [&](auto zero) {
    using C = decltype(zero);
    const Values<C> times(t);
    const C ratio = C(sigma_ratio);
    const Source<C> source(grad);
    const Sink<C> to0(to_x0), to1(to_x1);
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
}

namespace {

// ---- velocity statistics: one pass; the target is never written to memory ----
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
  // Count the elements that are not finite, and compute the maxima of the others.
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

}  // namespace

void run_velocity(const Device&, const Tensor& v_pred, const Target& target, double ratio, const Tensor& sums_out,
                  const OptTensor& weight, const OptTensor& loss_out) {
  const Batch batch(v_pred);
  const auto sums = velocity_sums(v_pred, target, ratio);
  put_values(sums, sums_out);
  if (!loss_out) return;
  auto loss = weight ? Values<double>(*weight).copy() : std::vector<double>(size_t(batch.samples), 1.0);
  for (int64_t b = 0; b < batch.samples; b++)
    loss[b] *= sums[b * kVelocityColumns + kSquaredError] / double(batch.n);
  put_values(loss, *loss_out);
}

void run_velocity_summary(const Device&, const Tensor& sums, const OptTensor& t, int64_t n, const Tensor& out_rows) {
  const int64_t samples = sums.size(0), slices = out_rows.size(0) - 1, bins = slices;
  const Values<double> rows(sums);
  const std::vector<double> times = t ? Values<double>(*t).copy() : std::vector<double>();
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
      // Edges are compared in the precision of t: 0.3f belongs to the slice that ends at 0.3f.
      const auto above = [&](int64_t k) {
        const double edge = double(k) / double(bins);
        return times[b] > (is_double(t) ? edge : double(float(edge)));
      };
      while (slice + 1 < bins && above(slice + 1)) slice++;
    }
    for (const int64_t k : {int64_t(0), 1 + slice}) {
      if (k > slices || (k > 0 && std::isnan(times[b]))) break;  // a NaN belongs to no slice
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
  put_values(out, out_rows);
}

namespace {

template <bool kPair, class C>
FMK_CLONES void error_tile(C factor, const C* __restrict pred, const C* __restrict x0, const C* __restrict x1, C ratio,
                           C* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = factor * (pred[i] - target_at<kPair>(x0, x1, ratio, i));
}

}  // namespace

void run_flow_loss_backward(const Device&, const Tensor& grad, const Tensor& v_pred, const Target& target,
                            double ratio, const OptTensor& weight, const Tensor& out) {
  const Batch batch(v_pred);
  auto factors = Values<double>(grad).copy();
  if (weight) {
    const Values<double> weights(*weight);
    for (int64_t b = 0; b < batch.samples; b++) factors[b] *= weights[b];
  }
  for (double& factor : factors) factor *= 2 / double(batch.n);
  const Tensor pred = dense(v_pred);
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
}

}  // namespace fmk
