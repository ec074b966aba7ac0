// The gradient of the depthwise convolution.
#include "common.h"

namespace fmk {
namespace {

struct Depthwise : torch::autograd::Function<Depthwise> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const OptTensor& bias) {
    static const auto run = op<Tensor(const Tensor&, const Tensor&, const OptTensor&)>("fmkernels::depthwise");
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, weight});
    ctx->saved_data["bias"] = bias.has_value();
    return run.call(x, weight, bias);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto run = op<std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, bool,
                                                                  bool)>("fmkernels::depthwise_backward");
    const variable_list saved = ctx->get_saved_variables();  // may run a forward: before the guard
    const bool bias = ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2);
    const bool to_x = ctx->needs_input_grad(0), to_weight = ctx->needs_input_grad(1);
    const Below below;
    const auto [x, weight, b] = run.call(grads[0], saved[0], saved[1], to_x, to_weight || bias);
    return {to_x ? x : Tensor(), to_weight ? weight : Tensor(), bias ? b : Tensor()};
  }
};

Tensor depthwise(const Tensor& x, const Tensor& weight, const OptTensor& bias) {
  return Depthwise::apply(x, weight, bias);
}

}  // namespace

TORCH_LIBRARY_IMPL(fmkernels, Autograd, m) {
  m.impl("depthwise", &depthwise);
}

}  // namespace fmk
