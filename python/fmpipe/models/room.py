"""Where DiMR's skips and the norm over all of them go: the large buffers of a forward."""

import math
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from fmkernels import TDLayerNorm, td_layer_norm
from fmkernels.ops._check import traced

LARGE = 32 << 20  # bytes: more than malloc ever keeps for itself
AT_ONCE = 1 << 30  # bytes of normed skips on a GPU: the weights behind them are read anew for every few samples


class Room(threading.local):
    """Memory for what is large and outlives a block, kept from one forward to the next while sampling on a CPU.

    malloc gives buffers of this size back to the system at once and takes them again page by page, which costs
    more than the arithmetic on them; and skips that lie among short-lived neighbours leave as much unusable memory
    between them as they take. Where autograd or somebody who traces owns the memory, or on a GPU, there is no room.
    Each thread has its own; moving the model clears this one's.
    """

    def __init__(self):
        self.buffers: dict[str, Tensor] = {}

    def take(self, name: str, like: Tensor, *shape: int) -> Tensor | None:
        """Uninitialised memory of this shape, the same for the same name; None if it is small or not ours to give."""
        elements = math.prod(shape)
        if elements * like.element_size() <= LARGE or not like.is_cpu:
            return None
        if torch.is_grad_enabled() or traced():
            return None
        kept = self.buffers.get(name)
        if kept is None or kept.numel() < elements or kept.dtype != like.dtype:
            self.buffers.pop(name, None)
            with torch.inference_mode(False):  # it will be written in and out of that mode
                kept = self.buffers[name] = like.new_empty(elements)
        return kept[:elements].view(shape)

    def __reduce__(self):
        return Room, ()  # a copy of a model gets its own


class Skips(list):
    """The skips of one stage, in the room if there is any: there they last until the next stage puts its own."""

    def __init__(self, room: Room, x: Tensor, count: int):
        super().__init__()
        places = room.take("skips", x, count, *x.shape)
        self.places = None if places is None else iter(places)

    def add(self, x: Tensor, branch: Tensor | None = None) -> Tensor:
        """x + branch, or x, as the next skip."""
        if self.places is not None:
            place = next(self.places)
            x = place.copy_(x) if branch is None else torch.add(x, branch, out=place)
        elif branch is not None:
            x = x + branch
        self.append(x)
        return x


def side_by_side(norm: TDLayerNorm, skips: list[Tensor], room: Room) -> Iterator[Tensor]:
    """The norm of all skips (B, N, D) as if concatenated, a few samples at a time: all would be as large as the skips.

    What is yielded lasts until the next."""
    weight, bias = norm.weight(), norm.bias()
    batch, tokens = skips[0].shape[:2]
    most = LARGE if skips[0].is_cpu else AT_ONCE
    count = max(1, most // max(tokens * weight.shape[-1] * skips[0].element_size(), 1))
    for i in range(0, max(batch, 1), count):
        rows = slice(i, i + count)
        parts = [skip[rows] for skip in skips]
        out = room.take("normed", parts[0], *parts[0].shape[:-1], weight.shape[-1])
        mine = slice(None) if len(weight) == 1 else rows
        yield td_layer_norm(parts, weight[mine], bias[mine], eps=norm.eps, out=out)
