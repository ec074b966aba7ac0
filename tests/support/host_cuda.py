"""csrc/cuda compiled by g++ with tests/support/cuda_on_host in the place of CUDA, and loaded over the CPU kernels.

``load()`` builds what changed (kept in build/ under a hash of the sources) and registers it: from then on every op on
CPU tensors runs the CUDA kernels' own code, with the checks that cuda_on_host/cuda_runtime.h lists. It needs its own
process: ``pytest --kernels cuda``.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent / "cuda_on_host"
BUILT = ROOT / "build" / "cuda_on_host"
SOURCES = [*sorted((ROOT / "csrc/cuda").glob("*.cu")), *sorted(HERE.glob("*.cpp"))]
FLAGS = ["-x", "c++", "-std=c++17", "-O1", "-fPIC", "-Wall", "-Wno-unknown-pragmas", "-Wno-attributes"]
FLAGS += [
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
    "-DTORCH_TARGET_VERSION=0x020a000000000000",
]


def _hash(paths) -> str:
    digest = hashlib.sha256(f"{FLAGS} {torch.__version__}".encode())
    for path in paths:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build() -> Path:
    """The shared object, made where it is not there yet: half a minute."""
    headers = [*(ROOT / "csrc").glob("*/*.h"), *(ROOT / "csrc").glob("*/*.cuh"), *HERE.rglob("*.h")]
    target = BUILT / f"{_hash(sorted(headers) + SOURCES)}.so"
    if target.exists():
        return target
    BUILT.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CXX", "g++")
    includes = [f"-I{HERE}", *(f"-isystem{path}" for path in include_paths())]

    objects_of = target.with_suffix("")
    objects_of.mkdir(exist_ok=True)

    def compiled(source: Path) -> str:
        made = objects_of / f"{source.stem}.o"
        # The stable ABI's headers as the ops see them; the allocator needs torch's own.
        flags = [flag for flag in FLAGS if source.suffix == ".cu" or "TARGET_VERSION" not in flag]
        standard = ["-std=c++20"] if source.suffix == ".cpp" else []
        subprocess.run([compiler, *flags, *standard, *includes, "-c", str(source), "-o", str(made)], check=True)
        return str(made)

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, SOURCES))
    libraries = [f"-L{path}" for path in library_paths()]
    part = target.with_suffix(".part")
    subprocess.run([compiler, "-shared", *objects, *libraries, "-lc10", "-ltorch_cpu", "-o", str(part)], check=True)
    part.rename(target)
    shutil.rmtree(objects_of)
    return target


_library: ctypes.CDLL | None = None


def load() -> None:
    global _library
    import fmkernels

    path = str(build())
    _library = ctypes.CDLL(path)
    _library.cuda_on_host_know_memory()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, that kernels are overridden
        torch.ops.load_library(path)
    fmkernels.TdpGroup.native_handle = False  # a handle belongs to the kernels of the CPU object


def object() -> ctypes.CDLL:
    """The loaded shared object."""
    return _library


@contextmanager
def ordered(seed: int = 0, most_blocks: int = 0):
    """Blocks and threads in an order drawn from the seed, and grids of at most that many blocks; 0 is as they are."""
    _library.cuda_on_host_order(ctypes.c_uint64(seed), ctypes.c_uint(most_blocks))
    try:
        yield
    finally:
        _library.cuda_on_host_order(ctypes.c_uint64(0), ctypes.c_uint(0))


def launches() -> int:
    """Kernels started so far."""
    _library.cuda_on_host_launches.restype = ctypes.c_int64
    return _library.cuda_on_host_launches()


def memsets() -> int:
    """And memory set on its own."""
    _library.cuda_on_host_memsets.restype = ctypes.c_int64
    return _library.cuda_on_host_memsets()


@contextmanager
def counting():
    """What kernels read and write inside is counted, for ``traffic``."""
    _library.cuda_on_host_count(1)
    try:
        yield
    finally:
        _library.cuda_on_host_count(0)


def traffic(tensor: torch.Tensor) -> tuple[int, int, int, int]:
    """How often a byte of a dense tensor was read, at least and at most, and how often written."""
    counts = (ctypes.c_int64 * 4)()
    _library.cuda_on_host_traffic(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_int64(tensor.nbytes), counts)
    return tuple(counts)


def broken(name: str) -> str:
    """What is found wrong with a kernel of tests/support/cuda_on_host/broken.cpp; "" for nothing."""
    _library.cuda_on_host_broken.restype = ctypes.c_char_p
    return _library.cuda_on_host_broken(name.encode()).decode()


if __name__ == "__main__":
    print(build(), file=sys.stderr)
