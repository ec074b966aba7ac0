"""act(a) * b, and x + gate * y with a gate for each sample."""

import math

import torch
import torch.nn.functional as F

from fmkernels.eager._dtypes import compute_dtype, promoted, rounded
from fmkernels.eager.norm import rows_of

ACTIVATIONS = ("gelu", "gelu_tanh", "silu")  # the op's argument ``act`` is an index


def _halves(a, b, gate_first):
    """(gate, up): the tensor that gets the activation, and the other."""
    first, second = a.chunk(2, dim=-1) if b is None else (a, b)
    return (first, second) if gate_first else (second, first)


def gate_mul(a, b, act, gate_first):
    gate, up = _halves(a, b, gate_first)
    wide = compute_dtype(gate, up)
    x = gate.to(wide)
    activated = (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x))[act]
    return rounded(activated * up.to(wide), promoted(gate, up))


def _value_and_slope(x, act):
    """act(x) and its derivative; each activation is x P(x) with a P that goes from 0 to 1."""
    if ACTIVATIONS[act] == "gelu":
        share = 0.5 * torch.erfc(-x * math.sqrt(0.5))
        slope = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    elif ACTIVATIONS[act] == "gelu_tanh":
        root = math.sqrt(8 / math.pi)
        inner = root * (x + 0.044715 * x**3)
        share = torch.sigmoid(inner)
        slope = share * torch.sigmoid(-inner) * root * (1 + 3 * 0.044715 * x * x)
    else:
        share = torch.sigmoid(x)
        slope = share * torch.sigmoid(-x)
    return x * share, share + x * slope


def gate_mul_backward(grad, a, b, act, gate_first):
    """-> the gradients to a and b; for halves of one tensor, the gradient to it and an empty one."""
    gate, up = _halves(a, b, gate_first)
    wide = compute_dtype(gate, up, grad)
    x, u, g = gate.to(wide), up.to(wide), grad.to(wide).reshape(gate.shape)
    value, slope = _value_and_slope(x, act)
    to_first, to_second = (g * u * slope, g * value) if gate_first else (g * value, g * u * slope)
    if b is None:
        return rounded(torch.cat([to_first, to_second], dim=-1), a.dtype), a.new_empty(0, dtype=torch.float32)
    return rounded(to_first, a.dtype), rounded(to_second, b.dtype)


def gated_add(x, gate, y):
    dtype = promoted(x, y)
    wide = compute_dtype(x, y)
    return rounded(x.to(wide) + rows_of(gate, y).to(wide) * y.to(wide), dtype)


def gated_add_(x, gate, y):
    x.copy_(gated_add(x, gate, y))


def gated_add_backward(grad, gate, y):
    """-> the gradients to gate (in the compute type) and y."""
    wide = compute_dtype(grad, y)
    g = grad.to(wide).reshape(y.shape)
    gates = gate.shape[0] if gate.dim() == 2 else 1
    products = g * y.to(wide)
    rows = products.reshape(gates, y.shape[:-1].numel() // max(gates, 1), y.shape[-1])
    return rows.sum(1).reshape(gate.shape), rounded(g * rows_of(gate, y).to(wide), y.dtype)
