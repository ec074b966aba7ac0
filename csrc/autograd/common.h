// What the gradients in C++ share. They are for the ops that a training step calls hundreds of times, where the Python
// way takes longer than the kernels; fmkernels/autograd has the same formulas, and runs without this object. The stable
// ABI has no autograd, so the object uses ATen and is loaded only with the torch version that it was built with.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace fmk {

using at::Tensor;
using OptTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class Signature>
c10::TypedOperatorHandle<Signature> op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

inline Tensor as(const Tensor& grad, at::ScalarType dtype) {
  return grad.defined() && grad.scalar_type() != dtype ? grad.to(dtype) : grad;
}

// A backward goes below the registration of its op, except where second derivatives may follow (create_graph): that
// registration raises, and names the alternative.
struct Below {
  std::optional<at::AutoDispatchBelowADInplaceOrView> guard;
  Below() {
    if (!at::GradMode::is_enabled()) guard.emplace();
  }
};

}  // namespace fmk
