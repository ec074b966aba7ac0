// The gradient of gelu(a) * b: fmkernels/autograd/norm.py has the same in Python.
#include "common.h"

namespace fmk {
namespace {

struct GeluMul : torch::autograd::Function<GeluMul> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a, const OptTensor& b) {
    static const auto run = op<Tensor(const Tensor&, const OptTensor&)>("fmkernels::gelu_mul");
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({a, b.value_or(Tensor())});
    return run.call(a, b);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto run = op<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const OptTensor&)>(
        "fmkernels::gelu_mul_backward");
    const variable_list saved = ctx->get_saved_variables();
    const bool both = saved[1].defined();
    const Below below;
    auto [to_a, to_b] = run.call(grads[0], saved[0], both ? OptTensor(saved[1]) : std::nullopt);
    return {to_a, both ? to_b : Tensor()};
  }
};

Tensor gelu_mul(const Tensor& a, const OptTensor& b) { return GeluMul::apply(a, b); }

}  // namespace

TORCH_LIBRARY_IMPL(fmkernels, Autograd, m) {
  m.impl("gelu_mul", &gelu_mul);
}

}  // namespace fmk
