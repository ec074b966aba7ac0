"""Copies of functions in which a class's name means another class, for one model and without touching anything else.

Of ::

    def forward(self, x, log_snr):
        TimeDependentParameter.seed_time(self, log_snr)
        return self.blocks(x)

the copy's globals are the module's, but for the name ``TimeDependentParameter``. Used by patch.py.
"""

import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

import torch


class Copies:
    """Copies of functions in which the names of some classes, that have a seed_time, mean others.

    stand_ins: class -> what its name is to mean. Functions that seed none of the classes stay themselves.
    """

    def __init__(self, stand_ins: dict[type, type]):
        self.stand_ins, self.made = stand_ins, {}

    def of_attribute(self, value):
        if isinstance(value, (staticmethod, classmethod)):
            copied = self.of_attribute(value.__func__)
            return value if copied is value.__func__ else type(value)(copied)
        return self.of(value) if isinstance(value, FunctionType) else value

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
        for cls, stand_in in self.stand_ins.items():
            if value is cls.seed_time:
                return stand_in.seed_time
        if "seed_time" not in names:
            return value
        if isinstance(value, type) and value in self.stand_ins:
            return self.stand_ins[value]
        if isinstance(value, ModuleType):
            inside = {n: vars(value).get(n) for n in names}
            inside = {n: self.stand_ins[v] for n, v in inside.items() if isinstance(v, type) and v in self.stand_ins}
            return _View(value, inside) if inside else value
        return value


class _View(ModuleType):
    """A module in which some names mean something else."""

    def __init__(self, module: ModuleType, inside: dict):
        super().__init__(module.__name__)
        vars(self).update(inside, _module=module)

    def __getattr__(self, name):
        return getattr(vars(self)["_module"], name)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names(code: CodeType) -> Iterator[str]:
    return (name for part in _codes(code) for name in part.co_names)


def _assigns_globals(code: CodeType) -> bool:
    return any("_GLOBAL" in i.opname and i.opname != "LOAD_GLOBAL" for part in _codes(code) for i in dis.Bytecode(part))


def _copy(function: FunctionType, ours: dict, others: set[str], cells: tuple) -> FunctionType:
    """function with ``ours`` among its globals; the others are looked up in its module at every call, as ever.

    (Code that was compiled has looked before: there, a global that changes is seen by the next compilation.)
    """
    scope = function.__globals__
    view = {n: scope[n] for n in ("__builtins__", "__package__", "__spec__", "__file__") if n in scope} | ours
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
