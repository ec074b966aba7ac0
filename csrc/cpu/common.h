// Shared by all CPU kernels: conversion of dtypes tile by tile, and loops that are split in the same way for any number
// of threads.
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace fmk {

// The device of this object's tensors.
struct Here {
  static constexpr const char* name = "the CPU";
  static constexpr bool numbered = false;  // there is only one
  static int32_t type() {
    static const int32_t cpu = aoti_torch_device_type_cpu();
    return cpu;
  }
  static int32_t index() { return 0; }
};

}  // namespace fmk

#include "../shared/tensors.h"

#define FMK_KEY CPU

namespace fmk {

// CUDA ops hold a device guard while they run. CPU ops need none.
struct Device {
  Device(const Tensor&, const char*) {}
};

}  // namespace fmk

// Compiles a function once per instruction set; the loader selects one.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(FMK_NO_CLONES)
#define FMK_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FMK_CLONES
#endif

namespace fmk {

// ---- tiles: the unit of work, small enough that several of them stay in L1 ----
constexpr int64_t kTile = 1024;
constexpr int64_t kGrain = 16;  // the least number of tiles per thread

inline int64_t tiles_of(int64_t n) { return (n + kTile - 1) / kTile; }

template <class C, class S>
FMK_CLONES void widen_tile(const S* __restrict in, C* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = C(widen(in[i]));
}
template <class C, class S>
FMK_CLONES void narrow_tile(const C* __restrict in, S* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++) narrow(in[i], out[i]);
}

template <class S>
struct Stored {
  using type = S;
};
template <class F>
void with_storage(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::f64: return f(Stored<double>{});
    case Dtype::f32: return f(Stored<float>{});
    case Dtype::f16: return f(Stored<f16>{});
    default: return f(Stored<bf16>{});
  }
}

template <class C>
struct alignas(64) Tile {
  C data[kTile];
  operator C*() { return data; }
};

// Reads elements of any dtype as C: in place if they have the type C, otherwise converted into a tile.
template <class C>
struct Source {
  const void* data = nullptr;
  Dtype dtype = compute_dtype<C>;

  Source() = default;
  Source(const void* at, Dtype of) : data(at), dtype(of) {}
  explicit Source(const Tensor& x) : data(x.const_data_ptr()), dtype(dtype_of(x)) {}
  explicit Source(const OptTensor& x) {
    if (x) *this = Source(*x);
  }

  const C* at(int64_t i, int64_t n, C* tile) const {
    if (dtype == compute_dtype<C>) return static_cast<const C*>(data) + i;
    with_storage(dtype, [&](auto stored) {
      using S = typename decltype(stored)::type;
      widen_tile(static_cast<const S*>(data) + i, tile, n);
    });
    return tile;
  }
};

// Writes elements of any dtype from C: `at` returns where to compute them, and `put` rounds them into place once.
template <class C>
struct Sink {
  void* data = nullptr;
  Dtype dtype = compute_dtype<C>;

  Sink() = default;
  Sink(void* at, Dtype of) : data(at), dtype(of) {}
  explicit Sink(const Tensor& x) : data(x.mutable_data_ptr()), dtype(dtype_of(x)) {}

  C* at(int64_t i, C* tile) const {
    return dtype == compute_dtype<C> ? static_cast<C*>(data) + i : tile;
  }
  void put(int64_t i, const C* tile, int64_t n) const {
    if (dtype == compute_dtype<C>) return;
    with_storage(dtype, [&](auto stored) {
      using S = typename decltype(stored)::type;
      narrow_tile(tile, static_cast<S*>(data) + i, n);
    });
  }
  // For values that are stored elsewhere.
  void write(int64_t i, const C* values, int64_t n) const {
    if (dtype == compute_dtype<C>) std::copy_n(values, n, static_cast<C*>(data) + i);
    put(i, values, n);
  }
};

// A small tensor (times, scales) as C, read in place if it is dense and has the type C.
template <class C>
class Values {
  Tensor keep_;
  std::vector<C> own_;
  const C* data_;

 public:
  explicit Values(const Tensor& x) : keep_(dense(x)) {
    const Source<C> source(keep_);
    const int64_t n = keep_.numel();
    if (source.dtype != compute_dtype<C>) own_.resize(size_t(n));
    data_ = source.at(0, n, own_.data());
  }
  const C* data() const { return data_; }
  C operator[](int64_t i) const { return data_[i]; }
  int64_t size() const { return keep_.numel(); }
  std::vector<C> copy() const { return {data_, data_ + size()}; }
};

// Writes values that were computed in double to a small dense tensor.
inline void put_values(const std::vector<double>& values, const Tensor& out) {
  Sink<double>(out).write(0, values.data(), int64_t(values.size()));
}

// ---- loops: split by size alone, so that results do not depend on the number of threads ----
// body(first, last) over [0, count), in runs of at least `grain`.
template <class F>
void parallel(int64_t count, int64_t grain, const F& body) {
  if (count <= grain) {
    if (count > 0) body(int64_t(0), count);
  } else {
    torch::stable::parallel_for(0, count, grain, body);
  }
}

// body(row, begin, n, tile_index) for every tile of every row of `rows` x `width` elements.
template <class F>
void for_tiles(int64_t rows, int64_t width, const F& body) {
  const int64_t per_row = tiles_of(width);
  parallel(rows * per_row, kGrain, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; k++) {
      const int64_t row = k / per_row, begin = (k % per_row) * kTile;
      body(row, begin, std::min(kTile, width - begin), k);
    }
  });
}

// ---- rows of parameters, and sums over rows ----
template <bool kSquare, class C>
FMK_FN C power_of(C x) {
  return kSquare ? x * x : x;
}

// The sum of x, or of its squares. Four partial sums, because a single one would wait for the latency of the adder.
template <bool kSquare, class C>
FMK_CLONES C sum_tile(const C* __restrict x, int64_t n) {
  C a = 0, b = 0, c = 0, d = 0;
  const int64_t q = n / 4;
#pragma omp simd reduction(+ : a, b, c, d)
  for (int64_t i = 0; i < q; i++) {
    a += power_of<kSquare>(x[i]);
    b += power_of<kSquare>(x[i + q]);
    c += power_of<kSquare>(x[i + 2 * q]);
    d += power_of<kSquare>(x[i + 3 * q]);
  }
  for (int64_t i = 4 * q; i < n; i++) a += power_of<kSquare>(x[i]);
  return (a + b) + (c + d);
}

// Rows of parameters, (D,) or (T, D), as C. They are read in place if each is dense and has the type C: the values of a
// group are columns of one tensor, so their rows are far apart.
template <class C>
class ParameterRows {
  std::optional<Values<C>> own_;
  const C* data_;
  int64_t stride_;

 public:
  explicit ParameterRows(const Tensor& x) : stride_(x.size(x.dim() - 1)) {
    const Source<C> source(x);
    if (x.dim() == 2 && source.dtype == compute_dtype<C> && (x.stride(1) == 1 || stride_ <= 1)) {
      data_ = static_cast<const C*>(source.data);
      stride_ = x.stride(0);
    } else {
      data_ = own_.emplace(x).data();
    }
  }
  const C* row(int64_t i) const { return data_ + i * stride_; }
};

// The number of rows per task.
inline int64_t rows_per_task(int64_t width) { return std::max<int64_t>(1, kGrain * kTile / std::max<int64_t>(width, 1)); }

// Sums over the rows of each group (rows that share a row of parameters), column by column: `sums` of them for each
// column. A task is a run of rows of one group and has its own partial sums, which are added in the order of the tasks;
// the runs depend on sizes alone.
template <class C>
class RunSums {
  const int64_t width_, groups_, sums_, group_, run_length_, runs_, tasks_;
  std::vector<C> partial_;

 public:
  RunSums(int64_t rows, int64_t width, int64_t groups, int64_t sums)
      : width_(width),
        groups_(groups),
        sums_(sums),
        group_(std::max<int64_t>(1, rows / groups)),
        run_length_(std::max(rows_per_task(width), (group_ + 15) / 16)),
        runs_((group_ + run_length_ - 1) / run_length_),
        tasks_(rows == 0 ? 0 : groups * runs_),
        partial_(size_t(sums * tasks_ * width), C(0)) {}

  // body(group, begin, end, the partial sums of these rows)
  template <class F>
  void each(const F& body) {
    // Short runs, of groups of few rows, are not worth a thread each.
    const int64_t rows_each = std::max<int64_t>(1, std::min(run_length_, group_));
    parallel(tasks_, std::max<int64_t>(1, rows_per_task(width_) / rows_each), [&](int64_t first, int64_t last) {
      for (int64_t task = first; task < last; task++) {
        const int64_t group = task / runs_, begin = group * group_ + task % runs_ * run_length_;
        body(group, begin, std::min(begin + run_length_, (group + 1) * group_),
             partial_.data() + sums_ * task * width_);
      }
    });
  }
  // Writes the sums number `which` to `out`, (groups, width).
  void write(int64_t which, const Tensor& out) const {
    const Sink<C> sink(out);
    for_tiles(out.numel() == 0 ? 0 : groups_, width_, [&](int64_t group, int64_t column, int64_t n, int64_t) {
      Tile<C> sum;
      std::fill_n(sum.data, n, C(0));
      for (int64_t run = 0; run < (tasks_ ? runs_ : 0); run++)
        for (int64_t i = 0; i < n; i++)
          sum[i] += partial_[(sums_ * (group * runs_ + run) + which) * width_ + column + i];
      sink.write(group * width_ + column, sum.data, n);
    });
  }
};

}  // namespace fmk
