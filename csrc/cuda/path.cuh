// The path ops on a GPU.
#pragma once
#include "device.cuh"

namespace fmk {

// Either output may be left out, and t with x_t; both together are made from one read of x0 and x1, which are
// "parameters" here: fp32 ends often give half-precision results.
template <class A>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<A>)
    path_kernel(Tiles tiles, Source t, typename A::Parameter x0, typename A::Parameter x1,
                typename A::Compute ratio, typename A::Out x_t, typename A::Out velocity) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  const auto load = [&](Index sample, Index i, auto count) {
    const Index at = sample * Index(tiles.n) + i;
    return Several{fetch<C>(x0, at, count), fetch<C>(x1, at, count)};
  };
  for_all_packs<A>(tiles, load, [&](Index sample, Index i, auto count, const auto& loaded) {
    const Index at = sample * Index(tiles.n) + i;
    C start[kPack], end[kPack], out[kPack];
    loaded.first.to(start);
    loaded.second.to(end);
    if (x_t.data) {
      const C time = read_one<C>(t, sample), c0 = time * ratio + C(1);
#pragma unroll
      for (int k = 0; k < kPack; k++) out[k] = c0 * start[k] + time * end[k];
      write(x_t, at, count, out);
    }
    if (velocity.data) {
#pragma unroll
      for (int k = 0; k < kPack; k++) out[k] = ratio * start[k] + end[k];
      write(velocity, at, count, out);
    }
  });
}

template <class A>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<A>)
    psi_backward_kernel(Tiles tiles, typename A::In grad, Source t, typename A::Compute ratio,
                        typename A::Out to_x0, typename A::Out to_x1) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  const auto load = [&](Index sample, Index i, auto count) {
    return fetch<C>(grad, sample * Index(tiles.n) + i, count);
  };
  for_all_packs<A>(tiles, load, [&](Index sample, Index i, auto count, const auto& loaded) {
    const Index at = sample * Index(tiles.n) + i;
    const C time = read_one<C>(t, sample), c0 = time * ratio + C(1);
    C g[kPack], start[kPack], end[kPack];
    loaded.to(g);
#pragma unroll
    for (int k = 0; k < kPack; k++) {
      start[k] = c0 * g[k];
      end[k] = time * g[k];
    }
    write(to_x0, at, count, start);
    write(to_x1, at, count, end);
  });
}

// ---- velocity statistics: one pass, the target never written to memory ----
// The target is `given`, or ratio * x0 + x1.
template <class A>
struct VelocityTarget {
  using C = typename A::Compute;
  using Index = typename A::Index;
  typename A::Parameter x0, x1, given;
  C ratio;

  template <class Count>
  __device__ __forceinline__ auto load(const typename A::In& pred, Index at, Count count) const {
    auto loaded = Several{fetch<C>(pred, at, count), fetch<C>(given.data ? given : x1, at, count),
                          decltype(fetch<C>(x0, at, count)){}};
    if (!given.data) loaded.third = fetch<C>(x0, at, count);
    return loaded;
  }
  template <class Loaded>
  __device__ __forceinline__ void read(const Loaded& loaded, C (&p)[kPack], C (&v)[kPack]) const {
    loaded.first.to(p);
    loaded.second.to(v);
    if (given.data) return;
    C start[kPack];
    loaded.third.to(start);
#pragma unroll
    for (int k = 0; k < kPack; k++) v[k] += ratio * start[k];
  }
};

// Sums, but for the two columns of maxima.
struct VelocityMerge {
  template <class T>
  static FMK_FN T of(int column, T a, T b) {
    return column == kMaxPred || column == kMaxTarget ? most(a, b) : a + b;
  }
};

// What comes out for each sample: the sums, and (flow_loss) weight * mean squared error.
struct VelocityOut {
  Sink sums, loss;
  Source weight;
};

template <class A>
__global__ void __launch_bounds__(kWideThreads<typename A::Compute>, kWideBlocks<A>)
    velocity_kernel(Tiles tiles, typename A::In pred, const __grid_constant__ VelocityTarget<A> target,
                    Partials partials, const __grid_constant__ VelocityOut out) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  const auto load = [&](Index at, auto count) { return target.load(pred, at, count); };
  const auto add = [&](Index, auto, const auto& loaded, C(&sums)[kVelocityColumns]) {
    C p[kPack], v[kPack], nothing = 0;
    target.read(loaded, p, v);  // zeros beyond the end
#pragma unroll
    for (int k = 0; k < kPack; k++) {
      const C d = p[k] - v[k];
      sums[kSquaredError] += d * d;
      sums[kSquaredPred] += p[k] * p[k];
      sums[kSquaredTarget] += v[k] * v[k];
      sums[kDot] += p[k] * v[k];
      sums[kAbsPred] += absolute(p[k]);
      sums[kAbsTarget] += absolute(v[k]);
      sums[kMaxPred] = greater(sums[kMaxPred], absolute(p[k]));  // of what is a number
      sums[kMaxTarget] = greater(sums[kMaxTarget], absolute(v[k]));
      nothing += p[k] * C(0);
      nothing += v[k] * C(0);
    }
    if (nothing == 0) return;  // else NaN
#pragma unroll
    for (int k = 0; k < kPack; k++) sums[kNonfinite] += finite(p[k]) && finite(v[k]) ? C(0) : C(1);
  };
  for_sums<VelocityMerge, kVelocityColumns, A>(tiles, partials, load, add, [&](int64_t sample, const auto& totals) {
#pragma unroll
    for (int c = 0; c < kVelocityColumns; c++) write_one(out.sums, sample * kVelocityColumns + c, totals[c]);
    if (!out.loss.data) return;
    const double weight = out.weight.data ? read_one<double>(out.weight, sample) : 1.0;
    write_one(out.loss, sample, weight * (totals[kSquaredError] / double(tiles.n)));
  });
}

// per_element: 2 / n
template <class A>
__global__ void __launch_bounds__(kTileThreads, kLargeTileBlocks<A>)
    flow_loss_backward_kernel(Tiles tiles, Source grad, typename A::In pred,
                              const __grid_constant__ VelocityTarget<A> target, Source weight, double per_element,
                              typename A::Out out) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  const auto load = [&](Index sample, Index i, auto count) {
    return target.load(pred, sample * Index(tiles.n) + i, count);
  };
  for_all_packs<OneInFlight<A>>(tiles, load, [&](Index sample, Index i, auto count, const auto& loaded) {
    const double weighted = weight.data ? read_one<double>(weight, sample) : 1.0;
    const C factor = C(read_one<double>(grad, sample) * weighted * per_element);
    C p[kPack], v[kPack];
    target.read(loaded, p, v);
#pragma unroll
    for (int k = 0; k < kPack; k++) v[k] = factor * (p[k] - v[k]);
    write(out, sample * Index(tiles.n) + i, count, v);
  });
}

// A thread makes a row. Edges are compared in the precision t came in: 0.3f is in the slice that ends at 0.3f.
__global__ void velocity_summary_kernel(Source sums, Source t, int64_t samples, int64_t n, int64_t rows,
                                        Sink out) {
  const int64_t bins = rows - 1;
  const auto edge = [&](int64_t k) {
    const double exact = double(k) / double(bins);
    return t.dtype == Dtype::f64 ? exact : double(float(exact));
  };
  for (int64_t row = blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += gridDim.x * blockDim.x) {
    double error = 0, target2 = 0, cos = 0, speed = 0, count = 0;
    for (int64_t b = 0; b < samples; b++) {
      if (row > 0) {
        const double time = read_one<double>(t, b);
        const bool above = row == 1 || time > edge(row - 1), below = row == bins || time <= edge(row);
        if (time != time || !above || !below) continue;
      }
      double columns[kVelocityColumns];
      for (int c = 0; c < kVelocityColumns; c++) columns[c] = read_one<double>(sums, b * kVelocityColumns + c);
      const double pred = sqrt(columns[kSquaredPred]), target = sqrt(columns[kSquaredTarget]);
      error += columns[kSquaredError];
      target2 += columns[kSquaredTarget];
      cos += columns[kDot] / (most(pred, 1e-8) * most(target, 1e-8));
      speed += pred / (target + 1e-12);
      count += 1;
    }
    write_one(out, 4 * row, error / most(target2, 1e-12 * double(n) * count));
    write_one(out, 4 * row + 1, cos / count);
    write_one(out, 4 * row + 2, speed / count);
    write_one(out, 4 * row + 3, count);
  }
}

}  // namespace fmk
