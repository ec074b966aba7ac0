"""Gates: the product in a feed-forward layer, and the sum at the end of a block."""

from torch import Tensor

from fmkernels import checks, eager
from fmkernels.autograd import gate as gradients
from fmkernels.backend import Op
from fmkernels.ops.rows import by_sample, check_rows, checked


def _check_gate_mul(a, b, act, gate_first):
    op = "gelu_mul" if act == 0 and gate_first else "gate_mul"
    checks.floating(op, "a", a)
    if b is not None:
        checks.like(op, "b", b, "a", a)
    elif a.dim() < 1 or a.shape[-1] % 2:
        raise ValueError(f"{op}: a holds both halves, so its last dimension must be even, got {tuple(a.shape)}")


def _check_gated_add(x, gate, y):
    checks.batched("gated_add", "x", x)
    checks.like("gated_add", "y", y, "x", x)
    checks.floating("gated_add", "gate", gate)
    checks.same_device("gated_add", "gate", gate, "x", x)
    fits = gate.dim() in (1, 2) and gate.shape[-1] == x.shape[-1]
    if not fits or (gate.dim() == 2 and gate.shape[0] not in (1, x.shape[0] if x.dim() > 1 else 1)):
        raise ValueError(
            f"gated_add: gate must have shape (D,), (1, D) or (B, D) for x of shape {tuple(x.shape)}, "
            f"got {tuple(gate.shape)}"
        )


def _check_gated_add_(x, gate, y):
    _check_gated_add(x, gate, y)
    checks.writable("gated_add", "x", x, gate=gate, y=y)


_GATE_MUL = Op("gate_mul", eager.gate_mul, _check_gate_mul, gradients.gate_mul)
_GATED_ADD = Op("gated_add", eager.gated_add, _check_gated_add, gradients.gated_add)
_GATED_ADD_ = Op("gated_add_", eager.gated_add_, _check_gated_add_)
_ACTIVATIONS = {name: i for i, name in enumerate(eager.ACTIVATIONS)}


def gate_mul(a: Tensor, b: Tensor | None = None, act: str = "gelu", *, gate_first: bool = True) -> Tensor:
    """``act(a) * b`` in one pass; gradients to both.

    Args:
        a, b: of the same shape. Without ``b``, ``a`` holds both as the halves of its last dimension, and the result has
            half its width.
        act: "gelu" (exact, with erf), "gelu_tanh" (the approximation with tanh) or "silu".
        gate_first: whether ``act`` applies to ``a``, or the first half; otherwise it applies to ``b``, or the second
            half, as in diffusers' GEGLU.
    """
    if act not in _ACTIVATIONS:
        raise ValueError(f"gate_mul: act must be one of {', '.join(map(repr, _ACTIVATIONS))}, got {act!r}")
    checks.flag("gate_mul", "gate_first", gate_first)
    return _GATE_MUL(a, b, _ACTIVATIONS[act], gate_first)


def gelu_mul(a: Tensor, b: Tensor | None = None) -> Tensor:
    """``gelu(a) * b`` with the exact (erf) gelu, in one pass; gradients to both.

    a, b: of the same shape. Without ``b``, ``a`` holds both as the halves of its last dimension, gate
    first, and the result has half its width.
    """
    return _GATE_MUL(a, b, 0, True)


def gated_add(x: Tensor, gate: Tensor, y: Tensor, *, inplace: bool = False) -> Tensor:
    """``x + gate * y`` in one pass, rounded once; gradients to all three.

    Args:
        x, y: of the same shape, (B, ..., D). The result has their promoted dtype.
        gate: rows of D elements of any floating dtype: (D,), (B, D), or the number of dimensions of x with sizes of 1
            behind those that they vary over, as (B, 1, D) or, per token, (B, S, D).
        inplace: write the result to x, in x's dtype, and return x. Without gradients only.
    """
    if inplace:
        checks.no_gradient("gated_add", "inplace", x, gate, y)
    return checked(_check_gated, _gated, x, gate, y, inplace)


def _check_gated(x, gate, y, inplace):
    checks.batched("gated_add", "x", x)
    checks.like("gated_add", "y", y, "x", x)
    checks.tensor("gated_add", "gate", gate)
    check_rows("gated_add", x, gate=gate)


def _gated(x, gate, y, inplace):
    flat, (gate,) = by_sample(x, (gate,))
    if flat is not x:
        y = y.reshape(flat.shape)
    if not inplace:
        out = _GATED_ADD(flat, gate, y)
        return out if flat is x else out.reshape(x.shape)
    if flat is not x and not x.is_contiguous():  # then flat may be a copy
        return x.copy_(_GATED_ADD(flat, gate, y).reshape(x.shape))
    _GATED_ADD_(flat, gate, y)
    checks.written(x)
    return x
