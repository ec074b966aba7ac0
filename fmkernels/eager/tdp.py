"""out[k] = p1 + sigmoid(times[k] * (weight + weight_offset) + bias) * (p0 - p1)"""

import torch

from fmkernels.eager._dtypes import compute_dtype, promoted, rounded, samples


def _widened(param0, param1, weight, bias, times):
    dtype = compute_dtype(param0, param1, weight, bias)
    p0, p1, w, b = (x.to(dtype) for x in (param0, param1, weight, bias))
    return p0, p1, w, b, times.to(dtype).reshape(-1, *([1] * param0.dim()))


def _tdp(param0, param1, weight, bias, times, weight_offset):
    p0, p1, w, b, t = _widened(param0, param1, weight, bias, times)
    return p1 + torch.sigmoid(t * (w + weight_offset) + b) * (p0 - p1)


def tdp(param0, param1, weight, bias, times, weight_offset):
    return rounded(_tdp(param0, param1, weight, bias, times, weight_offset), promoted(param0, param1))


def tdp_out(param0, param1, weight, bias, times, weight_offset, out):
    out.copy_(tdp(param0, param1, weight, bias, times, weight_offset))


def tdp_backward(grad, param0, param1, weight, bias, times, weight_offset):
    p0, p1, w, b, t = _widened(param0, param1, weight, bias, times)
    x = t * (w + weight_offset) + b
    s, one_minus_s = torch.sigmoid(x), torch.sigmoid(-x)
    grad = grad.to(x.dtype).reshape(x.shape)
    to_x = grad * (p0 - p1) * s * one_minus_s
    to_times = samples(to_x * (w + weight_offset)).sum(1)
    return (
        rounded((grad * s).sum(0), param0.dtype),
        rounded((grad * one_minus_s).sum(0), param1.dtype),
        rounded((to_x * t).sum(0), weight.dtype),
        rounded(to_x.sum(0), bias.dtype),
        rounded(to_times, times.dtype),
    )


def tdp_group(param0, param1, weight, bias, times, weight_offset):
    """All parameters side by side: (T, total number of elements)."""
    dtype = promoted(*param0, *param1)
    rows = [
        samples(_tdp(p0, p1, w, b, times, weight_offset)).to(dtype)
        for p0, p1, w, b in zip(param0, param1, weight, bias, strict=True)
    ]
    return torch.cat(rows, dim=1)


def tdp_group_out(param0, param1, weight, bias, times, weight_offset, out):
    out.copy_(tdp_group(param0, param1, weight, bias, times, weight_offset))


def tdp_group_backward(grad, param0, param1, weight, bias, times, weight_offset):
    """The gradients of all p0, p1, weight and bias as the four rows of one tensor, and of times."""
    columns = grad.split([p.numel() for p in param0], dim=1)
    dtype = promoted(*param0, *param1, *weight, *bias)
    grads, to_times = [], torch.zeros_like(times)
    for column, p0, p1, w, b in zip(columns, param0, param1, weight, bias, strict=True):
        *four, share = tdp_backward(column, *(x.to(dtype) for x in (p0, p1, w, b)), times, weight_offset)
        grads.append(torch.stack([g.flatten().to(dtype) for g in four]))
        to_times = to_times + share
    return torch.cat(grads, dim=1), to_times
