"""Rotary embeddings in attention processors: recognized by a trial of the function that the processor calls.

A processor is no module; its class is swapped like a module's. In the copy of its ``__call__``, the calls of rotary
functions go through ``rotate``, which uses ``qk_norm_rope`` where a trial on random numbers, in the layout and with the
options of the call, showed that the function computes it.
"""

import itertools
from collections.abc import Callable
from types import FunctionType

import torch
from torch import Tensor

from fmkernels.ops import qk_norm_rope
from fmkernels.patch import _random
from fmkernels.swap import fused

_kinds: dict[tuple, tuple | None] = {}
_MAPS = {  # how the function reads tables (cos, sin) of the width of a head
    "all": lambda cos, sin, interleaved: (cos, sin),
    "cos of the first, sin of the second": lambda cos, sin, interleaved: (
        _pairs(_half(cos, 0, interleaved), interleaved),
        _pairs(_half(sin, 1, interleaved), interleaved),
    ),
    "the first": lambda cos, sin, interleaved: (
        _pairs(_half(cos, 0, interleaved), interleaved),
        _pairs(_half(sin, 0, interleaved), interleaved),
    ),
}


def _half(table: Tensor, i: int, interleaved: bool) -> Tensor:
    """The entries of the first or second elements of all pairs."""
    width = table.shape[-1] // 2
    return table[..., i::2] if interleaved else table[..., i * width : (i + 1) * width]


def _pairs(table: Tensor, interleaved: bool) -> Tensor:
    """An entry for each element, from one for each pair."""
    return table.repeat_interleave(2, -1) if interleaved else torch.cat([table, table], -1)


def _kind(function: Callable, options: tuple, form: str, letters: str, dims: int) -> tuple | None:
    """(sequence_dim, interleaved, key of _MAPS) with which ``qk_norm_rope(norm=False)`` is the function, or None.

    options: the keyword arguments. form: "pair" for (cos, sin) in one argument, "two" for two arguments, "complex".
    letters: the shape of the tables (``_letters``).
    """
    if not isinstance(function, FunctionType) or function.__closure__:
        return None
    key = (function.__code__, function.__defaults__, options, form, letters, dims)
    if key not in _kinds:
        _kinds[key] = _try(function, dict(options), form, letters, dims)
    return _kinds[key]


def _try(function: Callable, options: dict, form: str, letters: str, dims: int) -> tuple | None:
    sizes = {"b": 2, "s": 5, "1": 1, "d": 8, "e": 4}
    size = [sizes[letter] for letter in letters]
    cos, sin = _random(*size, seed=31), _random(*size, seed=33)
    settings = itertools.product((1, 2), (True, False), _MAPS if letters.endswith("d") else ("all",))
    for sequence_dim, interleaved, reads in settings:
        shape = (2, 5, 8) if dims == 3 else (2, 5, 3, 8) if sequence_dim == 1 else (2, 3, 5, 8)
        x = _random(*shape, seed=32)
        seed, results = _random(*x.shape, seed=34), []
        try:
            for ours in (False, True):
                with torch.enable_grad():
                    leaf = x.clone().requires_grad_()
                    if ours:
                        y = _fused(leaf, cos, sin, sequence_dim, interleaved, reads)
                    else:
                        y = _call(function, leaf.view_as(leaf), cos, sin, form, options)
                    (grad,) = torch.autograd.grad(y, leaf, seed)
                results += [y.detach(), grad]
        except Exception:
            continue
        same = (torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(results[:2], results[2:], strict=True))
        if results[0].shape == x.shape and all(same):
            return sequence_dim, interleaved, reads
    return None


def _fused(x: Tensor, cos: Tensor, sin: Tensor, sequence_dim: int, interleaved: bool, reads: str) -> Tensor:
    if cos.shape[-1] * 2 == x.shape[-1]:
        cos, sin = _pairs(cos, interleaved), _pairs(sin, interleaved)
    cos, sin = (_without_heads(t, x.shape[0], sequence_dim) for t in _MAPS[reads](cos, sin, interleaved))
    settings = {"norm": False, "interleaved": interleaved, "sequence_dim": sequence_dim}
    if x.dim() == 3:  # all heads of a token together
        return qk_norm_rope(x.unsqueeze(2), None, None, None, cos, sin, **settings).squeeze(2)
    return qk_norm_rope(x, None, None, None, cos, sin, **settings)


def _call(function, x, cos, sin, form, kwargs):
    if form == "two":
        return function(x, cos, sin, **kwargs)
    return function(x, torch.complex(cos, sin) if form == "complex" else (cos, sin), **kwargs)


def _without_heads(table: Tensor, batch: int, sequence_dim: int) -> Tensor:
    """(S, R) or (B, S, R)."""
    if table.dim() == 4:
        table = table.squeeze(3 - sequence_dim)
    return table[0] if table.dim() == 3 and table.shape[0] == 1 != batch else table


def rotate(function: Callable, x: Tensor, *args, **kwargs) -> Tensor:
    """``function(x, *args, **kwargs)``"""
    fast = _rotated(function, x, args, kwargs)
    return function(x, *args, **kwargs) if fast is None else fast


def _rotated(function, x, args, kwargs):
    if not fused.plain(x) or x.dim() not in (3, 4) or not fused.quiet() or x.stride(-1) != 1:
        return None
    if any(isinstance(v, Tensor) or type(v) not in (bool, int, str, type(None)) for v in kwargs.values()):
        return None
    if len(args) == 2:
        form, (cos, sin) = "two", args
    elif len(args) == 1 and isinstance(args[0], (tuple, list)) and len(args[0]) == 2:
        form, (cos, sin) = "pair", args[0]
    elif len(args) == 1 and isinstance(args[0], Tensor) and args[0].is_complex():
        form, cos, sin = "complex", args[0].real, args[0].imag
    else:
        return None
    if not fused.plain(cos, sin) or cos.device != x.device or cos.shape != sin.shape:
        return None
    if cos.requires_grad or sin.requires_grad:
        return None
    if cos.shape[-1] not in (x.shape[-1], x.shape[-1] // 2) or x.shape[-1] % 2:
        return None
    for sequence_dim in (1, 2)[: x.dim() - 2]:
        letters = _letters(cos, x, sequence_dim)
        kind = None if letters is None else _kind(function, tuple(sorted(kwargs.items())), form, letters, x.dim())
        if kind is not None and kind[0] == sequence_dim:
            fused._count("rotary embedding")
            return _fused(x, cos, sin, *kind)
    return None


def _letters(table: Tensor, x: Tensor, sequence_dim: int) -> str | None:
    """The shape of a table in letters: b, s, h (sizes of x), 1, d (width of x) or e (half of it)."""
    sizes = list(x.shape[:3])
    names = "bsh" if sequence_dim == 1 else "bhs"
    last = "d" if table.shape[-1] == x.shape[-1] else "e"
    if table.dim() == 2:
        return "s" + last if table.shape[0] == x.shape[sequence_dim] else None
    if table.dim() == 3:
        if table.shape[1] != x.shape[sequence_dim] or table.shape[0] not in (1, x.shape[0]):
            return None
        return ("b" if table.shape[0] == x.shape[0] and x.shape[0] != 1 else "1") + "s" + last
    if table.dim() != 4 or x.dim() != 4:
        return None
    letters = ""
    for n, size, name in zip(table.shape[:3], sizes, names, strict=True):
        if name == "s":
            if n != size:
                return None
            letters += "s"
        elif n == 1:
            letters += "1"
        elif n == size and name == "b":
            letters += "b"
        else:
            return None
    return letters + last
