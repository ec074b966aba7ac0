"""Modules with time-dependent parameters; their state-dict keys are CrossFlow's.

``seed_time(model, log_snr)`` evaluates all time-dependent parameters of ``model`` in one call, and the forward that
follows reads the values. ``fmkernels.patch`` does the same for third-party classes.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import is_
from sys import getrefcount
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from fmkernels import checks
from fmkernels.ops import (
    TdpGroup,
    depthwise,
    linear,
    td_layer_norm,
    td_layer_norm_int8,
    td_rms_norm,
    td_rms_norm_int8,
    tdp_group,
)

PARAMETERS = ("param0", "param1", "nodecay_weight", "nodecay_bias")
PLAN = "_fmkernels_seeding_plan"  # the key in the __dict__ of a seeded model
_conversions = 0  # counts .to(), .half(), … of time-dependent modules, which replace the data of the same parameters


class TimeDependent(nn.Module):
    """Base class of modules with ``PARAMETERS`` that ``seed_time`` evaluates together.

    ``curr_weight`` is (T, \\*shape) after ``seed_time``, where T is 1 or the batch size; a call returns it.
    """

    curr_weight: Tensor | None
    _frozen = False  # True inside TimeTable.at

    def forward(self) -> Tensor:
        if self.curr_weight is None:
            raise RuntimeError(
                f"this {type(self).__name__} has no value yet: call seed_time(model, log_snr) on the model that "
                f"contains it before its forward"
            )
        return self.curr_weight

    def __getstate__(self):
        # A value belongs to the forward that it was computed for, so a copy starts without one.
        state = super().__getstate__() if hasattr(super(), "__getstate__") else self.__dict__
        return {k: v for k, v in state.items() if k != "_frozen"} | {"curr_weight": None}

    def _apply(self, *args, **kwargs):
        global _conversions
        _conversions += 1
        return super()._apply(*args, **kwargs)

    @staticmethod
    def seed_time(model: nn.Module, log_snr: Tensor) -> None:
        """Call :func:`seed_time`. CrossFlow defines it in this place."""
        seed_time(model, log_snr)


class _Group:
    """Modules whose values have the same dtype and device, evaluated by one call."""

    def __init__(self, modules: list[TimeDependent]):
        self.slots = [vars(m) for m in modules]
        self.group = TdpGroup([parameters_of(m) for m in modules])
        self.device, self.buffer, self.uses = modules[0].param0.device, None, 0

    def evaluate(self, times: Tensor) -> list[Tensor]:
        times = times.to(self.device)
        if not self.group.all_vectors:
            return [w.contiguous() for w in tdp_group(self.group, times)]
        if torch.is_grad_enabled() or checks.traced():
            return tdp_group(self.group, times)
        if not self._reusable(len(times)):
            with torch.inference_mode(False):  # the buffer is written in and out of inference mode
                self.buffer = self.group.empty(len(times))
            self.uses = _uses(self.buffer.flat)
        return tdp_group(self.group, times, out=self.buffer)

    def _reusable(self, rows: int) -> bool:
        """Whether the last values can be overwritten: no caller, view or graph holds them.

        Three references to each value are known: the buffer's, the module's and the argument of getrefcount.
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
    """The number of tensors that share x's memory."""
    return torch._C._storage_Use_Count(x.untyped_storage()._cdata)


class SeedingPlan:
    """The time-dependent parameters of a model in groups. The model keeps it for as long as ``is_current``."""

    def __init__(self, model: nn.Module):
        self.modules = time_dependent(model)
        self.groups = [_Group(modules) for modules in _alike(self.modules)]
        self.has_slow: dict[type, bool] = {}  # used by patch.py
        # Modules with children, and those to which children are usually added later.
        containers = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
        trees = [m._modules for m in model.modules() if m._modules or isinstance(m, containers)]
        self.dicts = [*trees, *(m._parameters for m in self.modules)]
        # A parametrization computes a new tensor at every access: such a plan is used only once.
        lasting = all(m._parameters.get(name) is not None for m in self.modules for name in PARAMETERS)
        self.parts = self._parts(model) if lasting else []

    def _parts(self, model: nn.Module) -> list:
        """The objects that the plan was made from: classes, children and parameters."""
        values = chain.from_iterable(map(dict.values, self.dicts))
        return [ref(model), _conversions, *map(type, self.modules), *values]

    def is_current(self, model: nn.Module) -> bool:
        """Whether this is the model's own plan, and nothing that it was made from has been replaced."""
        parts = self._parts(model)
        return len(parts) == len(self.parts) and all(map(is_, parts, self.parts))

    def seed(self, log_snr: Tensor) -> None:
        if self.modules and not self.modules[0]._frozen:
            times = _distinct(_flat(log_snr)) / 4
            for group in self.groups:
                group.put(group.evaluate(times))

    def __reduce__(self):
        return type(None), ()  # a copy of a model has None in the place of the plan, and makes its own


def time_dependent(model: nn.Module) -> list[TimeDependent]:
    return [m for m in model.modules() if isinstance(m, TimeDependent)]


def _alike(modules: list[TimeDependent]) -> list[list[TimeDependent]]:
    """The modules in groups whose values have the same dtype and device."""
    found = defaultdict(list)
    for m in modules:
        found[torch.promote_types(m.param0.dtype, m.param1.dtype), m.param0.device].append(m)
    return list(found.values())


def parameters_of(module: TimeDependent) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(getattr(module, name) for name in PARAMETERS)


def seeding_plan(model: nn.Module) -> SeedingPlan:
    plan = vars(model).get(PLAN)
    if plan is None or not plan.is_current(model):
        plan = vars(model)[PLAN] = SeedingPlan(model)
    return plan


def seed_time(model: nn.Module, log_snr: Tensor) -> None:
    """Evaluate all time-dependent parameters of ``model`` at ``log_snr / 4`` in one call.

    log_snr has shape (B,), or one element for all samples; otherwise, a ValueError is raised. One row is computed if
    it can be seen without synchronization that all samples share their time (one element, an expanded tensor, or
    CPU memory), otherwise B rows. The parameters receive gradients. Inside ``TimeTable.at(k)``, the row of the table
    is kept.
    """
    if torch.compiler.is_compiling():  # the compiler walks over the model once, and a plan would add graph inputs
        for modules in _alike([m for m in time_dependent(model) if not m._frozen]):
            rows = tdp_group([parameters_of(m) for m in modules], _flat(log_snr).to(modules[0].param0.device) / 4)
            for module, row in zip(modules, rows, strict=True):
                module.curr_weight = row
        return
    seeding_plan(model).seed(log_snr)


def _flat(log_snr: Tensor) -> Tensor:
    if not isinstance(log_snr, Tensor) or log_snr.dim() > 1 or log_snr.numel() == 0:
        got = tuple(log_snr.shape) if isinstance(log_snr, Tensor) else type(log_snr).__name__
        raise ValueError(f"seed_time: log_snr must be a tensor of shape (B,) with B > 0, got {got}")
    return log_snr.reshape(-1)


def _distinct(log_snr: Tensor) -> Tensor:
    """The first element if all others are known to be equal. Reading CPU memory needs no synchronization."""
    if log_snr.stride(0) == 0:
        return log_snr[:1]
    if log_snr.is_cpu and not log_snr.requires_grad and not checks.traced():
        values = log_snr.tolist()
        if values.count(values[0]) == len(values):
            return log_snr[:1]
    return log_snr


class TimeTable:
    """All time-dependent parameters of a model at all steps of a schedule, evaluated by one call.

    log_snr has shape (N,), one value per step. ``with table.at(k): v = model(x, log_snr)`` runs step k with row k of
    the table; the model's own seeding inside does nothing. A table is for sampling: it carries no gradients and does
    not follow later changes of the parameters.
    """

    def __init__(self, model: nn.Module, log_snr: Tensor):
        if not isinstance(log_snr, Tensor) or log_snr.dim() != 1:
            raise ValueError("TimeTable: log_snr must be a tensor of shape (N,), one value per step")
        self.plan, self.steps = SeedingPlan(model), len(log_snr)
        if not self.plan.groups:
            raise ValueError(
                "TimeTable: model has no time-dependent parameters; if it is not built from fmkernels.nn, "
                "call fmkernels.accelerate(model) first"
            )
        with torch.no_grad():
            self.rows = [
                list(zip(*(w.split(1) for w in g.evaluate(log_snr / 4)), strict=True)) for g in self.plan.groups
            ]

    def __len__(self) -> int:
        return self.steps

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        if not 0 <= step < len(self):
            raise IndexError(f"TimeTable: step must be in 0 … {len(self) - 1}, got {step}")
        for group, rows in zip(self.plan.groups, self.rows, strict=True):
            group.put(rows[step])
        slots = [vars(m) for m in self.plan.modules]
        for slot in slots:
            slot["_frozen"] = True
        try:
            yield
        finally:
            for slot in slots:
                slot.pop("_frozen", None)


class TimeDependentParameter(TimeDependent):
    """``param1 + sigmoid(log_snr/4 (nodecay_weight + 1) + nodecay_bias) (param0 - param1)``; called without arguments.

    ``param0`` and ``param1`` start at ``value``. Exclude parameters named ``nodecay_*`` from weight decay.
    """

    def __init__(self, shape: int | Sequence[int], value: float = 1.0):
        super().__init__()
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        for name in PARAMETERS:
            setattr(self, name, nn.Parameter(torch.empty(shape)))
        self.value, self.curr_weight = float(value), None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter, start in zip(parameters_of(self), (self.value, self.value, 0.0, 0.0), strict=True):
            nn.init.constant_(parameter, start)

    def extra_repr(self) -> str:
        return f"{tuple(self.param0.shape)}"


class Int8Rows(NamedTuple):
    """Quantized rows, as linear_int8 reads them: int8 (..., in), and a scale for each row."""

    rows: Tensor
    scale: Tensor


class Linear(nn.Linear):
    """nn.Linear that calls :func:`fmkernels.linear`; its input may be a list of tensors to concatenate.

    ``quantize`` replaces ``product``. Set ``inner`` on a layer whose output may then be bf16, because what reads it
    accepts any dtype. ``reads``: the dtype that a quantized layer converts its input to; it also takes the converted
    input (for int8, ``Int8Rows``).
    """

    inner: bool = False
    reads: torch.dtype | None = None

    def forward(self, input: Tensor | Sequence[Tensor]) -> Tensor:
        return self.product(input)

    def product(self, input: Tensor | Sequence[Tensor]) -> Tensor:
        return linear(input, self.weight, self.bias)


class DepthwiseConv(nn.Conv2d):
    """``nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim)`` on (B, H, W, dim): see depthwise."""

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
        parts = self._modules  # less overhead than module.name and module(), for a hundred calls per step
        offset = parts.get("offset")
        offset = None if offset is None else offset.forward()
        return td_rms_norm(x, parts["scale"].forward(), offset, residual=residual, eps=self.eps, out=out)

    def int8(self, x: Tensor, residual: Tensor | None = None) -> Int8Rows | tuple[Int8Rows, Tensor]:
        """Return the norm quantized, and with residual the sum: see td_rms_norm_int8."""
        offset = None if self.offset is None else self.offset()
        return _int8_rows(td_rms_norm_int8(x, self.scale(), offset, residual=residual, eps=self.eps))


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

    def int8(self, x: Tensor | Sequence[Tensor], residual: Tensor | None = None) -> Int8Rows | tuple[Int8Rows, Tensor]:
        """Return the norm quantized, and with residual the sum: see td_layer_norm_int8."""
        return _int8_rows(td_layer_norm_int8(x, self.weight(), self.bias(), residual=residual, eps=self.eps))


def _int8_rows(parts: tuple[Tensor, ...]) -> Int8Rows | tuple[Int8Rows, Tensor]:
    return Int8Rows(*parts) if len(parts) == 2 else (Int8Rows(*parts[:2]), parts[2])
