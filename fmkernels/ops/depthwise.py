"""The depthwise convolution of a ConvNeXt block."""

import torch
from torch import Tensor

from fmkernels import checks, eager
from fmkernels.autograd import depthwise as _gradients  # noqa: F401 (registers depthwise_backward)
from fmkernels.backend import TorchOp, build_facts

KERNELS = {int(size) for size in build_facts().get("depthwise_kernels", "").split()}  # K that the CPU kernel has


def _check_depthwise(x, weight, bias):
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if tensor is None and name == "bias":
            continue
        checks.floating("depthwise", name, tensor)
        checks.same_device("depthwise", name, tensor, "x", x)
        checks.same_dtype("depthwise", name, tensor, "x", x)
    if x.dim() != 4:
        raise ValueError(f"depthwise: x must have shape (B, H, W, C), got {tuple(x.shape)}")
    channels, size = x.shape[-1], weight.shape[-1] if weight.dim() else 0
    if tuple(weight.shape) != (channels, 1, size, size) or size % 2 == 0:
        raise ValueError(
            f"depthwise: weight must have shape ({channels}, 1, K, K) with an odd K, {channels} being x's channels, "
            f"got {tuple(weight.shape)}"
        )
    if bias is not None:
        checks.shape("depthwise", "bias", bias, (channels,), "(C,)")


def _fits(x, weight, bias):
    return (
        x.dtype == weight.dtype == torch.float32
        and x.dim() == 4
        and weight.shape[-1] in KERNELS
        and x.is_cpu
        and checks.plain(x, weight)
    )


_DEPTHWISE = TorchOp("depthwise", eager.depthwise, _check_depthwise, _fits)


def depthwise(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Each channel of a grid convolved with its own K × K kernel, padded with zeros to keep the grid's size.

    x: (B, H, W, C). weight: (C, 1, K, K), K odd, as in ``nn.Conv2d(C, C, K, padding=K // 2, groups=C)``. bias: (C,).
    On the CPU in float32 and for K of 3, 5 and 7, a kernel that takes at most a quarter of torch's time, gradients
    included; ``F.conv2d`` for everything else, under autocast, torch.compile and torch.func, and in
    ``use_backend("eager")``. The kernel has first derivatives only.
    """
    return _DEPTHWISE(x, weight, bias)
