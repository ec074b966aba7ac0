"""The large buffers of DiMR's forward: the skips, and the norm over all of them."""

import math
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from fmkernels import TDLayerNorm, td_layer_norm, td_layer_norm_int8
from fmkernels.checks import traced
from fmkernels.nn import Int8Rows

LARGE = 32 << 20  # bytes: malloc always returns larger blocks to the system
AT_ONCE = 1 << 30  # bytes of normed skips on a GPU: the following weights are read again for every group of samples


class BufferPool(threading.local):
    """Large buffers that are kept from one forward to the next while sampling on a CPU.

    malloc returns buffers of this size to the system and gets them back page by page, which takes longer than the
    arithmetic on them, and skips between short-lived tensors leave as much unusable memory as they need. There are no
    buffers on a GPU, with gradients or under tracing. Each thread has its own; moving the model clears those of the
    current thread.
    """

    def __init__(self):
        self.buffers: dict[str, Tensor] = {}

    def take(self, name: str, like: Tensor, *shape: int) -> Tensor | None:
        """Return uninitialized memory of this shape, the same for the same name, or None if none may be kept."""
        elements = math.prod(shape)
        if elements * like.element_size() <= LARGE or not like.is_cpu:
            return None
        if torch.is_grad_enabled() or traced():
            return None
        kept = self.buffers.get(name)
        if kept is None or kept.numel() < elements or kept.dtype != like.dtype:
            self.buffers.pop(name, None)
            with torch.inference_mode(False):  # it will be written inside and outside of that mode
                kept = self.buffers[name] = like.new_empty(elements)
        return kept[:elements].view(shape)

    def __reduce__(self):
        return BufferPool, ()  # a copied model gets its own buffers


class Skips(list):
    """The skips of one stage, in a buffer of the pool if it has one. They are valid until the next stage runs."""

    def __init__(self, pool: BufferPool, x: Tensor, count: int):
        super().__init__()
        buffer = pool.take("skips", x, count, *x.shape)
        self.slots = None if buffer is None else iter(buffer)

    def add(self, x: Tensor, branch: Tensor | None = None) -> Tensor:
        """Append x + branch, or x, and return it."""
        if self.slots is not None:
            slot = next(self.slots)
            x = slot.copy_(x) if branch is None else torch.add(x, branch, out=slot)
        elif branch is not None:
            x = x + branch
        self.append(x)
        return x


def norm_of_concatenated(
    norm: TDLayerNorm, skips: list[Tensor], pool: BufferPool, reads: torch.dtype | None = None
) -> Iterator[Tensor | Int8Rows]:
    """Yield the norm of the concatenated skips (B, N, D), a few samples at a time, without concatenating them.

    The norm of all samples would be as large as all skips. A yielded tensor is valid until the next one. reads: the
    ``Linear.reads`` of the layer that it is for; for int8, quantized rows are yielded.
    """
    weight, bias = norm.weight(), norm.bias()
    batch, tokens = skips[0].shape[:2]
    most = LARGE if skips[0].is_cpu else AT_ONCE
    count = max(1, most // max(tokens * weight.shape[-1] * skips[0].element_size(), 1))
    for i in range(0, max(batch, 1), count):
        rows = slice(i, i + count)
        parts, mine = [skip[rows] for skip in skips], slice(None) if len(weight) == 1 else rows
        if reads == torch.int8:
            yield Int8Rows(*td_layer_norm_int8(parts, weight[mine], bias[mine], eps=norm.eps))
            continue
        out = pool.take("normed", parts[0], *parts[0].shape[:-1], weight.shape[-1])
        yield td_layer_norm(parts, weight[mine], bias[mine], eps=norm.eps, out=out)
