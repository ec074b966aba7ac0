// The gradient of the norms: fmkernels/autograd/norm.py has the same in Python.
#include "common.h"

namespace fmk {
namespace {

using NormResult = std::tuple<Tensor, Tensor, Tensor>;

struct Norm : torch::autograd::Function<Norm> {
  static variable_list forward(AutogradContext* ctx, at::TensorList x, const Tensor& scale, const OptTensor& offset,
                               const OptTensor& residual, const OptTensor& gate, double eps, bool center,
                               bool inside) {
    static const auto run = op<NormResult(at::TensorList, const Tensor&, const OptTensor&, const OptTensor&,
                                          const OptTensor&, double, bool, bool)>("fmkernels::td_norm");
    at::AutoDispatchBelowADInplaceOrView below;
    auto [y, summed, stat] = run.call(x, scale, offset, residual, gate, eps, center, inside);
    variable_list saved{scale, stat};
    if (gate) saved.insert(saved.end(), {*gate, x[0]});
    if (residual)
      saved.push_back(summed);
    else
      saved.insert(saved.end(), x.begin(), x.end());
    ctx->save_for_backward(std::move(saved));
    ctx->mark_non_differentiable({stat});
    ctx->set_materialize_grads(false);
    auto& keep = ctx->saved_data;
    keep["eps"] = eps;
    keep["center"] = center;
    keep["inside"] = inside;
    keep["gate"] = gate.has_value();
    keep["count"] = int64_t(x.size());
    keep["x"] = x[0].scalar_type();
    if (offset) keep["offset"] = offset->scalar_type();
    if (residual) keep["residual"] = residual->scalar_type();
    return {y, summed, stat};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto run = op<NormResult(const Tensor&, const OptTensor&, at::TensorList, const Tensor&, const Tensor&,
                                          double, bool, bool)>("fmkernels::td_norm_backward");
    static const auto run_gate = op<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&)>(
        "fmkernels::gated_add_backward");
    auto& keep = ctx->saved_data;
    const bool has_offset = keep.count("offset"), has_residual = keep.count("residual");
    const bool has_gate = keep["gate"].toBool();
    const int64_t count = keep["count"].toInt();
    const variable_list saved = ctx->get_saved_variables();
    const at::TensorList s = at::TensorList(saved).slice(has_gate ? 4 : 2);
    const Tensor to_sum = has_residual ? grads[1] : Tensor();
    Tensor grad = to_sum, to_scale, to_offset;
    if (grads[0].defined()) {
      const Below below;
      std::tie(grad, to_scale, to_offset) =
          run.call(grads[0], to_sum.defined() ? OptTensor(to_sum) : std::nullopt, s, saved[0], saved[1],
                   keep["eps"].toDouble(), keep["center"].toBool(), keep["inside"].toBool());
      to_scale = as(to_scale, saved[0].scalar_type());
    }
    variable_list result;
    Tensor to_gate;
    if (grad.defined() && has_gate) {
      const Below below;
      Tensor to_x;
      std::tie(to_gate, to_x) = run_gate.call(grad, saved[2], saved[3]);
      to_gate = as(to_gate, saved[2].scalar_type());
      result.push_back(to_x);
    } else if (grad.defined() && count > 1) {
      std::vector<c10::SymInt> widths;
      for (const Tensor& part : s) widths.push_back(part.sym_size(-1));
      for (const Tensor& part : as(grad, keep["x"].toScalarType()).split_with_sizes_symint(widths, -1))
        result.push_back(part);
    } else {
      result.assign(size_t(count), as(grad, keep["x"].toScalarType()));
    }
    result.push_back(to_scale);
    result.push_back(has_offset ? as(to_offset, keep["offset"].toScalarType()) : Tensor());
    result.push_back(has_residual ? as(grad, keep["residual"].toScalarType()) : Tensor());
    result.push_back(to_gate);
    result.insert(result.end(), 3, Tensor());  // eps, center, inside
    return result;
  }
};

NormResult td_norm(at::TensorList x, const Tensor& scale, const OptTensor& offset, const OptTensor& residual,
                   const OptTensor& gate, double eps, bool center, bool inside) {
  const variable_list out = Norm::apply(x, scale, offset, residual, gate, eps, center, inside);
  return {out[0], out[1], out[2]};
}

}  // namespace

TORCH_LIBRARY_IMPL(fmkernels, Autograd, m) {
  m.impl("td_norm", &td_norm);
}

}  // namespace fmk
