"""The gradients of the norms and the gelu gate; csrc/autograd has the same for small training steps."""

from fmkernels import eager
from fmkernels.autograd.attach import backward_op, gradient

_NORM_BACKWARD = backward_op("td_norm", eager.td_norm_backward)
_GELU_MUL_BACKWARD = backward_op("gelu_mul", eager.gelu_mul_backward)


def _save_norm(ctx, inputs, output):
    x, scale, offset, residual, eps, center = inputs
    _, summed, stat = output
    dtypes = x[0].dtype, offset is not None and offset.dtype, residual is not None and residual.dtype
    ctx.settings = eps, center, *dtypes
    ctx.mark_non_differentiable(stat)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(scale, stat, *(x if residual is None else [summed]))


def _backward_norm(ctx, grad_y, grad_sum, _):
    scale, stat, *s = ctx.saved_tensors
    eps, center, x_dtype, offset_dtype, residual_dtype = ctx.settings
    grad_sum = grad_sum if residual_dtype else None
    if grad_y is None:  # only x + residual was used
        grad, to_scale, to_offset = grad_sum, None, None
    else:
        grad, to_scale, to_offset = _NORM_BACKWARD(grad_y, grad_sum, s, scale, stat, eps, center)
        to_scale = to_scale.to(scale.dtype)
        to_offset = to_offset.to(offset_dtype) if offset_dtype else None
    if grad is None:
        return [None] * len(s), None, None, None, None, None
    to_x = grad.to(x_dtype)
    to_x = to_x.split([part.shape[-1] for part in s], dim=-1) if len(s) > 1 else [to_x]
    return [*to_x], to_scale, to_offset, grad.to(residual_dtype) if residual_dtype else None, None, None


def _save_gelu_mul(ctx, inputs, output):
    a, b = inputs
    ctx.save_for_backward(a, b)


def _backward_gelu_mul(ctx, grad):
    a, b = ctx.saved_tensors
    to_a, to_b = _GELU_MUL_BACKWARD(grad, a, b)
    return to_a, to_b if b is not None else None


td_norm = gradient(_save_norm, _backward_norm)
gelu_mul = gradient(_save_gelu_mul, _backward_gelu_mul)
