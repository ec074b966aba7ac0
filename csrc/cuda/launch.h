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
