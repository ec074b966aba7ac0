"""The gradients of the gates; csrc/autograd has that of gate_mul for small training steps."""

from fmkernels import eager
from fmkernels.autograd.attach import backward_op, gradient

_GATE_MUL_BACKWARD = backward_op("gate_mul", eager.gate_mul_backward)
GATED_ADD_BACKWARD = backward_op("gated_add", eager.gated_add_backward)


def _save_gate_mul(ctx, inputs, output):
    a, b, *ctx.settings = inputs
    ctx.save_for_backward(a, b)


def _backward_gate_mul(ctx, grad):
    a, b = ctx.saved_tensors
    to_a, to_b = _GATE_MUL_BACKWARD(grad, a, b, *ctx.settings)
    return to_a, to_b if b is not None else None, None, None


def _save_gated_add(ctx, inputs, output):
    x, gate, y = inputs
    ctx.x_dtype = x.dtype
    ctx.save_for_backward(gate, y)


def _backward_gated_add(ctx, grad):
    gate, y = ctx.saved_tensors
    to_gate, to_y = GATED_ADD_BACKWARD(grad, gate, y)
    return grad.to(ctx.x_dtype), to_gate.to(gate.dtype), to_y


gate_mul = gradient(_save_gate_mul, _backward_gate_mul)
gated_add = gradient(_save_gated_add, _backward_gated_add)
