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

}  // namespace fmk
