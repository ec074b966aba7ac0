// The variational head's ops on the CPU. Work is split by columns, so that the same pass computes the std
// over the batch of each latent dimension.
#include <limits>

#include "common.h"

#include "../shared/head.h"

namespace fmk {
namespace {

struct HeadSums {
  double abs_mu = 0, mu2 = 0, logvar = 0, std = 0, kl = 0, clamped = 0, nonfinite = 0;
  double std_min = std::numeric_limits<double>::infinity(), std_max = 0;
};

// mean and m2: the running moments of z over the batch, one pair per column, after `seen` samples.
template <class C>
FMK_CLONES void head_tile(const C* __restrict mu, const C* __restrict logvar, const C* __restrict eps, C low, C high,
                          C seen, C* __restrict z, C* __restrict mean, C* __restrict m2, int64_t n,
                          HeadSums* out) {
  C abs_mu = 0, mu2 = 0, sum_lv = 0, sum_std = 0, kl = 0, std_max = 0;
  C std_min = std::numeric_limits<C>::infinity();
  int32_t clamped = 0, nonfinite = 0;
  const C share = C(1) / (seen + C(1));
#pragma omp simd reduction(+ : abs_mu, mu2, sum_lv, sum_std, kl, clamped, nonfinite) \
    reduction(min : std_min) reduction(max : std_max)
  for (int64_t i = 0; i < n; i++) {
    const C m = mu[i], raw = logvar[i];
    C lv = raw < low ? low : raw;
    lv = lv > high ? high : lv;
    const C std = fmk::exp(lv * C(0.5));
    const C value = m + std * eps[i];
    z[i] = value;
    abs_mu += absolute(m);
    mu2 += m * m;
    sum_lv += lv;
    sum_std += std;
    std_min = std < std_min ? std : std_min;
    std_max = std > std_max ? std : std_max;
    kl += C(0.5) * (m * m + std * std - C(1) - lv);
    clamped += lv != raw ? 1 : 0;
    nonfinite += finite(value) ? 0 : 1;
    const C delta = value - mean[i];
    mean[i] += delta * share;
    m2[i] += delta * (value - mean[i]);
  }
  *out = {double(abs_mu), double(mu2),    double(sum_lv),    double(sum_std), double(kl),
          double(clamped), double(nonfinite), double(std_min), double(std_max)};
}

// Outside the clamp, the gradient to logvar passes only if a descent step leads back inside.
template <class C>
FMK_CLONES void head_tile_backward(const C* __restrict grad_z, C grad_kl, const C* __restrict mu,
                                   const C* __restrict logvar, const C* __restrict eps, C low, C high,
                                   C* __restrict to_mu, C* __restrict to_logvar, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const C raw = logvar[i];
    C lv = raw < low ? low : raw;
    lv = lv > high ? high : lv;
    const C std = fmk::exp(lv * C(0.5));
    const C g = grad_z[i] * C(0.5) * std * eps[i] + grad_kl * C(0.5) * (std * std - C(1));
    to_mu[i] = grad_z[i] + grad_kl * mu[i];
    const bool held = (raw < low && g > 0) || (raw > high && g < 0);
    to_logvar[i] = held ? C(0) : g;
  }
}

}  // namespace

void run_head(const Device&, const Tensor& mu, const Tensor& logvar, const Tensor& eps, double low, double high,
              const Tensor& z, const Tensor& kl_out, const Tensor& stats_out) {
  const Batch batch(mu);
  const int64_t samples = batch.samples, n = batch.n, columns = tiles_of(n);
  std::vector<HeadSums> sums(size_t(samples * columns));
  // Of each tile of columns: the sum of the std over the batch, and the moments of all z.
  struct ColumnSums {
    double std = 0, mean = 0, m2 = 0;
  };
  std::vector<ColumnSums> column_sums(static_cast<size_t>(columns));
  with_compute_type(is_double(z), [&](auto zero) {
    using C = decltype(zero);
    const Source<C> mu_in(mu), logvar_in(logvar), eps_in(eps);
    const Sink<C> z_out(z);
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(samples, 1));
    parallel(columns, grain, [&](int64_t first, int64_t last) {
      Tile<C> a, b, c, z_tile, mean, m2;
      for (int64_t column = first; column < last; column++) {
        const int64_t begin = column * kTile, count = std::min(kTile, n - begin);
        std::fill_n(mean.data, count, C(0));
        std::fill_n(m2.data, count, C(0));
        for (int64_t sample = 0; sample < samples; sample++) {
          const int64_t at = sample * n + begin;
          C* tile = z_out.at(at, z_tile);
          head_tile(mu_in.at(at, count, a), logvar_in.at(at, count, b), eps_in.at(at, count, c), C(low), C(high),
                    C(sample), tile, mean.data, m2.data, count, &sums[sample * columns + column]);
          z_out.put(at, tile, count);
        }
        ColumnSums& out = column_sums[column];
        for (int64_t i = 0; i < count; i++) out.mean += double(mean[i]);
        out.mean /= double(count);
        for (int64_t i = 0; i < count; i++) {
          const double off = double(mean[i]) - out.mean;
          out.std += std::sqrt(double(m2[i]) / double(samples));
          out.m2 += double(m2[i]) + off * off * double(samples);
        }
      }
    });
  });
  std::vector<double> kl(size_t(samples), 0.0);
  HeadSums total;
  for (int64_t k = 0; k < samples * columns; k++) {
    const HeadSums& part = sums[k];
    kl[k / columns] += part.kl;
    total.abs_mu += part.abs_mu;
    total.mu2 += part.mu2;
    total.logvar += part.logvar;
    total.std += part.std;
    total.clamped += part.clamped;
    total.nonfinite += part.nonfinite;
    total.std_min = std::min(total.std_min, part.std_min);
    total.std_max = std::max(total.std_max, part.std_max);
  }
  const double count = double(samples * n);
  double z_mean = 0, z_m2 = 0, z_std = 0;
  for (int64_t k = 0; k < columns; k++) z_mean += column_sums[k].mean * double(std::min(kTile, n - k * kTile));
  z_mean /= double(n);
  for (int64_t k = 0; k < columns; k++) {
    const double width = double(std::min(kTile, n - k * kTile)), off = column_sums[k].mean - z_mean;
    z_m2 += column_sums[k].m2 + off * off * width * double(samples);
    z_std += column_sums[k].std;
  }
  std::vector<double> stats(kHeadColumns);
  stats[kMuAbsMean] = total.abs_mu / count;
  stats[kMuRms] = std::sqrt(total.mu2 / count);
  stats[kLogvarMean] = total.logvar / count;
  stats[kStdMean] = total.std / count;
  const bool known = !std::isnan(total.std);  // std::min ignores NaN
  stats[kStdMin] = known ? total.std_min : total.std;
  stats[kStdMax] = known ? total.std_max : total.std;
  stats[kZMean] = z_mean;
  stats[kZVar] = z_m2 / count;
  stats[kZStdPerDimMean] = z_std / double(n);
  stats[kClampedFraction] = total.clamped / count;
  stats[kHeadNonfinite] = total.nonfinite;
  put_values(kl, kl_out);
  put_values(stats, stats_out);
}

void run_head_backward(const Device&, const OptTensor& grad_z, const OptTensor& grad_kl, const Tensor& mu,
                       const Tensor& logvar, const Tensor& eps, double low, double high, const Tensor& to_mu,
                       const Tensor& to_logvar) {
  const Batch batch(mu);
  const int64_t samples = batch.samples, n = batch.n;
  with_compute_type(is_double(mu) || is_double(logvar) || is_double(grad_z), [&](auto zero) {
    using C = decltype(zero);
    const auto kl = grad_kl ? Values<C>(*grad_kl).copy() : std::vector<C>(size_t(samples), C(0));
    const Source<C> grad_in(grad_z), mu_in(mu), logvar_in(logvar), eps_in(eps);
    const Sink<C> mu_out(to_mu), logvar_out(to_logvar);
    for_tiles(samples, n, [&](int64_t sample, int64_t i, int64_t count, int64_t) {
      Tile<C> g, a, b, c, mu_tile, logvar_tile;
      const int64_t at = sample * n + i;
      if (!grad_in.data) std::fill_n(g.data, count, C(0));
      C* to_m = mu_out.at(at, mu_tile);
      C* to_l = logvar_out.at(at, logvar_tile);
      head_tile_backward(grad_in.data ? grad_in.at(at, count, g) : g.data, kl[sample], mu_in.at(at, count, a),
                         logvar_in.at(at, count, b), eps_in.at(at, count, c), C(low), C(high), to_m, to_l, count);
      mu_out.put(at, to_m, count);
      logvar_out.put(at, to_l, count);
    });
  });
}

}  // namespace fmk
