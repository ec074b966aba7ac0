// What every CPU kernel stands on: tensors through torch's stable ABI, dtypes handled one tile at a
// time, and loops split the same way whatever the number of threads.
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <vector>

#include "../shared/columns.h"
#include "../shared/scalar.h"

// A kernel marked so is compiled once for each instruction set and chosen when the object is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(FMK_NO_CLONES)
#define FMK_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FMK_CLONES
#endif

namespace fmk {

using torch::stable::Tensor;
using OptTensor = std::optional<Tensor>;

// The messages people read come from the checks in fmkernels/ops, which run when one of these fails:
// this is the memory-safety net for whoever calls torch.ops.fmkernels.* directly.
#define FMK_CHECK(condition, ...) STD_TORCH_CHECK(condition, "fmkernels: ", __VA_ARGS__)

// ---- dtypes ----
enum class Dtype { f64, f32, f16, bf16, other };

// torch's own number for each: asked once, because Tensor::scalar_type() asks for a score of them a call.
inline const int32_t* torch_dtypes() {
  static const int32_t codes[] = {aoti_torch_dtype_float64(), aoti_torch_dtype_float32(),
                                  aoti_torch_dtype_float16(), aoti_torch_dtype_bfloat16()};
  return codes;
}
inline Dtype dtype_of(const Tensor& x) {
  int32_t code;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &code));
  const int32_t* codes = torch_dtypes();
  return Dtype(std::find(codes, codes + 4, code) - codes);
}
inline Dtype dtype_of(torch::headeronly::ScalarType type) {
  using torch::headeronly::ScalarType;
  switch (type) {
    case ScalarType::Double: return Dtype::f64;
    case ScalarType::Float: return Dtype::f32;
    case ScalarType::Half: return Dtype::f16;
    case ScalarType::BFloat16: return Dtype::bf16;
    default: return Dtype::other;
  }
}
inline int64_t size_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }

// torch's promotion for floating types: the wider one, fp16 with bf16 giving fp32.
inline Dtype promote(Dtype a, Dtype b) {
  if (a == b) return a;
  return a == Dtype::f64 || b == Dtype::f64 ? Dtype::f64 : Dtype::f32;
}

template <class C>
constexpr Dtype compute_dtype = std::is_same_v<C, double> ? Dtype::f64 : Dtype::f32;

// Calls f with a value of the type the arithmetic is done in: double when asked, else float.
template <class F>
decltype(auto) with_compute_type(bool in_double, F&& f) {
  if (in_double) return f(double{});
  return f(float{});
}

// ---- tensors ----
using Sizes = torch::headeronly::IntHeaderOnlyArrayRef;

inline Tensor fresh(Sizes sizes, Dtype dtype) {
  int64_t strides[64];
  FMK_CHECK(sizes.size() <= 64, "more than 64 dimensions");
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  AtenTensorHandle handle;
  // torch::stable::empty goes through the dispatcher and costs 1 us more a call.
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(int64_t(sizes.size()), sizes.data(), strides,
                                                         torch_dtypes()[int(dtype)],
                                                         aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}
inline Tensor fresh(std::initializer_list<int64_t> sizes, Dtype dtype) {
  return fresh(Sizes(sizes.begin(), sizes.size()), dtype);
}
inline Tensor fresh_like(const Tensor& x, Dtype dtype) { return fresh(x.sizes(), dtype); }
inline Tensor fresh_like(const Tensor& x) { return fresh(x.sizes(), dtype_of(x)); }
// Stands for an output that was not asked for.
inline Tensor nothing() { return fresh({0}, Dtype::f32); }

inline Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }
inline OptTensor dense(const OptTensor& x) { return x ? OptTensor(dense(*x)) : std::nullopt; }

inline bool same_shape(const Tensor& a, const Tensor& b) {
  const auto x = a.sizes(), y = b.sizes();
  return x.size() == y.size() && std::equal(x.begin(), x.end(), y.begin());
}

inline bool on_cpu(const Tensor& x) {
  static const int32_t cpu = aoti_torch_device_type_cpu();
  int32_t type;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(x.get(), &type));
  return type == cpu;
}
// On the CPU and of a floating dtype: asked of every tensor argument of every op.
inline void check_tensor(const Tensor& x, const char* name) {
  FMK_CHECK(on_cpu(x), name, " must be on the CPU");
  FMK_CHECK(dtype_of(x) != Dtype::other, name, " must be floating point");
}
inline void check_tensor(const OptTensor& x, const char* name) {
  if (x) check_tensor(*x, name);
}
inline void check_like(const Tensor& x, const Tensor& like, const char* name) {
  check_tensor(x, name);
  FMK_CHECK(same_shape(x, like), name, " has another shape");
}
inline void check_like(const OptTensor& x, const Tensor& like, const char* name) {
  if (x) check_like(*x, like, name);
}

inline void check_finite(double value, const char* name) { FMK_CHECK(finite(value), name, " must be finite"); }

// The bytes a tensor reaches, from first to last.
inline std::pair<const char*, const char*> span_of(const Tensor& x) {
  const char* begin = static_cast<const char*>(x.const_data_ptr());
  int64_t last = 0;
  for (int64_t i = 0; i < x.dim(); i++) last += (x.size(i) - 1) * x.stride(i);
  return {begin, begin + (last + 1) * size_of(dtype_of(x))};
}
// An output has memory of its own: no element twice, none in the range of another argument.
inline void check_writable(const Tensor& out, const char* name, const std::vector<const Tensor*>& others) {
  if (out.numel() == 0) return;
  std::vector<std::pair<int64_t, int64_t>> dims;  // (stride, size): each must step over all smaller ones
  for (int64_t i = 0; i < out.dim(); i++)
    if (out.size(i) > 1) dims.emplace_back(out.stride(i), out.size(i));
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    FMK_CHECK(stride > reach, name, " has elements that share memory");
    reach += stride * (size - 1);
  }
  const auto [begin, end] = span_of(out);
  for (const Tensor* other : others) {
    if (!other || other->numel() == 0) continue;
    const auto [other_begin, other_end] = span_of(*other);
    FMK_CHECK(end <= other_begin || other_end <= begin, name, " may share memory with another argument");
  }
}
inline const Tensor* pointer_to(const OptTensor& x) { return x ? &*x : nullptr; }

// An in-place argument is computed in a dense twin, copied back by `commit` when it is not dense.
struct InPlace {
  Tensor target, work;
  explicit InPlace(const Tensor& x) : target(x), work(dense(x)) {}
  void commit() {
    if (work.get() != target.get()) torch::stable::copy_(target, work);
  }
};

inline bool is_double(const Tensor& x) { return dtype_of(x) == Dtype::f64; }
inline bool is_double(const OptTensor& x) { return x && is_double(*x); }

// ---- tiles: the unit of work, small enough that a handful of them stay in L1 ----
constexpr int64_t kTile = 1024;
constexpr int64_t kGrain = 16;  // tiles a thread should have before a second one is woken

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

// Elements of any dtype read as C: in place where they are C already, else through a tile.
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

// Elements of any dtype written as C: `at` says where to compute, `put` rounds into place once.
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
  // For values that stand elsewhere already.
  void write(int64_t i, const C* values, int64_t n) const {
    if (dtype == compute_dtype<C>) std::copy_n(values, n, static_cast<C*>(data) + i);
    put(i, values, n);
  }
};

// A whole small tensor (times, scales) as C: its own memory where it is dense and C already.
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

// A small tensor of values computed in double.
inline Tensor tensor_of(const std::vector<double>& values, std::initializer_list<int64_t> sizes, Dtype dtype) {
  const Tensor out = fresh(sizes, dtype);
  const Sink<double> sink(out);
  sink.write(0, values.data(), int64_t(values.size()));
  return out;
}

// ---- loops: cut by size alone, so that results do not depend on the number of threads ----
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
