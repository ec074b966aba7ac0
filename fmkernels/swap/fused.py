"""The fused expressions in the forwards that ``optimize`` writes.

Each computes the original expression if it is called with anything that the fused op was not proven on: other types,
devices, layouts or dtypes, autocast, torch.func, tracing.

``counts`` records fused calls while a trial runs.
"""

import itertools
from collections import Counter
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as _module

from fmkernels.ops import gate_mul as _gate_mul
from fmkernels.ops import gated_add as _gated_add
from fmkernels.ops import norm_modulate as _norm_modulate

counts: Counter | None = None
ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
_PLAIN = (Tensor, nn.Parameter)
_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
_GLOBAL_HOOKS = tuple(getattr(_module, "_global" + name) for name in _HOOKS)


@dataclass(frozen=True)
class Recipe:
    """What a norm module computes: the arguments of ``norm_modulate``, by the names of the module's attributes.

    dtypes: ((dtype of x, of the weight), dtype of the result). contiguous: the result is contiguous whatever x is;
    otherwise it has x's order of dimensions.
    """

    kind: str
    eps: str | float
    outside: bool
    weight: str | None
    bias: str | None
    plus_one: bool
    contiguous: bool
    dtypes: tuple


class Norm:
    """Base of the classes of swapped norms, with ``_recipe`` and ``_dtypes``."""


def quiet() -> bool:
    """Whether nothing transforms or records operations, so that a fused op may replace several."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._is_any_autocast_enabled()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._is_tracing()
    )


def untouched(module: nn.Module) -> bool:
    """Whether calling the module would call its class's forward only."""
    own = vars(module)
    return "forward" not in own and not any(own[name] for name in _HOOKS) and not any(_GLOBAL_HOOKS)


def plain(first: object, *others: object) -> bool:
    """Whether these are floating-point tensors (no subclasses) on one device."""
    if type(first) not in _PLAIN or not first.is_floating_point() or first.numel() == 0:
        return False
    device = first.device
    return device.type != "meta" and all(
        type(x) in _PLAIN and x.is_floating_point() and x.device == device for x in others
    )


def _in_order(x: Tensor) -> bool:
    """Whether an elementwise function of x has a contiguous result."""
    if x.is_contiguous():
        return True
    strides = x.stride()
    return strides[-1] == 1 and all(a >= b for a, b in itertools.pairwise(strides))


def _is_rows(rows: Tensor, x: Tensor) -> bool:
    """Whether rows broadcast to x over dimensions before the last one."""
    if rows.dim() == 1:
        return rows.shape[0] == x.shape[-1]
    return (
        rows.dim() == x.dim()
        and rows.shape[-1] == x.shape[-1]
        and all(n == 1 or n == of_x for n, of_x in zip(rows.shape, x.shape, strict=True))
    )


def _count(name: str) -> None:
    if counts is not None:
        counts[name] += 1


def norm(module: nn.Module, x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor | None:
    """A swapped norm of x, modulated by ``(1 + scale)`` and ``shift``, or None if this was not proven."""
    recipe: Recipe = module._recipe
    weight = None if recipe.weight is None else getattr(module, recipe.weight)
    bias = None if recipe.bias is None else getattr(module, recipe.bias)
    rows = [p for p in (scale, shift) if p is not None]
    if not plain(x, *rows, *(p for p in (weight, bias) if p is not None)) or not quiet():
        return None
    dtype = module._dtypes.get((x.dtype, None if weight is None else weight.dtype))
    if dtype is None or (weight is not None and weight.shape[0] != x.shape[-1]):
        return None
    turned = False
    if not recipe.contiguous and not _in_order(x):
        turned = x.dim() == 4 and not rows and _in_order(x.transpose(1, 2))
        if not turned:
            return None
        x = x.transpose(1, 2)
    for p in rows:
        if not _is_rows(p, x):
            return None
        dtype = torch.promote_types(dtype, p.dtype)
    if x.dtype != dtype and torch.promote_types(x.dtype, dtype) == dtype:
        x = x.to(dtype)
    eps = recipe.eps if isinstance(recipe.eps, float) else getattr(module, recipe.eps)
    if recipe.plus_one and scale is None and bias is None:
        scale, weight = weight, None
    elif recipe.plus_one:
        weight = weight.to(torch.promote_types(weight.dtype, torch.float32)) + 1
    y = _norm_modulate(x, scale, shift, weight, bias, kind=recipe.kind, eps=eps, eps_outside=recipe.outside)
    if y.dtype != dtype:
        y = y.to(dtype)
    _count("modulated norm" if rows else "norm")
    return y.transpose(1, 2) if turned else y


def modulate(module: nn.Module, x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
    """``module(x) * (1 + scale) + shift``"""
    if isinstance(module, Norm) and untouched(module):
        y = norm(module, x, scale, shift)
        if y is not None:
            return y
    y = module(x) * (1 + scale)
    return y if shift is None else y + shift


def gate_mul(function: object, act: str, first: object, second: object, gate_first: bool) -> Tensor:
    """``function(first) * second``, or ``first * function(second)``; a function of None is the one that act names."""
    if (
        plain(first, second)
        and first.shape == second.shape
        and (not isinstance(function, nn.Module) or untouched(function))
        and quiet()
    ):
        if _in_order(first) and _in_order(second):
            _count("gate")
            return _gate_mul(first, second, act, gate_first=gate_first)
        if first.dim() == 4:  # channels last
            a, b = first.permute(0, 2, 3, 1), second.permute(0, 2, 3, 1)
            if _in_order(a) and _in_order(b):
                _count("gate")
                return _gate_mul(a, b, act, gate_first=gate_first).permute(0, 3, 1, 2)
    function = ACTIVATIONS[act] if function is None else function
    return function(first) * second if gate_first else first * function(second)


def gated_add(x: object, gate: object, y: object) -> Tensor:
    """``x + gate * y``, where either factor may be the gate."""
    fused = _gated(x, gate, y)
    return x + gate * y if fused is None else fused


def gated_sum(gate: object, y: object, x: object) -> Tensor:
    """``gate * y + x``, where either factor may be the gate."""
    fused = _gated(x, gate, y)
    return gate * y + x if fused is None else fused


def _gated(x, gate, y):
    """The result is contiguous, also if x is the transposed result of a convolution, which the original keeps."""
    if not plain(x, gate, y) or not quiet():
        return None
    if y.shape != x.shape:
        gate, y = y, gate
    if y.shape != x.shape or x.dim() < 2 or not _is_rows(gate, x) or not _in_order(y):
        return None
    if torch.promote_types(gate.dtype, torch.promote_types(x.dtype, y.dtype)) != torch.promote_types(x.dtype, y.dtype):
        return None
    _count("gated sum")
    return _gated_add(x, gate, y)
