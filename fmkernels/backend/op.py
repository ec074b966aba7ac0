"""Calls of an op: its schema in the dispatcher, its eager function, its argument checks and its gradient."""

import warnings
from collections.abc import Callable, Iterator

import torch
from torch.autograd import forward_ad

from fmkernels.backend import selection
from fmkernels.backend.loading import gradient_in_cpp, has_gpu_support, status
from fmkernels.schema import KERNELS, library


def _trusted(*_) -> None:
    """The check of a backward op: it receives what autograd saved."""


class Op:
    """One op. Calling it runs the implementation of the selected backend.

    ``check`` takes the op's own arguments and raises ValueError or TypeError naming the one that is wrong. The compiled
    kernels reject the same calls by themselves (tersely), so with them, ``check`` runs only after a failure, to give
    its reason: it takes as long as a small kernel. ``gradient``, from fmkernels.autograd, attaches the gradient.
    """

    def __init__(self, name: str, eager: Callable, check: Callable = _trusted, gradient: Callable | None = None):
        self.name, self.eager, self.check = name, eager, check
        self.overload = getattr(torch.ops.fmkernels, name).default
        self.run = self.overload._op  # the same call without a Python frame around it
        names = [argument.name for argument in self.overload._schema.arguments]
        self.number = names.index("dt_tensor") if "dt_tensor" in names else None  # whose dtype decides nothing

        def checked(*args):
            check(*args)
            return eager(*args)

        library.impl(name, checked, "CompositeExplicitAutograd")
        compiled = status["cuda"].available and name in KERNELS["cuda"]
        if has_gpu_support() and not compiled and status["triton"].available:
            self.add_triton(library, ["CUDA"])
        # The same call with gradients, for plain training; None if torch's registration or C++ does it.
        self.direct = gradient(self) if gradient else None
        selection.add(self)

    def by_triton(self, *args):
        """The op by ``fmkernels.triton``, which is imported here; in float64 by the eager function."""
        self.check(*args)
        if any(x.dtype == torch.float64 for x in _tensors(args, but=self.number)):
            return self.eager(*args)
        from fmkernels import triton

        return getattr(triton, self.name)(*args)

    def add_triton(self, to: torch.library.Library, keys: list[str]) -> None:
        """Register the Triton kernel for these dispatch keys, in the place of a compiled one."""
        if self.name not in KERNELS["triton"]:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, that a kernel is overridden
            for key in keys:
                to.impl(self.name, self.by_triton, key, allow_override=True)

    def __call__(self, *args):
        if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            # torch.func and forward-mode differentiation support plain PyTorch only.
            self.check(*args)
            return self.eager(*args)
        if selection.forced is None and not torch.compiler.is_compiling():
            try:
                if torch.is_inference_mode_enabled() or torch._C._is_tracing():
                    return self.run(*args)
                if torch.is_grad_enabled():
                    return (self.direct or self.run)(*args)
                # Without gradients, go below the autograd registration: it is Python, and takes 5 us.
                with torch._C._AutoDispatchBelowAutograd():
                    return self.run(*args)
            except Exception:
                self.check(*args)
                raise
        self.check(*args)
        if selection.forced == "eager":
            return self.eager(*args)
        if selection.forced is not None:
            self.check_device(*args)
        return self.overload(*args)

    def check_device(self, *args) -> None:
        """Raise ValueError if the selected backend does not support the device of the first tensor."""
        supported = selection.devices(selection.forced)
        first = next(_tensors(args))
        if first.device.type not in supported:
            raise ValueError(
                f"{self.name}: backend {selection.forced!r} supports {supported[0]} tensors, got one on {first.device}"
            )


class TorchOp(Op):
    """An op that torch has too, computed faster by the compiled CPU kernels. Everywhere else, torch's own runs.

    ``fits`` takes the op's arguments and tells whether the compiled kernel supports them.
    """

    def __init__(self, name: str, eager: Callable, check: Callable, fits: Callable):
        super().__init__(name, eager, check)
        self.fits, self.native = fits, gradient_in_cpp(name)

    def __call__(self, *args):
        try:
            if self.native and selection.forced in selection.NATIVE and self.fits(*args):
                return self.run(*args)
        except Exception:
            self.check(*args)
            raise
        self.check(*args)  # torch's function accepts more than the kernel
        return self.eager(*args)


def _tensors(args: tuple, but: int | None = None) -> Iterator[torch.Tensor]:
    """The tensors among the arguments and in their lists, leaving out the argument at ``but``."""
    for i, arg in enumerate(args):
        if i != but:
            yield from (x for x in (arg if isinstance(arg, (list, tuple)) else [arg]) if isinstance(x, torch.Tensor))
