"""The switches ``checkpointing`` and ``compile``, applied to the modules of an objective, and autocast off.

Names of weights stay.
"""

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

COMPILED = {"text_head": "forward", "velocity_net": "velocities"}  # module of an objective -> what a step calls


def enable_checkpointing(objective: nn.Module, names: Sequence[str]) -> None:
    """Recompute the activations of these modules in the backward pass; a stage without one of them is left as it is."""
    for name in names:
        if (part := getattr(objective, name, None)) is not None:
            part.enable_gradient_checkpointing()


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Turn autocast off on the device of x. On meta tensors, those of a dry run, torch has none."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def enable_compile(objective: nn.Module) -> None:
    """Compile what a training step calls of the text head and the velocity network.

    Validation and sampling, whose batches have other sizes, are not compiled: a resumed run, which compiles in another
    order, would otherwise get other kernels and other roundings. Sizes are constants for the same reason.
    """
    torch._functorch.config.donated_buffer = False  # steps that log go through the graph once for each loss
    for name, method in COMPILED.items():
        if (part := getattr(objective, name, None)) is not None:
            _compile_method(part, method if hasattr(part, method) else "forward")


def _compile_method(module: nn.Module, method: str) -> None:
    plain = getattr(module, method)
    compiled = torch.compile(plain, dynamic=False)

    @functools.wraps(plain)
    def call(*args, **options):
        return (compiled if module.training and torch.is_grad_enabled() else plain)(*args, **options)

    setattr(module, method, call)
