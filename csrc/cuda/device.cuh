// What every CUDA kernel uses: eight elements of any dtype at a time, sums that are the same run after
// run, and the last block of a grid. No torch headers here or in the kernels.
//
// Global memory is read and written by the functions of this file alone, through CUDA's own load and store
// functions: tests/support/cuda_on_host gives these a meaning on the CPU, and counts and checks what passes.
#pragma once
#include <cuda_runtime.h>

#include "../shared/columns.h"
#include "../shared/dtype.h"
#include "../shared/scalar.h"

// Shared memory: of a fixed size, and of the size given with the launch.
#ifndef FMK_SHARED
#define FMK_SHARED(type, count, name) __shared__ type name[count]
#define FMK_DYNAMIC_SHARED(type, name)                                 \
  extern __shared__ __align__(16) unsigned char fmk_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(fmk_dynamic_shared)
#endif

namespace fmk {

constexpr int kWarp = 32, kMaxThreads = 512, kMaxWarps = kMaxThreads / kWarp;
constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kPack = 8;  // elements a thread works on at a time: 16 bytes of fp16 and bf16
constexpr int kTileThreads = 256;
// Threads of a block that has a whole sample or row: as many as get 128 registers, or 256 for doubles. (The 1 beside
// them in launch bounds says so: left alone the compiler spills a few for more blocks.)
template <class C>
constexpr int kWideThreads = sizeof(C) == sizeof(float) ? kMaxThreads : kMaxThreads / 2;

// Of a running minimum or maximum a and a new b: NaN in b is passed over, in a it stays.
template <class T>
FMK_FN T least(T a, T b) {
  return b < a ? b : a;
}
template <class T>
FMK_FN T most(T a, T b) {
  return a < b ? b : a;
}

// The same for a known not to be NaN, in one instruction.
__device__ __forceinline__ float greater(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double greater(double a, double b) { return fmax(a, b); }

// Left alone the compiler converts half-precision inputs once more in every turn of a loop.
__device__ __forceinline__ void keep_in_register(float& x) {
#if defined(__CUDA_ARCH__)
  asm("" : "+f"(x));
#endif
}
__device__ __forceinline__ void keep_in_register(double&) {}

// ---- memory ----
// Elements of one dtype, dense. A launch carries the dtype: activations and parameters may differ, and the
// branch over it is the same for every thread.
struct Source {
  const void* data;
  Dtype dtype;
};
struct Sink {
  void* data;
  Dtype dtype;
};

// The same with the dtype known to the compiler, for tensors whose packs are whole and aligned.
template <class T>
struct WholeSource {
  const T* data;
  WholeSource() = default;
  FMK_FN WholeSource(const Source& any) : data(static_cast<const T*>(any.data)) {}
};
template <class T>
struct WholeSink {
  T* data;
  WholeSink() = default;
  FMK_FN WholeSink(const Sink& any) : data(static_cast<T*>(any.data)) {}
};

__device__ __forceinline__ Source source_of(const Sink& sink) { return {sink.data, sink.dtype}; }
template <class T>
__device__ __forceinline__ WholeSource<T> source_of(const WholeSink<T>& sink) {
  return Source{sink.data, Dtype::other};
}

// What a kernel knows of its tensors when it is compiled. Any: nothing but the compute type.
template <class C>
struct Any {
  using Compute = C;
  using Index = int64_t;
  using In = Source;
  using Out = Sink;
  using Parameter = Source;
  using Wide = Sink;
  static constexpr bool kWhole = false;
  static constexpr int kInFlight = 1;  // packs that a thread loads at once
};
// Common: the activations are S, the parameters P, all aligned, with rows of whole packs, and offsets fit 32 bits.
// launch.h chooses (with_access).
template <class S, class P = S>
struct Common {
  using Compute = float;
  using Index = int32_t;
  using In = WholeSource<S>;
  using Out = WholeSink<S>;
  using Parameter = WholeSource<P>;
  using Wide = WholeSink<float>;
  static constexpr bool kWhole = true;
  static constexpr int kInFlight = sizeof(S) == 2 ? 2 : 1;  // 32 bytes
};

// For kernels whose registers do not hold two packs of all their tensors.
template <class A>
struct OneInFlight : A {
  static constexpr int kInFlight = 1;
};

// Blocks of kTileThreads that an SM should hold: 64 registers a thread in common cases, else 80 in float, or 128 for
// kernels of many inputs (and twice as many blocks of half the threads); left alone the compiler takes more.
template <class A>
constexpr int kTileBlocks = A::kWhole ? 4 : sizeof(typename A::Compute) == sizeof(float) ? 3 : 1;
template <class A>
constexpr int kLargeTileBlocks = A::kWhole ? 4 : sizeof(typename A::Compute) == sizeof(float) ? 2 : 1;
// The same for blocks of kWideThreads.
template <class A>
constexpr int kWideBlocks = A::kWhole ? 2 : 1;

// How many of a thread's eight elements from `at` on are there, of n.
__device__ __forceinline__ int count_of(int64_t at, int64_t n) { return int(least<int64_t>(kPack, n - at)); }
struct AllOfPack {
  __device__ constexpr operator int() const { return kPack; }
};
template <class A, class Index>
__device__ __forceinline__ auto count_for(Index at, Index n) {
  if constexpr (A::kWhole)
    return AllOfPack{};
  else
    return count_of(at, n);
}

__device__ __forceinline__ bool aligned(const void* at) {
  return reinterpret_cast<uintptr_t>(at) % sizeof(uint4) == 0;
}

__device__ __forceinline__ f16 load(const f16* at) { return {__ldg(&at->bits)}; }
__device__ __forceinline__ bf16 load(const bf16* at) { return {__ldg(&at->bits)}; }
__device__ __forceinline__ float load(const float* at) { return __ldg(at); }
__device__ __forceinline__ double load(const double* at) { return __ldg(at); }
__device__ __forceinline__ void store(f16* at, f16 x) { __stwb(&at->bits, x.bits); }
__device__ __forceinline__ void store(bf16* at, bf16 x) { __stwb(&at->bits, x.bits); }
__device__ __forceinline__ void store(float* at, float x) { __stwb(at, x); }
__device__ __forceinline__ void store(double* at, double x) { __stwb(at, x); }

// Eight elements as they came from memory; `to` makes numbers of them. Two steps, so that a kernel asks for all
// its inputs before it waits for the first.
template <class C>
struct Fetched {
  Dtype dtype;
  uint32_t words[kPack * sizeof(C) / 4];

  __device__ __forceinline__ uint16_t half(int i) const { return uint16_t(words[i / 2] >> 16 * (i % 2)); }
  __device__ __forceinline__ void to(C (&x)[kPack]) const {
    if (dtype == Dtype::f32) {
#pragma unroll
      for (int i = 0; i < kPack; i++) x[i] = bit_cast<float>(words[i]);
    } else if (dtype == Dtype::bf16) {
#pragma unroll
      for (int i = 0; i < kPack; i++) x[i] = widen(bf16{half(i)});
    } else if (dtype == Dtype::f16) {
#pragma unroll
      for (int i = 0; i < kPack; i++) x[i] = widen(f16{half(i)});
    } else if constexpr (sizeof(C) == 8) {
#pragma unroll
      for (int i = 0; i < kPack; i++) x[i] = bit_cast<double>(uint64_t(words[2 * i + 1]) << 32 | words[2 * i]);
    }
  }
};

// 128 bits at a time where the address allows it, else one by one; zeros beyond `count`.
// kConstant: nothing writes to them while the kernel runs, so the read-only path serves.
template <bool kConstant, class T>
__device__ __forceinline__ T load_word(const T* at) {
  return kConstant ? __ldg(at) : __ldcg(at);
}
template <class C, bool kConstant = true>
__device__ __forceinline__ Fetched<C> fetch(const Source& from, int64_t at, int count) {
  const int bytes = int(size_of(from.dtype));
  Fetched<C> out;
  out.dtype = bytes <= int(sizeof(C)) ? from.dtype : Dtype::f32;
  const char* const begin = static_cast<const char*>(from.data) + at * bytes;
  if (bytes <= int(sizeof(C)) && count == kPack && aligned(begin)) {
    const uint4* const quads = reinterpret_cast<const uint4*>(begin);
#pragma unroll
    for (int i = 0; i < int(sizeof(C)) / 2; i++) {
      uint4 quad{};
      if (2 * (i + 1) <= bytes) quad = load_word<kConstant>(quads + i);
      out.words[4 * i] = quad.x;
      out.words[4 * i + 1] = quad.y;
      out.words[4 * i + 2] = quad.z;
      out.words[4 * i + 3] = quad.w;
    }
    return out;
  }
#pragma unroll
  for (int i = 0; i < int(kPack * sizeof(C) / 4); i++) out.words[i] = 0;
#pragma unroll
  for (int i = 0; i < kPack; i++) {
    if (i >= count) continue;
    if (bytes == 2) {
      out.words[i / 2] |= uint32_t(load_word<kConstant>(reinterpret_cast<const uint16_t*>(begin) + i)) << 16 * (i % 2);
    } else if (bytes == 4) {
      out.words[i] = load_word<kConstant>(reinterpret_cast<const uint32_t*>(begin) + i);
    } else if constexpr (sizeof(C) == 8) {
      const uint64_t element = load_word<kConstant>(reinterpret_cast<const unsigned long long*>(begin) + i);
      out.words[2 * i] = uint32_t(element);
      out.words[2 * i + 1] = uint32_t(element >> 32);
    } else {  // doubles for float arithmetic: rare
      out.words[i] = bit_cast<uint32_t>(float(load_word<kConstant>(reinterpret_cast<const double*>(begin) + i)));
    }
  }
  return out;
}
// The same of a known dtype.
template <class T>
struct FetchedAs {
  uint4 quads[kPack * sizeof(T) / sizeof(uint4)];

  __device__ __forceinline__ void to(float (&x)[kPack]) const {
    constexpr int kOfWord = 4 / sizeof(T);
#pragma unroll
    for (int i = 0; i < kPack / kOfWord; i++) {
      const uint4& quad = quads[i / 4];
      const uint32_t word = i % 4 == 0 ? quad.x : i % 4 == 1 ? quad.y : i % 4 == 2 ? quad.z : quad.w;
      if constexpr (std::is_same_v<T, float>) {
        x[i] = bit_cast<float>(word);
      } else if constexpr (std::is_same_v<T, bf16>) {
        x[2 * i] = bit_cast<float>(word << 16);
        x[2 * i + 1] = bit_cast<float>(word & 0xffff0000u);
      } else {
        x[2 * i] = widen(T{uint16_t(word)});
        x[2 * i + 1] = widen(T{uint16_t(word >> 16)});
      }
    }
  }
};
template <class C, bool kConstant = true, class T>
__device__ __forceinline__ FetchedAs<T> fetch(const WholeSource<T>& from, int32_t at, AllOfPack = {}) {
  const uint4* const quads = reinterpret_cast<const uint4*>(from.data + at);
  FetchedAs<T> out;
#pragma unroll
  for (int i = 0; i < int(kPack * sizeof(T) / sizeof(uint4)); i++) out.quads[i] = load_word<kConstant>(quads + i);
  return out;
}
template <class C, class From, class Index, class Count>
__device__ __forceinline__ void read(const From& from, Index at, Count count, C (&x)[kPack]) {
  fetch<C>(from, at, count).to(x);
}
// One element of a small tensor.
template <class C>
__device__ __forceinline__ C read_one(const Source& from, int64_t at) {
  switch (from.dtype) {
    case Dtype::f64: return C(load(static_cast<const double*>(from.data) + at));
    case Dtype::f32: return C(load(static_cast<const float*>(from.data) + at));
    case Dtype::f16: return C(widen(load(static_cast<const f16*>(from.data) + at)));
    default: return C(widen(load(static_cast<const bf16*>(from.data) + at)));
  }
}

// What a thread has fetched of up to four tensors.
struct Nothing {};
template <class A, class B = Nothing, class C = Nothing, class D = Nothing>
struct Several {
  A first;
  B second;
  C third;
  D fourth;
};
template <class A, class B>
Several(A, B) -> Several<A, B>;
template <class A, class B, class C>
Several(A, B, C) -> Several<A, B, C>;
template <class A, class B, class C, class D>
Several(A, B, C, D) -> Several<A, B, C, D>;

// Each is rounded once.
template <class S, class C>
__device__ __forceinline__ void write_whole(S* at, const C (&x)[kPack]) {
  constexpr int kOfQuad = sizeof(uint4) / sizeof(S);
#pragma unroll
  for (int i = 0; i < kPack / kOfQuad; i++) {
    const C* const from = x + i * kOfQuad;
    uint4 quad;
    if constexpr (sizeof(S) == 2) {
      quad = {narrow_two<S>(float(from[0]), float(from[1])), narrow_two<S>(float(from[2]), float(from[3])),
              narrow_two<S>(float(from[4]), float(from[5])), narrow_two<S>(float(from[6]), float(from[7]))};
    } else {
      S elements[kOfQuad];
#pragma unroll
      for (int k = 0; k < kOfQuad; k++) narrow(from[k], elements[k]);
      memcpy(&quad, elements, sizeof(quad));
    }
    __stwb(reinterpret_cast<uint4*>(at) + i, quad);
  }
}
template <class S, class C>
__device__ __forceinline__ void write_as(S* at, int count, const C (&x)[kPack]) {
  if (count == kPack && aligned(at)) {
    write_whole(at, x);
  } else {
#pragma unroll
    for (int i = 0; i < kPack; i++) {
      S element;
      narrow(x[i], element);
      if (i < count) store(at + i, element);
    }
  }
}
template <class C>
__device__ __forceinline__ void write(const Sink& to, int64_t at, int count, const C (&x)[kPack]) {
  switch (to.dtype) {
    case Dtype::f64: return write_as(static_cast<double*>(to.data) + at, count, x);
    case Dtype::f32: return write_as(static_cast<float*>(to.data) + at, count, x);
    case Dtype::f16: return write_as(static_cast<f16*>(to.data) + at, count, x);
    default: return write_as(static_cast<bf16*>(to.data) + at, count, x);
  }
}
template <class T>
__device__ __forceinline__ void write(const WholeSink<T>& to, int32_t at, AllOfPack, const float (&x)[kPack]) {
  write_whole(to.data + at, x);
}
template <class S, class C>
__device__ __forceinline__ void write_one_as(S* at, C x) {
  S rounded;
  narrow(x, rounded);
  store(at, rounded);
}
template <class C>
__device__ __forceinline__ void write_one(const Sink& to, int64_t at, C x) {
  switch (to.dtype) {
    case Dtype::f64: return write_one_as(static_cast<double*>(to.data) + at, x);
    case Dtype::f32: return write_one_as(static_cast<float*>(to.data) + at, x);
    case Dtype::f16: return write_one_as(static_cast<f16*>(to.data) + at, x);
    default: return write_one_as(static_cast<bf16*>(to.data) + at, x);
  }
}

// ---- tiles: samples of n elements each, cut by size alone, so that sums do not depend on the device ----
struct Tiles {
  int64_t samples, n, size, per_sample;  // elements of a tile, tiles of a sample
  int threads;

  FMK_FN int64_t count() const { return samples * per_sample; }

  // Small ones, for kernels that make one element of another.
  static Tiles of_elements(int64_t samples, int64_t n) {
    const int threads = threads_for(n / 2, kTileThreads);
    const int64_t size = int64_t(threads) * 2 * kPack;
    return {samples, n, size, (n + size - 1) / size, threads};
  }
  // Large ones, for sums: up to 16384 elements the whole sample, so that its block can finish it alone. A sample
  // of no elements has a tile too: its sums are written.
  static Tiles of_sums(int64_t samples, int64_t n, bool in_double) {
    const int threads = threads_for(n / 2, in_double ? kWideThreads<double> : kWideThreads<float>);
    const int64_t turn = int64_t(threads) * kPack;
    const int64_t size = n <= 16384 ? most<int64_t>(n, 1) : turn * least<int64_t>(8, most<int64_t>(2, n >> 20));
    return {samples, n, size, most<int64_t>(1, (n + size - 1) / size), threads};
  }

 private:
  static int threads_for(int64_t n, int at_most) {
    int threads = kWarp;
    while (threads < at_most && threads * kPack < n) threads *= 2;
    return threads;
  }
};

// For every pack of this thread in a tile: use(sample, at, count, load(sample, at, count)). `at` counts from the
// sample's start. kInFlight packs are loaded before the first is used.
template <class A, class Load, class Use>
__device__ __forceinline__ void for_packs(const Tiles& tiles, typename A::Index tile, const Load& load, const Use& use) {
  using Index = typename A::Index;
  const Index per_sample = Index(tiles.per_sample), size = Index(tiles.size), turn = blockDim.x * kPack;
  const Index sample = tile / per_sample, begin = (tile - sample * per_sample) * size;
  const Index end = least(begin + size, Index(tiles.n));
  for (Index at = begin + Index(threadIdx.x) * kPack; at < end; at += A::kInFlight * turn) {
    const auto count = count_for<A>(at, end);
    const auto first = load(sample, at, count);
    if constexpr (A::kInFlight == 1) {
      use(sample, at, count, first);
    } else {
      const Index next = at + turn;
      auto second = first;
      if (next < end) second = load(sample, next, count);
      use(sample, at, count, first);
      if (next < end) use(sample, next, count, second);
    }
  }
}
// The same over all tiles of this block.
template <class A, class Load, class Use>
__device__ __forceinline__ void for_all_packs(const Tiles& tiles, const Load& load, const Use& use) {
  using Index = typename A::Index;
  for (Index tile = blockIdx.x; tile < Index(tiles.count()); tile += gridDim.x) for_packs<A>(tiles, tile, load, use);
}

// ---- reductions: in the warp, over the warps of the block, over the blocks; always in the same order ----
struct Sum {
  template <class T>
  static FMK_FN T of(int, T a, T b) {
    return a + b;
  }
};

template <class Merge, int N, class T>
__device__ __forceinline__ void warp_reduce(T (&x)[N]) {
#pragma unroll
  for (int c = 0; c < N; c++)
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2)
      x[c] = Merge::of(c, x[c], __shfl_xor_sync(kWholeWarp, x[c], distance));
}

// Column c, which every lane of a warp has, over the warps of the block, for every thread to read: in double.
template <class Merge, int N, class C>
__device__ __forceinline__ void over_warps(const C (&x)[N], double (&out)[N]) {
  FMK_SHARED(C, kMaxWarps * N, parts);
  FMK_SHARED(double, N, totals);
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  if (threadIdx.x % kWarp == 0)
#pragma unroll
    for (int c = 0; c < N; c++) parts[warp * N + c] = x[c];
  __syncthreads();
  if (threadIdx.x < N) {
    const int c = threadIdx.x;
    double total = parts[c];
    for (int w = 1; w < warps; w++) total = Merge::of(c, total, double(parts[w * N + c]));
    totals[c] = total;
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < N; c++) out[c] = totals[c];
}
// Column c over all threads of the block, which are whole warps: C in the warps, double over them.
template <class Merge, int N, class C>
__device__ __forceinline__ void block_reduce(C (&x)[N], double (&out)[N]) {
  warp_reduce<Merge>(x);
  over_warps<Merge>(x, out);
}

// What blocks leave for the last of them: rows of numbers, and a counter, 0 before the launch. There and back past
// the caches of single SMs.
struct Partials {
  double* rows;
  unsigned* counter;
};
__device__ __forceinline__ void leave(double* at, double x) { __stcg(at, x); }
__device__ __forceinline__ double collect(const double* at) { return __ldcg(at); }

// A row of which every thread has all: thread c leaves column c.
template <int N>
__device__ __forceinline__ void leave_row(double* row, const double (&x)[N]) {
#pragma unroll
  for (int c = 0; c < N; c++)
    if (int(threadIdx.x) == c) leave(row + c, x[c]);
}

// True in the block that comes here last, with all that the others left visible.
__device__ __forceinline__ bool is_last_block(const Partials& partials) {
  FMK_SHARED(int, 1, last);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last[0] = atomicAdd(partials.counter, 1u) == gridDim.x - 1;
  __syncthreads();
  __threadfence();
  return last[0];
}

// Column c over `count` partial rows of N, by one warp, for its every lane to read; `out` holds what none give.
template <class Merge, int N>
__device__ __forceinline__ void collect_rows(const double* rows, int64_t count, double (&out)[N]) {
  for (int64_t i = threadIdx.x % kWarp; i < count; i += kWarp)
#pragma unroll
    for (int c = 0; c < N; c++) out[c] = Merge::of(c, out[c], collect(rows + i * N + c));
  warp_reduce<Merge>(out);
}

// The sums of every sample: use(at, count, load(at, count), sums) adds those of a pack, finish(sample, totals) is
// called by one thread. A sample of one tile is finished by its block, others by the last block of all.
template <class Merge, int N, class A, class Load, class Use, class Finish>
__device__ __forceinline__ void for_sums(const Tiles& tiles, const Partials& partials, const Load& load, const Use& use,
                                         const Finish& finish) {
  using C = typename A::Compute;
  using Index = typename A::Index;
  for (Index tile = blockIdx.x; tile < Index(tiles.count()); tile += gridDim.x) {
    C sums[N] = {};
    double totals[N];
    for_packs<A>(
        tiles, tile, [&](Index sample, Index at, auto count) { return load(sample * Index(tiles.n) + at, count); },
        [&](Index sample, Index at, auto count, const auto& loaded) {
          use(sample * Index(tiles.n) + at, count, loaded, sums);
        });
    block_reduce<Merge>(sums, totals);
    if (tiles.per_sample > 1)
      leave_row(partials.rows + tile * N, totals);
    else if (threadIdx.x == 0)
      finish(tile, totals);
  }
  if (tiles.per_sample == 1 || !is_last_block(partials)) return;
  for (int64_t sample = threadIdx.x / kWarp; sample < tiles.samples; sample += blockDim.x / kWarp) {
    double totals[N] = {};
    collect_rows<Merge>(partials.rows + sample * tiles.per_sample * N, tiles.per_sample, totals);
    if (threadIdx.x % kWarp == 0) finish(sample, totals);
  }
}

}  // namespace fmk
