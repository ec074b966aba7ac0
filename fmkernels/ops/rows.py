"""Rows of parameters for each sample, or for each token, in the form that the ops take."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fmkernels import checks


def checked(check: Callable, run: Callable, *args) -> object:
    """run(*args), with ``check(*args)`` after a failure, to give its reason: it takes as long as a small kernel."""
    if torch.compiler.is_compiling():
        check(*args)
        return run(*args)
    try:
        return run(*args)
    except Exception:
        check(*args)
        raise


def check_rows(op: str, x: Tensor, **parameters: Tensor | None) -> None:
    """Each is (D,), (B, D), or has as many dimensions as x, (B, ..., D), each of x's size or 1."""
    for name, p in parameters.items():
        if p is None:
            continue
        checks.floating(op, name, p)
        checks.same_device(op, name, p, "x", x)
        sizes = p.shape
        if p.dim() == 1 or (p.dim() == 2 and x.dim() > 2):
            sizes = (*sizes[:-1], *[1] * (x.dim() - p.dim()), sizes[-1])
        fits = len(sizes) == x.dim() and sizes[-1] == x.shape[-1]
        if not fits or any(n not in (1, of_x) for n, of_x in zip(sizes, x.shape, strict=True)):
            rows = f"({x.shape[-1]},)" if x.dim() < 2 else f"({x.shape[-1]},) or ({x.shape[0]}, {x.shape[-1]})"
            raise ValueError(
                f"{op}: {name} must have shape {rows}, or the dimensions of x {tuple(x.shape)} with sizes of 1, "
                f"got {tuple(p.shape)}"
            )


def by_sample(x: Tensor, parameters: Sequence[Tensor | None]) -> tuple[Tensor, list[Tensor | None]]:
    """x as (R, ..., D), and each parameter as (D,), (1, D) or (R, D).

    R is the product of the leading sizes that at least one of them varies over. Shapes that ``check_rows`` rejects
    raise here or in the op.
    """
    dim, depth = x.dim(), 0
    for p in parameters:
        sizes = () if p is None else p.shape
        if len(sizes) < 2:
            continue
        if len(sizes) == 2 < dim:
            depth = max(depth, int(sizes[0] != 1))
        elif len(sizes) == dim:
            depth = max([depth, *(i + 1 for i, n in enumerate(sizes[:-1]) if n != 1)])
        else:
            raise ValueError("a parameter has another number of dimensions than x")
    if depth < 2:
        return x, [p if p is None or p.dim() <= 2 else p.reshape(p.shape[0], p.shape[-1]) for p in parameters]
    leading, width = x.shape[:depth], x.shape[-1]
    count = math.prod(leading)

    def of(p):
        if p is None or p.dim() == 1:
            return p
        if p.dim() < dim:
            p = p.reshape(p.shape[0], *[1] * (dim - 2), p.shape[1])
        return p.expand(*leading, *p.shape[depth:]).reshape(count, width)

    return x.reshape(count, *x.shape[depth:]), [of(p) for p in parameters]


def same_rows(*parameters: Tensor | None) -> tuple[Tensor | None, ...]:
    """Shared rows beside rows of each sample, repeated: the op takes equally many rows."""
    shapes = [x.shape for x in parameters if isinstance(x, Tensor)]
    if all(shape == shapes[0] for shape in shapes):
        return parameters
    rows = next((shape[0] for shape in shapes if len(shape) == 2 and shape[0] != 1), 1)
    return tuple(
        x.expand(rows, x.shape[-1]) if isinstance(x, Tensor) and x.dim() in (1, 2) and x.numel() == x.shape[-1] else x
        for x in parameters
    )
