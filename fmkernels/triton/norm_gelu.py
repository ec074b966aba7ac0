"""gelu(a) * b with the exact gelu, x Phi(x)."""

import math

import torch
import triton.language as tl

from fmkernels.triton._launch import cut, dense, empty, launch, promoted, tunable
from fmkernels.triton._math import block_of, get, normal, place, put


@tunable("n", blocks=(512, 1024))
def _gelu_mul(a, b, out, n, stride, chunks, CHUNK: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Rows of n gates and n ups that are ``stride`` apart; one row if a and b are tensors of their own."""
    row, chunk = place(chunks)
    for begin in range(0, CHUNK, BLOCK):
        column, inside = block_of(chunk, begin, n, CHUNK, BLOCK, EVEN)
        i = row * stride + column
        x = get(a, i, inside)
        cdf, _ = normal(x)
        put(out, row * n + column, x * cdf * get(b, i, inside), inside)


@tunable("n", blocks=(512, 1024))
def _gelu_mul_backward(
    grad, a, b, to_a, to_b, n, stride, chunks, CHUNK: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr
):
    """to_a = grad b (Phi(a) + a phi(a)), to_b = grad a Phi(a)."""
    row, chunk = place(chunks)
    for begin in range(0, CHUNK, BLOCK):
        column, inside = block_of(chunk, begin, n, CHUNK, BLOCK, EVEN)
        i = row * stride + column
        x, g = get(a, i, inside), get(grad, row * n + column, inside)
        cdf, pdf = normal(x)
        put(to_a, i, g * get(b, i, inside) * (cdf + x * pdf), inside)
        put(to_b, i, g * x * cdf, inside)


def _halves(a, b):
    """(gate, up, (rows, elements of a row), distance of rows), dense."""
    a = dense(a)
    if b is not None:
        return a, dense(b), (1, a.numel()), 0
    n = a.shape[-1] // 2
    return a, a[..., n:], (math.prod(a.shape[:-1]), n), 2 * n


def gelu_mul(a, b):
    gate, up, sizes, stride = _halves(a, b)
    n, chunks, grid, tile = cut(sizes)
    if b is not None:
        out = empty(gate, promoted(gate, up))
    else:
        out = a.new_empty(*a.shape[:-1], sizes[1])  # cut returns n = 0 for an empty batch
    launch(_gelu_mul, grid, tile, gate, up, out, n, stride, chunks)
    return out


def gelu_mul_backward(grad, a, b):
    gate, up, sizes, stride = _halves(a, b)
    n, chunks, grid, tile = cut(sizes)
    to_a = torch.empty_like(gate)
    to_b = torch.empty_like(up) if b is not None else to_a[..., sizes[1] :]
    launch(_gelu_mul_backward, grid, tile, dense(grad), gate, up, to_a, to_b, n, stride, chunks)
    return to_a, to_b if b is not None else a.new_empty(0, dtype=torch.float32)
