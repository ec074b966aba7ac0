// torch's device guard and streams where there is one device, the CPU: found by g++ in place of torch's own.
// The ops are registered, and ask for tensors, of the CPU.
#pragma once
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace torch::stable::accelerator {
using DeviceIndex = int32_t;
struct DeviceGuard {
  explicit DeviceGuard(DeviceIndex) { cuda_on_host::state().guards++; }
  ~DeviceGuard() { cuda_on_host::state().guards--; }
};
}  // namespace torch::stable::accelerator

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

inline AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void** stream) {
  *stream = &cuda_on_host::state().stream;
  return AOTI_TORCH_SUCCESS;
}
#define aoti_torch_device_type_cuda aoti_torch_device_type_cpu
#define CUDA CPU
