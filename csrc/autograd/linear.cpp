// The product as one node of the graph instead of torch's four. Its second derivatives are torch's.
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>

#include "../shared/limits.h"
#include "common.h"

namespace fmk {
namespace {

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
      rows.numel() * weight.size(0) < kLargeProduct)
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
                "linear: the parts of x have different shapes");
    widths.push_back(part.size(-1));
    total += part.size(-1);
  }
  TORCH_CHECK(weight.dim() == 2 && total == weight.size(1), "linear: weight has another width than x");
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

TORCH_LIBRARY_IMPL(fmkernels, CPU, m) { m.impl("linear", &linear_forward); }
TORCH_LIBRARY_IMPL(fmkernels, Autograd, m) {
  m.impl("linear", &linear_with_gradients);
}

}  // namespace fmk
