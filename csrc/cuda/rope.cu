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

// Threads of a row of which each has a unit: a power of two, or 0 if a row has no whole units or too many.
int threads_of_units(const RopeCall& call, int64_t row_width) {
  if (call.width % kUnit || call.rotated % kUnit || row_width > kUnit * kWideThreads<float>) return 0;
  int threads = 1;
  while (threads * kUnit < row_width) threads *= 2;
  return threads;
}

// f(access, the arguments of a kernel, the width of a row): of q or of k. The access is Common only for rows of units.
template <class F>
void with_rope(const RopeCall& call, const RopeSide& side, const F& f) {
  if (call.rows(side) == 0 || call.width == 0) return;
  const bool backward = side.grad.has_value();
  const int64_t heads = side.heads_of_row(), row_width = heads * call.width;
  const int64_t no_units = threads_of_units(call, row_width) == 0;
  const RopeStrides& grad_at = backward ? side.grad_at : side.x_at;
  const int64_t elements = std::max({reach(call, side, side.x_at), reach(call, side, side.out_at),
                                     reach(call, side, grad_at), call.cos.numel()});
  with_access<Second::same_or_float>(
      call.in_double, {source(side.x), source(side.out), source(side.grad)}, {source(call.cos), source(call.sin)},
      {no_units, call.width, call.rotated, side.x_at.sample, side.x_at.token, side.x_at.head, side.out_at.sample,
       side.out_at.token, side.out_at.head, grad_at.sample, grad_at.token, grad_at.head},
      elements, [&](auto access) {
        using A = decltype(access);
        using C = typename A::Compute;
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
        f(access, rope, row_width);
      });
}

// Threads of a block of rows of units.
int threads_of_block(int size) { return size > kWarp ? size : kRowThreads; }

// Launches over rows that have no units: a row is a warp's, or if it is wide a block's.
template <class C>
struct RowsOfAnyKind {
  const bool by_block;
  const int64_t teams;
  int threads = kRowThreads;
  explicit RowsOfAnyKind(int64_t row_width) : by_block(row_width > kRowOfWarp<C>), teams(by_block ? 1 : kRowTeams) {
    if (!by_block) return;
    for (threads = kWarp; threads < kWideThreads<C> && threads * kPack < row_width;) threads *= 2;
  }
  // Starts the kernel with `numbers` of C for each team, in shared memory, or in global memory if that is too much.
  template <class Kernel, class Arguments>
  void launch(const Device& device, Kernel kernel, int64_t blocks, int64_t numbers, Arguments rope) const {
    int64_t bytes = teams * numbers * int64_t(sizeof(C));
    Tensor memory;
    if (bytes > device.shared_bytes()) {
      blocks = std::min(blocks, kWideBlocks);
      memory = fresh({blocks * teams * numbers}, compute_dtype<C>);
      rope.scratch = static_cast<C*>(memory.mutable_data_ptr());
      bytes = 0;
    }
    device.launch(kernel, blocks, threads, bytes, rope);
  }
};

}  // namespace

void run_rope(const Device& device, const RopeCall& call) {
  for (const RopeSide& side : call.sides)
    with_rope(call, side, [&](auto access, const auto& rope, int64_t row_width) {
      using A = decltype(access);
      if constexpr (A::kWhole) {
        const int size = threads_of_units(call, row_width), threads = threads_of_block(size), teams = threads / size;
        const auto kernel = size > kWarp ? rope_whole_kernel<A, true> : rope_whole_kernel<A, false>;
        device.launch(kernel, (rope.rows + teams - 1) / teams, threads, 0, rope, size);
      } else {
        const RowsOfAnyKind<typename A::Compute> rows(row_width);
        const auto kernel = rows.by_block ? rope_kernel<A, true> : rope_kernel<A, false>;
        rows.launch(device, kernel, (rope.rows + rows.teams - 1) / rows.teams, row_width, rope);
      }
    });
}

void run_rope_backward(const Device& device, const RopeCall& call) {
  for (const RopeSide& side : call.sides) {
    if (side.to_weight && call.rows(side) == 0) torch::stable::fill_(*side.to_weight, 0.0);
    with_rope(call, side, [&](auto access, auto rope, int64_t row_width) {
      using A = decltype(access);
      using C = typename A::Compute;
      Tensor sums;
      bool several = false;
      // One run writes the gradient itself; several are added up.
      const auto cut = [&](int64_t teams) {
        const int64_t rows_of_block = (rope.rows + kRuns - 1) / kRuns;
        rope.run = std::clamp((rows_of_block + teams - 1) / teams * teams, teams, teams * kRowsOfTeam);
        rope.runs = (rope.rows + rope.run - 1) / rope.run;
        several = side.to_weight && rope.runs > 1;
        if (several) sums = fresh({rope.runs * row_width}, compute_dtype<C>);
        if (side.to_weight) rope.to_weight = sink(several ? sums : *side.to_weight);
      };
      if constexpr (A::kWhole) {
        const int size = threads_of_units(call, row_width), threads = threads_of_block(size), teams = threads / size;
        const auto kernel = size > kWarp ? rope_whole_backward_kernel<A, true> : rope_whole_backward_kernel<A, false>;
        cut(teams);
        device.launch(kernel, rope.runs, threads, teams > 1 ? threads * kUnit * int64_t(sizeof(C)) : 0, rope, size);
      } else {
        const RowsOfAnyKind<C> rows(row_width);
        const auto kernel = rows.by_block ? rope_backward_kernel<A, true> : rope_backward_kernel<A, false>;
        cut(rows.teams);
        rows.launch(device, kernel, rope.runs, 4 * row_width, rope);
      }
      if (!several) return;
      C* const result = static_cast<C*>(side.to_weight->mutable_data_ptr());
      device.launch(runs_kernel<C>, (row_width + kWarp - 1) / kWarp, kTileThreads, 0, int64_t(1), int64_t(1), rope.runs,
                    row_width, static_cast<const C*>(sums.const_data_ptr()), result, result);
    });
  }
}

}  // namespace fmk
