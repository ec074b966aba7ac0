// The norms on a GPU. A block has a row. It keeps it in shared memory between the statistics and the result, where
// it fits; a wider row is read a second time.
#pragma once
#include "device.cuh"

namespace fmk {

// Of the 48 KB that every device gives a block without being asked, all but what the reductions take.
constexpr int64_t kKeptBytes = 47 << 10;

FMK_FN int64_t packs_of(int64_t width) { return (width + kPack - 1) / kPack; }

// A row is one or several tensors side by side, `width` columns in all.
struct RowPart {
  const void* data;
  int64_t width, column;
};
template <int kCapacity>
struct RowParts {
  int64_t rows, width;
  int64_t packs;  // of a row: whole eights, each part's last perhaps not full
  int count;
  Dtype dtype;
  RowPart parts[kCapacity];

  // A pack for every thread; more threads for rows that come from memory twice.
  template <class C>
  int threads() const {
    int threads = kWarp;
    while (threads < (width > 8192 ? kWideThreads<C> : kTileThreads) && threads * kPack < width) threads *= 2;
    return threads;
  }
};

// One pack of a thread: of which part and where in it, in which column of the row, and its number in the row.
// (Of what a block keeps, element i of it is at number + i * packs: neighbours in neighbouring banks.)
struct RowPack {
  const RowPart& part;
  int64_t at, column, number;
  int count;
};
// A way through the packs of a row, forwards.
template <class Rows>
struct RowWalk {
  const Rows& rows;
  int part = 0;
  int64_t before = 0;  // packs of the parts before

  __device__ __forceinline__ RowPack at(int64_t number) {
    while (number >= before + packs_of(rows.parts[part].width)) before += packs_of(rows.parts[part++].width);
    const RowPart& in = rows.parts[part];
    const int64_t at = (number - before) * kPack;
    return {in, at, in.column + at, number, count_of(at, in.width)};
  }
};
template <class Rows, class F>
__device__ __forceinline__ void for_row(const Rows& rows, const F& body) {
  RowWalk<Rows> walk{rows};
  for (int64_t number = threadIdx.x; number < rows.packs; number += blockDim.x) body(walk.at(number));
}
template <class C, class Rows>
__device__ __forceinline__ Fetched<C> fetch_row(const Rows& rows, int64_t row, const RowPack& pack) {
  return fetch<C>(Source{pack.part.data, rows.dtype}, row * pack.part.width + pack.at, pack.count);
}
// What a block keeps of a row in shared memory.
template <class Memory>
struct Kept {
  Memory memory;
  int packs;

  __device__ __forceinline__ int place(const RowPack& pack, int i) const { return int(pack.number) + i * packs; }
  template <class C>
  __device__ __forceinline__ void keep(const RowPack& pack, const C (&x)[kPack]) const {
#pragma unroll
    for (int i = 0; i < kPack; i++) memory[place(pack, i)] = x[i];
  }
  template <class C>
  __device__ __forceinline__ void recall(const RowPack& pack, C (&x)[kPack]) const {
#pragma unroll
    for (int i = 0; i < kPack; i++) x[i] = memory[place(pack, i)];
  }
};
template <class Memory>
__device__ __forceinline__ Kept<Memory> kept_in(const Memory& memory, int64_t packs, int which = 0) {
  return {memory + which * int(packs) * kPack, int(packs)};
}

// The rows of a scale or offset, `stride` apart, each for `repeat` rows of x.
struct ParameterRows {
  Source source;
  int64_t stride, repeat;

  template <class C>
  __device__ void read_at(int64_t row, const RowPack& pack, C (&x)[kPack]) const {
    read(source, row / repeat * stride + pack.column, pack.count, x);
  }
};

// The statistics of a row, one thread's share of them: sums of x and of its squares, for the layer norm of the
// distances to a first value of the thread's own, so that rows far from zero lose nothing.
template <class C>
struct RowMoments {
  bool center;
  C pivot = 0, count = 0, sum = 0, squares = 0;

  __device__ explicit RowMoments(bool center_) : center(center_) {}
  __device__ __forceinline__ void add(const C (&x)[kPack], int n) {
    if (center && count == 0) pivot = x[0];
#pragma unroll
    for (int i = 0; i < kPack; i++) {
      if (i < n) {
        const C d = x[i] - pivot;
        sum += d;
        squares += d * d;
      }
    }
    count += C(n);
  }
  // Of the whole row, for every thread. per_column: 1 / width
  __device__ __forceinline__ void finish(double per_column, double eps, C& row_mean, C& rstd) {
    row_mean = 0;
    if (center) {
      const C share = count > 0 ? sum / count : C(0);
      const double mean = double(pivot) + double(share), all = block_sum(mean * double(count)) * per_column;
      const C off = C(mean - all);
      if (count > 0) squares += (off * off - share * share) * count;
      row_mean = C(all);
    }
    const C power = C(most(block_sum(squares), 0.0) * per_column);
    rstd = C(1) / (center ? sqrt(power + C(eps)) : sqrt(power) + C(eps));
  }
};

struct Norm {
  Source residual;
  ParameterRows scale, offset;
  double eps, per_column;  // per_column: 1 / width
  bool center, kept;       // kept: the row fits
  Sink y, sum, stat;
};

template <class C, class Rows>
__global__ void __launch_bounds__(kWideThreads<C>, 1)
    norm_kernel(const __grid_constant__ Rows rows, const __grid_constant__ Norm norm) {
  FMK_DYNAMIC_SHARED(C, memory);
  const auto kept = kept_in(memory, rows.packs);
  for (int64_t row = blockIdx.x; row < rows.rows; row += gridDim.x) {
    const auto read_sum = [&](const RowPack& pack, C(&s)[kPack]) {
      const auto x = fetch_row<C>(rows, row, pack);
      if (!norm.residual.data) return x.to(s);
      const auto residual = fetch<C>(norm.residual, row * rows.width + pack.column, pack.count);
      C more[kPack];
      x.to(s);
      residual.to(more);
#pragma unroll
      for (int i = 0; i < kPack; i++) s[i] += more[i];
    };
    RowMoments<C> moments(norm.center);
    for_row(rows, [&](const RowPack& pack) {
      C s[kPack];
      read_sum(pack, s);
      if (norm.sum.data) write(norm.sum, row * rows.width + pack.column, pack.count, s);
      if (norm.kept) kept.keep(pack, s);
      moments.add(s, pack.count);
    });
    C mean, rstd;
    moments.finish(norm.per_column, norm.eps, mean, rstd);
    if (threadIdx.x == 0 && norm.stat.data) {
      write_one(norm.stat, 2 * row, mean);
      write_one(norm.stat, 2 * row + 1, rstd);
    }
    for_row(rows, [&](const RowPack& pack) {
      C s[kPack], scale[kPack], y[kPack];
      if (norm.kept)
        kept.recall(pack, s);
      else
        read_sum(pack, s);
      norm.scale.read_at(row, pack, scale);
#pragma unroll
      for (int i = 0; i < kPack; i++) y[i] = (s[i] - mean) * rstd * scale[i];
      if (norm.offset.source.data) {
        C offset[kPack];
        norm.offset.read_at(row, pack, offset);
#pragma unroll
        for (int i = 0; i < kPack; i++) y[i] += offset[i];
      }
      write(norm.y, row * rows.width + pack.column, pack.count, y);
    });
  }
}

// ---- backward: with h = (s - mean) * rstd and g = grad * scale,
// grad_s = rstd * (g - mean(g) - h * mean(g h)), to_scale = sum grad * h, to_offset = sum grad ----
struct NormBackward {
  Source grad, more, stat;  // more: what else flows back into s
  ParameterRows scale;
  double eps, per_column;
  bool center, rounded;  // rounded: stat belongs to the unrounded s, which is gone; the row gets its own
  Sink grad_s, own_stat;
  Sink to_scale, to_offset;  // (runs of all rows of scale, width)
  int64_t run, runs;         // rows of a run, runs of one row of scale
};

// Of one row: its mean and rstd, then the two means of its gradient.
template <class C>
struct RowGradient {
  C mean, rstd, mean_g, mean_gh;

  template <class F>
  __device__ __forceinline__ void of_stat(const NormBackward& norm, int64_t row, const F& for_each_s) {
    if (norm.rounded) {
      RowMoments<C> moments(norm.center);
      for_each_s([&](const RowPack& pack, const C(&s)[kPack]) { moments.add(s, pack.count); });
      moments.finish(norm.per_column, norm.eps, mean, rstd);
    } else {
      mean = read_one<C>(norm.stat, 2 * row);
      rstd = read_one<C>(norm.stat, 2 * row + 1);
    }
  }
  __device__ __forceinline__ void of_sums(const NormBackward& norm, C g, C gh) {
    C in[2] = {g, gh};
    double total[2];
    block_reduce<Sum>(in, total);
    // d rms / d s = s / (D rms), and rms * rstd = 1 - eps * rstd: zero for a row of zeros.
    const double share = norm.center ? 1.0 : 1.0 - norm.eps * double(rstd);
    mean_g = norm.center ? C(total[0] * norm.per_column) : C(0);
    mean_gh = share > 0 ? C(total[1] * norm.per_column) / C(share) : C(0);
  }
  __device__ C h(C s) const { return (s - mean) * rstd; }
  __device__ __forceinline__ void write_grad(const NormBackward& norm, int64_t at, int count, const C (&g)[kPack],
                             const C (&h)[kPack]) const {
    C out[kPack];
#pragma unroll
    for (int i = 0; i < kPack; i++) out[i] = rstd * (g[i] - mean_g - h[i] * mean_gh);
    if (norm.more.data) {
      C more[kPack];
      read(norm.more, at, count, more);
#pragma unroll
      for (int i = 0; i < kPack; i++) out[i] += more[i];
    }
    write(norm.grad_s, at, count, out);
  }
};

// A block has a run of rows under one row of scale, and keeps four things of a row's width: s (then h), the
// gradient (then g), and the run's sums for scale and offset. So every tensor is read once.
template <class C, class Rows>
__global__ void __launch_bounds__(kWideThreads<C>, 1)
    norm_backward_kernel(const __grid_constant__ Rows rows, const __grid_constant__ NormBackward norm) {
  FMK_DYNAMIC_SHARED(C, memory);
  const auto kept_s = kept_in(memory, rows.packs), kept_g = kept_in(memory, rows.packs, 1);
  const auto to_scale = kept_in(memory, rows.packs, 2), to_offset = kept_in(memory, rows.packs, 3);
  const int64_t repeat = norm.scale.repeat, tasks = rows.rows / repeat * norm.runs;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t group = task / norm.runs, begin = group * repeat + task % norm.runs * norm.run;
    const int64_t end = least(begin + norm.run, (group + 1) * repeat);
    const C zeros[kPack] = {};
    for_row(rows, [&](const RowPack& pack) {
      to_scale.keep(pack, zeros);
      to_offset.keep(pack, zeros);
    });
    for (int64_t row = begin; row < end; row++) {
      const int64_t base = row * rows.width;
      for_row(rows, [&](const RowPack& pack) {
        const auto s = fetch_row<C>(rows, row, pack);
        const auto grad = fetch<C>(norm.grad, base + pack.column, pack.count);
        C x[kPack];
        s.to(x);
        kept_s.keep(pack, x);
        grad.to(x);
        kept_g.keep(pack, x);
      });
      RowGradient<C> of_row;
      of_row.of_stat(norm, row, [&](const auto& body) {
        for_row(rows, [&](const RowPack& pack) {
          C s[kPack];
          kept_s.recall(pack, s);
          body(pack, s);
        });
      });
      C sum_g = 0, sum_gh = 0;
      for_row(rows, [&](const RowPack& pack) {
        C s[kPack], grad[kPack], scale[kPack];
        kept_s.recall(pack, s);
        kept_g.recall(pack, grad);
        norm.scale.read_at(row, pack, scale);
#pragma unroll
        for (int i = 0; i < kPack; i++) {
          if (i < pack.count) {
            const int place = kept_s.place(pack, i);
            const C h = of_row.h(s[i]), g = grad[i] * scale[i];
            sum_g += g;
            sum_gh += g * h;
            to_scale.memory[place] += grad[i] * h;
            to_offset.memory[place] += grad[i];
            kept_s.memory[place] = h;
            kept_g.memory[place] = g;
          }
        }
      });
      of_row.of_sums(norm, sum_g, sum_gh);
      for_row(rows, [&](const RowPack& pack) {
        C h[kPack], g[kPack];
        kept_s.recall(pack, h);
        kept_g.recall(pack, g);
        of_row.write_grad(norm, base + pack.column, pack.count, g, h);
      });
    }
    for_row(rows, [&](const RowPack& pack) {
      C sums[kPack];
      to_scale.recall(pack, sums);
      write(norm.to_scale, task * rows.width + pack.column, pack.count, sums);
      to_offset.recall(pack, sums);
      write(norm.to_offset, task * rows.width + pack.column, pack.count, sums);
    });
  }
}

// Adds up the runs of each row of scale, `all` being (2, groups, runs, width): for scale, then for offset. A warp
// has 32 columns and every eighth run.
template <class C>
__global__ void __launch_bounds__(kTileThreads)
    norm_runs_kernel(int64_t groups, int64_t runs, int64_t width, const C* all, C* to_scale, C* to_offset) {
  constexpr int kWarps = kTileThreads / kWarp;
  FMK_SHARED(double, kTileThreads, sums);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t blocks = (width + kWarp - 1) / kWarp;
  for (int64_t task = blockIdx.x; task < 2 * groups * blocks; task += gridDim.x) {
    const int64_t line = task / blocks, column = task % blocks * kWarp + lane;
    double sum = 0;
    if (column < width)
#pragma unroll 8
      for (int64_t r = warp; r < runs; r += kWarps) sum += load(all + (line * runs + r) * width + column);
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp == 0 && column < width) {
      for (int w = 1; w < kWarps; w++) sum += sums[w * kWarp + lane];
      store((line < groups ? to_scale : to_offset) + line % groups * width + column, C(sum));
    }
    __syncthreads();
  }
}

}  // namespace fmk
