"""Which implementation serves which call, and why.

An op's schema lives in the dispatcher (``schema.py``). The compiled objects register kernels for their
device, Triton for GPUs without one; ``fmkernels.eager`` is registered beneath them for every device. So *auto*
is the dispatcher's own choice, and ``use_backend`` is the exception one asks for.
"""

import hashlib
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.autograd import forward_ad

from fmkernels.schema import NAMES, library

BACKENDS = ("auto", "cpp", "cuda", "triton", "eager")
_NO_GPU = "this torch has no GPU support: install a CUDA or ROCm build of it"
_PACKAGE = Path(__file__).parent
# A handle to parameters, which spares the dispatcher 684 tensors; and what torch is slow at on the CPU.
_CPU_ONLY = ("tdp_pin", "tdp_unpin", "tdp_pinned", "depthwise", "depthwise_weight")
_ABOVE_DEVICES = ("linear", "tdp_group_parts")  # of csrc/autograd.cpp

_forced: str | None = None  # None is auto. Process-wide, as torch's own backend flags are.
_changing = threading.RLock()
_choices: list[str | None] = [None]  # the environment's choice, then those of the use_backend blocks now open
_loaded: dict[str, str] = {}  # "cpp", "cuda", "triton", "gradients in C++" -> "" if there, else why not
_above: torch.library.Library | None = None  # the Triton kernels' place over all others, while they are asked for
OPS: dict[str, "Op"] = {}


def rebuild_command() -> str:
    """The command that (re)builds the compiled objects of this installation."""
    root = _PACKAGE.parent
    if (root / "setup.py").exists() and (root / "csrc").exists():
        return f"pip install --no-build-isolation --no-deps -e {root}"
    return "pip install --no-build-isolation --no-deps --force-reinstall --no-cache-dir --no-binary fmkernels fmkernels"


def _stale() -> bool:
    """The compiled objects know another schema.py than this one; without ``_host`` there is no telling."""
    try:
        from fmkernels import _host
    except ImportError:
        return False
    return _host.build_facts()["schema"] != hashlib.sha256((_PACKAGE / "schema.py").read_bytes()).hexdigest()[:16]


def _has_kernel(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"fmkernels::{name}", key)


def _load(stem: str, key: str) -> str:
    """Loads ``stem*.so`` beside this file. Returns "" or the reason why not; never raises."""
    files = sorted(_PACKAGE.glob(f"{stem}.*so"))
    if not files:
        return f"{stem} was not built"
    if _stale():  # before loading: once registered, old kernels would serve
        return f"{files[0].name} was built from other sources: schema.py changed since"
    try:
        torch.ops.load_library(str(files[0]))
    except (OSError, RuntimeError) as error:
        return f"{files[0].name} does not load: {error}"
    elsewhere = (*_ABOVE_DEVICES, *(["tdp_unpin"] if key == "CPU" else _CPU_ONLY))
    missing = [name for name in NAMES if name not in elsewhere and not _has_kernel(name, key)]
    return f"{files[0].name} was built from other sources: no kernel for {', '.join(missing)}" if missing else ""


def _load_autograd() -> str:
    """Gradients of a few ops in C++, for the very torch they were built with; "" or why the Python ones serve."""
    files = sorted(_PACKAGE.glob("_autograd.*so"))
    if not files or _loaded["cpp"]:
        return "_autograd was not built" if not files else _loaded["cpp"]
    try:
        from fmkernels import _host

        built_with = _host.build_facts()["built_with_torch"]
        if built_with != torch.__version__:
            return f"built with torch {built_with}"
        torch.ops.load_library(str(files[0]))
    except (ImportError, OSError, RuntimeError) as error:
        warnings.warn(
            f"fmkernels: {files[0].name} does not load ({error}); gradients run from Python, a little slower. "
            f"To build it: {rebuild_command()}",
            RuntimeWarning,
            stacklevel=4,
        )
        return f"does not load: {error}"
    return ""


def _has_gpu_support() -> bool:
    return bool(torch.version.cuda or torch.version.hip)


def _interpreted() -> bool:
    """Triton kernels run on the CPU too, by its interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _look_for_triton() -> str:
    """ "" or why not; triton itself is imported with the first call it serves."""
    if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install triton"
    if not _has_gpu_support() and not _interpreted():
        return f"{_NO_GPU} (for tests, TRITON_INTERPRET=1 runs its kernels on the CPU)"
    return ""


def load_objects() -> None:
    """Loads what was built; one warning with the reason and the remedy where ``_cpu`` is not to be had."""
    asked = os.environ.get("FMKERNELS_BACKEND", "auto")
    _check_name(asked, "FMKERNELS_BACKEND")
    _loaded["cpp"] = "not loaded: FMKERNELS_BACKEND=eager" if asked == "eager" else _load("_cpu", "CPU")
    _loaded["cuda"] = _load("_cuda", "CUDA") if _has_gpu_support() else _NO_GPU
    _loaded["triton"] = _look_for_triton()
    _loaded["gradients in C++"] = _load_autograd()
    if _loaded["cpp"] and asked != "eager":
        warnings.warn(
            f"fmkernels: {_loaded['cpp']}; CPU tensors are served by eager PyTorch, correct but slower. "
            f"To build it: {rebuild_command()}",
            RuntimeWarning,
            stacklevel=3,
        )
    if _loaded["cuda"] and _has_gpu_support() and any(_PACKAGE.glob("_cuda.*so")):
        warnings.warn(
            f"fmkernels: {_loaded['cuda']}; CUDA tensors are served by Triton or eager PyTorch. "
            f"To build it: {rebuild_command()}",
            RuntimeWarning,
            stacklevel=3,
        )
    if _loaded.get(asked):
        warnings.warn(
            f"fmkernels: FMKERNELS_BACKEND={asked} is not available ({_loaded[asked]}); using auto.",
            RuntimeWarning,
            stacklevel=3,
        )
    elif asked != "auto":
        _choices[0] = asked
        _follow_choice()


def _check_name(name: str, where: str) -> None:
    if name not in BACKENDS:
        raise ValueError(f"{where}: unknown backend {name!r}; choose one of {', '.join(BACKENDS)}")


class use_backend:  # noqa: N801 (reads as a function: with use_backend("eager"): ...)
    """``with fmkernels.use_backend("eager"): ...`` — every fmkernels call inside is served by that backend.

    ``"auto"`` undoes an outer choice. The choice is process-wide while it lasts, like torch's backend
    flags. Raises ValueError for an unknown name, RuntimeError (with the reason) for one not available.
    """

    def __init__(self, name: str):
        _check_name(name, "use_backend")
        if _loaded.get(name):
            raise RuntimeError(f"use_backend: {name!r} is not available: {_loaded[name]}{_remedy(name)}")
        self.name = None if name == "auto" else name

    def __enter__(self):
        with _changing:
            _choices.append(self.name)
            _follow_choice()

    def __exit__(self, *_):
        with _changing:
            del _choices[len(_choices) - 1 - _choices[::-1].index(self.name)]
            _follow_choice()


def _follow_choice() -> None:
    """The newest block still open counts: blocks of several threads may end in any order.

    Puts the Triton kernels over all others when they become the choice, and takes them away after.
    """
    global _above, _forced
    _forced = _choices[-1]
    if _forced == "triton" and _above is None:
        _above = torch.library.Library("fmkernels", "IMPL")
        for op in OPS.values():
            op.put_above()
    elif _forced != "triton" and _above is not None:
        _above._destroy()
        _above = None


def _remedy(name: str) -> str:
    """How to build it, where that would help; other reasons say themselves what to do."""
    helps = name == "cpp" or (name == "cuda" and _has_gpu_support())
    return f". To build it: {rebuild_command()}" if helps else ""


def native_cpu() -> bool:
    """True if CPU tensors are served by the compiled kernels now."""
    return _forced in (None, "cpp") and not _loaded["cpp"]


def gradients_in_cpp(x: torch.Tensor) -> bool:
    """True if the nodes of csrc/autograd.cpp serve x: a CPU tensor, since nobody ran them on a GPU."""
    return x.is_cpu and _forced in (None, "cpp") and not _loaded["gradients in C++"]


def eager_forced() -> bool:
    """True if eager was asked for: then autograd differentiates the plain formulas."""
    return _forced == "eager"


def _trusted(*_) -> None:
    """The check of a backward op: it gets what autograd saved."""


class Op:
    """One op: its schema in the dispatcher, its eager implementation, its argument checks.

    Calling it runs the implementation in force. ``check`` takes the op's own arguments and raises
    ValueError or TypeError naming the one that is wrong. The compiled kernels refuse the same calls by
    themselves (tersely), so where they serve, ``check`` runs only after a failure, to say what it was:
    it costs as much as a small kernel.
    """

    def __init__(self, name: str, eager: Callable, check: Callable = _trusted):
        self.name, self.eager, self.check = name, eager, check
        self.overload = getattr(torch.ops.fmkernels, name).default
        self.run = self.overload._op  # the same call without a Python frame around it
        self.direct: Callable | None = None  # the same with gradients
        names = [argument.name for argument in self.overload._schema.arguments]
        self.number = names.index("dt_tensor") if "dt_tensor" in names else None  # whose dtype decides nothing

        def checked(*args):
            check(*args)
            return eager(*args)

        library.impl(name, checked, "CompositeExplicitAutograd")
        if _has_gpu_support() and _loaded["cuda"] and not _loaded["triton"]:
            library.impl(name, self.by_triton, "CUDA")
        if _above is not None:
            self.put_above()
        OPS[name] = self

    def by_triton(self, *args):
        """The op by ``fmkernels.triton``, which is imported here; in float64 by the eager function."""
        self.check(*args)
        if any(x.dtype == torch.float64 for x in _tensors(args, but=self.number)):
            return self.eager(*args)
        from fmkernels import triton

        return getattr(triton, self.name)(*args)

    def put_above(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, that a kernel is overridden
            for key in ["CPU"] * _interpreted() + ["CUDA"] * _has_gpu_support():
                _above.impl(self.name, self.by_triton, key, allow_override=True)

    def __call__(self, *args):
        if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            # torch.func and forward-mode differentiation know plain PyTorch only.
            self.check(*args)
            return self.eager(*args)
        if _forced is None and not torch.compiler.is_compiling():
            try:
                if torch.is_inference_mode_enabled() or torch._C._is_tracing():
                    return self.run(*args)
                if torch.is_grad_enabled():
                    return (self.direct or self.run)(*args)
                # Without gradients, pass by the autograd registration: it is Python, and costs 5 us.
                with torch._C._AutoDispatchBelowAutograd():
                    return self.run(*args)
            except Exception:
                self.check(*args)
                raise
        self.check(*args)
        if _forced == "eager":
            return self.eager(*args)
        if _forced is not None:
            _check_device(self.name, args)
        return self.overload(*args)


def _tensors(args: tuple, but: int | None = None) -> Iterator[torch.Tensor]:
    """The tensors among the arguments and in their lists, leaving out the argument at ``but``."""
    for i, arg in enumerate(args):
        if i != but:
            yield from (x for x in (arg if isinstance(arg, (list, tuple)) else [arg]) if isinstance(x, torch.Tensor))


def _serves(name: str) -> list[str]:
    """The devices whose tensors a backend serves."""
    return {"cpp": ["cpu"], "cuda": ["cuda"], "triton": ["cuda"] + ["cpu"] * _interpreted()}[name]


def _check_device(name: str, args: tuple) -> None:
    serves = _serves(_forced)
    first = next(_tensors(args))
    if first.device.type not in serves:
        raise ValueError(f"{name}: backend {_forced!r} serves {serves[0]} tensors, got one on {first.device}")


def register_autograd(name: str, backward: Callable, setup_context: Callable) -> None:
    """Gradients of op ``name``; that of its ``*_backward`` op, if it has one, is an error that says what to do."""
    if not _has_kernel(name, "Autograd"):  # not given by csrc/autograd.cpp
        torch.library.register_autograd(f"fmkernels::{name}", backward, setup_context=setup_context, lib=library)
        OPS[name].direct = _direct(OPS[name], backward, setup_context)
    if f"{name}_backward" not in NAMES:
        return

    def twice(ctx, *grads):
        raise RuntimeError(
            f"fmkernels.{name} has first derivatives only; for second ones use fmkernels.use_backend('eager')"
        )

    torch.library.register_autograd(f"fmkernels::{name}_backward", twice, lib=library)


def _direct(op: Op, backward: Callable, setup_context: Callable) -> Callable | None:
    """The registered gradients without the registration, which costs 60 us a call: for plain eager training.

    For ops whose arguments are tensors and numbers, but for a list at the front, if any.
    """
    listed, *others = [argument.type.kind() == "ListType" for argument in op.overload._schema.arguments]
    if any(others):
        return None

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, count, *flat):
            args = ([*flat[:count]], *flat[count:]) if listed else flat
            with torch._C._AutoDispatchBelowAutograd():
                output = op.run(*args)
            setup_context(ctx, args, output)
            return output

        @staticmethod
        def backward(ctx, *grads):
            result = backward(ctx, *grads)
            if not isinstance(result, tuple):
                result = (result,)
            return None, *(result[0] if listed else result[:1]), *result[1:]

    # Not Direct.apply, which first looks through all arguments for torch.func's wrappers: there are none.
    apply = super(torch.autograd.Function, Direct).apply
    return (lambda first, *others: apply(len(first), *first, *others)) if listed else (lambda *args: apply(0, *args))


def served_by(name: str, device: str) -> tuple[str, str]:
    """(backend, reason) for op ``name`` on a device type, as calls are dispatched now."""
    if _forced == "eager" or (_forced == "triton" and device in _serves(_forced)):
        return _forced, "asked for"
    if _forced and device not in _serves(_forced):
        return "none", f"{_forced} was asked for, and serves {' and '.join(_serves(_forced))} tensors"
    key, backend = {"cpu": ("CPU", "cpp"), "cuda": ("CUDA", "cuda")}[device]
    asked = " (asked for)" if _forced == backend else ""
    if not _loaded[backend] and _has_kernel(name, key):
        return backend, f"compiled object loaded{asked}"
    if device == "cuda" and _has_kernel(name, key):
        return "triton", _loaded[backend]
    return "eager", "; ".join(_loaded[x] for x in ([backend, "triton"] if device == "cuda" else [backend]))


def explain() -> str:
    """Prints (and returns) a table: op x device -> backend; below it the reasons, each once."""
    lines, reasons = [f"{'op':<26}{'cpu':<8}cuda"], {}
    for name in OPS:
        served = {device: served_by(name, device) for device in ("cpu", "cuda")}
        reasons |= {f"{device}, {backend}: {why}": None for device, (backend, why) in served.items()}
        lines.append(f"{name:<26}{served['cpu'][0]:<8}{served['cuda'][0]}")
    lines += ["", *reasons]
    text = "\n".join(lines)
    print(text)
    return text
