"""``F.linear`` with less around the product."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fmkernels import backend
from fmkernels.ops import _check

LARGE = 1 << 24  # multiplications: from here on csrc/autograd.cpp may choose another library for the product


def linear(x: Tensor | Sequence[Tensor], weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``: ``F.linear``, in training one node of the graph instead of four.

    x: (..., in), or a list of tensors taken as their concatenation on the last dimension, which is never made: each has
    a product, into one sum. weight: (out, in), bias: (out,). Large fp32 products on an AMD CPU with AVX-512 are made by
    oneDNN, there 5 to 15 % faster than by MKL. Second derivatives are torch's. It is ``F.linear`` itself on a GPU,
    where that is as fast (small products without gradients), under autocast, torch.compile and torch.func, in
    ``use_backend("eager")``, and without the compiled gradients.
    """
    one = isinstance(x, Tensor)
    if one and not torch.is_grad_enabled() and x.numel() * weight.size(0) < LARGE:
        return F.linear(x, weight, bias)
    parts = [x] if one else list(x)
    if backend.gradients_in_cpp(weight) and _check.plain(weight, *parts):
        return torch.ops.fmkernels.linear.default._op(parts, weight, bias)
    if one:
        return F.linear(x, weight, bias)
    if not parts:
        raise ValueError("linear: x must have at least one part")
    shape = parts[0].shape[:-1]
    if any(part.shape[:-1] != shape for part in parts):
        raise ValueError(
            f"linear: the parts of x must have one shape but for their widths, got {[tuple(p.shape) for p in parts]}"
        )
    columns = weight.split([part.shape[-1] for part in parts], dim=1)
    y = F.linear(parts[0].reshape(-1, parts[0].shape[-1]), columns[0], bias)
    for part, column in zip(parts[1:], columns[1:], strict=True):
        y.addmm_(part.reshape(-1, part.shape[-1]).to(y.dtype), column.t().to(y.dtype))
    return y.view(*shape, len(weight))
