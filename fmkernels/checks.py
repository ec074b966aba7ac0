"""Argument checks: each raises an error with the op, the argument, what was received and what was expected."""

import math
import sys
from collections.abc import Sequence

import torch
from torch.autograd import forward_ad

LARGEST = sys.float_info.max  # an int may be larger


def tensor(op: str, name: str, x: object) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{op}: {name} must be a tensor, got {type(x).__name__}")


def floating(op: str, name: str, x: object) -> None:
    """x is a dense floating point tensor of at least 16 bits per element."""
    tensor(op, name, x)
    if not x.is_floating_point() or x.dtype.itemsize == 1:
        raise TypeError(f"{op}: {name} must be float16, bfloat16, float32 or float64, got {x.dtype}")
    if x.layout != torch.strided:
        raise TypeError(f"{op}: {name} must be a dense tensor, got layout {x.layout}")


def same_device(op: str, name: str, x: torch.Tensor, ref_name: str, ref: torch.Tensor) -> None:
    if x.device != ref.device:
        raise ValueError(f"{op}: {name} must be on {ref_name}'s device {ref.device}, got {x.device}")


def same_dtype(op: str, name: str, x: torch.Tensor, ref_name: str, ref: torch.Tensor) -> None:
    """x has ref's dtype; under autocast, torch converts both."""
    if x.dtype != ref.dtype and not torch._C._is_any_autocast_enabled():
        raise TypeError(f"{op}: {name} must have {ref_name}'s dtype {ref.dtype}, got {x.dtype}")


def shape(op: str, name: str, x: torch.Tensor, expected: Sequence[int], meaning: str) -> None:
    if tuple(x.shape) != tuple(expected):
        raise ValueError(f"{op}: {name} must have shape {tuple(expected)} ({meaning}), got {tuple(x.shape)}")


def like(op: str, name: str, x: object, ref_name: str, ref: torch.Tensor) -> None:
    """x is a floating point tensor with ref's shape on ref's device; its dtype may differ."""
    floating(op, name, x)
    same_device(op, name, x, ref_name, ref)
    shape(op, name, x, ref.shape, f"{ref_name}'s")


def batched(op: str, name: str, x: object) -> None:
    floating(op, name, x)
    if x.dim() < 1:
        raise ValueError(f"{op}: {name} must have a batch dimension, got a 0-dimensional tensor")


def number(op: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{op}: {name} must be a number, got {type(value).__name__}")
    if not -LARGEST <= value <= LARGEST:  # math.isfinite would end a compiled graph
        got = value if isinstance(value, float) else f"an int of {value.bit_length()} bits"
        raise ValueError(f"{op}: {name} must be finite, got {got}")


def flag(op: str, name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{op}: {name} must be True or False, got {type(value).__name__}")


def dtype(op: str, name: str, value: object) -> None:
    """value is a torch.dtype: torch crashes on some integers that an op with a kernel in Python gets as a dtype."""
    if not isinstance(value, torch.dtype):
        raise TypeError(f"{op}: {name} must be a torch.dtype, got {value}")


def sigmas(op: str, sigma_min: object, sigma_max: object) -> None:
    number(op, "sigma_min", sigma_min)
    number(op, "sigma_max", sigma_max)
    if sigma_max == 0 or abs(sigma_min / sigma_max) == math.inf:
        raise ValueError(f"{op}: sigma_max must not be 0 or vanish beside sigma_min, got {sigma_max}")


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def traced() -> bool:
    """True under tracing, functorch or a dispatch mode: tensors may lack addresses and values, and every input must be
    an argument of an op."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._is_tracing()
        or forward_ad._current_level >= 0
    )


def plain(*tensors: torch.Tensor) -> bool:
    """True if operations run as they are called: no tracing, no autocast, no subclass of Tensor."""
    for x in tensors:
        if type(x) not in _PLAIN:
            return False
    return not torch._C._is_any_autocast_enabled() and not traced()


def _span(x: torch.Tensor) -> tuple[int, int]:
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def writable(op: str, name: str, out: torch.Tensor, **others: torch.Tensor | None) -> None:
    """The elements of out do not share memory, neither with each other nor with the other tensors."""
    if traced() or out.numel() == 0 or out.device.type == "meta":
        return
    reach = 0
    for stride, size in sorted((s, n) for n, s in zip(out.shape, out.stride(), strict=True) if n > 1):
        if stride <= reach:
            raise ValueError(f"{op}: {name} has elements that share memory (it is expanded); pass a clone")
        reach += stride * (size - 1)
    begin, end = _span(out)
    for other_name, other in others.items():
        if other is None or other.numel() == 0 or other.device != out.device:
            continue
        other_begin, other_end = _span(other)
        if begin < other_end and other_begin < end:
            raise ValueError(f"{op}: {name} may share memory with {other_name} (their ranges overlap); pass a clone")


def written(*tensors: torch.Tensor | None) -> None:
    """Tell autograd that these were written in place, so that a backward that saved one of them raises."""
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version([x for x in tensors if x is not None and not x.is_inference()])


def no_gradient(op: str, name: str, *tensors: object) -> None:
    """None of the tensors requires gradients, because a result written in place cannot carry them."""
    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors):
        raise ValueError(f"{op}: {name} does not carry gradients; call it under torch.no_grad() or leave {name} out")
