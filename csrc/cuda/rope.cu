// The norm and rotation of queries and keys on a GPU: launches.
#include "rope.cuh"
#include "rope_whole.cuh"

#include "launch.h"

#include "../shared/rope.h"

namespace fmk {
namespace {

constexpr int64_t kRuns = 528, kRowsOfTeam = 8;  // as for the norms
constexpr int64_t kWideBlocks = 256;             // of rows that are kept in global memory

int64_t reach(const RopeCall& call, const RopeSide& side, const RopeStrides& at) {
  return (call.samples - 1) * at.sample + (call.tokens - 1) * at.token + (side.heads - 1) * at.head + call.width;
}
RopeDistances distances(const RopeStrides& at) { return {at.sample, at.token, at.head}; }

// f(access, the arguments of a kernel, whether a block has a row, its width): of q or of k.
template <class F>
void with_rope(const RopeCall& call, const RopeSide& side, const F& f) {
  if (call.rows(side) == 0 || call.width == 0) return;
  const bool backward = side.grad.has_value();
  const RopeStrides& grad_at = backward ? side.grad_at : side.x_at;
  const int64_t elements = std::max({reach(call, side, side.x_at), reach(call, side, side.out_at),
                                     reach(call, side, grad_at), call.cos.numel()});
  with_access<Second::same_or_float>(
      call.in_double, {source(side.x), source(side.out), source(side.grad)}, {source(call.cos), source(call.sin)},
      {call.width, call.rotated, side.x_at.sample, side.x_at.token, side.x_at.head, side.out_at.sample,
       side.out_at.token, side.out_at.head, grad_at.sample, grad_at.token, grad_at.head},
      elements, [&](auto access) {
        using A = decltype(access);
        using C = typename A::Compute;
        const int64_t heads = side.heads_of_row(), row_width = heads * call.width;
        Rope<A> rope{};
        rope.x = source(side.x);
        rope.grad = source(side.grad);
        rope.out = sink(side.out);
        rope.cos = source(call.cos);
        rope.sin = source(call.sin);
        rope.weight = source(side.weight);
        rope.x_at = distances(side.x_at);
        rope.grad_at = distances(grad_at);
        rope.out_at = distances(side.out_at);
        rope.rows = call.rows(side);
        rope.tokens = call.tokens;
        rope.rows_of_token = side.heads / heads;
        rope.heads_of_row = heads;
        rope.width = call.width;
        rope.rotated = call.rotated;
        rope.table_stride = call.table_stride;
        rope.eps = C(call.eps);
        rope.share = 1 / double(row_width);
        rope.norm = call.norm;
        rope.interleaved = call.interleaved;
        rope.heads_first = call.heads_first;
        if (row_width <= kRowOfWarp<C>) return f(access, rope, std::false_type{}, row_width);
        f(access, rope, std::true_type{}, row_width);
      });
}

template <class C, class Block>
int threads_of(int64_t row_width, Block) {
  if (!Block::value) return kRowThreads;
  int threads = kWarp;
  while (threads < kWideThreads<C> && threads * kPack < row_width) threads *= 2;
  return threads;
}

// Threads of a row of which each has a unit; 0 if a row has no whole units, or too many.
template <class A>
int threads_of_units(const Rope<A>& rope, int64_t row_width) {
  const int64_t units = row_width / kUnit;
  if (rope.width % kUnit || rope.rotated % kUnit || units > kWideThreads<float>) return 0;
  int threads = 1;
  while (threads < units) threads *= 2;
  return threads;
}

// The shared memory for `bytes`; if that is too much, no shared memory, global memory for at most `blocks` blocks.
template <class C>
int64_t shared_or_scratch(const Device& device, int64_t bytes, int64_t& blocks, C*& scratch, Tensor& memory) {
  if (bytes <= device.shared_bytes()) return bytes;
  blocks = std::min(blocks, kWideBlocks);
  memory = fresh({blocks * bytes / int64_t(sizeof(C))}, compute_dtype<C>);
  scratch = static_cast<C*>(memory.mutable_data_ptr());
  return 0;
}

}  // namespace

void run_rope(const Device& device, const RopeCall& call) {
  for (const RopeSide& side : call.sides)
    with_rope(call, side, [&](auto access, auto rope, auto block, int64_t row_width) {
      using A = decltype(access);
      using C = typename A::Compute;
      if constexpr (A::kWhole)
        if (const int size = threads_of_units(rope, row_width)) {
          const int threads = std::max(size, size > kWarp ? 0 : kRowThreads), teams = threads / size;
          const auto kernel = size > kWarp ? rope_whole_kernel<A, true> : rope_whole_kernel<A, false>;
          return device.launch(kernel, (rope.rows + teams - 1) / teams, threads, 0, rope, size);
        }
      const int64_t teams = block.value ? 1 : kRowTeams;
      int64_t blocks = (rope.rows + teams - 1) / teams;
      Tensor memory;
      const int64_t bytes =
          shared_or_scratch(device, teams * row_width * int64_t(sizeof(C)), blocks, rope.scratch, memory);
      device.launch(rope_kernel<A, block.value>, blocks, threads_of<C>(row_width, block), bytes, rope);
    });
}

void run_rope_backward(const Device& device, const RopeCall& call) {
  for (const RopeSide& side : call.sides) {
    if (side.to_weight && call.rows(side) == 0) torch::stable::fill_(*side.to_weight, 0.0);
    with_rope(call, side, [&](auto access, auto rope, auto block, int64_t row_width) {
      using A = decltype(access);
      using C = typename A::Compute;
      Tensor memory, sums;
      bool several = false;
      const auto cut = [&](int64_t teams) {
        const int64_t rows_of_block = (rope.rows + kRuns - 1) / kRuns;
        rope.run = std::clamp((rows_of_block + teams - 1) / teams * teams, teams, teams * kRowsOfTeam);
        rope.runs = (rope.rows + rope.run - 1) / rope.run;
        several = side.to_weight && rope.runs > 1;
        if (several) sums = fresh({rope.runs * row_width}, compute_dtype<C>);
        if (side.to_weight) rope.to_weight = sink(several ? sums : *side.to_weight);
      };
      if constexpr (A::kWhole)
        if (const int size = threads_of_units(rope, row_width)) {
          const int threads = std::max(size, size > kWarp ? 0 : kRowThreads), teams = threads / size;
          const auto kernel = size > kWarp ? rope_whole_backward_kernel<A, true> : rope_whole_backward_kernel<A, false>;
          cut(teams);
          device.launch(kernel, rope.runs, threads, teams > 1 ? threads * kUnit * int64_t(sizeof(C)) : 0, rope, size);
        }
      if (rope.runs == 0) {
        const int64_t teams = block.value ? 1 : kRowTeams;
        cut(teams);
        int64_t blocks = rope.runs;
        const int64_t bytes =
            shared_or_scratch(device, teams * 4 * row_width * int64_t(sizeof(C)), blocks, rope.scratch, memory);
        device.launch(rope_backward_kernel<A, block.value>, blocks, threads_of<C>(row_width, block), bytes, rope);
      }
      if (!several) return;
      C* const result = static_cast<C*>(side.to_weight->mutable_data_ptr());
      device.launch(runs_kernel<C>, (row_width + kWarp - 1) / kWarp, kTileThreads, 0, int64_t(1), int64_t(1), rope.runs,
                    row_width, static_cast<const C*>(sums.const_data_ptr()), result, result);
    });
  }
}

}  // namespace fmk
