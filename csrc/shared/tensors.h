// Tensors through torch's stable ABI, and what every op asks of its arguments. A file that includes this defines
// first where its tensors are: fmk::Here; what an op holds while it runs there: fmk::Device; and the dispatch
// key of the ops: FMK_KEY. The op families are the headers beside this one, written once for every device:
// arguments checked, outputs made, ops registered; the arithmetic is the `run_...` functions they declare.
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

#include "columns.h"
#include "dtype.h"
#include "scalar.h"

namespace fmk {

using torch::stable::Tensor;
using OptTensor = std::optional<Tensor>;

// The messages people read come from the checks in fmkernels/ops, which run when one of these fails:
// this is the memory-safety net for direct calls of torch.ops.fmkernels.*.
#define FMK_CHECK(condition, ...) STD_TORCH_CHECK(condition, "fmkernels: ", __VA_ARGS__)

// ---- dtypes ----
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
inline int32_t torch_int8() {
  static const int32_t code = aoti_torch_dtype_int8();
  return code;
}
inline bool is_int8(const Tensor& x) {
  int32_t code;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &code));
  return code == torch_int8();
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

// ---- tensors ----
using Sizes = torch::headeronly::IntHeaderOnlyArrayRef;

inline Tensor fresh(Sizes sizes, int32_t torch_dtype) {
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
                                                         torch_dtype, Here::type(), Here::index(), &handle));
  return Tensor(handle);
}
inline Tensor fresh(Sizes sizes, Dtype dtype) { return fresh(sizes, torch_dtypes()[int(dtype)]); }
inline Tensor fresh_int8(Sizes sizes) { return fresh(sizes, torch_int8()); }
inline Tensor fresh(std::initializer_list<int64_t> sizes, Dtype dtype) {
  return fresh(Sizes(sizes.begin(), sizes.size()), dtype);
}
inline Tensor fresh_like(const Tensor& x, Dtype dtype) { return fresh(x.sizes(), dtype); }
inline Tensor fresh_like(const Tensor& x) { return fresh(x.sizes(), dtype_of(x)); }
// A placeholder for an output that was not asked for.
inline Tensor nothing() { return fresh({0}, Dtype::f32); }

inline Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }
inline OptTensor dense(const OptTensor& x) { return x ? OptTensor(dense(*x)) : std::nullopt; }

inline bool has_sizes(const Tensor& x, Sizes sizes) {
  return x.sizes().size() == sizes.size() && std::equal(sizes.begin(), sizes.end(), x.sizes().begin());
}
inline bool same_shape(const Tensor& a, const Tensor& b) { return has_sizes(a, b.sizes()); }

inline bool is_here(const Tensor& x) {
  int32_t type;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(x.get(), &type));
  return type == Here::type() && (!Here::numbered || x.get_device_index() == Here::index());
}
// On this object's device and of a floating dtype: asked of every tensor argument of every op.
inline void check_tensor(const Tensor& x, const char* name) {
  FMK_CHECK(is_here(x), name, " must be on ", Here::name);
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
// An output has separate memory: no element twice, none in the range of another argument.
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

// An argument that is written is computed in a dense twin, copied back by `commit` when it is not dense.
struct InPlace {
  OptTensor target, work;
  explicit InPlace(const OptTensor& x) : target(x), work(dense(x)) {}
  void commit() {
    if (target && work->get() != target->get()) torch::stable::copy_(*target, *work);
  }
};

inline bool is_double(const Tensor& x) { return dtype_of(x) == Dtype::f64; }
inline bool is_double(const OptTensor& x) { return x && is_double(*x); }
inline Dtype wide_dtype(bool in_double) { return in_double ? Dtype::f64 : Dtype::f32; }

// Samples of one batch: (B, n) whatever the shape behind the first dimension.
struct Batch {
  int64_t samples, n;
  explicit Batch(const Tensor& x) {
    FMK_CHECK(x.dim() >= 1, "a batch dimension is needed");
    samples = x.size(0);
    n = samples == 0 ? 0 : x.numel() / samples;
  }
};

}  // namespace fmk
