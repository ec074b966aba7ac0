"""Select the backend: automatically, by FMKERNELS_BACKEND, or by ``use_backend``."""

import os
import threading
import warnings
from typing import TYPE_CHECKING, NamedTuple

import torch

from fmkernels.backend.loading import has_gpu_support, load_objects, remedy, status, triton_is_interpreted

if TYPE_CHECKING:
    from fmkernels.backend.op import Op

BACKENDS = ("auto", "cpp", "cuda", "triton", "eager")
NATIVE = (None, "cpp")  # values of ``forced`` with which the compiled kernels compute calls with CPU tensors
OPS: dict[str, "Op"] = {}  # all ops, by name


class _Choice(NamedTuple):
    forced: str | None  # the backend that computes every call, None for auto
    triton: bool  # whether the Triton kernels replace all others in the dispatcher


forced: str | None = None  # process-wide, like torch's own backend flags; read by every call
_choices = [_Choice(None, False)]  # the environment's choice, then those of the open use_backend blocks
_changing = threading.RLock()
_triton: torch.library.Library | None = None  # the Triton kernels, while they replace all others


def load() -> None:
    """Load what was built and apply FMKERNELS_BACKEND."""
    asked = os.environ.get("FMKERNELS_BACKEND", "auto")
    _check_name(asked, "FMKERNELS_BACKEND")
    load_objects(asked)
    if asked in status and not status[asked].available:
        warnings.warn(
            f"fmkernels: FMKERNELS_BACKEND={asked} is not available ({status[asked].reason}); using auto.",
            RuntimeWarning,
            stacklevel=3,
        )
    elif asked != "auto":
        _choices[0] = _Choice(asked, asked == "triton")
        _apply_newest()


def _check_name(name: str, where: str) -> None:
    if name not in BACKENDS:
        raise ValueError(f"{where}: unknown backend {name!r}; choose one of {', '.join(BACKENDS)}")


class use_backend:  # noqa: N801 (reads as a function: with use_backend("eager"): ...)
    """``with fmkernels.use_backend("eager"): ...`` — inside the block, that backend computes every fmkernels call.

    ``"auto"`` cancels an outer choice. The choice applies to the whole process, like torch's backend flags. Raises
    ValueError for an unknown name, and RuntimeError with the reason for a backend that is not available.
    """

    def __init__(self, name: str):
        _check_name(name, "use_backend")
        if name in status and not status[name].available:
            raise RuntimeError(f"use_backend: {name!r} is not available: {status[name].reason}{remedy(name)}")
        self._choice = _Choice(None if name == "auto" else name, name == "triton")

    def __enter__(self):
        with _changing:
            _choices.append(self._choice)
            _apply_newest()

    def __exit__(self, *_):
        with _changing:
            del _choices[len(_choices) - 1 - _choices[::-1].index(self._choice)]
            _apply_newest()


class triton_as_auto(use_backend):  # noqa: N801
    """For benchmarks: like ``use_backend("triton")``, without the time that a choice adds to each call.

    Calls run as with "auto", while the Triton kernels replace the compiled ones in the dispatcher.
    """

    def __init__(self):
        super().__init__("triton")
        self._choice = _Choice(None, True)


def _apply_newest() -> None:
    """The newest open block counts: blocks of several threads may end in any order."""
    global forced, _triton
    forced = _choices[-1].forced
    if _choices[-1].triton and _triton is None:
        _triton = torch.library.Library("fmkernels", "IMPL")
        for op in OPS.values():
            op.add_triton(_triton, _triton_keys())
    elif not _choices[-1].triton and _triton is not None:
        _triton._destroy()
        _triton = None


def _triton_keys() -> list[str]:
    return ["CPU"] * triton_is_interpreted() + ["CUDA"] * has_gpu_support()


def add(op: "Op") -> None:
    """Add an op to OPS."""
    OPS[op.name] = op
    if _triton is not None:
        op.add_triton(_triton, _triton_keys())


def native_cpu() -> bool:
    """True if the compiled CPU kernels compute calls with CPU tensors."""
    return forced in NATIVE and status["cpp"].available


def current() -> str:
    """The selected backend: "auto" or the name of the one that computes every call."""
    return forced or "auto"


def devices(name: str) -> list[str]:
    """The device types that a backend supports."""
    return {"cpp": ["cpu"], "cuda": ["cuda"], "triton": ["cuda"] + ["cpu"] * triton_is_interpreted()}[name]
