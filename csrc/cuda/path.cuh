// The path ops on a GPU.
#pragma once
#include "device.cuh"

namespace fmk {

// Either output may be left out, and t with x_t; both together are made from one read of x0 and x1.
template <class C>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<C>)
    path_kernel(Tiles tiles, Source t, Source x0, Source x1, C ratio, Sink x_t, Sink velocity) {
  for_all_packs(tiles, [&](int64_t sample, int64_t i, int count) {
    const int64_t at = sample * tiles.n + i;
    const auto first = fetch<C>(x0, at, count), last = fetch<C>(x1, at, count);
    C start[kPack], end[kPack], out[kPack];
    first.to(start);
    last.to(end);
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

template <class C>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<C>)
    psi_backward_kernel(Tiles tiles, Source grad, Source t, C ratio, Sink to_x0, Sink to_x1) {
  for_all_packs(tiles, [&](int64_t sample, int64_t i, int count) {
    const int64_t at = sample * tiles.n + i;
    const C time = read_one<C>(t, sample), c0 = time * ratio + C(1);
    C g[kPack], start[kPack], end[kPack];
    read(grad, at, count, g);
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
template <class C>
struct VelocityTarget {
  Source x0, x1, given;
  C ratio;

  // pred and target from `at` on.
  __device__ __forceinline__ void read_with(const Source& pred, int64_t at, int count, C (&p)[kPack],
                                            C (&v)[kPack]) const {
    const auto predicted = fetch<C>(pred, at, count), last = fetch<C>(given.data ? given : x1, at, count);
    if (!given.data) {
      const auto first = fetch<C>(x0, at, count);
      C start[kPack];
      first.to(start);
      last.to(v);
#pragma unroll
      for (int k = 0; k < kPack; k++) v[k] += ratio * start[k];
    } else {
      last.to(v);
    }
    predicted.to(p);
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

template <class C>
__global__ void __launch_bounds__(kWideThreads<C>, 1)
    velocity_kernel(Tiles tiles, Source pred, const __grid_constant__ VelocityTarget<C> target, Partials partials,
                    const __grid_constant__ VelocityOut out) {
  const auto add = [&](int64_t at, int count, C(&sums)[kVelocityColumns]) {
    C p[kPack], v[kPack];
    target.read_with(pred, at, count, p, v);
#pragma unroll
    for (int k = 0; k < kPack; k++) {
      if (k < count) {
        const C d = p[k] - v[k];
        sums[kSquaredError] += d * d;
        sums[kSquaredPred] += p[k] * p[k];
        sums[kSquaredTarget] += v[k] * v[k];
        sums[kDot] += p[k] * v[k];
        sums[kAbsPred] += absolute(p[k]);
        sums[kAbsTarget] += absolute(v[k]);
        sums[kMaxPred] = most(sums[kMaxPred], absolute(p[k]));  // of what is a number
        sums[kMaxTarget] = most(sums[kMaxTarget], absolute(v[k]));
        sums[kNonfinite] += finite(p[k]) && finite(v[k]) ? C(0) : C(1);
      }
    }
  };
  for_sums<VelocityMerge, kVelocityColumns, C>(tiles, partials, add, [&](int64_t sample, const auto& totals) {
#pragma unroll
    for (int c = 0; c < kVelocityColumns; c++) write_one(out.sums, sample * kVelocityColumns + c, totals[c]);
    if (!out.loss.data) return;
    const double weight = out.weight.data ? read_one<double>(out.weight, sample) : 1.0;
    write_one(out.loss, sample, weight * (totals[kSquaredError] / double(tiles.n)));
  });
}

// per_element: 2 / n
template <class C>
__global__ void __launch_bounds__(kTileThreads, kLargeTileBlocks<C>)
    flow_loss_backward_kernel(Tiles tiles, Source grad, Source pred, const __grid_constant__ VelocityTarget<C> target,
                              Source weight, double per_element, Sink out) {
  for_all_packs(tiles, [&](int64_t sample, int64_t i, int count) {
    const int64_t at = sample * tiles.n + i;
    const double weighted = weight.data ? read_one<double>(weight, sample) : 1.0;
    const C factor = C(read_one<double>(grad, sample) * weighted * per_element);
    C p[kPack], v[kPack];
    target.read_with(pred, at, count, p, v);
#pragma unroll
    for (int k = 0; k < kPack; k++) v[k] = factor * (p[k] - v[k]);
    write(out, at, count, v);
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
