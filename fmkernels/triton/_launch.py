"""Where kernels start: block sizes by size, the tensors' device, opt-in tuning."""

import functools
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

# A sample of n elements is cut into chunks, one a program, worked through a block at a time: eight elements a thread,
# 16 bytes of bf16. n at most -> chunk; the first that holds counts.
CHUNKS = {1 << 12: 1024, 1 << 18: 4096, 1 << 62: 16384}
BLOCK = 1024
PARTS = 128  # partial sums that a combining program takes at a time, of each column
DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
WARP = 64 if torch.version.hip else 32  # threads of one
TUNED = os.environ.get("FMKERNELS_AUTOTUNE") == "1"

# Called with (kernel, grid, args, meta) before every launch; one that returns True stands in for it.
hooks: list[Callable[[object, int, tuple, dict], bool | None]] = []


def launch(kernel, grid: int, *args, threads: int = 128, **meta) -> None:
    """Starts ``grid`` programs on the device of the first tensor, in its current stream; none if there are none."""
    if grid == 0:
        return
    if hooks:
        stand_ins = [hook(kernel, grid, args, {**meta, "threads": threads}) for hook in hooks]
        if any(stand_ins):
            return
    meta |= options(threads, WARP)
    if TUNED and isinstance(kernel, triton.runtime.Autotuner):
        meta = {name: value for name, value in meta.items() if name not in kernel.configs[0].all_kwargs()}
    for x in args:
        if isinstance(x, Tensor):
            break
    with on(x.get_device()):
        kernel.run(*args, grid=(grid,), warmup=False, **meta)  # kernel[(grid,)] makes a function first, in 1 µs


_here = nullcontext()


def on(index: int) -> AbstractContextManager:
    """Makes the GPU of that index the current one; does nothing for the CPU, -1, and for the current GPU."""
    return _here if index < 0 or index == torch.cuda.current_device() else torch.cuda.device(index)


@functools.lru_cache
def options(threads: int, warp: int) -> dict[str, int]:
    """What is asked of the compiler for programs of that many threads, on a device with warps of that many.

    No fused multiply-adds: a device rounds as the interpreter does, and the time is memory's. NVIDIA's assembler gets
    all registers the threads can have: left alone it spills a few bytes for more programs at a time.
    """
    registers = {"maxnreg": min(255, 65536 // threads)} if warp == 32 else {}
    return {"num_warps": max(1, threads // warp), "enable_fp_fusion": False, **registers}


def tunable(key: str, *, blocks: Sequence[int] = (), written: Sequence[str] = ()):
    """``triton.jit``; with FMKERNELS_AUTOTUNE=1 also ``triton.autotune`` over warps and ``blocks`` for each ``key``.

    written: arguments changed in place, put back between trials. Another number of threads, or another block, adds up a
    chunk in another order: tuned sums may differ in their last bits.
    """

    def wrap(function):
        kernel = triton.jit(function)
        if not TUNED:
            return kernel
        sizes = [{"BLOCK": block} for block in blocks] or [{}]
        configs = [triton.Config(size, num_warps=warps) for size in sizes for warps in (2, 4, 8)]
        return triton.autotune(configs, key=[key], restore_value=list(written) or None)(kernel)

    return wrap


@functools.lru_cache(maxsize=1024)
def cut(sizes: tuple[int, ...]) -> tuple[int, int, int, dict[str, int]]:
    """For a batch (B, ...) of these sizes: the elements n of a sample, its chunks, all programs, their constants."""
    count, n = samples(sizes)
    chunk = next(chunk for limit, chunk in CHUNKS.items() if n <= limit)
    chunks = cdiv(n, chunk)
    return n, chunks, count * chunks, {"CHUNK": chunk, "BLOCK": BLOCK}


def cdiv(a: int, b: int) -> int:
    """ceil(a / b); ``triton.cdiv``, which kernels call too, takes 2 µs."""
    return -(-a // b)


def samples(sizes: tuple[int, ...]) -> tuple[int, int]:
    """(B, n) of a batch (B, ...) of these sizes."""
    return sizes[0], math.prod(sizes[1:]) if sizes[0] else 0


def promoted(x: Tensor, *others: Tensor) -> torch.dtype:
    """torch's promotion of the tensors' dtypes."""
    dtype = x.dtype
    for other in others:
        if other.dtype is not dtype:
            dtype = torch.promote_types(dtype, other.dtype)
    return dtype


def dense(x: Tensor | None) -> Tensor | None:
    return x if x is None else x.contiguous()


def empty(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A dense tensor of x's shape, in x's dtype unless told; in half the time of ``x.new_empty(x.shape)``."""
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def aligned(addresses: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether every row of every tensor starts at a multiple of 16 bytes, in each dtype."""
    return all(address % 16 == 0 for address in addresses) and all(size % 8 == 0 for size in sizes)


class InPlace:
    """A dense tensor to write in x's place: x itself, or a copy that ``commit`` puts back."""

    def __init__(self, x: Tensor | None):
        self.x, self.work = x, dense(x)

    def commit(self) -> None:
        if self.x is not None and self.work is not self.x:
            self.x.copy_(self.work)
