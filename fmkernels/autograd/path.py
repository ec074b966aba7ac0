"""The gradients of psi, Dt_psi and flow_pair to x0 and x1, and of flow_loss to v_pred."""

from fmkernels import eager
from fmkernels.autograd.attach import backward_op, gradient

_PSI_BACKWARD = backward_op("psi", eager.psi_backward)
_FLOW_LOSS_BACKWARD = backward_op("flow_loss", eager.flow_loss_backward)


def _save_psi(ctx, inputs, output):
    t, x0, x1, ctx.sigma_min, ctx.sigma_max, *_ = inputs
    ctx.save_for_backward(t, x0, x1)


def _backward_psi(ctx, grad):
    return None, *_PSI_BACKWARD(grad, *ctx.saved_tensors, ctx.sigma_min, ctx.sigma_max), None, None


def _save_flow_pair(ctx, inputs, output):
    ctx.mark_non_differentiable(output[1])
    _save_psi(ctx, inputs, output)


def _backward_flow_pair(ctx, grad, _):
    return *_backward_psi(ctx, grad), None


def _save_dt_psi(ctx, inputs, output):
    x0, x1, sigma_min, sigma_max = inputs
    ctx.ratio, ctx.dtypes = sigma_min / sigma_max - 1, (x0.dtype, x1.dtype)


def _backward_dt_psi(ctx, grad):
    return (ctx.ratio * grad).to(ctx.dtypes[0]), grad.to(ctx.dtypes[1]), None, None


def _save_flow_loss(ctx, inputs, output):
    *tensors, ctx.sigma_min, ctx.sigma_max = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors)


def _backward_flow_loss(ctx, grad, _):
    to_pred = _FLOW_LOSS_BACKWARD(grad, *ctx.saved_tensors, ctx.sigma_min, ctx.sigma_max)
    return to_pred, None, None, None, None, None, None


psi = gradient(_save_psi, _backward_psi)
dt_psi = gradient(_save_dt_psi, _backward_dt_psi)
flow_pair = gradient(_save_flow_pair, _backward_flow_pair)
flow_loss = gradient(_save_flow_loss, _backward_flow_loss)
