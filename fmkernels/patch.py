"""``accelerate(model)``: the fast paths of ``fmkernels.nn`` for a model of classes never seen before.

Time-dependent parameters and norms are recognised by their structure, and believed only after a trial:
what a class computes on random input must be what the fused op computes. A recognised module's
``__class__`` becomes a subclass made here, so its parameters, its state-dict keys and ``isinstance`` stay as
they are, its class is not touched, and ``restore(model)`` is the way back.

The original seeds by a static method, ``TimeDependentParameter.seed_time(self, log_snr)``, called from the
model's forward: a walk over all modules and a wait for ``log_snr``. No instance can override that. So the methods
that call it are copied for this model, with the class's name standing for the subclass made here.
"""

import copy
import dis
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType

import torch
from torch import Tensor, nn

from fmkernels.nn import FOUR, TDLayerNorm, TDRMSNorm, TimeDependent, seed_time
from fmkernels.ops import tdp

_NORM_NAMES = {TDRMSNorm: ({"scale"}, {"scale", "offset"}), TDLayerNorm: ({"weight", "bias"},)}


@dataclass
class Acceleration:
    """What ``accelerate`` changed: ``print(report)``. ``left`` names what was recognised but not believed, and why."""

    parameters: int = 0
    elements: int = 0
    norms: dict[str, int] = field(default_factory=dict)
    seeding: list[str] = field(default_factory=list)
    already: int = 0
    left: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        norms = ", ".join(f"{count} {kind}" for kind, count in self.norms.items()) or "none"
        lines = [
            f"time-dependent parameters: {self.parameters} ({self.elements:,} elements), evaluated by one call",
            f"norms, fused: {norms}",
            f"seeding, without walk or wait: {', '.join(self.seeding) or 'nothing changed'}",
        ]
        if self.already:
            lines.append(f"already accelerated: {self.already} modules")
        return "\n".join(lines + [f"left as it was: {name}: {reason}" for name, reason in self.left])


def accelerate(model: nn.Module) -> Acceleration:
    """Gives the model's time-dependent parameters and norms their fast paths, in place; returns a report.

    Works on any class with the original's structure. Outputs, gradients and state dict stay what they were.
    A second call changes only what is new; ``restore(model)`` undoes it. Raises TypeError for a non-module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"accelerate: model must be a torch.nn.Module, got {type(model).__name__}")
    report = Acceleration(already=sum(isinstance(m, (_Swapped, TimeDependent)) for m in model.modules()))
    doubts: dict[type, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, TimeDependent) or not _has_four(module):
            continue
        vars(module)["curr_weight"] = None  # a leftover of the last forward, which no copy could be made of
        cls = type(module)
        if cls not in doubts:
            doubts[cls] = _doubt_about_parameter(module)
        if doubts[cls]:
            report.left.append((name, doubts[cls]))
            continue
        module.__class__ = _parameter_class(cls)
        report.parameters += 1
        report.elements += module.param0.numel()
    for name, module in model.named_modules():
        kind = _norm_kind(module)
        if kind is None:
            continue
        try:
            promotes = _try_norm(module, kind)
        except Exception as error:
            report.left.append((name, f"it does not compute what {kind.__name__} does: {error}"))
            continue
        module.__class__ = _norm_class(type(module), kind, promotes)
        report.norms[kind.__name__] = report.norms.get(kind.__name__, 0) + 1
    _take_seeding(model, report)
    return report


def restore(model: nn.Module) -> None:
    """Undoes :func:`accelerate`: every module has its own class again. Parameters are not touched."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"restore: model must be a torch.nn.Module, got {type(model).__name__}")
    for module in model.modules():
        if isinstance(module, TimeDependent) and isinstance(module, _Swapped):
            vars(module).update(curr_weight=None)
            vars(module).pop("_seeded", None)
        if isinstance(module, _Swapped):
            module.__class__ = module._original
        vars(module).pop("_fmkernels_seeds", None)


# Recognising, by structure, then by what is computed.


def _has_four(module: nn.Module) -> bool:
    shapes = {getattr(p, "shape", None) for p in module._parameters.values()}
    return (
        sorted(module._parameters) == sorted(FOUR)
        and len(shapes) == 1
        and not module._modules
        and "curr_weight" in vars(module)
    )


def _norm_kind(module: nn.Module) -> type[nn.Module] | None:
    """Time-dependent vectors under the right names, and nothing else with parameters."""
    if isinstance(module, (_Swapped, TDRMSNorm, TDLayerNorm)) or module._parameters or module._buffers:
        return None
    children = {name: child for name, child in module._modules.items() if child is not None}
    if not all(isinstance(child, TimeDependent) and child.param0.dim() == 1 for child in children.values()):
        return None
    if len({child.param0.shape for child in children.values()}) != 1:
        return None
    return next((kind for kind, names in _NORM_NAMES.items() if set(children) in names), None)


def _doubt_about_parameter(module: nn.Module) -> str:
    """Why this class is not the time-dependent parameter it looks like, or "": a copy with random values is seeded."""
    cls = type(module)
    if not callable(getattr(cls, "seed_time", None)):
        return f"{cls.__name__} has no seed_time(model, log_snr)"
    if module.param0.is_meta:
        return "its parameters have no values yet (meta device): load them, then accelerate"
    trial = copy.deepcopy(module).float()
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for name in FOUR:
                getattr(trial, name).copy_(torch.randn(trial.param0.shape, generator=generator))
            for values in ([1.5, 1.5, 1.5], [3.5, 0.1, -2.5]):
                log_snr = torch.tensor(values, device=trial.param0.device)
                cls.seed_time(trial, log_snr)
                rows = log_snr if len(set(values)) > 1 else log_snr[:1]
                expected = tdp(*(getattr(trial, name) for name in FOUR), rows / 4, weight_offset=1.0)
                torch.testing.assert_close(trial.curr_weight, expected, rtol=1e-4, atol=1e-5)
                if cls.forward(trial) is not trial.curr_weight:
                    return f"calling a {cls.__name__} does not return its curr_weight"
    except Exception as error:
        return f"{cls.__name__} does not compute what fmkernels.tdp does: {error}"
    return ""


def _try_norm(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Compares a norm's forward with the fused one on rows of three magnitudes, where eps shows.

    Returns whether it answers half-precision input in the parameters' dtype; raises if the two disagree.
    """
    children = [child for child in module._modules.values() if child is not None]
    slow, width, device = type(module), children[0].param0.shape[0], children[0].param0.device
    generator = torch.Generator().manual_seed(0)
    magnitudes = torch.tensor([1.0, 1e-3, 1e-7])[:, None]
    try:
        with torch.no_grad():
            for rows, shape in ((1, (2, 3, width)), (2, (2, 5, 3, width))):
                for child in children:
                    child.curr_weight = torch.randn(rows, width, generator=generator).to(device)
                x = (torch.randn(shape, generator=generator) * magnitudes).to(device)
                expected = slow.forward(module, x)
                module.__class__ = _norm_class(slow, kind, False)
                torch.testing.assert_close(module.forward(x), expected, rtol=1e-4, atol=1e-5)
                module.__class__ = slow
            return slow.forward(module, x.bfloat16()).dtype != torch.bfloat16
    finally:
        module.__class__ = slow
        for child in children:
            child.curr_weight = None


# The subclasses. Each is a function of what it was made from, so that a pickle can make it again.


class _Swapped:
    _original: type
    _made: tuple

    def __reduce_ex__(self, protocol):
        state = self.__getstate__() if hasattr(self, "__getstate__") else vars(self)
        return _revive, self._made, state


def _revive(make, *args):
    cls = make(*args)
    return cls.__new__(cls)


def _subclass(cls: type, bases: tuple[type, ...], made: tuple, **namespace) -> type:
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_original": cls, "_made": made}
    return type(cls)(cls.__name__, (_Swapped, *bases, cls), names | namespace)


@functools.cache
def _parameter_class(cls: type) -> type:
    return _subclass(cls, (TimeDependent,), (_parameter_class, cls))


@functools.cache
def _norm_class(cls: type, kind: type[nn.Module], promotes: bool) -> type:
    def forward(self, x: Tensor) -> Tensor:
        if promotes and x.dtype != (dtype := next(iter(self._modules.values())).param0.dtype):
            x = x.to(torch.promote_types(x.dtype, dtype))
        return kind.forward(self, x)

    eps = {} if "eps" in vars(cls) else {"eps": kind.eps}
    return _subclass(cls, (), (_norm_class, cls, kind, promotes), forward=forward, **eps)


@functools.cache
def _caller_class(cls: type, parameter_classes: frozenset[type]) -> type:
    """cls with its methods that call one of these classes' seed_time calling the fast one; cls if there are none."""
    copies = _Copies(parameter_classes)
    methods = {}
    for base in reversed(cls.__mro__[: cls.__mro__.index(nn.Module)]):
        for name, value in vars(base).items():
            methods.pop(name, None)
            if isinstance(value, FunctionType) and (copied := copies.of(value)) is not value:
                methods[name] = copied
    return _subclass(cls, (), (_caller_class, cls, parameter_classes), **methods) if methods else cls


def _take_seeding(model: nn.Module, report: Acceleration) -> None:
    swapped = {type(m) for m in model.modules() if isinstance(m, _Swapped) and isinstance(m, TimeDependent)}
    if not swapped:
        return
    originals = frozenset(cls._original for cls in swapped)
    found = False
    for module in model.modules():
        if isinstance(module, TimeDependent):
            continue
        own = module._original if isinstance(module, _Swapped) else type(module)
        caller = _caller_class(own, originals)
        if caller is own:
            continue
        found = True
        if type(module) is not caller:
            module.__class__ = caller
            report.seeding += [
                f"{own.__name__}.{name}" for name, f in vars(caller).items() if isinstance(f, FunctionType)
            ]
    if not found:
        names = " or ".join(sorted(f"{cls.__name__}.seed_time" for cls in originals))
        report.left.append(
            (names, "no method of the model calls it; if your loop does, call fmkernels.nn.seed_time(model, log_snr)")
        )


class _Copies:
    """Copies of functions in which the names of some classes mean the subclasses made here."""

    def __init__(self, classes: frozenset[type]):
        self.classes, self.made = classes, {}

    def of(self, function: FunctionType) -> FunctionType:
        """A copy, or ``function`` itself if neither it nor a function it wraps or calls seeds one of the classes."""
        if id(function) not in self.made:
            self.made[id(function)] = function  # while those it calls are looked at: they may call it
            names = set(_names(function.__code__))
            scope, cells = function.__globals__, function.__closure__ or ()
            ours = {
                n: new for n in names & scope.keys() if (new := self._global(scope[n], names, scope)) is not scope[n]
            }
            wrapped = tuple(self._cell(cell, names) for cell in cells)
            if (ours or wrapped != cells) and not _assigns_globals(function.__code__):
                self.made[id(function)] = _copy(function, ours, names - ours.keys(), wrapped)
        return self.made[id(function)]

    def _global(self, value, names: set[str], scope: dict):
        """What a global means in the copy: a helper of the same module is copied too."""
        if isinstance(value, FunctionType) and value.__globals__ is scope:
            return self.of(value)
        return self._instead(value, names)

    def _cell(self, cell, names: set[str]):
        """What an enclosed variable means in the copy: what a decorator wraps is copied too."""
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            return cell
        new = self.of(value) if isinstance(value, FunctionType) else self._instead(value, names)
        return cell if new is value else type(cell)(new)

    def _instead(self, value, names: set[str]):
        if any(value is cls.seed_time for cls in self.classes):
            return seed_time
        if "seed_time" not in names:
            return value
        if isinstance(value, type) and value in self.classes:
            return _parameter_class(value)
        if isinstance(value, ModuleType):
            inside = {n: vars(value).get(n) for n in names}
            inside = {n: _parameter_class(v) for n, v in inside.items() if isinstance(v, type) and v in self.classes}
            if inside:
                view = ModuleType(value.__name__)
                vars(view).update(vars(value) | inside)
                return view
        return value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _assigns_globals(code: CodeType) -> bool:
    return any(i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for i in dis.get_instructions(code))


def _copy(function: FunctionType, ours: dict, others: set[str], cells: tuple) -> FunctionType:
    """function with ``ours`` among its globals; the others are looked up in its module at every call, as ever."""
    scope = function.__globals__
    view = {"__builtins__": scope["__builtins__"]} | ours
    inner = FunctionType(function.__code__, view, function.__name__, function.__defaults__, cells or None)
    inner.__kwdefaults__ = function.__kwdefaults__

    def look() -> None:
        view.update({name: scope[name] for name in others if name in scope})

    look()

    @functools.wraps(function)
    def call(*args, **kwargs):
        if not torch.compiler.is_compiling():
            look()
        return inner(*args, **kwargs)

    return call
