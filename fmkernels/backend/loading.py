"""Load the compiled objects. What is missing or broken is noted with its reason and reported by one warning."""

import hashlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fmkernels.schema import KERNELS

_PACKAGE = Path(__file__).parents[1]
_NO_GPU = "this torch has no GPU support: install a CUDA or ROCm build of it"


@dataclass(frozen=True)
class Status:
    """Whether a backend, or the C++ gradients ("autograd"), can be used; reason says why not."""

    available: bool
    reason: str = "loaded"


status: dict[str, Status] = {}  # by "cpp", "cuda", "triton" and "autograd"


class _NotLoadedError(Exception):
    """The reason why something cannot be used."""


def rebuild_command() -> str:
    """The command that (re)builds the compiled objects of this installation."""
    root = _PACKAGE.parent
    if (root / "setup.py").exists() and (root / "csrc").exists():
        return f"pip install --no-build-isolation --no-deps -e {root}"
    return "pip install --no-build-isolation --no-deps --force-reinstall --no-cache-dir --no-binary fmkernels fmkernels"


def remedy(name: str) -> str:
    """How to build a backend, if that would help; other reasons contain what to do."""
    helps = name in ("cpp", "autograd") or (name == "cuda" and has_gpu_support())
    return f". To build it: {rebuild_command()}" if helps else ""


def has_kernel(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"fmkernels::{name}", key)


def gradient_in_cpp(name: str) -> bool:
    """True if csrc/autograd gives op ``name`` its gradient; otherwise fmkernels.autograd does."""
    return has_kernel(name, "Autograd")


def has_gpu_support() -> bool:
    return bool(torch.version.cuda or torch.version.hip)


def triton_is_interpreted() -> bool:
    """True if Triton's interpreter runs its kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def load_objects(asked: str) -> None:
    """Fill ``status``. ``asked`` is the value of FMKERNELS_BACKEND; "eager" loads no CPU kernels."""
    _note("cpp", _load_cpu, asked)
    _note("cuda", _load_cuda)
    _note("triton", _find_triton)
    _note("autograd", _load_autograd)
    if not status["cpp"].available and asked != "eager":
        _warn("cpp", f"{status['cpp'].reason}; eager PyTorch is used for CPU tensors: correct, but slower")
    if not status["cuda"].available and has_gpu_support() and _built("_cuda"):
        _warn("cuda", f"{status['cuda'].reason}; Triton or eager PyTorch is used for CUDA tensors")
    if "does not load" in status["autograd"].reason:
        _warn("autograd", f"{status['autograd'].reason}; gradients are computed from Python, a little slower")


def _note(name: str, load: Callable, *args) -> None:
    try:
        load(*args)
        status[name] = Status(True)
    except _NotLoadedError as error:
        status[name] = Status(False, str(error))


def _warn(name: str, message: str) -> None:
    warnings.warn(f"fmkernels: {message}{remedy(name)}", RuntimeWarning, stacklevel=5)


def _built(stem: str) -> Path | None:
    return next(iter(sorted(_PACKAGE.glob(f"{stem}.*so"))), None)


def _load_cpu(asked: str) -> None:
    if asked == "eager":
        raise _NotLoadedError("not loaded: FMKERNELS_BACKEND=eager")
    _load("_cpu", "cpp", "CPU")


def _load_cuda() -> None:
    if not has_gpu_support():
        raise _NotLoadedError(_NO_GPU)
    _load("_cuda", "cuda", "CUDA")


def _find_triton() -> None:
    """Triton itself is imported by the first call that it computes."""
    if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
        raise _NotLoadedError("triton is not installed: pip install triton")
    if not has_gpu_support() and not triton_is_interpreted():
        raise _NotLoadedError(f"{_NO_GPU} (for tests, TRITON_INTERPRET=1 runs its kernels on the CPU)")


def _load_autograd() -> None:
    """The C++ gradients use ATen, so they work only with the torch version that they were built with."""
    if not _built("_autograd"):
        raise _NotLoadedError("_autograd was not built")
    if not status["cpp"].available:
        raise _NotLoadedError(status["cpp"].reason)
    built_with = build_facts().get("built_with_torch")
    if built_with is None:
        raise _NotLoadedError("_autograd does not load: without _host, the torch version it was built with is unknown")
    if built_with != torch.__version__:
        raise _NotLoadedError(f"built with torch {built_with}")
    _load("_autograd", "autograd", "Autograd")


def _load(stem: str, name: str, key: str) -> None:
    """Load ``stem*.so`` of this package, which registers kernels for the dispatch key."""
    path, facts = _built(stem), build_facts()
    if path is None:
        raise _NotLoadedError(f"{stem} was not built")
    # Before loading: old kernels that are registered would run.
    if facts and facts["schema"] != hashlib.sha256((_PACKAGE / "schema.py").read_bytes()).hexdigest()[:16]:
        raise _NotLoadedError(f"{path.name} was built from other sources: schema.py changed since")
    try:
        torch.ops.load_library(str(path))
    except (OSError, RuntimeError) as error:
        raise _NotLoadedError(f"{path.name} does not load: {error}") from error
    # An op without tensors among its arguments, tdp_unpin, has no device.
    missing = [op for op in KERNELS[name] if not (has_kernel(op, key) or has_kernel(op, "CompositeExplicitAutograd"))]
    if missing:
        raise _NotLoadedError(f"{path.name} was built from other sources: no kernel for {', '.join(missing)}")


def int8_kernel() -> str:
    """The inner loop of the compiled int8 product on this CPU; "unknown" without ``_host``."""
    try:
        from fmkernels import _host
    except ImportError:
        return "unknown"
    return _host.int8_kernel()


def build_facts() -> dict[str, str]:
    """How the objects were built, and the limits of csrc/shared/limits.h; empty without ``_host``."""
    try:
        from fmkernels import _host
    except ImportError:
        return {}
    return _host.build_facts()
