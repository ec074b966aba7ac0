"""``accelerate(model)``: the fast paths of ``fmkernels.nn`` for models of third-party classes.

Time-dependent parameters and norms are recognized by their structure and then tested: on random input, each must
compute what the fused op computes. The ``__class__`` of a recognized module becomes a subclass that is created here.
Its parameters, state-dict keys and ``isinstance`` do not change, its original class is not modified, and
``restore(model)`` undoes it.

CrossFlow's models call a static method in their forward, ``TimeDependentParameter.seed_time(self, log_snr)``, which
walks over all modules and synchronizes on ``log_snr``. No instance can override it. The methods that call it are
therefore copied for this model (function_copies.py), and in the copy the name of the class refers to the subclass.
"""

import copy
import functools
import inspect
from collections import Counter
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from fmkernels.function_copies import FunctionCopies
from fmkernels.nn import (
    PARAMETERS,
    PLAN,
    TDLayerNorm,
    TDRMSNorm,
    TimeDependent,
    parameters_of,
    seed_time,
    seeding_plan,
    time_dependent,
)
from fmkernels.ops import tdp

_NORM_NAMES = {TDRMSNorm: ({"scale"}, {"scale", "offset"}), TDLayerNorm: ({"weight", "bias"},)}


@dataclass
class Acceleration:
    """The printable report of ``accelerate``. ``left``: (name, reason) of what was recognized but not changed."""

    parameters: int = 0
    elements: int = 0
    norms: Counter = field(default_factory=Counter)
    seeding: list[str] = field(default_factory=list)
    already: int = 0
    left: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = []
        if self.parameters:
            lines.append(
                f"time-dependent parameters, evaluated together: {self.parameters} ({self.elements:,} elements)"
            )
        if self.norms:
            lines.append("norms, fused: " + ", ".join(f"{count} {kind}" for kind, count in self.norms.items()))
        if self.seeding:
            lines.append(f"seeding, without walk or synchronization: {', '.join(self.seeding)}")
        if self.already:
            lines.append(f"already fast: {self.already} modules")
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left:
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            others = f" and {len(names) - 1} others" if len(names) > 1 else ""
            lines.append(f"left unchanged: {names[0]}{others}: {reason}")
        return "\n".join(lines) or "nothing to accelerate: no time-dependent parameters were found"


def accelerate(model: nn.Module) -> Acceleration:
    """Replace the evaluation of the model's time-dependent parameters and norms by fused ops, in place.

    Returns a report. Works on all classes with CrossFlow's structure. Outputs, gradients and the state dict do not
    change, with three exceptions: values of half-precision parameters have the parameters' dtype even if log_snr is
    fp32, second derivatives need ``use_backend("eager")``, and hooks on the parameter modules of a fused norm are not
    called. A second call changes only what is new, and ``restore(model)`` undoes everything. Raises TypeError if
    ``model`` is not a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"accelerate: model must be a torch.nn.Module, got {type(model).__name__}")
    fast = (_Swapped, TimeDependent, *_NORM_NAMES)
    report = Acceleration(already=sum(isinstance(m, fast) for m in model.modules()))
    for name, module in model.named_modules():
        if isinstance(module, TimeDependent) or not _is_parameter_like(module):
            continue
        if reason := _why_not_parameter(module):
            report.left.append((name, reason))
            continue
        module.__class__ = _parameter_class(type(module))
        module.curr_weight = None  # the value of an earlier forward
        report.parameters += 1
        report.elements += module.param0.numel()
    for name, module in model.named_modules():
        if (kind := _norm_kind(module)) is None:
            continue
        try:
            promotes = _try_norm(module, kind)
        except Exception as error:
            report.left.append((name, f"not what {kind.__name__} computes: {_first_line(error)}"))
            continue
        module.__class__ = _norm_class(type(module), kind, promotes)
        report.norms[kind.__name__] += 1
    _take_seeding(model, report)
    _drop_plans(model)
    return report


def restore(model: nn.Module) -> None:
    """Undo :func:`optimize` and :func:`quantize`: every module gets its original class back, and its weight."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"restore: model must be a torch.nn.Module, got {type(model).__name__}")
    for module in model.modules():
        if isinstance(module, _Swapped):
            if isinstance(module, TimeDependent):
                module.curr_weight = None
            if hasattr(module, "_undo"):  # a quantized layer's weight
                module._undo()
            module.__class__ = module._original
        processor = vars(module).get("processor")  # of an attention module of diffusers
        if isinstance(processor, _Swapped):
            processor.__class__ = processor._original
    _drop_plans(model)


def _drop_plans(model: nn.Module) -> None:
    for module in model.modules():
        vars(module).pop(PLAN, None)


# Modules are recognized by their structure, then by what they compute.


def _is_parameter_like(module: nn.Module) -> bool:
    shapes = {getattr(p, "shape", None) for p in module._parameters.values()}
    names = sorted(module._parameters) == sorted(PARAMETERS)
    return names and len(shapes) == 1 and not module._modules and hasattr(module, "curr_weight")


def _norm_kind(module: nn.Module) -> type[nn.Module] | None:
    """The kind of norm whose parameter names the module has, if it has no other parameters or buffers."""
    if isinstance(module, (_Swapped, *_NORM_NAMES)) or module._parameters or module._buffers:
        return None
    children = {name: child for name, child in module._modules.items() if child is not None}
    if not all(isinstance(child, TimeDependent) and child.param0.dim() == 1 for child in children.values()):
        return None
    if len({child.param0.shape for child in children.values()}) != 1:
        return None
    return next((kind for kind, names in _NORM_NAMES.items() if set(children) in names), None)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _random(*shape: int, seed: int) -> Tensor:
    """Random numbers that do not depend on the global generator, default dtype or default device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def _why_not_parameter(module: nn.Module) -> str:
    """The reason why this is not a time-dependent parameter, or "". A copy with random values is seeded to find out."""
    cls = type(module)
    if not callable(getattr(cls, "seed_time", None)):
        return f"{cls.__name__} has no seed_time(model, log_snr)"
    if module.param0.is_meta:
        return "its parameters have no values yet (meta device): load them, then accelerate"
    kept, vars(module)["curr_weight"] = module.curr_weight, None  # the value of the last forward cannot be copied
    try:
        trial = copy.deepcopy(module).float()
        with torch.no_grad():
            for seed, name in enumerate(PARAMETERS):
                getattr(trial, name).copy_(_random(*trial.param0.shape, seed=seed))
            for values in ([1.5, 1.5, 1.5], [3.5, 0.1, -2.5], [30.0, -30.0]):
                log_snr = torch.tensor(values, dtype=torch.float32, device=trial.param0.device)
                cls.seed_time(trial, log_snr)
                rows = log_snr if len(set(values)) > 1 else log_snr[:1]
                expected = tdp(*parameters_of(trial), rows / 4, weight_offset=1.0).expand_as(trial.curr_weight)
                torch.testing.assert_close(trial.curr_weight, expected, rtol=1e-4, atol=1e-5)
                if cls.forward(trial) is not trial.curr_weight:
                    return f"calling a {cls.__name__} does not return its curr_weight"
    except AssertionError as error:
        return f"not what fmkernels.tdp computes: {_first_line(error)}"
    except Exception as error:
        return f"could not be tried: {_first_line(error)}"
    finally:
        vars(module)["curr_weight"] = kept
    return ""


def _try_norm(module: nn.Module, kind: type[nn.Module]) -> tuple[bool, bool]:
    """Compare a norm's forward with the fused one in both modes, on rows of three magnitudes at which eps matters.

    Returns whether it promotes half-precision input to the parameters' dtype, with one row of parameters and with
    several. Raises if the two disagree.
    """
    children = [child for child in module._modules.values() if child is not None]
    slow, training, kept = type(module), module.training, [child.curr_weight for child in children]
    width, device = children[0].param0.shape[0], children[0].param0.device
    magnitudes = torch.tensor([1.0, 1e-3, 1e-7], dtype=torch.float32, device=device)[:, None]
    promotes = {}
    try:
        with torch.no_grad():
            for rows, shape in ((1, (2, 3, width)), (2, (2, 3, width)), (2, (2, 5, 3, width))):
                for seed, child in enumerate(children):
                    child.curr_weight = _random(rows, width, seed=seed).to(device)
                x = _random(*shape, seed=9).to(device) * magnitudes
                for mode in (True, False):
                    module.training = mode
                    try:
                        expected = slow.forward(module, x)
                    except Exception:
                        if len(shape) == 3:
                            raise
                        continue  # this norm takes tokens (B, N, D) only
                    module.__class__ = _norm_class(slow, kind, (False, False))
                    torch.testing.assert_close(module.forward(x), expected, rtol=1e-4, atol=1e-5)
                    module.__class__ = slow
                if len(shape) == 3:
                    promotes[rows] = slow.forward(module, x.bfloat16()).dtype != torch.bfloat16
        return promotes[1], promotes[2]
    finally:
        module.__class__, module.training = slow, training
        for child, weight in zip(children, kept, strict=True):
            child.curr_weight = weight


# The subclasses. Each is determined by the arguments of the function that creates it, so unpickling can recreate it.

_classes: WeakValueDictionary = WeakValueDictionary()


class _Swapped:
    _original: type
    _made: tuple

    def __init_subclass__(cls, **kwargs):
        """Does not call super(), so a registry of the original's subclasses does not receive this class."""

    def __reduce_ex__(self, protocol):
        state = self.__getstate__() if hasattr(self, "__getstate__") else vars(self)
        return _revive, self._made, state


def _revive(make, *args):
    cls = make(*args)
    return cls.__new__(cls)


def _subclass(made: tuple, before: tuple[type, ...] = (), after: tuple[type, ...] = (), key=(), **namespace) -> type:
    """The subclass of made[1] that ``made[0](*made[1:])`` creates; the same one for equal arguments."""
    if (cls := _classes.get((made, key))) is None:
        old = made[1]
        namespace |= {"__module__": old.__module__, "__qualname__": old.__qualname__, "_original": old, "_made": made}
        cls = _classes[made, key] = type(old)(old.__name__, (_Swapped, *before, old, *after), namespace)
    return cls


def _parameter_class(cls: type) -> type:
    """cls as a TimeDependent, with the fused seed_time under the signature of cls.seed_time."""
    names = [*inspect.signature(cls.seed_time).parameters][:2]

    def fast(*args, **kwargs):
        values = [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]
        if len(values) != 2 or len(values) != len(args) + len(kwargs) or not _is_row(values[1]):  # not tested
            return cls.seed_time(*args, **kwargs)
        model, log_snr = values
        if torch.compiler.is_compiling():
            return (cls.seed_time if _has_slow(model, cls) else seed_time)(model, log_snr)
        plan = seeding_plan(model)
        if cls not in plan.has_slow:
            plan.has_slow[cls] = _has_slow(model, cls)
        return cls.seed_time(model, log_snr) if plan.has_slow[cls] else plan.seed(log_snr)

    return _subclass((_parameter_class, cls), (TimeDependent,), seed_time=staticmethod(fast))


def _is_row(log_snr: object) -> bool:
    return isinstance(log_snr, Tensor) and log_snr.dim() <= 1


def _has_slow(model: nn.Module, cls: type) -> bool:
    """Whether the model contains a cls that is not accelerated, because it is new or was restored."""
    return any(isinstance(m, cls) and not isinstance(m, TimeDependent) for m in model.modules())


def _norm_class(cls: type, kind: type[nn.Module], promotes: tuple[bool, bool]) -> type:
    """cls with kind's forward. promotes: the result of ``_try_norm``."""
    one_promotes, many_promote = promotes

    def forward(self, *args, **kwargs):
        if len(args) != 1 or kwargs:  # not tested
            return cls.forward(self, *args, **kwargs)
        (x,), weight = args, next(iter(self._modules.values())).curr_weight
        if weight is not None:
            rows = weight.shape[0]
            if rows != 1 and rows != x.shape[0]:  # one input with the parameters of several samples
                return cls.forward(self, x)
            if x.dtype != weight.dtype and (many_promote if rows > 1 else one_promotes):
                x = x.to(torch.promote_types(x.dtype, weight.dtype))
        return kind.forward(self, x)

    eps = {} if "eps" in vars(cls) else {"eps": kind.eps}
    return _subclass((_norm_class, cls, kind, promotes), forward=forward, **eps)


def _caller_class(cls: type, seeded: frozenset[type]) -> type:
    """cls with copies of the methods that call seed_time of one of these classes, or cls if there are none.

    The copy of a base's method is in a separate class just before the base in the MRO, where super() finds it.
    """
    copies, copied = FunctionCopies({seed: _parameter_class(seed) for seed in seeded}), {}
    for base in cls.__mro__:
        if base not in (nn.Module, object):
            new = {name: copies.of(value) for name, value in vars(base).items()}
            copied[base] = {name: value for name, value in new.items() if value is not vars(base)[name]}
    if not any(copied.values()):
        return cls
    sources = tuple(vars(base)[name] for base, methods in copied.items() for name in methods)  # a class can change
    names = sorted({name for methods in copied.values() for name in methods})
    own = copied.pop(cls)
    bases = tuple(type(base)(base.__name__, (base,), methods) for base, methods in copied.items() if methods)
    return _subclass((_caller_class, cls, seeded), after=bases, key=sources, _methods=names, **own)


def _take_seeding(model: nn.Module, report: Acceleration) -> None:
    """Redirect the modules that call seed_time of an accelerated class to the fused seeding."""
    originals = {m._original for m in time_dependent(model) if isinstance(m, _Swapped)}
    if not originals:
        return
    # The same function can also be called by the name of a base class.
    seeded = frozenset(
        base for cls in originals for base in cls.__mro__ if getattr(base, "seed_time", None) is cls.seed_time
    )
    names = " or ".join(sorted(f"{cls.__name__}.seed_time" for cls in originals))
    slow = [n for n, m in model.named_modules() if isinstance(m, tuple(seeded)) and not isinstance(m, TimeDependent)]
    if slow:
        report.left.append((names, f"it seeds {slow[0]} as well, which is not accelerated"))
        return
    found, caller_class = False, functools.cache(lambda cls: _caller_class(cls, seeded))
    for name, module in model.named_modules():
        own = module._original if isinstance(module, _Swapped) else type(module)
        if isinstance(module, TimeDependent) or (caller := caller_class(own)) is own:
            continue
        if "forward" in vars(module):
            report.left.append(
                (f"{name or own.__name__}.forward", "it is set on the instance: accelerate before wrapping")
            )
        found = True
        if type(module) is not caller:
            module.__class__ = caller
            methods = [f"{own.__name__}.{method}" for method in caller._methods]
            report.seeding += [method for method in methods if method not in report.seeding]
    if not found:
        report.left.append(
            (names, "no method of the model that could be read calls it; it still works, by its own walk. "
                    "In your code, call fmkernels.nn.seed_time(model, log_snr) instead")
        )  # fmt: skip
