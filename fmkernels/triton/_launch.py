"""Launches of kernels: block sizes by problem size, the device of the tensors, optional tuning."""

import functools
import math
import os
from collections.abc import Callable, Sequence
from operator import or_
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# A sample of n elements is divided into chunks. A program processes one chunk in blocks of eight elements per thread,
# which are 16 bytes of bf16. Maximum n -> chunk; the first row that fits is used.
CHUNKS = {1 << 12: 1024, 1 << 18: 4096, 1 << 62: 16384}
BLOCK = 1024
PARTS = 128  # maximum number of partial sums per column that a combining program reads at a time
DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
WARP = 64 if torch.version.hip else 32  # threads per warp
TUNED = os.environ.get("FMKERNELS_AUTOTUNE") == "1"

# Called with (kernel, grid, args, meta) before every launch; a hook that returns True replaces the launch.
hooks: list[Callable[[object, int, tuple, dict], bool | None]] = []


class Meta(NamedTuple):
    """What a launch needs apart from its arguments: compile-time constants and the number of threads per program."""

    constants: dict[str, object]
    threads: int
    keywords: dict[str, object]  # the constants and compiler options, as Triton takes them


@functools.lru_cache(maxsize=4096)
def meta(threads: int = 128, **constants) -> Meta:
    return Meta(constants, threads, constants | options(threads, WARP))


def launch(kernel, grid: int, meta: Meta, *args) -> None:
    """Start ``grid`` programs on the device of the first tensor, in its current stream; 0 programs start nothing."""
    if grid == 0:
        return
    if hooks:
        replaced = [hook(kernel, grid, args, {**meta.constants, "threads": meta.threads}) for hook in hooks]
        if any(replaced):
            return
    keywords = meta.keywords
    if TUNED and isinstance(kernel, triton.runtime.Autotuner):
        keywords = {name: value for name, value in keywords.items() if name not in kernel.configs[0].all_kwargs()}
    for x in args:
        if isinstance(x, Tensor):
            break
    index = x.get_device()
    if index < 0 or index == torch.cuda.current_device():
        kernel.run(*args, grid=(grid,), warmup=False, **keywords)  # kernel[(grid,)] would create a function first: 1 µs
    else:
        with torch.cuda.device(index):
            kernel.run(*args, grid=(grid,), warmup=False, **keywords)


@functools.lru_cache
def options(threads: int, warp: int) -> dict[str, int]:
    """Return the compiler options for programs with that many threads on a device with that many threads per warp.

    NVIDIA's assembler may use all registers that the threads can have: by default, it spills a few bytes in some
    kernels to fit more programs on a multiprocessor.
    """
    registers = {"maxnreg": min(255, 65536 // threads)} if warp == 32 else {}
    return {"num_warps": max(1, threads // warp), **registers}


def tunable(key: str, *, blocks: Sequence[int] = (), written: Sequence[str] = ()):
    """``triton.jit``; with FMKERNELS_AUTOTUNE=1 also ``triton.autotune`` over warps and ``blocks`` for each ``key``.

    written: arguments that are changed in place, restored between trials. The number of threads and the block size
    determine the order of additions, so tuned sums may differ in their last bits.
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
def cut(sizes: tuple[int, ...]) -> tuple[int, int, int, Meta]:
    """For a batch (B, ...) of these sizes: elements and chunks per sample, all programs, the Meta of their launch."""
    count, n = samples(sizes)
    chunk = next(chunk for limit, chunk in CHUNKS.items() if n <= limit)
    chunks = cdiv(n, chunk)
    return n, chunks, count * chunks, meta(CHUNK=chunk, BLOCK=BLOCK, EVEN=n % chunk == 0)


def adding(parts: int, **constants) -> Meta:
    """The Meta of programs that add up ``parts`` partial sums per column, BLOCK of them at a time."""
    block = min(PARTS, 1 << max(0, parts - 1).bit_length())
    return meta(threads=32 if block <= 32 else 128, BLOCK=block, **constants)


def cdiv(a: int, b: int) -> int:
    """ceil(a / b); ``triton.cdiv``, which kernels can call too, takes 2 µs."""
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
    return x if x is None or x.is_contiguous() else x.contiguous()


def empty(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a dense tensor of x's shape and dtype, unless given; takes half the time of ``x.new_empty(x.shape)``."""
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def aligned(values: Sequence[int], to: int) -> bool:
    """Whether all values are multiples of ``to``, a power of two.

    Rows start at multiples of 16 bytes, in each dtype, if addresses are aligned to 16 and row sizes to 8.
    """
    return functools.reduce(or_, values, 0) % to == 0


class InPlace:
    """A dense tensor to write instead of x: x itself, or a copy that ``commit`` copies back."""

    def __init__(self, x: Tensor | None):
        self.x, self.work = x, dense(x)

    def commit(self) -> None:
        if self.x is not None and self.work is not self.x:
            self.x.copy_(self.work)
