"""Rows of parameters for each sample, or for each token, in the form that the ops take."""

import math

from torch import Tensor

from fmkernels import checks


def by_sample(op: str, x: Tensor, **parameters: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
    """x as (R, ..., D), and each parameter as (D,), or as (R, D) with a row for each of x's first R entries.

    A parameter is (D,), (B, D), or has as many dimensions as x, (B, ..., D), with sizes of 1 behind the leading ones
    that it varies over. R is the product of the leading sizes that at least one of them varies over.
    """
    shaped, depth = {}, 0
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
        shaped[name] = sizes
        depth = max([depth, *(i + 1 for i, n in enumerate(sizes[:-1]) if n != 1)])
    leading = x.shape[:depth]
    count = math.prod(leading)

    def of(name, p):
        if p is None or p.dim() == 1:
            return p
        sizes = shaped[name]
        if math.prod(sizes[:-1]) == 1:
            return p.reshape(sizes[-1])
        return p.reshape(*sizes[:depth], sizes[-1]).expand(*leading, sizes[-1]).reshape(count, sizes[-1])

    flat = x if depth < 2 else x.reshape(count, *x.shape[depth:])
    return flat, [of(name, p) for name, p in parameters.items()]
