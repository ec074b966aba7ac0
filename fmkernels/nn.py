"""Modules whose parameters depend on time; their state-dict keys are the original's.

``seed_time(model, log_snr)`` evaluates every time-dependent parameter below ``model`` in one call, and
the forward that follows reads them. ``fmkernels.patch`` gives the same to somebody else's classes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fmkernels.ops import TdpGroup, td_layer_norm, td_rms_norm, tdp, tdp_group
from fmkernels.ops.tdp import GroupBuffer

FOUR = ("param0", "param1", "nodecay_weight", "nodecay_bias")
_SEEDS = "_fmkernels_seeds"  # in the __dict__ of a model that was seeded
_version = 0  # grows when a Parameter of a time-dependent module may have become another object


def _replaced() -> None:
    global _version
    _version += 1


class TimeDependent(nn.Module):
    """What a module with param0, param1, nodecay_weight and nodecay_bias needs to be seeded with all others.

    ``curr_weight`` is (T, \\*shape) after ``seed_time``, T being 1 or the batch; calling the module returns it.
    """

    curr_weight: Tensor | None

    def forward(self) -> Tensor:
        weight = self.curr_weight
        if weight is None:
            raise RuntimeError(
                f"this {type(self).__name__} has no value yet: call seed_time(model, log_snr) on the model that "
                f"holds it, before its forward"
            )
        if weight.requires_grad and not torch.compiler.is_compiling() and _in_reentrant_recomputation():
            # This backward ends at the checkpoint's inputs, so it runs through the seeds' graph as well, once
            # for every checkpoint: each must have its own.
            flat, times, task = self.__dict__.get("_seeded", (None, None, None))
            if weight._base is flat is not None and task != torch._C._current_graph_task_id():
                return tdp(*(getattr(self, name) for name in FOUR), times, weight_offset=1.0)
        return weight

    def __getstate__(self):
        # A value belongs to the forward it was made for; a copy gets its own.
        return {k: v for k, v in self.__dict__.items() if k != "_seeded"} | {"curr_weight": None}

    def __setattr__(self, name, value):
        if name in FOUR:
            _replaced()
        super().__setattr__(name, value)

    def _apply(self, *args, **kwargs):
        _replaced()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args, **kwargs):
        _replaced()
        super()._load_from_state_dict(*args, **kwargs)

    @staticmethod
    def seed_time(model: nn.Module, log_snr: Tensor) -> None:
        """:func:`seed_time`; the original has it here."""
        seed_time(model, log_snr)


def _in_reentrant_recomputation() -> bool:
    node = torch._C._current_autograd_node()
    return node is not None and node.name().startswith("CheckpointFunction")


class _Seeds:
    """The time-dependent parameters below one model, found once; found anew after a change or a copy."""

    def __init__(self):
        self.version, self.frozen, self.buffer = -1, False, None

    def __reduce__(self):
        return _Seeds, ()

    def find(self, model: nn.Module) -> "_Seeds":
        if self.version != _version:
            modules = time_dependent(model)
            self.slots = [vars(m) for m in modules]
            self.group = TdpGroup([four(m) for m in modules]) if modules else None
            self.version, self.buffer = _version, None
        return self

    def evaluate(self, times: Tensor) -> GroupBuffer:
        if torch.is_grad_enabled():
            return tdp_group(self.group, times)
        if self.buffer is None or self.buffer.flat.shape[0] != times.shape[0]:
            with torch.inference_mode(False):  # it will be written in and out of that mode
                self.buffer = self.group.empty(times.shape[0])
        return tdp_group(self.group, times, out=self.buffer)

    def put(self, weights: Sequence[Tensor], origin: tuple | None = None) -> None:
        for slot, weight in zip(self.slots, weights, strict=True):
            slot["curr_weight"] = weight
            slot["_seeded"] = origin


def time_dependent(model: nn.Module) -> list[TimeDependent]:
    return [m for m in model.modules() if isinstance(m, TimeDependent)]


def four(module: TimeDependent) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(getattr(module, name) for name in FOUR)


def _seeds(model: nn.Module) -> _Seeds:
    if _SEEDS not in vars(model):
        vars(model)[_SEEDS] = _Seeds()
    return vars(model)[_SEEDS].find(model)


def seed_time(model: nn.Module, log_snr: Tensor) -> None:
    """Evaluates all time-dependent parameters below ``model`` at ``log_snr / 4``, in one call.

    log_snr: (B,), or one element for all samples. One row is made if the samples share their time and that
    can be seen without waiting for a device (one element, an expanded tensor, or CPU memory), else B rows.
    Gradients go to the parameters. Inside ``TimeTable.at(k)`` the table's row is kept.
    """
    if not isinstance(log_snr, Tensor) or log_snr.dim() > 1 or log_snr.numel() == 0:
        got = tuple(log_snr.shape) if isinstance(log_snr, Tensor) else type(log_snr).__name__
        raise ValueError(f"seed_time: log_snr must be a tensor of shape (B,) with B > 0, got {got}")
    if torch.compiler.is_compiling():  # the compiler walks once; what it must not see is a cache
        modules = time_dependent(model)
        rows = tdp_group([four(m) for m in modules], log_snr.reshape(-1) / 4) if modules else []
        for module, row in zip(modules, rows, strict=True):
            module.curr_weight = row
        return
    seeds = _seeds(model)
    if seeds.frozen or seeds.group is None:
        return
    times = _distinct(log_snr.reshape(-1)) / 4
    weights = seeds.evaluate(times)
    seeds.put(weights, (weights.flat, times, torch._C._current_graph_task_id()) if weights.flat.requires_grad else None)


def _distinct(log_snr: Tensor) -> Tensor:
    """The first element if all are known to equal it. Reading CPU memory waits for nobody."""
    if log_snr.stride(0) == 0:
        return log_snr[:1]
    if log_snr.is_cpu and not log_snr.requires_grad and torch._C._len_torch_dispatch_stack() == 0:
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
        self.seeds = _seeds(model)
        if self.seeds.group is None:
            raise ValueError(
                "TimeTable: model has no time-dependent parameters; if it is not built from fmkernels.nn, "
                "call fmkernels.accelerate(model) first"
            )
        with torch.no_grad():
            flat = tdp_group(self.seeds.group, log_snr / 4).flat
            self.rows = [GroupBuffer(row, self.seeds.group) for row in flat.split(1)]

    def __len__(self) -> int:
        return len(self.rows)

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        if not 0 <= step < len(self):
            raise IndexError(f"TimeTable: step must be in 0 … {len(self) - 1}, got {step}")
        self.seeds.put(self.rows[step])
        self.seeds.frozen = True
        try:
            yield
        finally:
            self.seeds.frozen = False


class TimeDependentParameter(TimeDependent):
    """``param1 + sigmoid(log_snr/4 (nodecay_weight + 1) + nodecay_bias) (param0 - param1)``, called without argument.

    Both ends start at ``value``. Parameters named ``nodecay_*`` are meant to be left out of weight decay.
    """

    def __init__(self, shape: int | Sequence[int], value: float = 1.0):
        super().__init__()
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        for name, start in zip(FOUR, (value, value, 0.0, 0.0), strict=True):
            setattr(self, name, nn.Parameter(torch.full(shape, float(start))))
        self.curr_weight = None

    def extra_repr(self) -> str:
        return f"{tuple(self.param0.shape)}"


class TDRMSNorm(nn.Module):
    """``x / (|x| d^(-1/2) + eps) * scale (+ offset)`` with time-dependent scale and offset: see td_rms_norm."""

    eps = 1e-8

    def __init__(self, dim: int, *, offset: bool = False, eps: float = 1e-8):
        super().__init__()
        self.eps = eps
        self.scale = TimeDependentParameter(dim)
        self.offset = TimeDependentParameter(dim, 0.0) if offset else None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        offset = getattr(self, "offset", None)
        return td_rms_norm(x, self.scale(), offset and offset(), residual=residual, eps=self.eps)


class TDLayerNorm(nn.Module):
    """Layer norm with time-dependent weight and bias, also over a list of tensors: see td_layer_norm."""

    eps = 1e-5

    def __init__(self, dim: int, *, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = TimeDependentParameter(dim)
        self.bias = TimeDependentParameter(dim, 0.0)

    def forward(self, x: Tensor | Sequence[Tensor], residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        return td_layer_norm(x, self.weight(), self.bias(), residual=residual, eps=self.eps)
