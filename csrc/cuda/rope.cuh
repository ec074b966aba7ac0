// The norm and rotation of queries and keys on a GPU. A warp has a row of up to 1024 columns, a block a wider one. The
// row is kept in shared memory, where the elements of a pair meet; in global memory, if it is too wide.
#pragma once
#include "norm.cuh"
#include "runs.cuh"

namespace fmk {

struct RopeDistances {
  int64_t sample, token, head;
};
// q or k. A row is a head of a token, or all heads of it (`heads_of_row`), which are normalized together.
template <class A>
struct Rope {
  using C = typename A::Compute;
  typename A::In x, grad;
  typename A::Out out;
  typename A::Parameter cos, sin;
  Source weight;
  RopeDistances x_at, grad_at, out_at;
  int64_t rows, tokens, rows_of_token, heads_of_row, width, rotated, table_stride;
  C eps;
  double share;  // 1 / width of a row
  bool norm, interleaved, heads_first;
  C* scratch;  // where rows are kept that do not fit shared memory, else null
  // backward
  int64_t run, runs;           // rows of a run, runs
  typename A::Wide to_weight;  // (runs, width of a row)
};

// Numbers of one team, in shared or in global memory.
template <class Shared, class C>
struct RowMemory {
  Shared shared;
  C* global;

  __device__ __forceinline__ C get(int i) const {
    if (global) return __ldcg(global + i);
    return shared[i];
  }
  __device__ __forceinline__ void put(int i, C x) const {
    if (global)
      __stcg(global + i, x);
    else
      shared[i] = x;
  }
};
template <class Shared, class C>
__device__ __forceinline__ RowMemory<Shared, C> row_memory(Shared shared, C* scratch, int64_t at) {
  return {shared + (scratch ? 0 : int(at)), scratch ? scratch + at : nullptr};
}

// Where a row begins in a tensor and in the tables.
template <class A>
struct RopePlace {
  using Index = typename A::Index;
  Index sample, token, head;

  __device__ RopePlace(const Rope<A>& rope, Index row) {
    const Index tokens = Index(rope.tokens), per_token = Index(rope.rows_of_token);
    const Index of_last = rope.heads_first ? tokens : per_token, outer = row / of_last, last = row - outer * of_last;
    const Index of_middle = rope.heads_first ? per_token : tokens;
    sample = outer / of_middle;
    const Index middle = outer - sample * of_middle;
    token = rope.heads_first ? last : middle;
    head = (rope.heads_first ? middle : last) * Index(rope.heads_of_row);
  }
  __device__ __forceinline__ Index in(const RopeDistances& at, Index more_heads) const {
    return sample * Index(at.sample) + token * Index(at.token) + (head + more_heads) * Index(at.head);
  }
  __device__ __forceinline__ Index in_table(const Rope<A>& rope) const {
    return sample * Index(rope.table_stride) + token * Index(rope.rotated);
  }
};

// use(head, column, count) for each pack of this thread.
template <class A, bool kBlock, class Use>
__device__ __forceinline__ void for_rope_packs(const Rope<A>& rope, const Use& use) {
  using Index = typename A::Index;
  const Index width = Index(rope.width), of_head = (width + kPack - 1) / kPack;
  const Index packs = of_head * Index(rope.heads_of_row);
  for (Index number = Team<kBlock>::member(); number < packs; number += Team<kBlock>::size()) {
    const Index head = number / of_head, column = (number - head * of_head) * kPack;
    use(head, column, count_for<A>(column, width));
  }
}

// The column that a rotated column makes a pair with, and whether the column is the first of them.
struct RopePair {
  int other;
  bool first;
};
template <class A>
__device__ __forceinline__ RopePair pair_of(const Rope<A>& rope, int column) {
  const int half = int(rope.rotated) / 2;
  const bool first = rope.interleaved ? column % 2 == 0 : column < half;
  const int distance = rope.interleaved ? 1 : half;
  return {first ? column + distance : column - distance, first};
}

template <class A, bool kBlock>
constexpr int kRopeThreads = kBlock ? kWideThreads<typename A::Compute> : kRowThreads;

template <class A, bool kBlock>
__global__ void __launch_bounds__(kRopeThreads<A, kBlock>, 1) rope_kernel(const __grid_constant__ Rope<A> rope) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  using Team = Team<kBlock>;
  FMK_DYNAMIC_SHARED(C, memory);
  const Index teams = Team::teams(), row_width = Index(rope.width) * Index(rope.heads_of_row);
  const int width = int(rope.width), rotated = int(rope.rotated);
  const auto kept = row_memory(memory, rope.scratch,
                               ((rope.scratch ? int64_t(blockIdx.x) * teams : 0) + Team::index()) * row_width);
  for (Index first = Index(blockIdx.x) * teams; first < Index(rope.rows); first += gridDim.x * teams) {
    const Index row = first + Team::index();
    const bool there = row < Index(rope.rows);
    const RopePlace<A> place(rope, there ? row : 0);
    C squares[1] = {0};
    if (there)
      for_rope_packs<A, kBlock>(rope, [&](Index head, Index column, auto count) {
        C x[kPack];
        fetch<C, false>(rope.x, place.in(rope.x_at, head) + column, count).to(x);
#pragma unroll
        for (int i = 0; i < kPack; i++) {
          squares[0] += x[i] * x[i];  // zeros beyond the end
          if (i < count) kept.put(int(head) * width + int(column) + i, x[i]);
        }
      });
    if (rope.norm) {
      Team::scaled_sum(squares, rope.share);
      const C rstd = C(1) / sqrt(squares[0] + rope.eps);
      if (there)
        for_rope_packs<A, kBlock>(rope, [&](Index head, Index column, auto count) {
          const int at = int(head) * width + int(column);
          C weight[kPack];
          if (rope.weight.data) fetch<C>(rope.weight, at, int(count)).to(weight);
#pragma unroll
          for (int i = 0; i < kPack; i++)
            if (i < count) {
              const C h = kept.get(at + i) * rstd;
              kept.put(at + i, rope.weight.data ? h * weight[i] : h);
            }
        });
    }
    __syncthreads();
    if (there)
      for_rope_packs<A, kBlock>(rope, [&](Index head, Index column, auto count) {
        const int begin = int(head) * width;
        C cos[kPack], sin[kPack], y[kPack];
        if (int(column) < rotated) {
          const Index table = place.in_table(rope) + column;
          const auto of_table = count_for<A>(column, Index(rotated));
          const auto fetched = fetch<C>(rope.cos, table, of_table);
          fetch<C>(rope.sin, table, of_table).to(sin);
          fetched.to(cos);
        }
#pragma unroll
        for (int i = 0; i < kPack; i++) {
          const int at = int(column) + i;
          y[i] = i < count ? kept.get(begin + at) : C(0);
          if (at < rotated) {
            const RopePair pair = pair_of(rope, at);
            const C other = kept.get(begin + pair.other);
            y[i] = y[i] * cos[i] + (pair.first ? -other : other) * sin[i];
          }
        }
        write(rope.out, place.in(rope.out_at, head) + column, count, y);
      });
    __syncthreads();
  }
}

// A block has a run of rows; its teams take turns at them. Kept of a row: grad * cos, which grad * weight replaces,
// grad * sin, x, and beside them the team's sums for the weight, which meet at the end.
template <class A, bool kBlock>
__global__ void __launch_bounds__(kRopeThreads<A, kBlock>, 1)
    rope_backward_kernel(const __grid_constant__ Rope<A> rope) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  using Team = Team<kBlock>;
  FMK_DYNAMIC_SHARED(C, memory);
  const Index teams = Team::teams(), row_width = Index(rope.width) * Index(rope.heads_of_row);
  const int width = int(rope.width), rotated = int(rope.rotated);
  const auto numbers = [&](int team, int which) {
    const int64_t line = ((rope.scratch ? int64_t(blockIdx.x) * teams : 0) + team) * 4 + which;
    return row_memory(memory, rope.scratch, line * row_width);
  };
  const auto by_cos = numbers(Team::index(), 0), by_sin = numbers(Team::index(), 1);
  const auto kept = numbers(Team::index(), 2), sums = numbers(Team::index(), 3);
  for (Index task = blockIdx.x; task < Index(rope.runs); task += gridDim.x) {
    const Index begin = task * Index(rope.run), end = least(begin + Index(rope.run), Index(rope.rows));
    for_rope_packs<A, kBlock>(rope, [&](Index head, Index column, auto count) {
#pragma unroll
      for (int i = 0; i < kPack; i++)
        if (i < count) sums.put(int(head) * width + int(column) + i, C(0));
    });
    for (Index first = begin; first < end; first += teams) {
      const Index row = first + Team::index();
      const bool there = row < end;
      const RopePlace<A> place(rope, there ? row : 0);
      C squares[1] = {0};
      if (there)
        for_rope_packs<A, kBlock>(rope, [&](Index head, Index column, auto count) {
          const int at = int(head) * width + int(column);
          C g[kPack], x[kPack], cos[kPack], sin[kPack];
          fetch<C>(rope.grad, place.in(rope.grad_at, head) + column, count).to(g);
          if (rope.norm) fetch<C>(rope.x, place.in(rope.x_at, head) + column, count).to(x);
          if (int(column) < rotated) {
            const Index table = place.in_table(rope) + column;
            const auto of_table = count_for<A>(column, Index(rotated));
            fetch<C>(rope.cos, table, of_table).to(cos);
            fetch<C>(rope.sin, table, of_table).to(sin);
          }
#pragma unroll
          for (int i = 0; i < kPack; i++) {
            if (rope.norm) squares[0] += x[i] * x[i];
            if (i < count) {
              const bool turns = int(column) + i < rotated;
              by_cos.put(at + i, turns ? g[i] * cos[i] : g[i]);
              if (turns) by_sin.put(at + i, g[i] * sin[i]);
              if (rope.norm) kept.put(at + i, x[i]);
            }
          }
        });
      C rstd = 1, mean[1] = {0};
      if (rope.norm) {
        Team::scaled_sum(squares, rope.share);
        rstd = C(1) / sqrt(squares[0] + rope.eps);
      }
      __syncthreads();
      if (there)
        for_rope_packs<A, kBlock>(rope, [&](Index head, Index column, auto count) {
          const int begin_of_head = int(head) * width, at = begin_of_head + int(column);
          C weight[kPack];
          if (rope.weight.data) fetch<C>(rope.weight, at, int(count)).to(weight);
#pragma unroll
          for (int i = 0; i < kPack; i++) {
            if (i >= count) continue;
            C g = by_cos.get(at + i);
            if (int(column) + i < rotated) {
              const RopePair pair = pair_of(rope, int(column) + i);
              const C other = by_sin.get(begin_of_head + pair.other);
              g += pair.first ? other : -other;
            }
            if (rope.norm) {
              const C h = kept.get(at + i) * rstd;
              if (rope.weight.data) {
                sums.put(at + i, sums.get(at + i) + g * h);
                g *= weight[i];
              }
              mean[0] += g * h;
            }
            by_cos.put(at + i, g);
          }
        });
      if (rope.norm) Team::scaled_sum(mean, rope.share);
      if (there)
        for_rope_packs<A, kBlock>(rope, [&](Index head, Index column, auto count) {
          const int at = int(head) * width + int(column);
          C out[kPack] = {};
#pragma unroll
          for (int i = 0; i < kPack; i++) {
            if (i >= count) continue;
            out[i] = by_cos.get(at + i);
            if (rope.norm) out[i] = rstd * (out[i] - kept.get(at + i) * rstd * mean[0]);
          }
          write(rope.out, place.in(rope.out_at, head) + column, count, out);
        });
      __syncthreads();
    }
    if (rope.weight.data) {
      // The teams' sums meet, in the order of the teams.
      const Index of_head = (Index(width) + kPack - 1) / kPack;
      for (Index number = threadIdx.x; number < of_head * Index(rope.heads_of_row); number += blockDim.x) {
        const Index head = number / of_head, column = (number - head * of_head) * kPack;
        const auto count = count_for<A>(column, Index(width));
        C total[kPack] = {};
        for (int team = 0; team < int(teams); team++)
#pragma unroll
          for (int i = 0; i < kPack; i++)
            if (i < count) total[i] += numbers(team, 3).get(int(head) * width + int(column) + i);
        write(rope.to_weight, task * row_width + head * Index(width) + column, count, total);
      }
    }
    __syncthreads();
  }
}

}  // namespace fmk
