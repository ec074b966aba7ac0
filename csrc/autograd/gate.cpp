// The gradient of act(a) * b: fmkernels/autograd/gate.py has the same in Python.
#include "common.h"

namespace fmk {
namespace {

struct GateMul : torch::autograd::Function<GateMul> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a, const OptTensor& b, int64_t act, bool gate_first) {
    static const auto run = op<Tensor(const Tensor&, const OptTensor&, int64_t, bool)>("fmkernels::gate_mul");
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({a, b.value_or(Tensor())});
    ctx->saved_data["act"] = act;
    ctx->saved_data["gate_first"] = gate_first;
    return run.call(a, b, act, gate_first);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto run = op<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const OptTensor&, int64_t, bool)>(
        "fmkernels::gate_mul_backward");
    const variable_list saved = ctx->get_saved_variables();
    const bool both = saved[1].defined();
    const Below below;
    auto [to_a, to_b] = run.call(grads[0], saved[0], both ? OptTensor(saved[1]) : std::nullopt,
                                 ctx->saved_data["act"].toInt(), ctx->saved_data["gate_first"].toBool());
    return {to_a, both ? to_b : Tensor(), Tensor(), Tensor()};
  }
};

Tensor gate_mul(const Tensor& a, const OptTensor& b, int64_t act, bool gate_first) {
  return GateMul::apply(a, b, act, gate_first);
}

}  // namespace

TORCH_LIBRARY_IMPL(fmkernels, Autograd, m) {
  m.impl("gate_mul", &gate_mul);
}

}  // namespace fmk
