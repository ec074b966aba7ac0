"""Attach gradients to ops: with torch's registration, and with a node for plain training."""

from collections.abc import Callable

import torch

from fmkernels.backend import Op, gradient_in_cpp
from fmkernels.schema import library


def backward_op(name: str, eager: Callable) -> Op:
    """The op ``<name>_backward``. Its own gradient is an error that names the alternative."""

    def twice(ctx, *grads):
        raise RuntimeError(
            f"fmkernels.{name} has first derivatives only; for second ones use fmkernels.use_backend('eager')"
        )

    op = Op(f"{name}_backward", eager)
    torch.library.register_autograd(f"fmkernels::{name}_backward", twice, lib=library)
    return op


def gradient(save: Callable, backward: Callable) -> Callable[[Op], Callable | None]:
    """The ``gradient`` of an Op: ``save(ctx, inputs, output)`` and ``backward(ctx, *grads)``, as in torch.library.

    Where csrc/autograd has the op's gradient, that is used instead.
    """

    def attach(op: Op) -> Callable | None:
        if gradient_in_cpp(op.name):
            return None
        torch.library.register_autograd(f"fmkernels::{op.name}", backward, setup_context=save, lib=library)
        return _direct(op, save, backward)

    return attach


def apply(node: type[torch.autograd.Function]) -> Callable:
    """``node.apply`` without the search through all arguments for torch.func's wrappers: there are none."""
    return super(torch.autograd.Function, node).apply


def _direct(op: Op, save: Callable, backward: Callable) -> Callable | None:
    """The registered gradient without the registration, which takes 60 us per call: for plain eager training.

    For ops whose arguments are tensors and numbers, except for a list at the front.
    """
    listed, *others = [argument.type.kind() == "ListType" for argument in op.overload._schema.arguments]
    if any(others):
        return None

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, count, *flat):
            args = ([*flat[:count]], *flat[count:]) if listed else flat
            with torch._C._AutoDispatchBelowAutograd():
                output = op.run(*args)
            save(ctx, args, output)
            return output

        @staticmethod
        def backward(ctx, *grads):
            result = backward(ctx, *grads)
            if not isinstance(result, tuple):
                result = (result,)
            return None, *(result[0] if listed else result[:1]), *result[1:]

    run = apply(Direct)
    return (lambda first, *others: run(len(first), *first, *others)) if listed else (lambda *args: run(0, *args))
