"""The depthwise convolution of a ConvNeXt block."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fmkernels import backend
from fmkernels.ops import _check

KERNELS = 3, 5, 7  # csrc/cpu/depthwise.cpp has


def depthwise(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Every channel of a grid convolved with a K × K kernel of its own, zeros around: the grid keeps its size.

    x: (B, H, W, C). weight: (C, 1, K, K), K odd, as in ``nn.Conv2d(C, C, K, padding=K // 2, groups=C)``. bias: (C,).
    On the CPU in float32 and for K of 3, 5 and 7 a kernel of ours, which with its gradients takes a quarter of
    torch's time or less; ``F.conv2d`` for everything else, under autocast, torch.compile and torch.func, and in
    ``use_backend("eager")``. Ours has first derivatives only.
    """
    if (
        x.dtype == weight.dtype == torch.float32
        and x.dim() == 4
        and weight.shape[-1] in KERNELS
        and backend.gradients_in_cpp(x)
        and _check.plain(x, weight)
    ):
        return torch.ops.fmkernels.depthwise.default._op(x, weight, bias, False)
    return F.conv2d(x.movedim(-1, 1), weight, bias, padding=weight.shape[-1] // 2, groups=len(weight)).movedim(1, -1)
