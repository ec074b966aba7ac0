"""The gradient of qk_norm_rope to q, k and their weights. It computes the norms again: nothing but q and k is saved."""

from fmkernels import eager
from fmkernels.autograd.attach import backward_op, gradient

_BACKWARD = backward_op("qk_norm_rope", eager.qk_norm_rope_backward)


def _save(ctx, inputs, output):
    *tensors, eps, norm, interleaved, sequence_dim = inputs
    ctx.settings = eps, norm, interleaved, sequence_dim
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _backward(ctx, grad_q, grad_k):
    q, k, q_weight, k_weight, cos, sin = ctx.saved_tensors
    if k is None:
        grad_k = None
    if grad_q is None and grad_k is None:
        return (None,) * 10
    to_q, to_k, to_q_weight, to_k_weight = _BACKWARD(grad_q, grad_k, q, k, q_weight, k_weight, cos, sin, *ctx.settings)
    norm = ctx.settings[1]
    return (
        to_q if grad_q is not None else None,
        to_k if grad_k is not None else None,
        to_q_weight.to(q_weight.dtype) if norm and grad_q is not None and q_weight is not None else None,
        to_k_weight.to(k_weight.dtype) if norm and grad_k is not None and k_weight is not None else None,
        *(None,) * 6,
    )


qk_norm_rope = gradient(_save, _backward)
