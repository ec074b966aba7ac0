"""``F.linear`` with less around the product."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fmkernels import checks, eager
from fmkernels.backend import TorchOp, build_facts

LARGE = int(build_facts().get("large_product", 0))  # multiplications: from here on it may use another library


def _check_linear(x, weight, bias):
    if not x:
        raise ValueError("linear: x must have at least one part")
    for i, part in enumerate(x):
        name = f"x[{i}]" if len(x) > 1 else "x"
        checks.tensor("linear", name, part)
        if part.dtype == torch.bool:
            raise TypeError(f"linear: {name} must be a tensor of numbers, got {part.dtype}")
        if i:
            checks.same_device("linear", name, part, "x[0]", x[0])
        if part.dim() < 1 or part.shape[:-1] != x[0].shape[:-1]:
            shapes = [tuple(p.shape) for p in x]
            raise ValueError(f"linear: the parts of x must have one shape except for their widths, got {shapes}")
    width = sum(part.shape[-1] for part in x)
    checks.tensor("linear", "weight", weight)
    if weight.dim() != 2 or weight.shape[1] != width:
        raise ValueError(
            f"linear: weight must have shape (out, {width}), {width} being x's width, got {tuple(weight.shape)}"
        )
    if bias is not None:
        checks.tensor("linear", "bias", bias)
        checks.shape("linear", "bias", bias, (len(weight),), "(out,)")
    for name, other in (("weight", weight), ("bias", bias)):
        if other is not None:
            checks.same_device("linear", name, other, "x", x[0])
            checks.same_dtype("linear", name, other, "x", x[0])


def _fits(x, weight, bias):
    return weight.is_cpu and checks.plain(weight, *x) and _plain_bias(weight, bias)


def _plain_bias(weight, bias):
    return bias is None or bias.shape == weight.shape[:1]  # torch's function would broadcast another one


_LINEAR = TorchOp("linear", eager.linear, _check_linear, _fits)


def linear(x: Tensor | Sequence[Tensor], weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``: ``F.linear``, in training as one node of the graph instead of four.

    x: (..., in), or a list of tensors taken as their concatenation on the last dimension, which is never made: each has
    a product, into one sum. weight: (out, in), bias: (out,). On AMD CPUs with AVX-512, oneDNN computes large fp32
    products, 5 to 15 % faster than MKL. Second derivatives are torch's. It is ``F.linear`` itself on a GPU, where that
    is as fast (and for small products without gradients), under autocast, torch.compile and torch.func, in
    ``use_backend("eager")``, and without the compiled gradients.
    """
    if isinstance(x, (list, tuple)):
        return _LINEAR(x, weight, bias)
    try:
        direct = not x.is_cpu or (not torch.is_grad_enabled() and x.numel() * weight.size(0) < LARGE)
        if direct and weight.dim() == 2 and x.device == weight.device and _plain_bias(weight, bias):
            return F.linear(x, weight, bias)
    except Exception:
        _check_linear([x], weight, bias)
        raise
    return _LINEAR([x], weight, bias)
