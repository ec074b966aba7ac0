// The norms on a GPU. A warp has a row of up to 1024 columns, a block a wider one or one of several tensors. It is kept
// in shared memory between the statistics and the result, where it fits, and read once.
#pragma once
#include "device.cuh"
#include "runs.cuh"

namespace fmk {

constexpr int kRowThreads = 128, kRowTeams = kRowThreads / kWarp;  // of a block whose warps have a row each
template <class C>
constexpr int64_t kRowOfWarp = 4096 / sizeof(C);  // columns, at most
constexpr int kMostParts = 256;

// ---- rows ----
// Of one tensor, a warp's: whole packs, the last perhaps not full.
struct OneRow {
  const void* data;
  int64_t rows, width, packs;
  Dtype dtype;
  static constexpr bool kBlock = false;
};
// Of one or several tensors side by side, `width` columns in all, a block's.
struct RowPart {
  const void* data;
  int64_t width, column, packs_before;
};
struct RowParts {
  int64_t rows, width, packs;
  int count;
  Dtype dtype;
  RowPart parts[kMostParts + 1];  // and an end
  static constexpr bool kBlock = true;
};

// One pack of a thread: of which part and where in it, in which column of the row, and its number in the row.
template <class Index>
struct RowPack {
  int part;
  Index at, column, number;
};
// A way through the packs of a row, forwards.
template <class A, class Rows>
struct RowWalk {
  using Index = typename A::Index;
  const Rows& rows;
  int part = 0;

  __device__ __forceinline__ RowPack<Index> at(Index number) {
    if constexpr (Rows::kBlock) {
      while (number >= Index(rows.parts[part + 1].packs_before)) part++;
      const Index at = (number - Index(rows.parts[part].packs_before)) * kPack;
      return {part, at, Index(rows.parts[part].column) + at, number};
    } else {
      return {0, number * kPack, number * kPack, number};
    }
  }
};
template <class A, class Rows>
__device__ __forceinline__ auto count_in(const Rows& rows, const RowPack<typename A::Index>& pack) {
  using Index = typename A::Index;
  if constexpr (Rows::kBlock)
    return count_for<A>(pack.at, Index(rows.parts[pack.part].width));
  else
    return count_for<A>(pack.at, Index(rows.width));
}
// What fetch() gives of an In or a Parameter.
template <class A>
using FetchedIn = decltype(fetch<typename A::Compute>(typename A::In{}, 0, count_for<A>(0, 0)));
template <class A>
using FetchedParameter = decltype(fetch<typename A::Compute>(typename A::Parameter{}, 0, count_for<A>(0, 0)));

template <class A, class Rows>
__device__ __forceinline__ FetchedIn<A> fetch_row(const Rows& rows, typename A::Index row,
                                                  const RowPack<typename A::Index>& pack) {
  using Index = typename A::Index;
  const void* data;
  Index width;
  if constexpr (Rows::kBlock) {
    data = rows.parts[pack.part].data;
    width = Index(rows.parts[pack.part].width);
  } else {
    data = rows.data;
    width = Index(rows.width);
  }
  return fetch<typename A::Compute>(typename A::In(Source{data, rows.dtype}), row * width + pack.at,
                                    count_in<A>(rows, pack));
}

// The threads that have a row between them: a warp, or the block.
template <bool kBlock>
struct Team {
  static __device__ __forceinline__ int size() { return kBlock ? blockDim.x : kWarp; }
  static __device__ __forceinline__ int member() { return kBlock ? threadIdx.x : threadIdx.x % kWarp; }
  static __device__ __forceinline__ int teams() { return kBlock ? 1 : blockDim.x / kWarp; }
  static __device__ __forceinline__ int index() { return kBlock ? 0 : threadIdx.x / kWarp; }

  // share * the sum of x[c] over the team. Doubles only over warps.
  template <int N, class C>
  static __device__ __forceinline__ void scaled_sum(C (&x)[N], double share) {
    warp_reduce<Sum>(x);
    double totals[N];
    if constexpr (kBlock) over_warps<Sum>(x, totals);
#pragma unroll
    for (int c = 0; c < N; c++) x[c] = kBlock ? C(totals[c] * share) : x[c] * C(share);
  }
  // The mean of `count` numbers of each member, whose own mean is first + x, `first` being one of its warp: the team's
  // less `first`, without rounding first + x.
  template <class C>
  static __device__ __forceinline__ C mean_less_first(C first, C x, C count, double share) {
    if constexpr (kBlock) {
      C sums[2] = {x * count, count};
      warp_reduce<Sum>(sums);
      double of_warp[1] = {double(sums[0]) + double(first) * double(sums[1])}, total[1];
      over_warps<Sum>(of_warp, total);
      return C(total[0] * share - double(first));
    } else {
      C sum[1] = {x * count};
      warp_reduce<Sum>(sum);
      return sum[0] * C(share);
    }
  }
};

// Packs that each lane has of the widest row of a warp.
template <class C>
constexpr int kPacksOfLane = kRowOfWarp<C> / kPack / kWarp;

// step(number, more) for every kStep-th pack of this thread; more(i): whether there is another i packs on. The widest
// row of a warp is a separate case if kUnroll: its packs are known to the compiler.
template <class A, int kStep, bool kUnroll, class Rows, class Step>
__device__ __forceinline__ void for_numbers(const Rows& rows, const Step& step) {
  using Index = typename A::Index;
  using Team = Team<Rows::kBlock>;
  const Index packs = Index(rows.packs);
  if constexpr (kUnroll && A::kWhole && !Rows::kBlock) {
    constexpr int kPacks = kPacksOfLane<typename A::Compute>;
    if (packs == kPacks * kWarp) {
#pragma unroll
      for (int j = 0; j < kPacks; j += kStep)
        step(Index(Team::member() + j * kWarp), [j](int on) { return j + on < kPacks; });
      return;
    }
  }
#pragma unroll 1
  for (Index number = Team::member(); number < packs; number += kStep * Team::size())
    step(number, [=](int on) { return number + on * Team::size() < packs; });
}
// use(pack, load(pack)) for the packs of this thread; several are loaded before the first is used.
template <class A, bool kUnroll = false, class Rows, class Load, class Use>
__device__ __forceinline__ void for_row(const Rows& rows, const Load& load, const Use& use) {
  using Index = typename A::Index;
  RowWalk<A, Rows> walk{rows};
  for_numbers<A, A::kInFlight, kUnroll>(rows, [&](Index number, const auto& more) {
    const auto pack = walk.at(number);
    const auto first = load(pack);
    if constexpr (A::kInFlight == 1) {
      use(pack, first);
    } else {
      const Index on = number + Team<Rows::kBlock>::size();
      const auto next = more(1) || !Rows::kBlock ? walk.at(on) : pack;
      auto second = first;
      if (more(1)) second = load(next);
      use(pack, first);
      if (more(1)) use(next, second);
    }
  });
}
// The same where the first load, by start(), may be long before go(loaded); and each of the others is under way while
// the pack before is used, if two of them fit registers.
template <class A, bool kUnroll, class Rows, class Load, class Use>
struct RowAhead {
  using Index = typename A::Index;
  const Rows& rows;
  const Load& load;
  const Use& use;

  __device__ __forceinline__ auto start() const {
    const Index number = Team<Rows::kBlock>::member();
    RowWalk<A, Rows> walk{rows};
    decltype(load(walk.at(number))) loaded{};
    if (number < Index(rows.packs)) loaded = load(walk.at(number));
    return loaded;
  }
  template <class Loaded>
  __device__ __forceinline__ void go(Loaded loaded) const {
    constexpr bool kTwo = A::kInFlight > 1 && sizeof(Loaded) <= 2 * sizeof(uint4);
    RowWalk<A, Rows> walk{rows};
    const Index first = Team<Rows::kBlock>::member();
    if (first >= Index(rows.packs)) return;
    auto next = walk.at(first);
    for_numbers<A, 1, kUnroll>(rows, [&](Index number, const auto& more) {
      const auto pack = next;
      const auto now = loaded;
      if (more(1)) next = walk.at(number + Team<Rows::kBlock>::size());
      if (kTwo && more(1)) loaded = load(next);
      use(pack, now);
      if (!kTwo && more(1)) loaded = load(next);
    });
  }
};
template <class A, bool kUnroll = false, class Rows, class Load, class Use>
__device__ __forceinline__ RowAhead<A, kUnroll, Rows, Load, Use> row_ahead(const Rows& rows, const Load& load, const Use& use) {
  return {rows, load, use};
}

// Packs of a row in shared memory, numbered: the 16-byte pieces of one are `packs` apart, so that neighbours are in
// neighbouring banks.
template <class Memory>
struct SharedPacks {
  Memory memory;
  int packs;

  template <class T, int N>
  __device__ __forceinline__ void get(int pack, T (&x)[N]) const {
    constexpr int kOfPiece = sizeof(uint4) / sizeof(T);
#pragma unroll
    for (int q = 0; q < N / kOfPiece; q++) {
      const uint4 piece = memory[q * packs + pack];
      memcpy(x + q * kOfPiece, &piece, sizeof(piece));
    }
  }
  template <class T, int N>
  __device__ __forceinline__ void put(int pack, const T (&x)[N]) const {
    constexpr int kOfPiece = sizeof(uint4) / sizeof(T);
#pragma unroll
    for (int q = 0; q < N / kOfPiece; q++) {
      uint4 piece;
      memcpy(&piece, x + q * kOfPiece, sizeof(piece));
      memory[q * packs + pack] = piece;
    }
  }
};
template <class Memory>
__device__ __forceinline__ SharedPacks<Memory> shared_packs(const Memory& memory, int packs) {
  return {memory, packs};
}
// What is kept of a tensor: as it came where the dtype is known, else as numbers.
template <class A>
constexpr int kKeptQuads = sizeof(FetchedIn<A>) / sizeof(uint4);
template <class C>
constexpr int kKeptQuads<Any<C>> = kPack * sizeof(C) / sizeof(uint4);
template <class A, class Memory, class Fetched>
__device__ __forceinline__ void keep(const SharedPacks<Memory>& memory, int number, const Fetched& fetched) {
  if constexpr (A::kWhole) {
    memory.put(number, fetched.quads);
  } else {
    typename A::Compute x[kPack];
    fetched.to(x);
    memory.put(number, x);
  }
}
template <class A, class Memory, class C>
__device__ __forceinline__ void recall(const SharedPacks<Memory>& memory, int number, C (&x)[kPack]) {
  if constexpr (A::kWhole) {
    FetchedIn<A> fetched;
    memory.get(number, fetched.quads);
    fetched.to(x);
  } else {
    memory.get(number, x);
  }
}

// The rows of a scale, offset or gate, `stride` apart, each for `repeat` rows of x.
template <class A>
struct ParameterRows {
  typename A::Parameter source;
  int64_t stride, repeat;

  __device__ __forceinline__ typename A::Index begin(typename A::Index row) const {
    using Index = typename A::Index;
    return row / Index(repeat) * Index(stride);
  }
};

// The statistics of a row, one thread's share of them: sums of x and of its squares, for the layer norm of the
// distances to a first value of the thread's own, so that rows far from zero lose nothing.
template <class C>
struct RowMoments {
  bool center;
  C pivot = 0, count = 0, sum = 0, squares = 0;

  __device__ explicit RowMoments(bool center_) : center(center_) {}
  template <class Count>
  __device__ __forceinline__ void add(const C (&x)[kPack], Count n) {
    if (center) {
      if (count == 0) pivot = x[0];
#pragma unroll
      for (int i = 0; i < kPack; i++) {
        if (i < n) {
          const C d = x[i] - pivot;
          sum += d;
          squares += d * d;
        }
      }
      count += C(int(n));
    } else {
#pragma unroll
      for (int i = 0; i < kPack; i++) squares += x[i] * x[i];  // zeros beyond the end
    }
  }
  // Of the whole row, for every thread. share: 1 / width
  template <class Team>
  __device__ __forceinline__ void finish(double share, C eps, bool inside, C& row_mean, C& rstd) {
    row_mean = 0;
    if (center) {
      const C beside = count > 0 ? sum / count : C(0), first = __shfl_sync(kWholeWarp, pivot, 0);
      const C own = (pivot - first) + beside, mean = Team::mean_less_first(first, own, count, share), off = own - mean;
      if (count > 0) squares += (off * off - beside * beside) * count;
      row_mean = first + mean;
    }
    C power[1] = {squares};
    Team::scaled_sum(power, share);
    power[0] = most(power[0], C(0));
    rstd = C(1) / (inside ? sqrt(power[0] + eps) : sqrt(power[0]) + eps);
  }
};

template <class A>
struct Norm {
  using C = typename A::Compute;
  typename A::In residual;
  ParameterRows<A> scale, offset, gate;
  C eps;
  double share;  // 1 / width
  bool center, inside, kept;  // kept: the row fits: x, or with a residual the sum
  typename A::Out y, sum;
  C* stat;  // mean and rstd of each row
};

// 64 registers a thread in common cases.
template <class A, class Rows>
constexpr int kNormThreads = Rows::kBlock ? kWideThreads<typename A::Compute> : kRowThreads;
template <class A, class Rows>
constexpr int kNormBlocks = A::kWhole ? 1024 / kNormThreads<A, Rows> : 1;

template <class A, class Rows>
__global__ void __launch_bounds__(kNormThreads<A, Rows>, kNormBlocks<A, Rows>)
    norm_kernel(const __grid_constant__ Rows rows, const __grid_constant__ Norm<A> norm) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  using Team = Team<Rows::kBlock>;
  FMK_DYNAMIC_SHARED(uint4, memory);
  const Index width = Index(rows.width);
  const int packs = int(rows.packs);
  constexpr int kOfSum = kPack * sizeof(C) / sizeof(uint4);
  const auto kept = shared_packs(
      memory + Team::index() * packs * (norm.residual.data ? kOfSum : kKeptQuads<A>), packs);
  for (Index row = Index(blockIdx.x) * Team::teams() + Team::index(); row < Index(rows.rows);
       row += gridDim.x * Team::teams()) {
    const Index base = row * width, scale_at = norm.scale.begin(row);
    const Index offset_at = norm.offset.source.data ? norm.offset.begin(row) : 0;
    const auto load = [&](const RowPack<Index>& pack) {
      auto loaded = Several{fetch_row<A>(rows, row, pack), FetchedIn<A>{}};
      if (norm.residual.data) loaded.second = fetch<C>(norm.residual, base + pack.column, count_in<A>(rows, pack));
      return loaded;
    };
    const auto sum = [&](const RowPack<Index>& pack, const auto& loaded, C(&s)[kPack]) {
      loaded.first.to(s);
      if (!norm.residual.data) return;
      C more[kPack];
      if (norm.gate.source.data) {
        read(norm.gate.source, norm.gate.begin(row) + pack.column, count_in<A>(rows, pack), more);
#pragma unroll
        for (int i = 0; i < kPack; i++) s[i] *= more[i];
      }
      loaded.second.to(more);
#pragma unroll
      for (int i = 0; i < kPack; i++) s[i] += more[i];
    };
    const auto load_parameters = [&](const RowPack<Index>& pack) {
      auto loaded = Several{fetch<C>(norm.scale.source, scale_at + pack.column, count_in<A>(rows, pack)),
                            FetchedParameter<A>{}};
      if (norm.offset.source.data)
        loaded.second = fetch<C>(norm.offset.source, offset_at + pack.column, count_in<A>(rows, pack));
      return loaded;
    };
    RowMoments<C> moments(norm.center);
    C mean, rstd;
    const auto result = [&](const RowPack<Index>& pack, const auto& parameters) {
      C s[kPack], scale[kPack], y[kPack];
      if (!norm.kept)
        sum(pack, load(pack), s);
      else if (norm.residual.data)
        kept.get(int(pack.number), s);
      else
        recall<A>(kept, int(pack.number), s);
      parameters.first.to(scale);
      if (norm.center)
#pragma unroll
        for (int i = 0; i < kPack; i++) s[i] -= mean;
#pragma unroll
      for (int i = 0; i < kPack; i++) y[i] = s[i] * rstd * scale[i];
      if (norm.offset.source.data) {
        C offset[kPack];
        parameters.second.to(offset);
#pragma unroll
        for (int i = 0; i < kPack; i++) y[i] += offset[i];
      }
      write(norm.y, base + pack.column, count_in<A>(rows, pack), y);
    };
    const auto results = row_ahead<A, true>(rows, load_parameters, result);
    for_row<A, true>(rows, load, [&](const RowPack<Index>& pack, const auto& loaded) {
      const auto count = count_in<A>(rows, pack);
      C s[kPack];
      sum(pack, loaded, s);
      if (norm.residual.data) {
        write(norm.sum, base + pack.column, count, s);
        if (norm.kept) kept.put(int(pack.number), s);
      } else if (norm.kept) {
        keep<A>(kept, int(pack.number), loaded.first);
      }
      moments.add(s, count);
    });
    const auto parameters = results.start();  // on their way during the reduction
    moments.template finish<Team>(norm.share, norm.eps, norm.inside, mean, rstd);
    if (Team::member() == 0 && norm.stat) {
      store(norm.stat + 2 * row, mean);
      store(norm.stat + 2 * row + 1, rstd);
    }
    results.go(parameters);
  }
}

// ---- backward: with h = (s - mean) * rstd and g = grad * scale,
// grad_s = rstd * (g - mean(g) - h * mean(g h)), to_scale = sum grad * h, to_offset = sum grad ----
template <class A>
struct NormBackward {
  using C = typename A::Compute;
  typename A::In grad, more;  // more: what else flows back into s
  Source stat;
  ParameterRows<A> scale;
  C eps;
  double share;
  bool center, inside, rounded;  // rounded: stat belongs to the unrounded s, which is gone; the row gets its own
  typename A::Out grad_s;
  C* own_stat;
  typename A::Wide to_scale, to_offset;  // (runs of all rows of scale, width)
  int64_t run, runs;                     // rows of a run, runs of one row of scale
};

// Of one row: its mean and rstd, then the two means of its gradient.
template <class C, class Team>
struct RowGradient {
  C mean, rstd, mean_g, mean_gh;

  // moments: of the row, if norm.rounded
  template <class Backward>
  __device__ __forceinline__ void of_stat(const Backward& norm, int64_t row, RowMoments<C>& moments) {
    if (norm.rounded) {
      moments.template finish<Team>(norm.share, norm.eps, norm.inside, mean, rstd);
    } else {
      mean = read_one<C>(norm.stat, 2 * row);
      rstd = read_one<C>(norm.stat, 2 * row + 1);
    }
  }
  template <class Backward>
  __device__ __forceinline__ void of_sums(const Backward& norm, C g, C gh) {
    C means[2] = {g, gh};
    Team::scaled_sum(means, norm.share);
    // d rms / d s = s / (D rms), and rms * rstd = 1 - eps * rstd: zero for a row of zeros.
    const C share = norm.inside ? C(1) : C(1) - norm.eps * rstd;
    mean_g = norm.center ? means[0] : C(0);
    mean_gh = share > 0 ? means[1] / share : C(0);
  }
  // s becomes h; 0 beyond the end.
  template <class Count>
  __device__ __forceinline__ void normalize(bool center, Count count, C (&s)[kPack]) const {
    if (center)
#pragma unroll
      for (int i = 0; i < kPack; i++) s[i] -= mean;
#pragma unroll
    for (int i = 0; i < kPack; i++) s[i] = i < count ? s[i] * rstd : C(0);
  }
  template <class Backward, class Index, class Count, class Fetched>
  __device__ __forceinline__ void write_grad(const Backward& norm, Index at, Count count, const C (&g)[kPack],
                                             const C (&h)[kPack], const Fetched& fetched_more) const {
    C out[kPack];
#pragma unroll
    for (int i = 0; i < kPack; i++) out[i] = g[i] - h[i] * mean_gh;
    if (norm.center)
#pragma unroll
      for (int i = 0; i < kPack; i++) out[i] -= mean_g;
#pragma unroll
    for (int i = 0; i < kPack; i++) out[i] *= rstd;
    if (norm.more.data) {
      C more[kPack];
      fetched_more.to(more);
#pragma unroll
      for (int i = 0; i < kPack; i++) out[i] += more[i];
    }
    write(norm.grad_s, at, count, out);
  }
};

// A block has a run of rows under one row of scale; its teams take turns at them. A team keeps s and the gradient of a
// row in shared memory, so every tensor is read once, and beside them its sums for scale and offset, which meet at the
// end.
template <class A, class Rows>
__global__ void __launch_bounds__(kNormThreads<A, Rows>, kNormBlocks<A, Rows>)
    norm_backward_kernel(const __grid_constant__ Rows rows, const __grid_constant__ NormBackward<A> norm) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  using Team = Team<Rows::kBlock>;
  FMK_DYNAMIC_SHARED(uint4, memory);
  constexpr int kOfSum = kPack * sizeof(C) / sizeof(uint4), kOfTeam = 2 * (kKeptQuads<A> + kOfSum);
  const Index width = Index(rows.width), repeat = Index(norm.scale.repeat), runs = Index(norm.runs);
  const Index tasks = Index(rows.rows) / repeat * runs;
  const int packs = int(rows.packs);
  const auto sums_of = [&](int team, int which) {
    return shared_packs(memory + (team * kOfTeam + which * kOfSum) * packs, packs);
  };
  const auto kept_s = shared_packs(memory + (Team::index() * kOfTeam + 2 * kOfSum) * packs, packs);
  const auto kept_grad = shared_packs(memory + (Team::index() * kOfTeam + 2 * kOfSum + kKeptQuads<A>)*packs, packs);
  const auto to_scale = sums_of(Team::index(), 0), to_offset = sums_of(Team::index(), 1);
  for (Index task = blockIdx.x; task < tasks; task += gridDim.x) {
    const Index group = task / runs, begin = group * repeat + (task - group * runs) * Index(norm.run);
    const Index end = least(begin + Index(norm.run), (group + 1) * repeat), scale_at = group * Index(norm.scale.stride);
    for (Index row = begin + Team::index(); row < end; row += Team::teams()) {
      const Index base = row * width;
      RowGradient<C, Team> of_row;
      const auto recall_h = [&](const RowPack<Index>& pack, C(&h)[kPack]) {
        recall<A>(kept_s, int(pack.number), h);
        of_row.normalize(norm.center, count_in<A>(rows, pack), h);
      };
      const auto load_scale = [&](const RowPack<Index>& pack) {
        return fetch<C>(norm.scale.source, scale_at + pack.column, count_in<A>(rows, pack));
      };
      C sum_g = 0, sum_gh = 0;
      const auto add = [&](const RowPack<Index>& pack, const auto& scale) {
        C h[kPack], g[kPack], own[kPack];
        recall_h(pack, h);
        recall<A>(kept_grad, int(pack.number), own);
        scale.to(g);
#pragma unroll
        for (int i = 0; i < kPack; i++) {
          g[i] *= own[i];
          sum_gh += g[i] * h[i];
        }
        if (norm.center)
#pragma unroll
          for (int i = 0; i < kPack; i++) sum_g += g[i];
      };
      const auto load_more = [&](const RowPack<Index>& pack) {
        return norm.more.data ? fetch<C>(norm.more, base + pack.column, count_in<A>(rows, pack)) : FetchedIn<A>{};
      };
      const auto load_last = [&](const RowPack<Index>& pack) {
        if constexpr (A::kInFlight > 1)
          return Several{load_scale(pack), load_more(pack)};
        else  // registers do not hold both
          return Several{load_scale(pack), Nothing{}};
      };
      const auto result = [&](const RowPack<Index>& pack, const auto& loaded) {
        // In an order that needs the fewest registers.
        const int number = int(pack.number);
        const bool first = row < begin + Team::teams();
        C h[kPack], g[kPack], own[kPack], sums[kPack] = {};
        recall<A>(kept_grad, number, own);
        if (!first) to_offset.get(number, sums);
#pragma unroll
        for (int i = 0; i < kPack; i++) sums[i] += own[i];
        to_offset.put(number, sums);
        recall_h(pack, h);
#pragma unroll
        for (int i = 0; i < kPack; i++) sums[i] = 0;
        if (!first) to_scale.get(number, sums);
#pragma unroll
        for (int i = 0; i < kPack; i++) sums[i] += own[i] * h[i];
        to_scale.put(number, sums);
        loaded.first.to(g);
#pragma unroll
        for (int i = 0; i < kPack; i++) g[i] *= own[i];
        const auto write_grad = [&](const auto& more) {
          of_row.write_grad(norm, base + pack.column, count_in<A>(rows, pack), g, h, more);
        };
        if constexpr (A::kInFlight > 1)
          write_grad(loaded.second);
        else
          write_grad(load_more(pack));
      };
      const auto load = [&](const RowPack<Index>& pack) {
        return Several{fetch_row<A>(rows, row, pack),
                       fetch<C>(norm.grad, base + pack.column, count_in<A>(rows, pack))};
      };
      const auto additions = row_ahead<A, (A::kInFlight > 1)>(rows, load_scale, add);
      const auto results = row_ahead<A>(rows, load_last, result);
      RowMoments<C> moments(norm.center);
      for_row<A, (A::kInFlight > 1)>(rows, load, [&](const RowPack<Index>& pack, const auto& loaded) {
        keep<A>(kept_s, int(pack.number), loaded.first);
        keep<A>(kept_grad, int(pack.number), loaded.second);
        if (!norm.rounded) return;
        C s[kPack];
        loaded.first.to(s);
        moments.add(s, count_in<A>(rows, pack));
      });
      const auto scale = additions.start();  // on their way during the reductions, as are those of the results
      of_row.of_stat(norm, row, moments);
      additions.go(scale);
      const auto last = results.start();
      of_row.of_sums(norm, sum_g, sum_gh);
      results.go(last);
    }
    __syncthreads();
    // The teams' sums meet, in the order of the teams.
    const int teams = int(least(Index(Team::teams()), end - begin));
    RowWalk<A, Rows> walk{rows};
    for (int number = threadIdx.x; number < packs; number += blockDim.x) {
      const auto pack = walk.at(number);
#pragma unroll
      for (int which = 0; which < 2; which++) {
        C total[kPack], other[kPack];
        sums_of(0, which).get(number, total);
        for (int team = 1; team < teams; team++) {
          sums_of(team, which).get(number, other);
#pragma unroll
          for (int i = 0; i < kPack; i++) total[i] += other[i];
        }
        write(which == 0 ? norm.to_scale : norm.to_offset, task * width + pack.column, count_in<A>(rows, pack), total);
      }
    }
    __syncthreads();
  }
}

}  // namespace fmk
