// The norms on a GPU: launches.
#include "norm.cuh"
#include "norm_wide.cuh"

#include "launch.h"

#include "../shared/norm.h"

namespace fmk {
namespace {

// Of runs of rows in a backward, whose sums are written and read once more: enough for four blocks on each of 132 SMs,
// and no team of threads has more than eight rows.
constexpr int64_t kRuns = 528, kRowsOfTeam = 8;
constexpr int64_t kWideRuns = 256, kWideRun = 64;  // of rows too wide for that: at most so many runs, of so many rows

// f(the rows, threads of a block): a warp's, or a block's.
template <class A, class F>
void with_rows(const NormRows& rows, const F& f) {
  FMK_CHECK(rows.x.size() <= kMostParts, "x: at most 256 tensors on a GPU");
  const Dtype dtype = dtype_of(rows.x[0]);
  if (rows.x.size() == 1 && rows.width <= kRowOfWarp<typename A::Compute>)
    return f(OneRow{rows.x[0].const_data_ptr(), rows.count, rows.width, (rows.width + kPack - 1) / kPack, dtype},
             kRowThreads);
  RowParts parts{};
  parts.rows = rows.count;
  parts.width = rows.width;
  parts.dtype = dtype;
  int64_t column = 0;
  for (const Tensor& x : rows.x) {
    const int64_t width = x.size(x.dim() - 1);
    if (width > 0) parts.parts[parts.count++] = {x.const_data_ptr(), width, column, parts.packs};
    parts.packs += (width + kPack - 1) / kPack;
    parts.parts[parts.count].packs_before = parts.packs;
    column += width;
  }
  int threads = kWarp;
  while (threads < kWideThreads<typename A::Compute> && threads * kPack * A::kInFlight < rows.width) threads *= 2;
  f(parts, threads);
}

// Rows of a scale, offset or gate where they are, if each is dense: the values of a group are columns of one tensor,
// so theirs are far apart. Otherwise of a dense copy, which `copy` keeps.
struct ParameterTensor {
  Tensor copy;
  Source source;
  int64_t stride, repeat;
  ParameterTensor(const OptTensor& x, const NormRows& rows) : source{nullptr, Dtype::f32}, stride(0), repeat(1) {
    if (!x) return;
    const bool there = x->dim() == 2 && (x->stride(1) == 1 || rows.width <= 1);
    copy = there ? *x : dense(*x);
    source = fmk::source(copy);
    stride = there && x->size(0) > 1 ? x->stride(0) : rows.width;
    repeat = rows.rows_per_scale();
  }
  int64_t elements(const NormRows& rows) const { return rows.scale_rows * stride; }
  template <class A>
  ParameterRows<A> as() const {
    return {source, stride, repeat};
  }
};

std::vector<Source> sources(const NormRows& rows) {
  std::vector<Source> all;
  for (const Tensor& x : rows.x) all.push_back(source(x));
  return all;
}
int64_t odd_columns(const NormRows& rows) {
  int64_t odd = 0;
  for (const Tensor& x : rows.x) odd |= x.size(x.dim() - 1) % kPack;
  return odd;
}

}  // namespace

void run_norm(const Device& device, const NormCall& call) {
  const NormRows& rows = call.rows;
  const OptTensor residual = dense(call.residual);
  const ParameterTensor scales(call.scale, rows), offsets(call.offset, rows), gates(call.gate, rows);
  std::vector<Source> activations = sources(rows);
  for (const Source& more : {source(residual), source(call.y), source(call.sum)}) activations.push_back(more);
  const int64_t elements =
      std::max({rows.count * rows.width, scales.elements(rows), offsets.elements(rows), gates.elements(rows)});
  with_access<Second::same_or_float>(
      is_double(call.y), activations, {scales.source, offsets.source, gates.source},
      {odd_columns(rows), scales.stride, offsets.stride, gates.stride}, elements, [&](auto access) {
        using A = decltype(access);
        using C = typename A::Compute;
        Norm<A> norm{};
        norm.residual = source(residual);
        norm.scale = scales.as<A>();
        norm.offset = offsets.as<A>();
        norm.gate = gates.as<A>();
        norm.eps = C(call.eps);
        norm.share = 1 / double(rows.width);
        norm.center = call.center;
        norm.inside = call.inside;
        norm.y = sink(call.y);
        norm.sum = sink(call.sum);
        norm.stat = call.stat ? static_cast<C*>(call.stat->mutable_data_ptr()) : nullptr;
        with_rows<A>(rows, [&](const auto& of, int threads) {
          using Rows = std::decay_t<decltype(of)>;
          const int64_t teams = Rows::kBlock ? 1 : kRowTeams;
          const int64_t of_pack = residual ? kPack * int64_t(sizeof(C)) : kKeptQuads<A> * int64_t(sizeof(uint4));
          const int64_t bytes = teams * of.packs * of_pack;
          norm.kept = !Rows::kBlock || bytes <= device.shared_bytes();
          device.launch(norm_kernel<A, Rows>, (of.rows + teams - 1) / teams, threads, norm.kept ? bytes : 0, of, norm);
        });
      });
}

void run_norm_backward(const Device& device, const NormBackwardCall& call) {
  const NormRows& rows = call.rows;
  const Tensor grad = dense(call.grad_y), stats = dense(call.stat);
  const OptTensor more_grad = dense(call.grad_sum);
  const Dtype wide = dtype_of(call.grad_scale);
  const int64_t repeat = rows.rows_per_scale(), groups = call.scale.numel() == 0 ? 0 : rows.scale_rows;
  const ParameterTensor scales(call.scale, rows);
  std::vector<Source> activations = sources(rows);
  for (const Source& more : {source(grad), source(more_grad), source(call.grad_s)}) activations.push_back(more);
  const int64_t elements = std::max(rows.count * rows.width, scales.elements(rows));
  with_access<Second::same_or_float>(
      wide == Dtype::f64, activations, {scales.source}, {odd_columns(rows), scales.stride}, elements, [&](auto access) {
        using A = decltype(access);
        using C = typename A::Compute;
        NormBackward<A> norm{};
        norm.grad = source(grad);
        norm.more = source(more_grad);
        norm.stat = source(stats);
        norm.scale = scales.as<A>();
        norm.eps = C(call.eps);
        norm.share = 1 / double(rows.width);
        norm.center = call.center;
        norm.inside = call.inside;
        norm.rounded = size_of(dtype_of(call.grad_s)) == 2;
        norm.grad_s = sink(call.grad_s);
        Tensor memory;
        // One run writes the gradients themselves; several are added up.
        const auto cut = [&](int64_t run) {
          norm.run = run;
          norm.runs = (repeat + run - 1) / run;
          memory = fresh({norm.runs == 1 ? 0 : 2 * groups * norm.runs * rows.width}, wide);
          C* const all = static_cast<C*>(memory.mutable_data_ptr());
          norm.to_scale = norm.runs == 1 ? sink(call.grad_scale) : Sink{all, wide};
          norm.to_offset = norm.runs == 1 ? sink(call.grad_offset) : Sink{all + groups * norm.runs * rows.width, wide};
        };
        with_rows<A>(rows, [&](const auto& of, int threads) {
          using Rows = std::decay_t<decltype(of)>;
          const int64_t teams = Rows::kBlock ? 1 : kRowTeams;
          const int64_t of_pack = 2 * kPack * int64_t(sizeof(C)) + 2 * kKeptQuads<A> * int64_t(sizeof(uint4));
          const int64_t bytes = teams * of.packs * of_pack;
          if (!Rows::kBlock || bytes <= device.shared_bytes()) {
            const int64_t rows_of_block = (of.rows + kRuns - 1) / kRuns;
            cut(std::clamp((rows_of_block + teams - 1) / teams * teams, teams, teams * kRowsOfTeam));
            if (of.rows == 0) norm.runs = 0;
            device.launch(norm_backward_kernel<A, Rows>, groups * norm.runs, threads, bytes, of, norm);
          } else if constexpr (Rows::kBlock) {
            const Tensor own = fresh({of.rows, 2}, wide);
            norm.own_stat = static_cast<C*>(own.mutable_data_ptr());
            cut(std::max<int64_t>(kWideRun, (of.rows + kWideRuns - 1) / kWideRuns));
            device.launch(norm_wide_backward_kernel<A>, of.rows, threads, 0, of, norm);
            device.launch(norm_wide_columns_kernel<A>, groups * norm.runs * ((of.packs + kWarp - 1) / kWarp),
                          kTileThreads, 0, of, norm.grad, static_cast<const C*>(norm.own_stat), groups, repeat,
                          norm.run, norm.runs, norm.to_scale, norm.to_offset);
          }
        });
        if (norm.runs != 1)
          device.launch(runs_kernel<C>, 2 * groups * ((rows.width + kWarp - 1) / kWarp), kTileThreads, 0, 2 * groups,
                        groups, norm.runs, rows.width, static_cast<const C*>(static_cast<C*>(memory.mutable_data_ptr())),
                        static_cast<C*>(call.grad_scale.mutable_data_ptr()),
                        static_cast<C*>(call.grad_offset.mutable_data_ptr()));
      });
}

}  // namespace fmk
