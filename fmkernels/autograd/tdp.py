"""The gradients of tdp and of a group, to the parameters and to times."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from fmkernels import eager
from fmkernels.autograd.attach import apply, backward_op, gradient
from fmkernels.backend import gradient_in_cpp

_TDP_BACKWARD = backward_op("tdp", eager.tdp_backward)
_GROUP_BACKWARD = backward_op("tdp_group", eager.tdp_group_backward)


def _save(ctx, inputs, output):
    *tensors, ctx.weight_offset = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, grad):
    return *_TDP_BACKWARD(grad, *ctx.saved_tensors, ctx.weight_offset), None


def _save_group(ctx, inputs, output):
    *lists, times, ctx.weight_offset = inputs
    ctx.save_for_backward(times, *itertools.chain(*lists))


def _backward_group(ctx, grad):
    times, *flat = ctx.saved_tensors
    return *_group_gradients(grad, _columns(flat), times, ctx.weight_offset), None


tdp = gradient(_save, _backward)
tdp_group = gradient(_save_group, _backward_group)


def _columns(flat: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """param0, param1, weight and bias of a group."""
    count = len(flat) // 4
    return [flat[i * count : (i + 1) * count] for i in range(4)]


def _group_gradients(grad, lists, times, weight_offset):
    """The gradients of the four lists, and of times. grad: (T, total)."""
    rows, to_times = _GROUP_BACKWARD(grad, *lists, times, weight_offset)
    sizes = [p.numel() for p in lists[0]]
    grads = [
        [_as(p, g) for g, p in zip(row.split(sizes), column, strict=True)]
        for row, column in zip(rows.unbind(0), lists, strict=True)
    ]
    return *grads, to_times


def _as(p, g):
    """g with p's shape and dtype. It runs 684 times per step, so nothing is called that changes nothing."""
    g = g if p.dim() == 1 else g.view(p.shape)
    return g if g.dtype == p.dtype else g.to(p.dtype)


class _Parts(torch.autograd.Function):
    """The op ``tdp_group`` with one output per parameter.

    The registered op passes 684 arguments through pytrees, which takes 2 ms, and has one output: backward could run
    once, and would give every parameter a gradient, also one that was not used. Here only the used ones take part, and
    backward may run several times.
    """

    @staticmethod
    def forward(ctx, times, weight_offset, *flat):
        ctx.set_materialize_grads(False)
        # Not saved for backward: what is saved is freed by the first of several backwards.
        ctx.inputs, ctx.versions, ctx.weight_offset = (times, *flat), _versions(times, *flat), weight_offset
        lists = _columns(flat)
        with torch._C._AutoDispatchBelowAutograd():
            rows = torch.ops.fmkernels.tdp_group.default._op(*lists, times, weight_offset)
        parts = zip(rows.split([p.numel() for p in lists[0]], dim=1), lists[0], strict=True)
        return tuple(part if p.dim() == 1 else part.view(len(times), *p.shape) for part, p in parts)

    @staticmethod
    def backward(ctx, *grads):
        times, *flat = ctx.inputs
        if _versions(*ctx.inputs) != ctx.versions:
            raise RuntimeError(
                "tdp_group: a parameter was changed in place between this forward and its backward (by an optimizer's "
                "step?); its gradient would be of the new value"
            )
        used = [i for i, grad in enumerate(grads) if grad is not None]
        result = [None] * len(flat)
        if not used:
            return None, None, *result
        grad = torch.cat([grads[i].reshape(len(times), flat[i].numel()) for i in used], dim=1)
        lists = [[column[i] for i in used] for column in _columns(flat)]
        *columns, to_times = _group_gradients(grad, lists, times, ctx.weight_offset)
        for begin, values in zip(range(0, len(flat), len(grads)), columns, strict=True):
            for i, value in zip(used, values, strict=True):
                result[begin + i] = value
        return to_times, None, *result


def _versions(*tensors: Tensor) -> list[int]:
    return [x._version for x in tensors]


_run = apply(_Parts)


def _parts_in_python(flat: Sequence[Tensor], times: Tensor, weight_offset: float) -> list[Tensor]:
    return list(_run(times, weight_offset, *flat))


# (all of param0, then of param1, weight and bias; times; weight_offset) -> one (T, *shape) per parameter
tdp_group_parts = (
    torch.ops.fmkernels.tdp_group_parts.default._op if gradient_in_cpp("tdp_group_parts") else _parts_in_python
)
