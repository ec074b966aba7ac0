// Gradients in C++ for the ops that stand between the products of a block: a training step calls them hundreds of
// times, and there the Python way costs more than the kernels. The stable ABI has no autograd, so this object uses
// ATen and is bound to the torch it was built with: fmkernels/backend.py loads it under that torch only, and
// without it the same gradients run from Python (fmkernels/ops/norm.py, which has the formulas' reasons), and linear
// is torch's own.
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class Signature>
c10::TypedOperatorHandle<Signature> op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

Tensor as(const Tensor& grad, at::ScalarType dtype) {
  return grad.defined() && grad.scalar_type() != dtype ? grad.to(dtype) : grad;
}

// A backward passes by the registration of its op. Where second derivatives may be asked for (create_graph) it does
// not: that registration raises, and says what to do.
struct Below {
  std::optional<at::AutoDispatchBelowADInplaceOrView> guard;
  Below() {
    if (!at::GradMode::is_enabled()) guard.emplace();
  }
};

using NormResult = std::tuple<Tensor, Tensor, Tensor>;

struct Norm : torch::autograd::Function<Norm> {
  static variable_list forward(AutogradContext* ctx, at::TensorList x, const Tensor& scale, const OptTensor& offset,
                               const OptTensor& residual, double eps, bool center) {
    static const auto run =
        op<NormResult(at::TensorList, const Tensor&, const OptTensor&, const OptTensor&, double, bool)>(
            "fmkernels::td_norm");
    at::AutoDispatchBelowADInplaceOrView below;
    auto [y, summed, stat] = run.call(x, scale, offset, residual, eps, center);
    variable_list saved{scale, stat};
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
    keep["count"] = int64_t(x.size());
    keep["x"] = x[0].scalar_type();
    if (offset) keep["offset"] = offset->scalar_type();
    if (residual) keep["residual"] = residual->scalar_type();
    return {y, summed, stat};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto run = op<NormResult(const Tensor&, const OptTensor&, at::TensorList, const Tensor&, const Tensor&,
                                          double, bool)>("fmkernels::td_norm_backward");
    auto& keep = ctx->saved_data;
    const bool has_offset = keep.count("offset"), has_residual = keep.count("residual");
    const int64_t count = keep["count"].toInt();
    const variable_list saved = ctx->get_saved_variables();
    const at::TensorList s = at::TensorList(saved).slice(2);
    const Tensor to_sum = has_residual ? grads[1] : Tensor();
    Tensor grad = to_sum, to_scale, to_offset;
    if (grads[0].defined()) {
      const Below below;
      std::tie(grad, to_scale, to_offset) =
          run.call(grads[0], to_sum.defined() ? OptTensor(to_sum) : std::nullopt, s, saved[0], saved[1],
                   keep["eps"].toDouble(), keep["center"].toBool());
      to_scale = as(to_scale, saved[0].scalar_type());
    }
    variable_list result;
    if (grad.defined() && count > 1) {
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
    result.insert(result.end(), 2, Tensor());  // eps, center
    return result;
  }
};

NormResult td_norm(at::TensorList x, const Tensor& scale, const OptTensor& offset, const OptTensor& residual,
                   double eps, bool center) {
  const variable_list out = Norm::apply(x, scale, offset, residual, eps, center);
  return {out[0], out[1], out[2]};
}

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

// ---- tdp_group ----
// With an output a parameter, so that only those used take part, as often as asked: fmkernels/ops/tdp.py has the same
// in Python, and the reasons.
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

// ---- depthwise ----
struct Depthwise : torch::autograd::Function<Depthwise> {
  static Tensor run(const Tensor& x, const Tensor& weight, const OptTensor& bias, bool turned) {
    static const auto call = op<Tensor(const Tensor&, const Tensor&, const OptTensor&, bool)>("fmkernels::depthwise");
    return call.call(x, weight, bias, turned);
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const OptTensor& bias) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, weight});
    ctx->saved_data["bias"] = bias.has_value();
    return run(x, weight, bias, false);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto of_weight =
        op<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, int64_t)>("fmkernels::depthwise_weight");
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "fmkernels.depthwise has first derivatives only; for second ones use fmkernels.use_backend('eager')");
    const variable_list saved = ctx->get_saved_variables();  // may run a forward: before the guard
    at::AutoDispatchBelowADInplaceOrView below;
    const bool has_bias = ctx->saved_data["bias"].toBool();
    Tensor to_x, to_weight, to_bias;
    if (ctx->needs_input_grad(0)) to_x = run(grads[0], saved[1], std::nullopt, true);
    if (ctx->needs_input_grad(1) || (has_bias && ctx->needs_input_grad(2)))
      std::tie(to_weight, to_bias) = of_weight.call(grads[0], saved[0], saved[1].size(-1));
    return {to_x, to_weight, has_bias ? to_bias : Tensor()};
  }
};

Tensor depthwise(const Tensor& x, const Tensor& weight, const OptTensor& bias, bool turned) {
  TORCH_CHECK(!turned, "fmkernels: a turned depthwise convolution has no gradients");
  return Depthwise::apply(x, weight, bias);
}

// ---- linear ----
// rows · weightᵀ + bias in plain PyTorch.
Tensor product(const Tensor& rows, const Tensor& weight, const OptTensor& bias) {
  return bias ? at::addmm(*bias, rows, weight.t()) : at::mm(rows, weight.t());
}

// The same by oneDNN where that is the faster of torch's two libraries: measured on an AMD with AVX-512, for large
// products, operands dense or the transpose of dense (others take a path a hundred times slower).
Tensor fast_product(const Tensor& rows, const Tensor& weight, const OptTensor& bias) {
  static const auto schema = [] {
#if defined(__x86_64__)
    if (__builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f"))
      return c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
#endif
    return std::optional<c10::OperatorHandle>();
  }();
  const bool plain = rows.is_contiguous() && (weight.is_contiguous() || weight.t().is_contiguous());
  if (!schema || !plain || !rows.is_cpu() || rows.scalar_type() != at::kFloat || weight.scalar_type() != at::kFloat ||
      rows.numel() * weight.size(0) < (1 << 24))
    return product(rows, weight, bias);
  static const auto run = schema->typed<Tensor(const Tensor&, const Tensor&, const OptTensor&, std::string_view,
                                               c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>)>();
  return run.call(rows, weight, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

Tensor rows_of(const Tensor& x, at::ScalarType dtype) {
  if (x.dim() == 2) return as(x, dtype);
  return as(x.reshape({c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)), x.size(-1)}), dtype);
}

// x's sizes, with another width.
at::DimVector with_width(at::IntArrayRef sizes, int64_t width) {
  at::DimVector found(sizes);
  found.back() = width;
  return found;
}

// weight's columns for parts of these widths.
std::vector<Tensor> columns_of(const Tensor& weight, const std::vector<int64_t>& widths) {
  if (widths.size() == 1) return {weight};
  std::vector<Tensor> columns;
  int64_t at = 0;
  for (int64_t width : widths) columns.push_back(weight.narrow(1, std::exchange(at, at + width), width));
  return columns;
}

std::vector<int64_t> widths_of(at::TensorList x, const Tensor& weight) {
  TORCH_CHECK(!x.empty(), "linear: x must have at least one part");
  std::vector<int64_t> widths;
  int64_t total = 0;
  for (const Tensor& part : x) {
    TORCH_CHECK(part.dim() > 0 && part.sizes().slice(0, part.dim() - 1) == x[0].sizes().slice(0, x[0].dim() - 1),
                "linear: the parts of x must have one shape but for their widths, got ", part.sizes(), " and ",
                x[0].sizes());
    widths.push_back(part.size(-1));
    total += part.size(-1);
  }
  TORCH_CHECK(weight.dim() == 2 && total == weight.size(1), "linear: x is ", total, " wide and weight ", weight.sizes(),
              ": they cannot be multiplied");
  return widths;
}

Tensor multiplied(at::TensorList x, const std::vector<int64_t>& widths, const Tensor& weight, const OptTensor& bias) {
  const std::vector<Tensor> columns = columns_of(weight, widths);
  Tensor y = fast_product(rows_of(x[0], x[0].scalar_type()), columns[0], bias);
  for (size_t i = 1; i < x.size(); i++) y.addmm_(rows_of(x[i], y.scalar_type()), columns[i].t());
  return x[0].dim() == 2 ? y : y.view(with_width(x[0].sizes(), weight.size(0)));
}

Tensor linear_forward(at::TensorList x, const Tensor& weight, const OptTensor& bias) {
  return multiplied(x, widths_of(x, weight), weight, bias);
}

// One node instead of torch's four (two views, a transpose, a product), which cost as much as a small product.
struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* ctx, at::TensorList x, const Tensor& weight, const OptTensor& bias) {
    at::AutoDispatchBelowADInplaceOrView below;
    std::vector<int64_t> widths = widths_of(x, weight);
    const Tensor y = multiplied(x, widths, weight, bias);
    // As torch, what the asked-for gradients need and no more.
    const bool to_x = std::any_of(x.begin(), x.end(), [](const Tensor& part) { return part.requires_grad(); });
    variable_list saved{to_x ? weight : Tensor()};
    for (const Tensor& part : x) saved.push_back(weight.requires_grad() ? part : Tensor());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["widths"] = std::move(widths);
    ctx->saved_data["bias"] = bias.has_value();
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<int64_t> widths = ctx->saved_data["widths"].toIntVector();
    const size_t count = widths.size();
    const Below below;
    const Tensor grad = rows_of(grads[0], grads[0].scalar_type());
    variable_list result(count + 2);
    const std::vector<Tensor> columns = saved[0].defined() ? columns_of(saved[0].conj(), widths) : std::vector<Tensor>();
    for (size_t i = 0; i < columns.size(); i++)
      if (ctx->needs_input_grad(i))
        result[i] = (below.guard ? fast_product : product)(grad, columns[i].t(), std::nullopt)
                        .view(with_width(grads[0].sizes(), widths[i]));
    if (ctx->needs_input_grad(count)) {
      variable_list parts;
      for (size_t i = 0; i < count; i++)
        parts.push_back(at::mm(grad.t(), rows_of(saved[i + 1].conj(), grad.scalar_type())));
      result[count] = count == 1 ? parts[0] : at::cat(parts, 1);
    }
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(count + 1)) result[count + 1] = grad.sum(0);
    return result;
  }
};

Tensor linear_with_gradients(at::TensorList x, const Tensor& weight, const OptTensor& bias) {
  return Linear::apply(x, weight, bias);
}

}  // namespace

TORCH_LIBRARY_IMPL(fmkernels, CompositeExplicitAutograd, m) { m.impl("linear", &linear_forward); }

TORCH_LIBRARY_IMPL(fmkernels, Autograd, m) {
  m.impl("td_norm", &td_norm);
  m.impl("gelu_mul", &gelu_mul);
  m.impl("depthwise", &depthwise);
  m.impl("linear", &linear_with_gradients);
  m.impl("tdp_group_parts", &tdp_group_parts);
}
