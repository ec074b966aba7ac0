"""Copies of functions in which the name of a class refers to a stand-in, for ``accelerate`` (patch.py).

In a copy of ::

    def forward(self, x, log_snr):
        TimeDependentParameter.seed_time(self, log_snr)
        return self.blocks(x)

the globals are those of the module, except for the name ``TimeDependentParameter``. The module, the class and the
original function are not modified.
"""

import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

import torch


class FunctionCopies:
    """Copies of functions that call ``seed_time`` of a class. stand_ins: class -> the class that its name refers to."""

    def __init__(self, stand_ins: dict[type, type]):
        self.stand_ins, self.made = stand_ins, {}

    def of(self, value):
        """The copy of a function or method, or ``value`` itself if nothing in it calls ``seed_time`` of the classes."""
        if isinstance(value, (staticmethod, classmethod)):
            copied = self.of(value.__func__)
            return value if copied is value.__func__ else type(value)(copied)
        if not isinstance(value, FunctionType):
            return value
        if id(value) not in self.made:
            self.made[id(value)] = value  # functions that it calls may call it
            self.made[id(value)] = self._copy(value)
        return self.made[id(value)]

    def _copy(self, function: FunctionType) -> FunctionType:
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        scope, cells = function.__globals__, function.__closure__ or ()
        replaced = {n: self._referent(scope[n], names, scope) for n in names & scope.keys()}
        replaced = {n: new for n, new in replaced.items() if new is not scope[n]}
        new_cells = tuple(self._cell(cell, names) for cell in cells)
        if (not replaced and new_cells == cells) or _assigns_globals(function.__code__):
            return function
        return _with_globals(function, replaced, names - replaced.keys(), new_cells)

    def _cell(self, cell, names: set[str]):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            return cell
        new = self._referent(value, names)
        return cell if new is value else type(cell)(new)

    def _referent(self, value, names: set[str], scope: dict | None = None):
        """What a global of ``scope`` or, without a scope, a closure variable refers to in the copy.

        Helper functions in the same module and functions wrapped by a decorator are copied too.
        """
        if isinstance(value, FunctionType) and (scope is None or value.__globals__ is scope):
            return self.of(value)
        for cls, stand_in in self.stand_ins.items():
            if value is cls.seed_time:
                return stand_in.seed_time
            if value is cls and "seed_time" in names:
                return stand_in
        if isinstance(value, ModuleType) and "seed_time" in names:
            attributes = {n: vars(value).get(n) for n in names}
            classes = {n: cls for n, cls in attributes.items() if isinstance(cls, type) and cls in self.stand_ins}
            if classes:
                view = ModuleType(value.__name__)
                vars(view).update({n: self.stand_ins[cls] for n, cls in classes.items()})
                view.__getattr__ = functools.partial(getattr, value)
                return view
        return value


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of the functions defined inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _assigns_globals(code: CodeType) -> bool:
    return any("_GLOBAL" in i.opname and i.opname != "LOAD_GLOBAL" for part in _codes(code) for i in dis.Bytecode(part))


def _with_globals(function: FunctionType, replaced: dict, others: set[str], cells: tuple) -> FunctionType:
    """A copy of ``function`` with ``replaced`` globals; the others are looked up in its module at every call.

    (Compiled code does not look them up again. A global that changes is seen by the next compilation.)
    """
    scope = function.__globals__
    view = {n: scope[n] for n in ("__builtins__", "__package__", "__spec__", "__file__") if n in scope} | replaced
    inner = FunctionType(function.__code__, view, function.__name__, function.__defaults__, cells or None)
    inner.__kwdefaults__ = function.__kwdefaults__

    def look_up() -> None:
        view.update({name: scope[name] for name in others if name in scope})

    look_up()

    @functools.wraps(function)
    def call(*args, **kwargs):
        if not torch.compiler.is_compiling():
            look_up()
        return inner(*args, **kwargs)

    return call
