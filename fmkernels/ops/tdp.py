"""Time-dependent parameters: one, or all of a model's in one native call."""

import itertools
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from fmkernels import checks, eager
from fmkernels.autograd import tdp as gradients
from fmkernels.backend import Op, current, native_cpu
from fmkernels.eager._dtypes import promoted

Params = Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]


def _check_times(op, times, param0):
    checks.floating(op, "times", times)
    checks.same_device(op, "times", times, "param0", param0)
    if times.dim() != 1:
        raise ValueError(f"{op}: times must be one-dimensional (T,), got shape {tuple(times.shape)}")


def _check_params(op, param0, param1, weight, bias):
    checks.floating(op, "param0", param0)
    for name, x in (("param1", param1), ("weight", weight), ("bias", bias)):
        checks.like(op, name, x, "param0", param0)


def _check_tdp(param0, param1, weight, bias, times, weight_offset):
    _check_params("tdp", param0, param1, weight, bias)
    _check_times("tdp", times, param0)
    checks.number("tdp", "weight_offset", weight_offset)


def _check_tdp_out(param0, param1, weight, bias, times, weight_offset, out):
    _check_tdp(param0, param1, weight, bias, times, weight_offset)
    checks.floating("tdp", "out", out)
    checks.same_device("tdp", "out", out, "param0", param0)
    checks.shape("tdp", "out", out, (times.shape[0], *param0.shape), "(T, *param0.shape)")
    dtype = torch.promote_types(param0.dtype, param1.dtype)
    if out.dtype != dtype:
        raise TypeError(f"tdp: out must be {dtype}, the promotion of param0 and param1, got {out.dtype}")
    checks.writable("tdp", "out", out, param0=param0, param1=param1, weight=weight, bias=bias, times=times)


def _check_lists(param0, param1, weight, bias):
    if not len(param0) == len(param1) == len(weight) == len(bias) or not param0:
        raise ValueError("tdp_group: params must be a non-empty list of (param0, param1, weight, bias)")
    for i, four in enumerate(zip(param0, param1, weight, bias, strict=True)):
        _check_params(f"tdp_group: params[{i}]", *four)
        checks.same_device("tdp_group", f"params[{i}]", four[0], "params[0]", param0[0])


def _check_group(param0, param1, weight, bias, times, weight_offset):
    _check_lists(param0, param1, weight, bias)
    _check_times("tdp_group", times, param0[0])
    checks.number("tdp_group", "weight_offset", weight_offset)


def _check_group_out(param0, param1, weight, bias, times, weight_offset, out):
    _check_group(param0, param1, weight, bias, times, weight_offset)
    checks.floating("tdp_group", "out", out)
    checks.same_device("tdp_group", "out", out, "params[0]", param0[0])
    checks.shape("tdp_group", "out", out, (times.shape[0], sum(p.numel() for p in param0)), "(T, total)")
    dtype = promoted(*param0, *param1)
    if out.dtype != dtype:
        raise TypeError(f"tdp_group: out must be {dtype}, the promotion of param0 and param1, got {out.dtype}")
    if not out.is_contiguous():
        raise ValueError(f"tdp_group: out must be dense, got strides {out.stride()}; use group.buffer(T)")


_TDP = Op("tdp", eager.tdp, _check_tdp, gradients.tdp)
_TDP_OUT = Op("tdp_out", eager.tdp_out, _check_tdp_out)
_GROUP = Op("tdp_group", eager.tdp_group, _check_group, gradients.tdp_group)
_GROUP_OUT = Op("tdp_group_out", eager.tdp_group_out, _check_group_out)


def tdp(
    param0: Tensor,
    param1: Tensor,
    weight: Tensor,
    bias: Tensor,
    times: Tensor,
    *,
    weight_offset: float = 0.0,
    out: Tensor | None = None,
) -> Tensor:
    """``out[k] = p1 + sigmoid(times[k] * (weight + weight_offset) + bias) * (p0 - p1)``

    param0, param1, weight, bias: of the same shape, any floating dtypes. times: (T,), for CrossFlow's
    parameters ``log_snr / 4``, with ``weight_offset=1``. Returns (T, \\*shape) in the promoted dtype of
    param0 and param1, computed in fp32 (fp64 for fp64) and rounded once. Gradients go to all five
    tensors, summed over k. ``out`` receives the result instead of a fresh tensor (no gradients then).
    """
    if type(weight_offset) is not float:
        checks.number("tdp", "weight_offset", weight_offset)
    if out is None:
        return _TDP(param0, param1, weight, bias, times, weight_offset)
    checks.no_gradient("tdp", "out", out, param0, param1, weight, bias, times)
    _TDP_OUT(param0, param1, weight, bias, times, weight_offset, out)
    checks.written(out)
    return out


def exported_tdp(
    param0: Tensor, param1: Tensor, weight: Tensor, bias: Tensor, times: Tensor, custom: bool = True
) -> Tensor:
    """CrossFlow's entry point: ``tdp`` with ``weight`` used as it is; ``custom=False`` is plain PyTorch."""
    if custom:
        return _TDP(param0, param1, weight, bias, times, 0.0)
    _check_tdp(param0, param1, weight, bias, times, 0.0)
    return eager.tdp(param0, param1, weight, bias, times, 0.0)


class GroupBuffer(list):
    """The outputs of a group for T times: a list of (T, \\*shape) views of one (T, total) tensor, ``flat``."""

    def __init__(self, flat: Tensor, group: "TdpGroup"):
        columns = flat.split(group.sizes, dim=1)
        if not group.all_vectors:
            columns = [c.view(flat.shape[0], *s) for c, s in zip(columns, group.shapes, strict=True)]
        super().__init__(columns)
        self.flat, self.group = flat, group

    def __reduce__(self):
        return GroupBuffer, (self.flat, self.group)


class TdpGroup:
    """All time-dependent parameters of a model, for :func:`tdp_group`.

    params: a list of (param0, param1, weight, bias), four tensors of one shape each, all on one device. The
    tensors are held by reference: a parameter that is trained, loaded or moved in place is read where it is
    now. A parameter *object* that was replaced (``load_state_dict(assign=True)``) or reshaped needs a new group.
    ``group.buffer(T)`` is a reusable output, the same object on every call with the same T.
    """

    native_handle = True  # False: the parameters are passed to the op at every call, also on the CPU

    def __init__(self, params: Params, *, weight_offset: float = 1.0):
        checks.number("tdp_group", "weight_offset", weight_offset)
        try:
            self.params = [tuple(four) for four in params]
        except TypeError:
            raise TypeError("tdp_group: params must be a list of (param0, param1, weight, bias)") from None
        for i, four in enumerate(self.params):
            if len(four) != 4:
                raise ValueError(
                    f"tdp_group: params[{i}] must be (param0, param1, weight, bias), got {len(four)} items"
                )
        self.weight_offset = weight_offset
        self.lists = [list(column) for column in zip(*self.params, strict=True)] or [[], [], [], []]
        _check_lists(*self.lists)
        self.shapes = [tuple(p.shape) for p in self.lists[0]]
        self.sizes = [p.numel() for p in self.lists[0]]
        self.total = sum(self.sizes)
        self.all_vectors = all(len(s) == 1 for s in self.shapes)
        self._pin: int | None = None
        self.refresh()

    def __len__(self) -> int:
        return len(self.params)

    def __getstate__(self):
        return {"params": self.params, "weight_offset": self.weight_offset}

    def __setstate__(self, state):
        self.__init__(state["params"], weight_offset=state["weight_offset"])

    def refresh(self) -> bool:
        """Update the outputs' dtype, the promotion of every param0 and param1; True if it changed.

        Seeing it on every call would cost as much as the arithmetic: it is seen when the first parameter's
        dtype or device changed, or when the native call finds that another's did.
        """
        first, known = self.lists[0][0], getattr(self, "dtype", None)
        self._seen = first.dtype, first.device
        self.dtype = promoted(*self.lists[0], *self.lists[1])
        self._buffers: dict[int, GroupBuffer] = {}
        return self.dtype != known

    def check_shapes(self) -> None:
        """Raise ValueError for a parameter that was reshaped; the native call compares the shapes itself."""
        for i, (p, shape) in enumerate(zip(self.lists[0], self.shapes, strict=True)):
            if p.shape != shape:
                checks.shape("tdp_group", f"params[{i}]", p, shape, "as when the group was made; make a new one")

    def look(self) -> torch.dtype:
        """The outputs' dtype, as the first parameter has it now."""
        first = self.lists[0][0]
        if (first.dtype, first.device) != self._seen:
            self.refresh()
        return self.dtype

    def fresh(self, steps: int) -> Tensor:
        self.look()
        return torch.empty((steps, self.total), dtype=self.dtype, device=self._seen[1])

    def empty(self, steps: int) -> GroupBuffer:
        """A fresh output for ``steps`` times."""
        return GroupBuffer(self.fresh(steps), self)

    def buffer(self, steps: int) -> GroupBuffer:
        """A reusable output for ``steps`` times: made on the first call, the same one after that."""
        if not isinstance(steps, int) or steps < 0:
            raise ValueError(f"TdpGroup.buffer: steps must be a number of times, got {steps!r}")
        self.look()
        found = self._buffers.get(steps)
        if found is None:
            with torch.inference_mode(False):  # it will be written in and out of that mode
                found = self._buffers[steps] = self.empty(steps)
        return found

    def pin(self) -> int:
        """The native handle of the group, made on first use and freed with it."""
        if self._pin is None:
            self.check_shapes()
            self._pin = torch.ops.fmkernels.tdp_pin.default([p for four in self.params for p in four])
            weakref.finalize(self, torch.ops.fmkernels.tdp_unpin.default, self._pin).atexit = False
        return self._pin


def tdp_group(group: TdpGroup | Params, times: Tensor, *, out: GroupBuffer | None = None) -> list[Tensor]:
    """:func:`tdp` of every parameter of the group at every time, in one native call.

    group: a :class:`TdpGroup`, or a list of (param0, param1, weight, bias) with CrossFlow's
    ``weight_offset=1``. times: (T,). Returns a list of (T, \\*shape), columns of one fresh (T, total)
    tensor; ``out=group.buffer(T)`` writes into that buffer and returns it. Gradients as for tdp.
    """
    if not isinstance(group, TdpGroup):
        group = TdpGroup(group)
    grads = torch.is_grad_enabled() and (
        any(p.requires_grad for column in group.lists for p in column) or getattr(times, "requires_grad", False)
    )
    if out is not None:
        _check_buffer(group, times, out, grads)
    try:
        if grads and not checks.traced() and current() != "eager":
            return _in_parts(group, times)
        flat = _evaluated(group, times, None if out is None else out.flat, grads)
        if out is None:
            return GroupBuffer(flat, group)
    except Exception:
        _check_group(*group.lists, times, group.weight_offset)
        group.check_shapes()
        if not group.refresh():
            raise
        if out is None:
            return tdp_group(group, times)
        raise ValueError(f"tdp_group: out must be {group.dtype} now, got {out.flat.dtype}: make a new buffer") from None
    checks.written(flat)
    return out


def _in_parts(group, times):
    """One output per parameter: an unused one gets no gradient, and backward may run several times."""
    group.check_shapes()
    if current() != "auto":
        _GROUP.check_device(times)
    return gradients.tdp_group_parts(list(itertools.chain(*group.lists)), times, group.weight_offset)


def _evaluated(group, times, out, grads):
    """(T, total), in ``out`` if there is one."""
    # Passing 684 tensors through the dispatcher takes longer than the arithmetic: a handle spares that.
    if group.native_handle and not grads and native_cpu() and group.lists[0][0].is_cpu and not checks.traced():
        flat = group.fresh(times.shape[0]) if out is None else out
        with torch._C._AutoDispatchBelowAutograd():
            torch.ops.fmkernels.tdp_pinned.default(group.pin(), times, group.weight_offset, flat)
        return flat
    group.check_shapes()
    # On GPUs, and where the graph must contain the tensors: torch.compile, torch.func, dispatch modes.
    if out is None:
        if not checks.traced():
            group.look()
        return _GROUP(*group.lists, times, group.weight_offset)
    # The caller's buffer, whose address a captured graph keeps.
    _GROUP_OUT(*group.lists, times, group.weight_offset, out)
    return out


def _check_buffer(group, times, out, grads):
    if not isinstance(out, GroupBuffer):
        raise TypeError(f"tdp_group: out must be group.buffer(T), got {type(out).__name__}")
    if grads:
        raise ValueError("tdp_group: out does not carry gradients; call it under torch.no_grad() or leave out out")
    _check_times("tdp_group", times, group.lists[0][0])
    checks.shape("tdp_group", "out", out.flat, (times.shape[0], group.total), "(T, total), from group.buffer(T)")
