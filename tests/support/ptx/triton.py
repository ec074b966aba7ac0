"""Triton kernels, compiled ahead of time for a GPU that is not there, executed by the interpreter on CPU tensors."""

import struct
from collections.abc import Callable
from contextlib import contextmanager

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton_check import TARGETS, Absent

from . import machine
from .encode import encode
from .parse import Module

_PACKED = {"i1": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q"}
_PACKED |= {"fp32": "f", "fp64": "d"}
_loaded: dict[str, machine.Loaded] = {}  # PTX -> what the interpreter runs


def run(kernel, grid: tuple[int, ...], args: tuple, meta: dict, target: str = "sm_90") -> None:
    """One launch of a ``triton.jit`` function: meta are its named arguments and options such as num_warps."""
    driver.set_active(Absent(list(TARGETS).index(target), GPUTarget(*TARGETS[target])))
    compiled = kernel.warmup(*args, grid=grid, **meta)
    text = compiled.asm["ptx"]
    if text not in _loaded:
        module = Module(text)
        (name,) = module.entries
        _loaded[text] = machine.Loaded(encode(module[name]))
    given = dict(zip(kernel.arg_names, args)) | meta
    values = [x for name, kind in compiled.src.signature.items() for x in _bytes(kind, given.get(name))]
    values += [struct.pack("P", 0)] * (len(_loaded[text].program.params) - len(values))  # Triton's own scratch memory
    x, y, z = (*grid, 1, 1)[:3]
    _loaded[text].launch((x, y, z), 32 * compiled.metadata.num_warps, compiled.metadata.shared, values)


def _bytes(kind, value) -> list[bytes]:
    """The parameters that an argument becomes: none for a constant, several for a tuple."""
    if isinstance(kind, (tuple, list)):
        return [x for k, v in zip(kind, value, strict=True) for x in _bytes(k, v)]
    if kind == "constexpr":
        return []
    if kind.startswith("*"):
        return [struct.pack("P", value.data_ptr() if isinstance(value, torch.Tensor) else 0)]
    return [struct.pack(_PACKED[kind], value)]


@contextmanager
def ours():
    """Inside, launches of ``fmkernels.triton`` run in the interpreter."""
    from fmkernels.triton import _launch

    def hook(kernel, grid: int, args: tuple, meta: dict) -> bool:
        meta = dict(meta)
        run(kernel, (grid,), args, meta | _launch.options(meta.pop("threads"), 32))
        return True

    _launch.hooks.append(hook)
    try:
        yield
    finally:
        _launch.hooks.remove(hook)


class Grid:
    """A ``triton.jit`` function of another project: ``kernel[grid](*args, **meta)`` runs in the interpreter."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid) -> Callable:
        return lambda *args, **meta: run(self.kernel, grid if isinstance(grid, tuple) else (grid,), args, meta)
