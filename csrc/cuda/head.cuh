// The variational head's ops on a GPU. A block has 256 columns; its warps share the samples between them, so that
// the spread over the batch of each latent dimension comes out of the same pass.
#pragma once
#include "device.cuh"

namespace fmk {

constexpr int kHeadWarps = 8, kHeadColumnsOfBlock = kWarp * kPack;

template <class C>
struct ClampedLogvar {
  C low, high;

  __device__ C clamp(C raw) const {  // NaN stays NaN
    const C above = raw < low ? low : raw;
    return above > high ? high : above;
  }
};

// What a block leaves of its columns.
enum HeadPart {
  kPartAbsMu,
  kPartMu2,
  kPartLogvar,
  kPartStd,
  kPartClamped,
  kPartNonfinite,
  kPartStdMin,
  kPartStdMax,
  kHeadParts
};
struct HeadMerge {
  template <class T>
  static FMK_FN T of(int column, T a, T b) {
    return column == kPartStdMin ? least(a, b) : column == kPartStdMax ? most(a, b) : a + b;
  }
};
// And of z: the mean of its columns' means, the squares around it, the sum of the columns' spreads.
enum HeadColumnPart { kColumnMean, kColumnM2, kColumnStd, kColumnParts };

// Samples that one thread has seen in its eight columns: their mean and the squares around it.
template <class C>
struct ColumnMoments {
  C mean[kPack] = {}, m2[kPack] = {};
  C count = 0;

  __device__ void add(const C (&x)[kPack]) {
    count += 1;
    const C share = C(1) / count;
#pragma unroll
    for (int i = 0; i < kPack; i++) {
      const C delta = x[i] - mean[i];
      mean[i] += delta * share;
      m2[i] += delta * (x[i] - mean[i]);
    }
  }
  // One column of other samples; share: theirs of all.
  __device__ void merge(int i, C share, C other_mean, C other_m2) {
    const C delta = other_mean - mean[i];
    mean[i] += delta * share;
    m2[i] += other_m2 + delta * delta * count * share;
  }
};

struct Head {
  Source mu, logvar, eps;
  double low, high;
  int64_t samples, n, blocks;
  Partials partials;
  double *kl_parts, *parts, *column_parts;  // (samples, blocks), (blocks, 8), (blocks, 3), all in partials
  Sink z, kl, stats;
};

template <class C>
__global__ void __launch_bounds__(kHeadWarps* kWarp) head_kernel(const __grid_constant__ Head head) {
  FMK_SHARED(C, kHeadWarps * kHeadColumnsOfBlock, means);
  FMK_SHARED(C, kHeadWarps * kHeadColumnsOfBlock, squares);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const ClampedLogvar<C> bounds{C(head.low), C(head.high)};
  for (int64_t block = blockIdx.x; block < head.blocks; block += gridDim.x) {
    const int64_t column = block * kHeadColumnsOfBlock + lane * kPack;
    const int count = column < head.n ? count_of(column, head.n) : 0;
    ColumnMoments<C> moments;
    C sums[kHeadParts] = {};
    sums[kPartStdMin] = C(INFINITY);
    for (int64_t sample = warp; sample < head.samples; sample += kHeadWarps) {
      const int64_t at = sample * head.n + column;
      const auto m = fetch<C>(head.mu, at, count), l = fetch<C>(head.logvar, at, count), e = fetch<C>(head.eps, at, count);
      C mu[kPack], logvar[kPack], eps[kPack], z[kPack], kl[1] = {0};
      m.to(mu);
      l.to(logvar);
      e.to(eps);
#pragma unroll
      for (int i = 0; i < kPack; i++) {
        const C lv = bounds.clamp(logvar[i]), std = fmk::exp(lv * C(0.5));
        z[i] = mu[i] + std * eps[i];
        if (i >= count) continue;  // padding
        kl[0] += C(0.5) * (mu[i] * mu[i] + std * std - C(1) - lv);
        sums[kPartAbsMu] += absolute(mu[i]);
        sums[kPartMu2] += mu[i] * mu[i];
        sums[kPartLogvar] += lv;
        sums[kPartStd] += std;
        sums[kPartClamped] += lv != logvar[i] ? C(1) : C(0);
        sums[kPartNonfinite] += finite(z[i]) ? C(0) : C(1);
        sums[kPartStdMin] = least(sums[kPartStdMin], std);
        sums[kPartStdMax] = most(sums[kPartStdMax], std);
      }
      if (count > 0) write(head.z, at, count, z);
      moments.add(z);
      warp_reduce<Sum>(kl);
      if (lane == 0) leave(head.kl_parts + sample * head.blocks + block, kl[0]);
    }
    double total[kHeadParts];
    block_reduce<HeadMerge>(sums, total);
    leave_row(head.parts + block * kHeadParts, total);
    // The warps' columns meet in the first warp, in the order of the warps.
#pragma unroll
    for (int i = 0; i < kPack; i++) {
      const int place = (warp * kPack + i) * kWarp + lane;
      means[place] = moments.mean[i];
      squares[place] = moments.m2[i];
    }
    __syncthreads();
    if (warp == 0) {
      for (int w = 1; w < kHeadWarps && w < head.samples; w++) {
        const C theirs = C((head.samples - w + kHeadWarps - 1) / kHeadWarps), share = theirs / (moments.count + theirs);
#pragma unroll
        for (int i = 0; i < kPack; i++) {
          const int place = (w * kPack + i) * kWarp + lane;
          moments.merge(i, share, means[place], squares[place]);
        }
        moments.count += theirs;
      }
      const double width = double(least<int64_t>(kHeadColumnsOfBlock, head.n - block * kHeadColumnsOfBlock));
      double mean[1] = {0}, rest[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < kPack; i++) mean[0] += i < count ? double(moments.mean[i]) : 0;
      warp_reduce<Sum>(mean);
      mean[0] /= width;
#pragma unroll
      for (int i = 0; i < kPack; i++) {
        if (i >= count) continue;
        const double off = double(moments.mean[i]) - mean[0];
        rest[0] += double(moments.m2[i]) + off * off * double(head.samples);
        rest[1] += sqrt(double(moments.m2[i]) / double(head.samples));
      }
      warp_reduce<Sum>(rest);
      if (lane == 0) {
        double* const out = head.column_parts + block * kColumnParts;
        leave(out + kColumnMean, mean[0]);
        leave(out + kColumnM2, rest[0]);
        leave(out + kColumnStd, rest[1]);
      }
    }
    __syncthreads();
  }
  if (!is_last_block(head.partials)) return;
  for (int64_t sample = warp; sample < head.samples; sample += kHeadWarps) {
    double kl[1] = {0};
    collect_rows<Sum>(head.kl_parts + sample * head.blocks, head.blocks, kl);
    if (lane == 0) write_one(head.kl, sample, kl[0]);
  }
  if (warp != 0) return;
  double total[kHeadParts] = {};
  total[kPartStdMin] = INFINITY;
  collect_rows<HeadMerge>(head.parts, head.blocks, total);
  const auto width_of = [&](int64_t block) {
    return double(least<int64_t>(kHeadColumnsOfBlock, head.n - block * kHeadColumnsOfBlock));
  };
  double mean[1] = {0}, rest[2] = {0, 0};
  for (int64_t block = lane; block < head.blocks; block += kWarp)
    mean[0] += collect(head.column_parts + block * kColumnParts + kColumnMean) * width_of(block);
  warp_reduce<Sum>(mean);
  mean[0] /= double(head.n);
  for (int64_t block = lane; block < head.blocks; block += kWarp) {
    const double* const part = head.column_parts + block * kColumnParts;
    const double off = collect(part + kColumnMean) - mean[0];
    rest[0] += collect(part + kColumnM2) + off * off * width_of(block) * double(head.samples);
    rest[1] += collect(part + kColumnStd);
  }
  warp_reduce<Sum>(rest);
  if (lane != 0) return;
  const double elements = double(head.samples * head.n);
  double stats[kHeadColumns];
  stats[kMuAbsMean] = total[kPartAbsMu] / elements;
  stats[kMuRms] = sqrt(total[kPartMu2] / elements);
  stats[kLogvarMean] = total[kPartLogvar] / elements;
  stats[kStdMean] = total[kPartStd] / elements;
  const bool known = total[kPartStd] == total[kPartStd];  // a minimum passes over NaN
  stats[kStdMin] = known ? total[kPartStdMin] : total[kPartStd];
  stats[kStdMax] = known ? total[kPartStdMax] : total[kPartStd];
  stats[kZMean] = mean[0];
  stats[kZVar] = rest[0] / elements;
  stats[kZStdPerDimMean] = rest[1] / double(head.n);
  stats[kClampedFraction] = total[kPartClamped] / elements;
  stats[kHeadNonfinite] = total[kPartNonfinite];
#pragma unroll
  for (int c = 0; c < kHeadColumns; c++) write_one(head.stats, c, stats[c]);
}

template <class C>
__global__ void __launch_bounds__(kTileThreads, kLargeTileBlocks<Any<C>>)
    head_backward_kernel(Tiles tiles, Source grad_z, Source grad_kl, Source mu, Source logvar, Source eps, double low,
                         double high, Sink to_mu, Sink to_logvar) {
  const ClampedLogvar<C> bounds{C(low), C(high)};
  const auto load = [&](int64_t sample, int64_t i, int count) {
    const int64_t at = sample * tiles.n + i;
    return Several{fetch<C>(mu, at, count), fetch<C>(logvar, at, count), fetch<C>(eps, at, count)};
  };
  for_all_packs<Any<C>>(tiles, load, [&](int64_t sample, int64_t i, int count, const auto& loaded) {
    const int64_t at = sample * tiles.n + i;
    const C kl = grad_kl.data ? read_one<C>(grad_kl, sample) : C(0);
    C gz[kPack] = {}, m[kPack], raw[kPack], e[kPack];
    if (grad_z.data) read(grad_z, at, count, gz);
    loaded.first.to(m);
    loaded.second.to(raw);
    loaded.third.to(e);
#pragma unroll
    for (int k = 0; k < kPack; k++) {
      const C std = fmk::exp(bounds.clamp(raw[k]) * C(0.5));
      const C g = gz[k] * C(0.5) * std * e[k] + kl * C(0.5) * (std * std - C(1));
      const bool held = (raw[k] < bounds.low && g > 0) || (raw[k] > bounds.high && g < 0);
      m[k] = gz[k] + kl * m[k];
      raw[k] = held ? C(0) : g;
    }
    write(to_mu, at, count, m);
    write(to_logvar, at, count, raw);
  });
}

}  // namespace fmk
