"""The gradient of the norms; csrc/autograd has the same for small training steps."""

from fmkernels import eager
from fmkernels.autograd.attach import backward_op, gradient
from fmkernels.autograd.gate import GATED_ADD_BACKWARD

_NORM_BACKWARD = backward_op("td_norm", eager.td_norm_backward)


def _save_norm(ctx, inputs, output):
    x, scale, offset, residual, gate, eps, center, inside = inputs
    _, summed, stat = output
    ctx.dtypes = x[0].dtype, offset is not None and offset.dtype, residual is not None and residual.dtype
    ctx.settings = eps, center, inside
    ctx.mark_non_differentiable(stat)
    ctx.set_materialize_grads(False)
    gated = (None, None) if gate is None else (gate, x[0])
    ctx.save_for_backward(scale, stat, *gated, *(x if residual is None else [summed]))


def _backward_norm(ctx, grad_y, grad_sum, _):
    scale, stat, gate, x, *s = ctx.saved_tensors
    x_dtype, offset_dtype, residual_dtype = ctx.dtypes
    grad_sum = grad_sum if residual_dtype else None
    if grad_y is None:  # only x + residual was used
        grad, to_scale, to_offset = grad_sum, None, None
    else:
        grad, to_scale, to_offset = _NORM_BACKWARD(grad_y, grad_sum, s, scale, stat, *ctx.settings)
        to_scale = to_scale.to(scale.dtype)
        to_offset = to_offset.to(offset_dtype) if offset_dtype else None
    if grad is None:
        return [None] * len(s), *[None] * 7
    to_gate, to_x = (None, grad.to(x_dtype)) if gate is None else GATED_ADD_BACKWARD(grad, gate, x)
    to_gate = to_gate if gate is None else to_gate.to(gate.dtype)
    to_x = to_x.split([part.shape[-1] for part in s], dim=-1) if len(s) > 1 else [to_x]
    to_residual = grad.to(residual_dtype) if residual_dtype else None
    return [*to_x], to_scale, to_offset, to_residual, to_gate, None, None, None


td_norm = gradient(_save_norm, _backward_norm)
