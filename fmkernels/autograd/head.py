"""The gradients of reparameterize: of z and kl to mu and logvar."""

from fmkernels import eager
from fmkernels.autograd.attach import backward_op, gradient

_BACKWARD = backward_op("reparameterize", eager.reparameterize_backward)


def _save(ctx, inputs, output):
    *tensors, ctx.low, ctx.high = inputs
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _backward(ctx, grad_z, grad_kl, _):
    to_mu, to_logvar = _BACKWARD(grad_z, grad_kl, *ctx.saved_tensors, ctx.low, ctx.high)
    return to_mu, to_logvar, None, None, None


reparameterize = gradient(_save, _backward)
