// The host's side of a launch: the device, its current stream, errors.
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>

#include <atomic>

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
  static int32_t index() { return torch::stable::accelerator::getCurrentDeviceIndex(); }
};

}  // namespace fmk

#include "../shared/tensors.h"

namespace fmk {

inline Source source(const Tensor& x) { return {x.const_data_ptr(), dtype_of(x)}; }
inline Source source(const OptTensor& x) { return x ? source(*x) : Source{nullptr, Dtype::f32}; }
inline Sink sink(const Tensor& x) { return {x.mutable_data_ptr(), dtype_of(x)}; }
inline Sink sink(const OptTensor& x) { return x ? sink(*x) : Sink{nullptr, Dtype::f32}; }

// The device of `x` made current, until the end of the op.
class OnDevice {
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_;

  static int32_t index_of(const Tensor& x, const char* name) {
    int32_t type;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(x.get(), &type));
    FMK_CHECK(type == Here::type(), name, " must be on a GPU");
    return x.get_device_index();
  }

 public:
  OnDevice(const Tensor& x, const char* name) : guard_(index_of(x, name)) {
    void* stream;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
    stream_ = static_cast<cudaStream_t>(stream);
  }

  // At most `blocks` blocks: kernels go on in strides of the grid. None, if there is nothing to do.
  template <class... Parameters, class... Arguments>
  void launch(void (*kernel)(Parameters...), int64_t blocks, int threads, int64_t shared_bytes,
              const Arguments&... arguments) const {
    if (blocks == 0) return;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(std::min<int64_t>(blocks, 1 << 20)));
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = size_t(shared_bytes);
    config.stream = stream_;
    const cudaError_t error = cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
    FMK_CHECK(error == cudaSuccess, "launch failed: ", cudaGetErrorString(error));
  }
};

// The next launch's counter.
inline unsigned next_ticket() {
  static std::atomic<unsigned> next{0};
  return next++ % kTickets;
}

}  // namespace fmk
