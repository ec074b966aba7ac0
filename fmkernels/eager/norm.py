"""y = (s - mean) * rstd * scale + offset with s = x + residual; gelu(a) * b.

RMS norm (``center=False``): mean = 0, rstd = 1 / (|s| d^(-1/2) + eps), eps outside the root.
Layer norm (``center=True``): rstd = 1 / sqrt(var + eps).
"""

import math

import torch
import torch.nn.functional as F

from fmkernels.eager._dtypes import compute_dtype, promoted, rounded


def _rows(parameter, x):
    """(D,), (1, D) or (B, D) shaped to broadcast against x of shape (B, ..., D)."""
    if parameter.dim() == 1 or x.dim() == 1:
        return parameter.reshape(-1)
    return parameter.reshape(parameter.shape[0], *([1] * (x.dim() - 2)), parameter.shape[1])


def _moments(s, eps, center):
    """(mean, rstd) of each row, the last dimension kept."""
    if center:
        mean = s.mean(-1, keepdim=True)
        return mean, torch.rsqrt((s - mean).square().mean(-1, keepdim=True) + eps)
    norm = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    return torch.zeros_like(norm), 1 / (norm * max(s.shape[-1], 1) ** -0.5 + eps)


def td_norm(x, scale, offset, residual, eps, center):
    """-> y, x + residual (empty without one), and (mean, rstd) of each row."""
    joined = torch.cat(x, dim=-1) if len(x) > 1 else x[0]
    dtype = joined.dtype if residual is None else promoted(joined, residual)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    s = joined.to(wide) if residual is None else joined.to(wide) + residual.to(wide)
    mean, rstd = _moments(s, eps, center)
    y = (s - mean) * rstd * _rows(scale, s).to(wide)
    if offset is not None:
        y = y + _rows(offset, s).to(wide)
    summed = s.new_empty(0, dtype=torch.float32) if residual is None else rounded(s, dtype)
    stat = torch.cat([mean, rstd], dim=-1).reshape(-1, 2).detach()
    return rounded(y, dtype), summed, stat


def td_norm_out(x, scale, offset, residual, eps, center, y, sum):
    made, summed, _ = td_norm(x, scale, offset, residual, eps, center)
    y.copy_(made)
    if sum is not None:
        sum.copy_(summed)


def td_norm_backward(grad_y, grad_sum, s, scale, stat, eps, center):
    """-> the gradient to s, to scale and to offset (both shaped as scale, in the compute type).

    stat belongs to the unrounded s; one that was rounded to half precision gets its own.
    """
    joined = torch.cat(s, dim=-1) if len(s) > 1 else s[0]
    wide = compute_dtype(joined, grad_y)
    g, x = grad_y.to(wide).reshape(joined.shape), joined.to(wide)
    if joined.dtype in (torch.float16, torch.bfloat16):
        mean, rstd = _moments(x, eps, center)
    else:
        mean, rstd = stat.to(wide).reshape(*joined.shape[:-1], 2).split(1, dim=-1)
    h = (x - mean) * rstd
    gs = g * _rows(scale, x).to(wide)
    if center:
        gs_mean = gs.mean(-1, keepdim=True)
        share = torch.ones_like(rstd)
    else:
        gs_mean = torch.zeros_like(rstd)
        share = 1 - eps * rstd
    along = (gs * h).mean(-1, keepdim=True) / share
    grad = rstd * (gs - gs_mean - h * torch.where(share > 0, along, 0.0))
    if grad_sum is not None:
        grad = grad + grad_sum.to(wide).reshape(joined.shape)

    def to_parameter(values):
        scales = scale.shape[0] if scale.dim() == 2 else 1
        rows = values.reshape(scales, values.shape[:-1].numel() // max(scales, 1), values.shape[-1])
        return rows.sum(1).reshape(scale.shape)

    return rounded(grad, joined.dtype), to_parameter(g * h), to_parameter(g)


def _halves(a, b):
    return a.chunk(2, dim=-1) if b is None else (a, b)


def gelu_mul(a, b):
    gate, up = _halves(a, b)
    wide = compute_dtype(gate, up)
    return rounded(F.gelu(gate.to(wide)) * up.to(wide), promoted(gate, up))


def gelu_mul_backward(grad, a, b):
    """-> the gradients to a and b; for halves of one tensor, the gradient to it and an empty one."""
    gate, up = _halves(a, b)
    wide = compute_dtype(gate, up, grad)
    x, u, g = gate.to(wide), up.to(wide), grad.to(wide).reshape(gate.shape)
    cdf = 0.5 * torch.erfc(-x * math.sqrt(0.5))
    pdf = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    to_gate, to_up = g * u * (cdf + x * pdf), g * x * cdf
    if b is None:
        return rounded(torch.cat([to_gate, to_up], dim=-1), a.dtype), a.new_empty(0, dtype=torch.float32)
    return rounded(to_gate, a.dtype), rounded(to_up, b.dtype)
