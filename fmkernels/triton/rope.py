"""The RMS norm of queries and keys and their rotary embedding. A row is normalized; it has one head or several.

A program has several rows of one head, or one row of all heads of a token. Elements of a head are taken as pairs that
are rotated, and the columns behind these.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from fmkernels.triton._launch import cdiv, dense, empty, launch, meta
from fmkernels.triton._math import get, put
from fmkernels.triton.gate import add_runs
from fmkernels.triton.norm_wide import rstd_of

ELEMENTS = 2048  # at most, of a program that has several rows
STEPS, PROGRAMS = 16, 264  # rows that a program of the backward processes one after another; fewer if programs are few


@triton.jit
def _place(
    first, rows, tokens, heads, sample_stride, token_stride, head_stride,
    COUNT: tl.constexpr, TOGETHER: tl.constexpr, HEADS_FIRST: tl.constexpr,
):  # fmt: skip
    """For COUNT heads from row ``first`` on: where they begin, sample, token, head, and which are there."""
    i = tl.arange(0, COUNT)[:, None]
    if TOGETHER:
        row = first + i * 0
        sample, token, head, here = row // tokens, row % tokens, i, (i < heads) & (row < rows)
    else:
        row = first + i
        here = row < rows
        if HEADS_FIRST:
            sample, head, token = row // tokens // heads, row // tokens % heads, row % tokens
        else:
            sample, token, head = row // heads // tokens, row // heads % tokens, row % heads
    return sample * sample_stride + token * token_stride + head * head_stride, sample, token, head, here


@triton.jit
def _get_pairs(pointer, at, half, here, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """The first and the second elements of the pairs of each head."""
    if INTERLEAVED:
        column = tl.arange(0, 2 * HALF)[None, :]
        both = get(pointer, at + column, here & (column < 2 * half))
        first, second = tl.split(tl.reshape(both, [both.shape[0], HALF, 2]))
    else:
        column = tl.arange(0, HALF)[None, :]
        inside = here & (column < half)
        first, second = get(pointer, at + column, inside), get(pointer, at + half + column, inside)
    return first, second


@triton.jit
def _put_pairs(pointer, at, first, second, half, here, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    if INTERLEAVED:
        column = tl.arange(0, 2 * HALF)[None, :]
        both = tl.reshape(tl.join(first, second), [first.shape[0], 2 * HALF])
        put(pointer, at + column, both, here & (column < 2 * half))
    else:
        column = tl.arange(0, HALF)[None, :]
        inside = here & (column < half)
        put(pointer, at + column, first, inside)
        put(pointer, at + half + column, second, inside)


@triton.jit
def _get_rest(pointer, at, half, width, here, REST: tl.constexpr):
    """The columns behind the pairs."""
    column = 2 * half + tl.arange(0, REST)[None, :]
    return get(pointer, at + column, here & (column < width))


@triton.jit
def _put_rest(pointer, at, x, half, width, here, REST: tl.constexpr):
    column = 2 * half + tl.arange(0, REST)[None, :]
    put(pointer, at + column, x, here & (column < width))


@triton.jit
def _mean(first, second, rest, inverse_width, TOGETHER: tl.constexpr):
    """The mean over each row, for every head of it."""
    total = tl.sum(first, 1) + tl.sum(second, 1) + tl.sum(rest, 1)
    if TOGETHER:
        total = tl.zeros_like(total) + tl.sum(total, 0)
    return (total * inverse_width)[:, None]


@triton.jit
def _rope(
    x, weight, cos, sin, out, rows, tokens, heads, half, width, sample_stride, token_stride, head_stride,
    out_sample_stride, out_token_stride, out_head_stride, table_stride, weight_stride, eps, inverse_width,
    NORM: tl.constexpr, INTERLEAVED: tl.constexpr, TOGETHER: tl.constexpr, HEADS_FIRST: tl.constexpr,
    COUNT: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """out may be x: a program reads its rows before it writes them."""
    first = tl.program_id(0).to(tl.int64) * (1 if TOGETHER else COUNT)
    at, sample, token, head, here = _place(
        first, rows, tokens, heads, sample_stride, token_stride, head_stride, COUNT, TOGETHER, HEADS_FIRST
    )
    a, b = _get_pairs(x, at, half, here, HALF, INTERLEAVED)
    rest = _get_rest(x, at, half, width, here, REST)
    if NORM:
        rstd = rstd_of(_mean(a * a, b * b, rest * rest, inverse_width, TOGETHER), eps, True)
        a, b, rest = a * rstd, b * rstd, rest * rstd
        if weight is not None:
            weight_at = head * weight_stride
            weight_a, weight_b = _get_pairs(weight, weight_at, half, here, HALF, INTERLEAVED)
            a, b = a * weight_a, b * weight_b
            rest *= _get_rest(weight, weight_at, half, width, here, REST)
    table_at = sample * table_stride + token * (2 * half)
    cos_a, cos_b = _get_pairs(cos, table_at, half, here, HALF, INTERLEAVED)
    sin_a, sin_b = _get_pairs(sin, table_at, half, here, HALF, INTERLEAVED)
    out_at = sample * out_sample_stride + token * out_token_stride + head * out_head_stride
    _put_pairs(out, out_at, a * cos_a - b * sin_a, b * cos_b + a * sin_b, half, here, HALF, INTERLEAVED)
    _put_rest(out, out_at, rest, half, width, here, REST)


@triton.jit
def _rope_backward(
    grad, x, weight, cos, sin, out, parts, rows, tokens, heads, half, width, sample_stride, token_stride, head_stride,
    grad_sample_stride, grad_token_stride, grad_head_stride, out_sample_stride, out_token_stride, out_head_stride,
    table_stride, weight_stride, part_stride, steps, eps, inverse_width,
    NORM: tl.constexpr, INTERLEAVED: tl.constexpr, TOGETHER: tl.constexpr, HEADS_FIRST: tl.constexpr,
    COUNT: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """The gradient to x of a run of rows, and their sums for the gradient to weight."""
    pid = tl.program_id(0).to(tl.int64)
    sum_a, sum_b = tl.zeros([COUNT, HALF], tl.float32), tl.zeros([COUNT, HALF], tl.float32)
    sum_rest = tl.zeros([COUNT, REST], tl.float32)
    for step in range(0, steps):
        first = (pid * steps + step) * (1 if TOGETHER else COUNT)
        at, sample, token, head, here = _place(
            first, rows, tokens, heads, sample_stride, token_stride, head_stride, COUNT, TOGETHER, HEADS_FIRST
        )
        grad_at = sample * grad_sample_stride + token * grad_token_stride + head * grad_head_stride
        grad_a, grad_b = _get_pairs(grad, grad_at, half, here, HALF, INTERLEAVED)
        rest = _get_rest(grad, grad_at, half, width, here, REST)
        table_at = sample * table_stride + token * (2 * half)
        cos_a, cos_b = _get_pairs(cos, table_at, half, here, HALF, INTERLEAVED)
        sin_a, sin_b = _get_pairs(sin, table_at, half, here, HALF, INTERLEAVED)
        a, b = grad_a * cos_a + grad_b * sin_b, grad_b * cos_b - grad_a * sin_a
        if NORM:
            h_a, h_b = _get_pairs(x, at, half, here, HALF, INTERLEAVED)
            h_rest = _get_rest(x, at, half, width, here, REST)
            rstd = rstd_of(_mean(h_a * h_a, h_b * h_b, h_rest * h_rest, inverse_width, TOGETHER), eps, True)
            h_a, h_b, h_rest = h_a * rstd, h_b * rstd, h_rest * rstd
            if weight is not None:
                sum_a += tl.where(here, a * h_a, 0.0)
                sum_b += tl.where(here, b * h_b, 0.0)
                sum_rest += tl.where(here, rest * h_rest, 0.0)
                weight_at = head * weight_stride
                weight_a, weight_b = _get_pairs(weight, weight_at, half, here, HALF, INTERLEAVED)
                a, b = a * weight_a, b * weight_b
                rest *= _get_rest(weight, weight_at, half, width, here, REST)
            along = _mean(a * h_a, b * h_b, rest * h_rest, inverse_width, TOGETHER)
            a, b, rest = rstd * (a - h_a * along), rstd * (b - h_b * along), rstd * (rest - h_rest * along)
        out_at = sample * out_sample_stride + token * out_token_stride + head * out_head_stride
        _put_pairs(out, out_at, a, b, half, here, HALF, INTERLEAVED)
        _put_rest(out, out_at, rest, half, width, here, REST)
    if weight is not None:
        part = parts + pid * part_stride
        if TOGETHER:
            head = tl.arange(0, COUNT)[:, None]
            here = head < heads
            at = head * weight_stride
        else:
            sum_a, sum_b = tl.sum(sum_a, 0)[None, :], tl.sum(sum_b, 0)[None, :]
            sum_rest = tl.sum(sum_rest, 0)[None, :]
            at = tl.zeros([1, 1], tl.int64)
            here = at == 0
        _put_pairs(part, at, sum_a, sum_b, half, here, HALF, INTERLEAVED)
        _put_rest(part, at, sum_rest, half, width, here, REST)


class Sizes(NamedTuple):
    """Sizes of q or k, and what a launch derives from them."""

    rows: int
    tokens: int
    heads: int
    width: int
    together: bool
    row_width: int
    programs: int
    constants: dict[str, object]


def _power(n):
    return 1 << max(0, n - 1).bit_length()


def _sizes(x, weight, cos, norm, interleaved, sequence_dim):
    samples, width, tokens, heads = x.shape[0], x.shape[3], x.shape[sequence_dim], x.shape[3 - sequence_dim]
    together = weight is not None and weight.numel() != width
    half, rest = _power(cos.shape[-1] // 2), _power(width - cos.shape[-1])
    count = _power(heads) if together else max(1, ELEMENTS // _power(2 * half + rest))
    rows = samples * tokens * (1 if together else heads)
    constants = {"NORM": norm, "INTERLEAVED": interleaved, "TOGETHER": together, "HEADS_FIRST": sequence_dim == 2}
    constants |= {"COUNT": count, "HALF": half, "REST": rest}
    programs = cdiv(rows, 1 if together else count) if width and heads else 0
    return Sizes(rows, tokens, heads, width, together, width * heads if together else width, programs, constants)


def _strides(x, sequence_dim):
    return x.stride(0), x.stride(sequence_dim), x.stride(3 - sequence_dim)


def _dense_rows(x):
    return x if x.stride(3) == 1 or x.shape[3] <= 1 else x.contiguous()


def _numbers(sizes, cos):
    """(distance of the tables of two samples, distance of the weights of two heads)."""
    return cos.shape[1] * cos.shape[2] if cos.dim() == 3 else 0, sizes.width if sizes.together else 0


def _one(x, weight, cos, sin, out, eps, norm, interleaved, sequence_dim):
    sizes = _sizes(x, weight, cos, norm, interleaved, sequence_dim)
    x = _dense_rows(x)
    launch(
        _rope, sizes.programs, meta(**sizes.constants), x, dense(weight), cos, sin, out, sizes.rows, sizes.tokens,
        sizes.heads, cos.shape[-1] // 2, sizes.width, *_strides(x, sequence_dim), *_strides(out, sequence_dim),
        *_numbers(sizes, cos), eps, 1 / max(1, sizes.row_width),
    )  # fmt: skip


def qk_norm_rope(q, k, q_weight, k_weight, cos, sin, eps, norm, interleaved, sequence_dim):
    cos, sin, outs = dense(cos), dense(sin), []
    for x, weight in ((q, q_weight), (k, k_weight)):
        outs.append(q.new_empty(0, dtype=torch.float32) if x is None else empty(x))
        if x is not None:
            _one(x, weight, cos, sin, outs[-1], eps, norm, interleaved, sequence_dim)
    return tuple(outs)


def qk_norm_rope_(q, k, q_weight, k_weight, cos, sin, eps, norm, interleaved, sequence_dim):
    cos, sin = dense(cos), dense(sin)
    for x, weight in ((q, q_weight), (k, k_weight)):
        if x is not None:
            out = _dense_rows(x)
            _one(out, weight, cos, sin, out, eps, norm, interleaved, sequence_dim)
            if out is not x:
                x.copy_(out)


def _one_backward(grad, x, weight, cos, sin, eps, norm, interleaved, sequence_dim):
    nothing, to_weight = (x.new_empty(0, dtype=torch.float32) for _ in range(2))
    if grad is None:
        return nothing, to_weight
    sizes = _sizes(x, weight, cos, norm, interleaved, sequence_dim)
    out, to_weight = empty(x), to_weight if weight is None else empty(weight, torch.float32)
    if sizes.programs == 0:
        return out, to_weight.zero_()
    x, grad = _dense_rows(x), _dense_rows(grad)
    steps = min(STEPS, max(1, sizes.programs // PROGRAMS))
    programs = cdiv(sizes.programs, steps)
    parts = None if weight is None else to_weight.new_empty(programs, sizes.row_width)
    launch(
        _rope_backward, programs, meta(**sizes.constants), grad, x, dense(weight), cos, sin, out, parts, sizes.rows,
        sizes.tokens, sizes.heads, cos.shape[-1] // 2, sizes.width, *_strides(x, sequence_dim),
        *_strides(grad, sequence_dim), *_strides(out, sequence_dim), *_numbers(sizes, cos), sizes.row_width, steps, eps,
        1 / max(1, sizes.row_width),
    )  # fmt: skip
    if weight is not None:
        add_runs(parts, to_weight, 1, programs, sizes.row_width)
    return out, to_weight


def qk_norm_rope_backward(grad_q, grad_k, q, k, q_weight, k_weight, cos, sin, eps, norm, interleaved, sequence_dim):
    settings = dense(cos), dense(sin), eps, norm, interleaved, sequence_dim
    to_q, to_q_weight = _one_backward(grad_q, q, q_weight, *settings)
    to_k, to_k_weight = _one_backward(grad_k, q if k is None else k, k_weight, *settings)
    return to_q, to_k, to_q_weight, to_k_weight
