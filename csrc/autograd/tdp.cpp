// A group with one output per parameter, so that only the used ones take part in a backward, which may run several times:
// fmkernels/autograd/tdp.py has the same in Python, and the reasons.
#include <ATen/ops/cat.h>

#include "common.h"

namespace fmk {
namespace {

struct Group : torch::autograd::Function<Group> {
  using Lists = at::TensorList;

  // params: all of param0, then of param1, weight, bias.
  static variable_list forward(AutogradContext* ctx, Lists params, const Tensor& times, double weight_offset) {
    static const auto run =
        op<Tensor(Lists, Lists, Lists, Lists, const Tensor&, double)>("fmkernels::tdp_group");
    at::AutoDispatchBelowADInplaceOrView below;
    const size_t count = params.size() / 4;
    const auto column = [&](size_t j) { return params.slice(j * count, count); };
    const Tensor flat = run.call(column(0), column(1), column(2), column(3), times, weight_offset);
    variable_list outputs;
    int64_t at = 0;
    for (const Tensor& p : column(0)) {
      Tensor output = flat.narrow(1, at, p.numel());
      if (p.dim() != 1) {
        at::DimVector sizes(p.sizes());
        sizes.insert(sizes.begin(), flat.size(0));
        output = output.view(sizes);
      }
      outputs.push_back(output);
      at += p.numel();
    }
    // Not saved for backward: what is saved is freed by the first of several backwards.
    std::vector<Tensor> inputs(params.begin(), params.end());
    inputs.push_back(times);
    ctx->saved_data["versions"] = versions(inputs);
    ctx->saved_data["inputs"] = std::move(inputs);
    ctx->saved_data["weight_offset"] = weight_offset;
    ctx->set_materialize_grads(false);
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto run =
        op<std::tuple<Tensor, Tensor>(const Tensor&, Lists, Lists, Lists, Lists, const Tensor&, double)>(
            "fmkernels::tdp_group_backward");
    const std::vector<Tensor> inputs = ctx->saved_data["inputs"].toTensorVector();
    TORCH_CHECK(versions(inputs) == ctx->saved_data["versions"].toIntVector(),
                "tdp_group: a parameter was changed in place between this forward and its backward (by an optimizer's "
                "step?); its gradient would be of the new value");
    const Tensor& times = inputs.back();
    const size_t count = grads.size();
    variable_list result(inputs.size() + 1);  // and weight_offset's
    std::vector<Tensor> used, lists[4];
    std::vector<size_t> which;
    for (size_t i = 0; i < count; i++) {
      if (!grads[i].defined()) continue;
      which.push_back(i);
      used.push_back(grads[i].dim() == 2 ? grads[i] : grads[i].reshape({times.size(0), inputs[i].numel()}));
      for (size_t j = 0; j < 4; j++) lists[j].push_back(inputs[j * count + i]);
    }
    if (used.empty()) return result;
    const Below below;
    const auto [rows, to_times] = run.call(at::cat(used, 1), lists[0], lists[1], lists[2], lists[3], times,
                                           ctx->saved_data["weight_offset"].toDouble());
    for (size_t j = 0; j < 4; j++) {
      const Tensor row = rows.select(0, int64_t(j));
      int64_t at = 0;
      for (size_t i : which) {
        const Tensor& p = inputs[j * count + i];
        const Tensor grad = row.narrow(0, at, p.numel());
        result[j * count + i] = as(p.dim() == 1 ? grad : grad.view(p.sizes()), p.scalar_type());
        at += p.numel();
      }
    }
    result[4 * count] = to_times;
    return result;
  }

  static std::vector<int64_t> versions(const std::vector<Tensor>& tensors) {
    std::vector<int64_t> found;
    for (const Tensor& x : tensors) found.push_back(x.is_inference() ? 0 : x._version());
    return found;
  }
};

std::vector<Tensor> tdp_group_parts(at::TensorList params, const Tensor& times, double weight_offset) {
  return Group::apply(params, times, weight_offset);
}

}  // namespace

TORCH_LIBRARY_IMPL(fmkernels, Autograd, m) {
  m.impl("tdp_group_parts", &tdp_group_parts);
}

}  // namespace fmk
