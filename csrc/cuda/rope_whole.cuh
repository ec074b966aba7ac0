// The norm and rotation of queries and keys on a GPU, for tensors of whole packs: a thread keeps a unit of a row in
// registers, 16 elements that make pairs among themselves. A few lanes of a warp have a row of up to 512 columns, a
// block a wider one.
#pragma once
#include "rope.cuh"

namespace fmk {

constexpr int kUnit = 2 * kPack;

// Two packs of one head.
struct RopeUnit {
  int head, first, second;  // columns where they begin
  bool there, turns;

  template <class A>
  __device__ RopeUnit(const Rope<A>& rope, int number) {
    const int units = int(rope.width) / kUnit;
    there = number < units * int(rope.heads_of_row);
    head = number / units;
    const int of_head = number - head * units;
    turns = there && of_head < int(rope.rotated) / kUnit;
    const bool halves = turns && !rope.interleaved;
    first = halves ? of_head * kPack : of_head * kUnit;
    second = first + (halves ? int(rope.rotated) / 2 : kPack);
  }
};

// share * the sum of x over the `size` threads of a row: a power of two of lanes, or the block.
template <bool kBlock, class C>
__device__ __forceinline__ C row_mean(C x, int size, double share) {
  if constexpr (kBlock) {
    C sums[1] = {x};
    Team<true>::scaled_sum(sums, share);
    return sums[0];
  } else {
    for (int distance = size / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kWholeWarp, x, distance);
    return x * C(share);
  }
}

// x = x * cos + turned(x) * sin, or the transposed of that.
template <bool kTransposed, class A>
__device__ __forceinline__ void rotate(const Rope<A>& rope, typename A::Index table, const RopeUnit& unit,
                                       float (&a)[kPack], float (&b)[kPack]) {
  using C = typename A::Compute;
  const auto fetched_cos_a = fetch<C>(rope.cos, table + unit.first), fetched_sin_a = fetch<C>(rope.sin, table + unit.first);
  const auto fetched_cos_b = fetch<C>(rope.cos, table + unit.second), fetched_sin_b = fetch<C>(rope.sin, table + unit.second);
  C cos_a[kPack], sin_a[kPack], cos_b[kPack], sin_b[kPack];
  fetched_cos_a.to(cos_a);
  fetched_sin_a.to(sin_a);
  fetched_cos_b.to(cos_b);
  fetched_sin_b.to(sin_b);
  const auto turn = [](C& x, C& y, C cos_x, C sin_x, C cos_y, C sin_y) {
    const C old_x = x, old_y = y;
    x = kTransposed ? old_x * cos_x + old_y * sin_y : old_x * cos_x - old_y * sin_x;
    y = kTransposed ? old_y * cos_y - old_x * sin_x : old_y * cos_y + old_x * sin_y;
  };
  if (rope.interleaved) {
#pragma unroll
    for (int i = 0; i < kPack; i += 2) {
      turn(a[i], a[i + 1], cos_a[i], sin_a[i], cos_a[i + 1], sin_a[i + 1]);
      turn(b[i], b[i + 1], cos_b[i], sin_b[i], cos_b[i + 1], sin_b[i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPack; i++) turn(a[i], b[i], cos_a[i], sin_a[i], cos_b[i], sin_b[i]);
  }
}

// The weights of a unit; 1 without weights.
template <class A>
__device__ __forceinline__ void read_weight(const Rope<A>& rope, const RopeUnit& unit, float (&a)[kPack],
                                            float (&b)[kPack]) {
#pragma unroll
  for (int i = 0; i < kPack; i++) a[i] = b[i] = 1;
  if (!rope.weight.data || !unit.there) return;
  const int at = unit.head * int(rope.width);
  fetch<float>(rope.weight, at + unit.first, kPack).to(a);
  fetch<float>(rope.weight, at + unit.second, kPack).to(b);
}

// size: threads of a row
template <class A, bool kBlock>
__global__ void __launch_bounds__(kRopeThreads<A, kBlock>, 1)
    rope_whole_kernel(const __grid_constant__ Rope<A> rope, int size) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  const int teams = int(blockDim.x) / size, team = int(threadIdx.x) / size;
  const RopeUnit unit(rope, int(threadIdx.x) - team * size);
  C weight_a[kPack], weight_b[kPack];
  read_weight(rope, unit, weight_a, weight_b);
  for (Index begin = Index(blockIdx.x) * teams; begin < Index(rope.rows); begin += gridDim.x * teams) {
    const Index row = begin + team;
    const bool there = unit.there && row < Index(rope.rows);
    const RopePlace<A> place(rope, there ? row : 0);
    C a[kPack] = {}, b[kPack] = {};
    if (there) {
      const Index at = place.in(rope.x_at, unit.head);
      const auto first = fetch<C, false>(rope.x, at + unit.first), second = fetch<C, false>(rope.x, at + unit.second);
      first.to(a);
      second.to(b);
    }
    if (rope.norm) {
      C squares = 0;
#pragma unroll
      for (int i = 0; i < kPack; i++) squares += a[i] * a[i] + b[i] * b[i];
      const C rstd = C(1) / sqrt(row_mean<kBlock>(squares, size, rope.share) + rope.eps);
#pragma unroll
      for (int i = 0; i < kPack; i++) {
        a[i] = a[i] * rstd * weight_a[i];
        b[i] = b[i] * rstd * weight_b[i];
      }
    }
    if (!there) continue;
    if (unit.turns) rotate<false>(rope, place.in_table(rope), unit, a, b);
    const Index at = place.in(rope.out_at, unit.head);
    write(rope.out, at + unit.first, AllOfPack{}, a);
    write(rope.out, at + unit.second, AllOfPack{}, b);
  }
}

// A block has a run of rows; its teams take turns at them. Each thread adds up its columns for the weight; the teams'
// sums meet at the end.
template <class A, bool kBlock>
__global__ void __launch_bounds__(kRopeThreads<A, kBlock>, kBlock ? 1 : 4)
    rope_whole_backward_kernel(const __grid_constant__ Rope<A> rope, int size) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  FMK_DYNAMIC_SHARED(C, others);
  const int teams = int(blockDim.x) / size, team = int(threadIdx.x) / size, member = int(threadIdx.x) - team * size;
  const RopeUnit unit(rope, member);
  C weight_a[kPack], weight_b[kPack];
  read_weight(rope, unit, weight_a, weight_b);
  for (Index task = blockIdx.x; task < Index(rope.runs); task += gridDim.x) {
    const Index start = task * Index(rope.run), end = least(start + Index(rope.run), Index(rope.rows));
    C sum_a[kPack] = {}, sum_b[kPack] = {};
    for (Index begin = start; begin < end; begin += teams) {
      const Index row = begin + team;
      const bool there = unit.there && row < end;
      const RopePlace<A> place(rope, there ? row : 0);
      C a[kPack] = {}, b[kPack] = {}, h_a[kPack] = {}, h_b[kPack] = {};
      if (there) {
        const Index grad_at = place.in(rope.grad_at, unit.head), x_at = place.in(rope.x_at, unit.head);
        const auto first = fetch<C>(rope.grad, grad_at + unit.first), second = fetch<C>(rope.grad, grad_at + unit.second);
        if (rope.norm) {
          const auto x_first = fetch<C>(rope.x, x_at + unit.first), x_second = fetch<C>(rope.x, x_at + unit.second);
          x_first.to(h_a);
          x_second.to(h_b);
        }
        first.to(a);
        second.to(b);
        if (unit.turns) rotate<true>(rope, place.in_table(rope), unit, a, b);
      }
      if (rope.norm) {
        C squares = 0, along = 0;
#pragma unroll
        for (int i = 0; i < kPack; i++) squares += h_a[i] * h_a[i] + h_b[i] * h_b[i];
        const C rstd = C(1) / sqrt(row_mean<kBlock>(squares, size, rope.share) + rope.eps);
#pragma unroll
        for (int i = 0; i < kPack; i++) {
          h_a[i] *= rstd;
          h_b[i] *= rstd;
          if (there) {
            sum_a[i] += a[i] * h_a[i];
            sum_b[i] += b[i] * h_b[i];
          }
          a[i] *= weight_a[i];
          b[i] *= weight_b[i];
          along += a[i] * h_a[i] + b[i] * h_b[i];
        }
        along = row_mean<kBlock>(along, size, rope.share);
#pragma unroll
        for (int i = 0; i < kPack; i++) {
          a[i] = rstd * (a[i] - h_a[i] * along);
          b[i] = rstd * (b[i] - h_b[i] * along);
        }
      }
      if (!there) continue;
      const Index at = place.in(rope.out_at, unit.head);
      write(rope.out, at + unit.first, AllOfPack{}, a);
      write(rope.out, at + unit.second, AllOfPack{}, b);
    }
    if (!rope.weight.data) continue;
    // In the order of the teams: piece i of a thread's sums is blockDim.x numbers behind piece i - 1.
    if constexpr (!kBlock) {
#pragma unroll
      for (int i = 0; i < kPack; i++) {
        others[i * int(blockDim.x) + int(threadIdx.x)] = sum_a[i];
        others[(kPack + i) * int(blockDim.x) + int(threadIdx.x)] = sum_b[i];
      }
      __syncthreads();
      if (team == 0)
        for (int t = 1; t < teams; t++)
#pragma unroll
          for (int i = 0; i < kPack; i++) {
            sum_a[i] += others[i * int(blockDim.x) + t * size + member];
            sum_b[i] += others[(kPack + i) * int(blockDim.x) + t * size + member];
          }
      __syncthreads();
    }
    if (team == 0 && unit.there) {
      const Index at = task * Index(rope.width) * Index(rope.heads_of_row) + unit.head * Index(rope.width);
      write(rope.to_weight, at + unit.first, AllOfPack{}, sum_a);
      write(rope.to_weight, at + unit.second, AllOfPack{}, sum_b);
    }
  }
}

}  // namespace fmk
