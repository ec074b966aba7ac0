"""A second device in host memory, named ``second``, for what goes wrong between Python and a GPU.

``load()`` builds second_device_on_host/device.cpp and registers it as PrivateUse1. Its tensors cannot be mixed
with those of the CPU, and :func:`synchronizations` records every call that would make the host wait for a GPU. The ops
of fmkernels run by the CPU's kernels: after ``host_cuda.load()``, by the CUDA kernels.

    PYTHONPATH=tests python -m support.second_device generate "a cat" --device second    # fmpipe with the device loaded
"""

import contextlib
import ctypes
import os
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fmkernels import backend
from fmkernels.flow.graph import CAPTURES

NAME = "second"
HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
TORCH = str(Path(torch.__file__).parent)


class Synchronization(NamedTuple):
    """kind: ``item``, ``host to device``, ``device to host``, ``nonzero``, …; where: the line outside of torch."""

    kind: str
    where: str


_records: list[list[Synchronization]] = []  # of the open blocks
_capturing = False


def _line() -> str:
    """The innermost line that is neither torch's nor this file's."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith((TORCH, "<")) and frame.filename != __file__:
            return f"{os.path.relpath(frame.filename, ROOT)}:{frame.lineno}"
    return "unknown"


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)
def _listen(kind: bytes) -> int:
    if _records:
        found = Synchronization(kind.decode(), _line())
        for block in _records:
            block.append(found)
    return int(_capturing)


def _built() -> Path:
    """The shared object, compiled if its source or torch changed: 15 seconds."""
    from support import host_cuda

    source = HERE / "second_device_on_host" / "device.cpp"
    target = ROOT / "build" / "second_device" / f"{host_cuda._hash([source])}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}.part")
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
        command = [
            os.environ.get("CXX", "g++"),
            "-std=c++20",
            "-O1",
            "-fPIC",
            "-shared",
            "-Wall",
            "-Wno-attributes",
            abi,
        ]
        command += [str(source), *(f"-isystem{path}" for path in host_cuda.include_paths())]
        command += [*(f"-L{path}" for path in host_cuda.library_paths()), "-lc10", "-ltorch_cpu", "-o", str(part)]
        subprocess.run(command, check=True)
        part.rename(target)
    return target


def _device_module() -> ModuleType:
    """What torch expects of ``torch.second``."""
    module = ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module.device = lambda device: contextlib.nullcontext()
    module.manual_seed_all = module.manual_seed = lambda seed: None  # numbers come from the CPU's generator
    module.get_rng_state = lambda device=0: torch.get_rng_state()
    module.set_rng_state = lambda state, device=0: torch.set_rng_state(state)
    module.synchronize = lambda device=None: _listen(b"synchronize")
    module.empty_cache = lambda: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return module


_loaded: ctypes.CDLL | None = None


def load() -> torch.device:
    """Register the device, once in a process."""
    global _loaded
    if _loaded is None:
        torch.utils.rename_privateuse1_backend(NAME)
        torch.ops.load_library(str(_built()))
        torch._register_device_module(NAME, _device_module())
        torch.utils.generate_methods_for_privateuse1_backend()
        _loaded = ctypes.CDLL(str(_built()))
        _loaded.second_device_listen(_listen)
        for name in backend.OPS:
            _loaded.second_device_native(name.encode())
        CAPTURES[NAME] = captured
    return torch.device(NAME)


@contextlib.contextmanager
def synchronizations() -> Iterator[list[Synchronization]]:
    """Collect what makes the host wait for the device inside the block."""
    found: list[Synchronization] = []
    _records.append(found)
    try:
        yield found
    finally:
        _records.remove(found)


class Graph:
    """Stands in for ``torch.cuda.CUDAGraph``: records calls with their tensors, runs them again on the same memory."""

    def __init__(self):
        self.calls = []

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Record every op of the block, and undo what it wrote. A synchronization raises RuntimeError, as on CUDA."""
        global _capturing
        _capturing = True
        recorder = _Recorder(self.calls)
        try:
            with recorder:
                yield
        finally:
            _capturing = False
            with torch.no_grad():
                for written, before in reversed(recorder.written):
                    written.copy_(before)

    @torch.no_grad()
    def replay(self) -> None:
        for function, args, kwargs, outputs in self.calls:
            again = pytree.tree_leaves(function(*args, **kwargs))
            for new, old in zip(again, outputs, strict=True):
                if isinstance(old, torch.Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """Capture a call for :mod:`fmkernels.flow.graph`; return the replay."""
    graph = Graph()
    with graph.capture():
        call()
    return graph.replay


class _Recorder(TorchDispatchMode):
    def __init__(self, calls: list):
        super().__init__()
        self.calls, self.written = calls, []  # written: tensors with their values before an op wrote them

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for argument, value in zip(function._schema.arguments, args, strict=False):
            if isinstance(value, torch.Tensor) and argument.alias_info is not None and argument.alias_info.is_write:
                self.written.append((value, value.clone()))
        outputs = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, pytree.tree_leaves(outputs)))
        return outputs


if __name__ == "__main__":
    load()
    from fmpipe.__main__ import main

    main()
