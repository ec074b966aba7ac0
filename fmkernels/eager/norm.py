"""y = (s - mean) * rstd * scale + offset with s = gate * x + residual.

Layer norm (``center=True``) subtracts the mean; RMS norm has mean = 0. With the power p = mean((s - mean)^2), rstd is
1 / sqrt(p + eps) (``inside=True``: eps inside the root) or 1 / (sqrt(p) + eps).
"""

import torch

from fmkernels.eager._dtypes import compute_dtype, promoted, rounded


def rows_of(parameter, x):
    """(D,), (1, D) or (B, D) shaped to broadcast against x of shape (B, ..., D)."""
    if parameter.dim() == 1 or x.dim() == 1:
        return parameter.reshape(-1)
    return parameter.reshape(parameter.shape[0], *([1] * (x.dim() - 2)), parameter.shape[1])


def _moments(s, eps, center, inside):
    """(mean, rstd) of each row, the last dimension kept."""
    mean = s.mean(-1, keepdim=True) if center else s.new_zeros(*s.shape[:-1], 1)
    if inside:
        return mean, torch.rsqrt((s - mean).square().mean(-1, keepdim=True) + eps)
    norm = torch.linalg.vector_norm(s - mean, dim=-1, keepdim=True)  # has a gradient at 0
    return mean, 1 / (norm * max(s.shape[-1], 1) ** -0.5 + eps)


def td_norm(x, scale, offset, residual, gate, eps, center, inside):
    """-> y, gate * x + residual (empty without a residual), and (mean, rstd) of each row."""
    joined = torch.cat(x, dim=-1) if len(x) > 1 else x[0]
    dtype = joined.dtype if residual is None else promoted(joined, residual)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    s = joined.to(wide)
    if gate is not None:
        s = s * rows_of(gate, s).to(wide)
    if residual is not None:
        s = s + residual.to(wide)
    mean, rstd = _moments(s, eps, center, inside)
    y = (s - mean) * rstd * rows_of(scale, s).to(wide)
    if offset is not None:
        y = y + rows_of(offset, s).to(wide)
    summed = s.new_empty(0, dtype=torch.float32) if residual is None else rounded(s, dtype)
    stat = torch.cat([mean, rstd], dim=-1).reshape(-1, 2).detach()
    return rounded(y, dtype), summed, stat


def td_norm_out(x, scale, offset, residual, gate, eps, center, inside, y, sum):
    made, summed, _ = td_norm(x, scale, offset, residual, gate, eps, center, inside)
    y.copy_(made)
    if sum is not None:
        sum.copy_(summed)


def td_norm_backward(grad_y, grad_sum, s, scale, stat, eps, center, inside):
    """-> the gradient to s, to scale and to offset (both shaped as scale, in the compute type).

    stat belongs to the unrounded s; one that was rounded to half precision gets its own.
    """
    joined = torch.cat(s, dim=-1) if len(s) > 1 else s[0]
    wide = compute_dtype(joined, grad_y)
    g, x = grad_y.to(wide).reshape(joined.shape), joined.to(wide)
    if joined.dtype in (torch.float16, torch.bfloat16):
        mean, rstd = _moments(x, eps, center, inside)
    else:
        mean, rstd = stat.to(wide).reshape(*joined.shape[:-1], 2).split(1, dim=-1)
    h = (x - mean) * rstd
    gs = g * rows_of(scale, x).to(wide)
    gs_mean = gs.mean(-1, keepdim=True) if center else torch.zeros_like(rstd)
    share = torch.ones_like(rstd) if inside else 1 - eps * rstd
    along = (gs * h).mean(-1, keepdim=True) / share
    grad = rstd * (gs - gs_mean - h * torch.where(share > 0, along, 0.0))
    if grad_sum is not None:
        grad = grad + grad_sum.to(wide).reshape(joined.shape)

    def to_parameter(values):
        scales = scale.shape[0] if scale.dim() == 2 else 1
        rows = values.reshape(scales, values.shape[:-1].numel() // max(scales, 1), values.shape[-1])
        return rows.sum(1).reshape(scale.shape)

    return rounded(grad, joined.dtype), to_parameter(g * h), to_parameter(g)
