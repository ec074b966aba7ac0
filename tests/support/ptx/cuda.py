"""The PTX that nvcc makes of csrc/cuda, executed where cuda_on_host receives a launch.

``load()`` compiles every kernel to PTX (kept in build/ptx under a hash of the sources and the compiler) and loads the
host's part of the ops as support/host_cuda.py does. From then on, every op on CPU tensors runs the compiled PTX. It
needs its own process: ``pytest --kernels ptx``.
"""

import ctypes
import hashlib
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import cuda_check
import find_cuda

from .. import host_cuda
from . import machine
from .encode import encode
from .parse import Module

FLAGS = ["-O3", "-std=c++17", "-ptx"]
ARCHS = ("sm_90", "sm_80")
_INTERPRET = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.c_size_t,
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.c_int,
)


def compiled(arch: str) -> list[Path]:
    """The PTX of every header of csrc/cuda for an architecture (half a minute if something changed)."""
    home = find_cuda.cuda_home()
    if home is None:
        raise RuntimeError("the PTX tests need nvcc: set CUDA_HOME, or put nvcc on PATH")
    root = cuda_check.ROOT
    sources = [*sorted((root / "csrc/cuda").glob("*.cu*")), *sorted((root / "csrc/shared").glob("*.h"))]
    digest = hashlib.sha256(f"{FLAGS} {find_cuda.nvcc_version(home)}".encode())
    for path in sources:
        digest.update(path.read_bytes())
    folder = machine.BUILT / f"{digest.hexdigest()[:16]}-{arch}"
    if not folder.exists():
        of, members = cuda_check.families(), {}
        for name in cuda_check.kernels_of_the_sources():
            members.setdefault(of[cuda_check.short(name)], []).append(name)
        part = folder.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)

        def compile_one(family: str) -> None:
            taken = "".join(f"    reinterpret_cast<const void*>({name}),\n" for name in members[family])
            source = part / f"{family}.cu"
            source.write_text(f'#include "{root}/csrc/cuda/{family}.cuh"\nconst void* kernels[] = {{\n{taken}}};\n')
            command = [home / "bin" / "nvcc", *FLAGS, f"-arch={arch}", source, "-o", part / f"{family}.ptx"]
            subprocess.run(command, check=True)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(compile_one, members))
        part.rename(folder)
    return sorted(folder.glob("*.ptx"))


@cache
def modules(arch: str) -> dict[str, Module]:
    """Kernel's mangled name -> its module."""
    return {name: module for path in compiled(arch) for module in [Module(path.read_text())] for name in module.entries}


@cache
def kernel(arch: str, name: str) -> machine.Loaded:
    return machine.Loaded(encode(modules(arch)[name][name]))


_names: dict[int, str] = {}  # address of the kernel in the host's object -> mangled name
_lock = threading.Lock()
_arch = ARCHS[0]
_said = None  # the error that C++ reads after the call


@_INTERPRET
def _interpret(address, grid, threads, shared_bytes, seed, arguments, sizes, count):
    global _said
    try:
        given = [ctypes.string_at(arguments[i], sizes[i]) for i in range(count)]
        with _lock:
            kernel(_arch, _names[address]).launch((grid, 1, 1), threads, shared_bytes, given, seed)
    except Exception as error:  # it cannot pass through C++: the launch raises it there
        _said = ctypes.create_string_buffer(f"ptx: {error}".encode())
        return ctypes.addressof(_said)
    return None


def load() -> None:
    """Run every op on CPU tensors by the PTX for sm_90."""
    host_cuda.load()
    library = host_cuda.object()
    machine.use_memory(ctypes.cast(library.cuda_on_host_find, ctypes.c_void_p).value)
    for name in modules(_arch):
        _names[ctypes.cast(getattr(library, name), ctypes.c_void_p).value] = name
    library.cuda_on_host_interpret(_interpret)


@contextmanager
def architecture(arch: str):
    """Run the PTX for another architecture inside."""
    global _arch
    before, _arch = _arch, arch
    try:
        yield
    finally:
        _arch = before
