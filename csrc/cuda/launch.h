// The host's side of a launch: the device, its current stream, errors.
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>

#include "device.cuh"

namespace fmk {

// Where this object's tensors are: on the device of the call's first one.
struct Here {
  static constexpr const char* name = "the first tensor's GPU";
  static constexpr bool numbered = true;
  static int32_t type() {
    static const int32_t cuda = aoti_torch_device_type_cuda();
    return cuda;
  }
  static int32_t& index() {
    static thread_local int32_t current;
    return current;
  }
};

}  // namespace fmk

#include "../shared/tensors.h"

#define FMK_KEY CUDA

namespace fmk {

inline Source source(const Tensor& x) { return {x.const_data_ptr(), dtype_of(x)}; }
inline Source source(const OptTensor& x) { return x ? source(*x) : Source{nullptr, Dtype::f32}; }
inline Sink sink(const Tensor& x) { return {x.mutable_data_ptr(), dtype_of(x)}; }
inline Sink sink(const OptTensor& x) { return x ? sink(*x) : Sink{nullptr, Dtype::f32}; }

// ---- which kernel a launch takes ----
// All that have data have this dtype and an aligned address.
template <class List>
bool are_whole(const List& sources, Dtype dtype) {
  return std::all_of(sources.begin(), sources.end(), [&](const Source& x) {
    return !x.data || (x.dtype == dtype && reinterpret_cast<uintptr_t>(x.data) % sizeof(uint4) == 0);
  });
}
// The dtypes that a kernel is compiled for beside that of its activations.
enum class Second { none, same_or_float, floats };

// f(Common<S, P>{}) if the tensors allow it, else f(Any<C>{}). `rows`: the widths of rows and the distances between
// them; `elements`: of the largest tensor.
template <Second kSecond, class List = std::initializer_list<Source>, class F>
void with_access(bool in_double, const List& activations, std::initializer_list<Source> parameters,
                 std::initializer_list<int64_t> rows, int64_t elements, const F& f) {
  const bool common = !in_double && elements < (int64_t(1) << 31) - (int64_t(1) << 24) &&  // with room for a stride
                      std::all_of(rows.begin(), rows.end(), [](int64_t row) { return row % kPack == 0; });
  const auto taken = [&](auto zero, Dtype dtype) {
    using S = decltype(zero);
    if (!common || !are_whole(activations, dtype)) return false;
    if constexpr (kSecond != Second::floats)
      if (are_whole(parameters, dtype)) return f(Common<S>{}), true;
    if constexpr (kSecond == Second::floats || (kSecond == Second::same_or_float && !std::is_same_v<S, float>))
      if (are_whole(parameters, Dtype::f32)) return f(Common<S, float>{}), true;
    return false;
  };
  if (taken(bf16{}, Dtype::bf16) || taken(f16{}, Dtype::f16) || taken(float{}, Dtype::f32)) return;
  with_compute_type(in_double, [&](auto zero) { f(Any<decltype(zero)>{}); });
}

inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // or torch's next launch would be blamed for it
  const bool other_gpu = error == cudaErrorNoKernelImageForDevice;
  FMK_CHECK(false, what, " failed: ", cudaGetErrorString(error),
            other_gpu ? "; fmkernels was built for other GPUs: set TORCH_CUDA_ARCH_LIST and build it again" : "");
}

// What an op holds while it runs: the device of `x`, made current, and its current stream.
class Device {
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_;

  static int32_t enter(const Tensor& x, const char* name) {
    int32_t type;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(x.get(), &type));
    FMK_CHECK(type == Here::type(), name, " must be on a GPU");
    return Here::index() = x.get_device_index();
  }

 public:
  Device(const Tensor& x, const char* name) : guard_(enter(x, name)) {
    void* stream;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(Here::index(), &stream));
    stream_ = static_cast<cudaStream_t>(stream);
  }

  // Shared memory that a block may have if it asks for it, less what the reductions take.
  int64_t shared_bytes() const {
    int bytes = 0;
    check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, Here::index()), "attribute");
    return bytes - (2 << 10);
  }

  // At most `blocks` blocks (kernels go on in strides of the grid); none, if there is nothing to do.
  template <class... Parameters, class... Arguments>
  void launch(void (*kernel)(Parameters...), int64_t blocks, int threads, int64_t shared_bytes,
              const Arguments&... arguments) const {
    if (blocks == 0) return;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(std::min<int64_t>(blocks, 1 << 20)));  // plenty, and far from any limit
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = size_t(shared_bytes);
    config.stream = stream_;
    if (shared_bytes > 46 << 10)  // beyond 48 KB, with what the reductions take, a kernel has to ask
      check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes)), "attribute");
    check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "launch");
  }

  // Room for `count` numbers and a counter set to 0: in `memory`, whose owner keeps it until the launch is made.
  Partials partials(int64_t count, Tensor& memory) const {
    memory = fresh({count + 1}, Dtype::f64);
    double* const rows = static_cast<double*>(memory.mutable_data_ptr());
    check_cuda(cudaMemsetAsync(rows + count, 0, sizeof(double), stream_), "memset");
    return {rows, reinterpret_cast<unsigned*>(rows + count)};
  }
  // For sums over tiles: none where blocks finish their samples alone.
  Partials partials(const Tiles& tiles, int columns, Tensor& memory) const {
    return tiles.per_sample > 1 ? partials(tiles.count() * columns, memory) : Partials{nullptr, nullptr};
  }
};

}  // namespace fmk
