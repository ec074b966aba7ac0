"""Modules whose parameters depend on time; their state-dict keys are CrossFlow's.

``seed_time(model, log_snr)`` evaluates every time-dependent parameter below ``model`` in one call, and
the forward that follows reads them. ``fmkernels.patch`` gives the same to somebody else's classes.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import is_
from sys import getrefcount
from weakref import ref

import torch
from torch import Tensor, nn

from fmkernels.ops import TdpGroup, _check, depthwise, linear, td_layer_norm, td_rms_norm, tdp_group

FOUR = ("param0", "param1", "nodecay_weight", "nodecay_bias")
SEEDS = "_fmkernels_seeds"  # in the __dict__ of a model that was seeded
_converted = 0  # counts conversions of time-dependent modules: .to(), .half() …


class TimeDependent(nn.Module):
    """What a module with param0, param1, nodecay_weight and nodecay_bias needs to be seeded with all others.

    ``curr_weight`` is (T, \\*shape) after ``seed_time``, T being 1 or the batch; calling the module returns it.
    """

    curr_weight: Tensor | None
    _frozen = False  # True inside TimeTable.at

    def forward(self) -> Tensor:
        if self.curr_weight is None:
            raise RuntimeError(
                f"this {type(self).__name__} has no value yet: call seed_time(model, log_snr) on the model that "
                f"holds it, before its forward"
            )
        return self.curr_weight

    def __getstate__(self):
        # A value belongs to the forward it was made for; a copy gets its own.
        state = super().__getstate__() if hasattr(super(), "__getstate__") else self.__dict__
        return {k: v for k, v in state.items() if k != "_frozen"} | {"curr_weight": None}

    def _apply(self, *args, **kwargs):
        global _converted
        _converted += 1
        return super()._apply(*args, **kwargs)

    @staticmethod
    def seed_time(model: nn.Module, log_snr: Tensor) -> None:
        """:func:`seed_time`; CrossFlow has it here."""
        seed_time(model, log_snr)


class _Batch:
    """Modules whose values have one dtype and device: what one call evaluates."""

    def __init__(self, modules: list[TimeDependent]):
        self.slots = [vars(m) for m in modules]
        self.group = TdpGroup([four(m) for m in modules])
        self.device, self.buffer, self.uses = modules[0].param0.device, None, 0

    def evaluate(self, times: Tensor) -> list[Tensor]:
        times = times.to(self.device)
        if not self.group.all_vectors:
            return [w.contiguous() for w in tdp_group(self.group, times)]
        if torch.is_grad_enabled() or _check.traced():
            return tdp_group(self.group, times)
        if not self._reusable(len(times)):
            with torch.inference_mode(False):  # it will be written in and out of that mode
                self.buffer = self.group.empty(len(times))
            self.uses = _uses(self.buffer.flat)
        return tdp_group(self.group, times, out=self.buffer)

    def _reusable(self, rows: int) -> bool:
        """The last values can be overwritten: nobody has them, a view of them, or a graph that saved them.

        Each is held by the buffer, by its module, and by getrefcount itself: by three.
        """
        return (
            self.buffer is not None
            and self.buffer.flat.shape[0] == rows
            and self.buffer.flat.dtype == self.group.look()
            and _uses(self.buffer.flat) == self.uses
            and set(map(getrefcount, self.buffer)) == {3}
        )

    def put(self, weights: Sequence[Tensor]) -> None:
        for slot, weight in zip(self.slots, weights, strict=True):
            slot["curr_weight"] = weight


def _uses(x: Tensor) -> int:
    """How many tensors share x's memory."""
    return torch._C._storage_Use_Count(x.untyped_storage()._cdata)


class Seeds:
    """The time-dependent parameters below a model, found by a walk, and found anew once anything there changed."""

    def __init__(self, model: nn.Module):
        self.model, self.converted, self.slow = ref(model), _converted, {}  # slow: a note of patch.py
        self.modules = time_dependent(model)
        # What has children, or is made to be given some.
        containers = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
        self.trees = [m._modules for m in model.modules() if m._modules or isinstance(m, containers)]
        self.types = [type(m) for m in self.modules]
        self.dicts = [m._parameters for m in self.modules]
        self.children, self.parameters = self._children(), list(self._parameters())
        self.groups = [_Batch(modules) for modules in _alike(self.modules)]
        # A parametrisation computes its tensors anew each time they are asked for.
        self.lasting = all(d.get(name) is not None for d in self.dicts for name in FOUR)

    def _children(self) -> list:
        return list(chain.from_iterable(map(dict.values, self.trees)))

    def _parameters(self) -> Iterator[Tensor | None]:
        return chain.from_iterable(map(dict.values, self.dicts))

    def hold(self, model: nn.Module) -> bool:
        """Nothing was replaced since: a tenth of the walk."""
        return (
            self.lasting
            and self.converted == _converted
            and self.model() is model
            and self._children() == self.children
            and all(map(is_, self._parameters(), self.parameters))
            and sum(map(len, self.dicts)) == len(self.parameters)
            and list(map(type, self.modules)) == self.types
        )

    def seed(self, log_snr: Tensor) -> None:
        if self.modules and not self.modules[0]._frozen:
            times = _distinct(_flat(log_snr)) / 4
            for group in self.groups:
                group.put(group.evaluate(times))

    def __reduce__(self):
        return _nothing, ()


def _nothing() -> None:
    """What a copy of a model has instead of its Seeds."""


def time_dependent(model: nn.Module) -> list[TimeDependent]:
    return [m for m in model.modules() if isinstance(m, TimeDependent)]


def _alike(modules: list[TimeDependent]) -> list[list[TimeDependent]]:
    """Sorted by the dtype and device of their values."""
    found = defaultdict(list)
    for m in modules:
        found[torch.promote_types(m.param0.dtype, m.param1.dtype), m.param0.device].append(m)
    return list(found.values())


def four(module: TimeDependent) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(getattr(module, name) for name in FOUR)


def seeds_of(model: nn.Module) -> Seeds:
    seeds = vars(model).get(SEEDS)
    if seeds is None or not seeds.hold(model):
        seeds = vars(model)[SEEDS] = Seeds(model)
    return seeds


def seed_time(model: nn.Module, log_snr: Tensor) -> None:
    """Evaluates all time-dependent parameters below ``model`` at ``log_snr / 4``, in one call.

    log_snr: (B,), or one element for all samples. One row is made if the samples share their time and that
    can be seen without waiting for a device (one element, an expanded tensor, or CPU memory), else B rows.
    Gradients go to the parameters. Inside ``TimeTable.at(k)`` the table's row is kept.
    """
    if torch.compiler.is_compiling():  # the compiler walks once; the lists kept here would only get in its way
        for modules in _alike([m for m in time_dependent(model) if not m._frozen]):
            rows = tdp_group([four(m) for m in modules], _flat(log_snr).to(modules[0].param0.device) / 4)
            for module, row in zip(modules, rows, strict=True):
                module.curr_weight = row
        return
    seeds_of(model).seed(log_snr)


def _flat(log_snr: Tensor) -> Tensor:
    if not isinstance(log_snr, Tensor) or log_snr.dim() > 1 or log_snr.numel() == 0:
        got = tuple(log_snr.shape) if isinstance(log_snr, Tensor) else type(log_snr).__name__
        raise ValueError(f"seed_time: log_snr must be a tensor of shape (B,) with B > 0, got {got}")
    return log_snr.reshape(-1)


def _distinct(log_snr: Tensor) -> Tensor:
    """The first element if all are known to equal it. Reading CPU memory waits for nobody."""
    if log_snr.stride(0) == 0:
        return log_snr[:1]
    if log_snr.is_cpu and not log_snr.requires_grad and not _check.traced():
        values = log_snr.tolist()
        if values.count(values[0]) == len(values):
            return log_snr[:1]
    return log_snr


class TimeTable:
    """All time-dependent parameters of a model at all steps of a schedule, made by one call.

    log_snr: (N,), one a step. ``with table.at(k): v = model(x, log_snr)`` runs step k on the table's row k; the
    model's own seeding inside does nothing. Without gradients: a table is for sampling, and does not follow
    parameters that change after it was made.
    """

    def __init__(self, model: nn.Module, log_snr: Tensor):
        if not isinstance(log_snr, Tensor) or log_snr.dim() != 1:
            raise ValueError("TimeTable: log_snr must be a tensor of shape (N,), one value a step")
        self.seeds, self.steps = Seeds(model), len(log_snr)
        if not self.seeds.groups:
            raise ValueError(
                "TimeTable: model has no time-dependent parameters; if it is not built from fmkernels.nn, "
                "call fmkernels.accelerate(model) first"
            )
        with torch.no_grad():
            self.rows = [
                list(zip(*(w.split(1) for w in g.evaluate(log_snr / 4)), strict=True)) for g in self.seeds.groups
            ]

    def __len__(self) -> int:
        return self.steps

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        if not 0 <= step < len(self):
            raise IndexError(f"TimeTable: step must be in 0 … {len(self) - 1}, got {step}")
        for group, rows in zip(self.seeds.groups, self.rows, strict=True):
            group.put(rows[step])
        slots = [vars(m) for m in self.seeds.modules]
        for slot in slots:
            slot["_frozen"] = True
        try:
            yield
        finally:
            for slot in slots:
                slot.pop("_frozen", None)


class TimeDependentParameter(TimeDependent):
    """``param1 + sigmoid(log_snr/4 (nodecay_weight + 1) + nodecay_bias) (param0 - param1)``, called without argument.

    Both ends start at ``value``. Parameters named ``nodecay_*`` are meant to be left out of weight decay.
    """

    def __init__(self, shape: int | Sequence[int], value: float = 1.0):
        super().__init__()
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        for name in FOUR:
            setattr(self, name, nn.Parameter(torch.empty(shape)))
        self.value, self.curr_weight = float(value), None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter, start in zip(four(self), (self.value, self.value, 0.0, 0.0), strict=True):
            nn.init.constant_(parameter, start)

    def extra_repr(self) -> str:
        return f"{tuple(self.param0.shape)}"


class Linear(nn.Linear):
    """nn.Linear by :func:`fmkernels.linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class DepthwiseConv(nn.Conv2d):
    """``nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim)`` on a grid (B, H, W, dim), by
    :func:`fmkernels.depthwise`."""

    def __init__(self, dim: int, kernel: int):
        super().__init__(dim, dim, kernel, padding=kernel // 2, groups=dim)

    def forward(self, input: Tensor) -> Tensor:
        return depthwise(input, self.weight, self.bias)


class TDRMSNorm(nn.Module):
    """``x / (|x| d^(-1/2) + eps) * scale (+ offset)`` with time-dependent scale and offset: see td_rms_norm."""

    eps = 1e-8

    def __init__(self, dim: int, *, offset: bool = False, eps: float = 1e-8):
        super().__init__()
        self.eps = eps
        self.scale = TimeDependentParameter(dim)
        self.offset = TimeDependentParameter(dim, 0.0) if offset else None

    def forward(
        self, x: Tensor, residual: Tensor | None = None, out: Tensor | tuple[Tensor, Tensor] | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        parts = self._modules  # without the detours of module.name and module(): this is called a hundred times a step
        offset = parts.get("offset")
        offset = None if offset is None else offset.forward()
        return td_rms_norm(x, parts["scale"].forward(), offset, residual=residual, eps=self.eps, out=out)


class TDLayerNorm(nn.Module):
    """Layer norm with time-dependent weight and bias, also over a list of tensors: see td_layer_norm."""

    eps = 1e-5

    def __init__(self, dim: int, *, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = TimeDependentParameter(dim)
        self.bias = TimeDependentParameter(dim, 0.0)

    def forward(
        self,
        x: Tensor | Sequence[Tensor],
        residual: Tensor | None = None,
        out: Tensor | tuple[Tensor, Tensor] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        weight, bias = self._modules["weight"].forward(), self._modules["bias"].forward()
        return td_layer_norm(x, weight, bias, residual=residual, eps=self.eps, out=out)
