"""``F.linear`` with less around the product."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fmkernels import backend
from fmkernels.ops import _check

LARGE = 1 << 24  # multiplications: from here on csrc/autograd.cpp may choose another library for the product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``: ``F.linear``, in training one node of the graph instead of four.

    x: (..., in), weight: (out, in), bias: (out,). Large fp32 products on an AMD CPU with AVX-512 are made by oneDNN,
    there 5 to 15 % faster than by MKL. Second derivatives are torch's. It is ``F.linear`` itself where that is as
    fast (small products without gradients), under autocast, torch.compile and torch.func, in
    ``use_backend("eager")``, and without the compiled gradients.
    """
    if (
        (torch.is_grad_enabled() or x.numel() * weight.shape[0] >= LARGE)
        and backend.gradients_in_cpp()
        and not _check.traced()
    ):
        return torch.ops.fmkernels.linear.default._op(x, weight, bias)
    return F.linear(x, weight, bias)
