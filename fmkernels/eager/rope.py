"""The RMS norm of queries and keys and their rotary embedding.

h = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps) (or h = x); y = h * cos + turned(h) * sin on the first R
columns of each head, y = h on the others. turned takes pairs (a, b) to (-b, a).
"""

import torch

from fmkernels.eager._dtypes import compute_dtype, rounded


def _turned(x, interleaved):
    """Each pair (a, b) becomes (-b, a): neighbours if interleaved, else elements of the two halves."""
    half = x.shape[-1] // 2
    if interleaved:
        a, b = x.unflatten(-1, (half, 2)).unbind(-1)
        return torch.stack([-b, a], dim=-1).flatten(-2)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([-b, a], dim=-1)


def _table(values, sequence_dim, wide):
    """(S, R) or (B, S, R) shaped to broadcast against x."""
    values = values.to(wide) if values.dim() == 3 else values.to(wide)[None]
    return values.unsqueeze(3 - sequence_dim)


def _weight(weight, x, sequence_dim):
    """(D,), or (H * D,) as rows of the heads, and the dimensions that are normalized."""
    if weight is None or weight.numel() == x.shape[-1]:
        return weight, (-1,)
    heads = x.shape[3 - sequence_dim]
    weight = weight.reshape(heads, x.shape[-1])
    return (weight if sequence_dim == 1 else weight[:, None]), (3 - sequence_dim, -1)


def _rstd(x, over, eps):
    return torch.rsqrt(x.square().mean(over, keepdim=True) + eps)


def _one(x, weight, cos, sin, eps, norm, interleaved, sequence_dim, wide):
    h = x.to(wide)
    if norm:
        weight, over = _weight(weight, x, sequence_dim)
        h = h * _rstd(h, over, eps)
        if weight is not None:
            h = h * weight.to(wide)
    rotated, rest = h[..., : cos.shape[-1]], h[..., cos.shape[-1] :]
    rotated = rotated * _table(cos, sequence_dim, wide) + _turned(rotated, interleaved) * _table(
        sin, sequence_dim, wide
    )
    return rounded(torch.cat([rotated, rest], dim=-1), x.dtype)


def qk_norm_rope(q, k, q_weight, k_weight, cos, sin, eps, norm, interleaved, sequence_dim):
    """-> q and k, normalized and rotated; empty without a k."""
    settings = cos, sin, eps, norm, interleaved, sequence_dim, compute_dtype(q, k)
    new_k = q.new_empty(0, dtype=torch.float32) if k is None else _one(k, k_weight, *settings)
    return _one(q, q_weight, *settings), new_k


def qk_norm_rope_(q, k, q_weight, k_weight, cos, sin, eps, norm, interleaved, sequence_dim):
    new_q, new_k = qk_norm_rope(q, k, q_weight, k_weight, cos, sin, eps, norm, interleaved, sequence_dim)
    q.copy_(new_q)
    if k is not None:
        k.copy_(new_k)


def _one_backward(grad, x, weight, cos, sin, eps, norm, interleaved, sequence_dim, wide):
    nothing, to_weight = (x.new_empty(0, dtype=torch.float32) for _ in range(2))
    if grad is None:
        return nothing, to_weight
    g, h = grad.to(wide), x.to(wide)
    turned_sin = g[..., : cos.shape[-1]] * _table(sin, sequence_dim, wide)
    rotated = g[..., : cos.shape[-1]] * _table(cos, sequence_dim, wide) - _turned(turned_sin, interleaved)
    g = torch.cat([rotated, g[..., cos.shape[-1] :]], dim=-1)
    if not norm:
        return rounded(g, x.dtype), to_weight
    shape = weight.shape if weight is not None else None
    weight, over = _weight(weight, x, sequence_dim)
    rstd = _rstd(h, over, eps)
    h = h * rstd
    if weight is not None:
        others = (0, sequence_dim) if over == (3 - sequence_dim, -1) else (0, 1, 2)
        to_weight = (g * h).sum(others).reshape(shape)
        g = g * weight.to(wide)
    return rounded(rstd * (g - h * (g * h).mean(over, keepdim=True)), x.dtype), to_weight


def qk_norm_rope_backward(grad_q, grad_k, q, k, q_weight, k_weight, cos, sin, eps, norm, interleaved, sequence_dim):
    """-> the gradients to q, k, q_weight and k_weight (the last two in the compute type); empty where there is none."""
    settings = cos, sin, eps, norm, interleaved, sequence_dim, compute_dtype(q, k, grad_q, grad_k)
    to_q, to_q_weight = _one_backward(grad_q, q, q_weight, *settings)
    to_k, to_k_weight = _one_backward(grad_k, q if k is None else k, k_weight, *settings)
    return to_q, to_k, to_q_weight, to_k_weight
