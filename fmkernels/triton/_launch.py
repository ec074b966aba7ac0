"""Where kernels start: block sizes by size, the tensors' device, tables of addresses, opt-in tuning."""

import functools
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext

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
    stand_ins = [hook(kernel, grid, args, {**meta, "threads": threads}) for hook in hooks]
    if any(stand_ins):
        return
    meta |= options(threads, WARP)
    if isinstance(kernel, triton.runtime.Autotuner):
        meta = {name: value for name, value in meta.items() if name not in kernel.configs[0].all_kwargs()}
    device = next(x.device for x in args if isinstance(x, Tensor))
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[(grid,)](*args, **meta)


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


def cut(count: int, n: int) -> tuple[int, int, int, dict[str, int]]:
    """For ``count`` samples of n elements: n, the chunks of one, all programs, the constants of a kernel of one."""
    chunk = next(chunk for limit, chunk in CHUNKS.items() if n <= limit)
    chunks = triton.cdiv(n, chunk)
    return n, chunks, count * chunks, {"CHUNK": chunk, "BLOCK": BLOCK}


def samples(x: Tensor) -> tuple[int, int]:
    """(B, n) of a batch (B, ...)."""
    return x.shape[0], x.numel() // max(x.shape[0], 1)


def promoted(*tensors: Tensor) -> torch.dtype:
    """torch's promotion of the tensors' dtypes."""
    return functools.reduce(torch.promote_types, {x.dtype for x in tensors})


def dense(x: Tensor | None) -> Tensor | None:
    return x if x is None else x.contiguous()


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


def table(device: torch.device, rows: Callable[..., list[list[int]]], *key) -> Tensor:
    """``rows(*key)`` as int64 on the device: made once and reused for as long as the key, addresses mostly, repeats."""
    made = _table(device, rows, key)
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            _captured.append(made)  # the graph knows its address only
        else:
            made.record_stream(torch.cuda.current_stream(device))
    return made


_captured: list[Tensor] = []


@functools.lru_cache(maxsize=256)
def _table(device, rows, key):
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "fmkernels: a graph is being captured, and the table of addresses of a tdp_group, or of a listed or wide "
            "norm, is not on the device; make the same call on the same tensors once before capturing"
        )
    return torch.tensor(rows(*key), dtype=torch.int64).to(device)  # waits: streams of all kinds will read it
