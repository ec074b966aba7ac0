"""Tables of tensor addresses on the device, filled by a kernel whose arguments are the addresses.

Nothing is uploaded and nothing synchronizes, so a CUDA graph can capture the filling of a table as any other launch,
and the graph holds no pointer to host memory.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from fmkernels.triton import _launch
from fmkernels.triton._launch import cdiv, launch, on

Plan = TypeVar("Plan")

MOST = {2: 128, 6: 64}  # fields of an item -> items of a launch: 2 and 3 of the 4 KB that arguments may have
BIAS = tl.constexpr(1 << 62)


def _encode(value: int) -> int:
    """The value as an odd integer above 2^62.

    Triton compiles a kernel again for an argument that is 1, a multiple of 16, or below 2^31, and
    ``do_not_specialize`` does not apply to the members of a tuple. Encoded values have one kind: the kernel is compiled
    once for each number of items.
    """
    return BIAS.value + (value << 1 | 1)


@triton.jit(do_not_specialize=["row", "column"])
def _fill(table, values, row, column, ITEMS: tl.constexpr, FIELDS: tl.constexpr, BLOCK: tl.constexpr):
    """Writes the rows of ITEMS items, at ``row`` and after; ``column``: the elements of all items before these.

    All items at a time, and no argument is used after the first loop begins: on AMD GPUs, where arguments are loaded at
    the start, registers would spill.
    """
    item = tl.arange(0, ITEMS)
    fields = ()
    for k in tl.static_range(FIELDS):
        value = tl.zeros([ITEMS], tl.int64)
        for j in tl.static_range(ITEMS):
            value = tl.where(item == j, values[j * FIELDS + k], value)
        fields = fields + ((value - BIAS) >> 1,)
    n = fields[0]
    blocks = (n + BLOCK - 1) // BLOCK
    first, start = tl.cumsum(blocks) - blocks + row, tl.cumsum(n) - n + column
    for begin in range(0, tl.max(n), BLOCK):
        at = table + (first + begin // BLOCK) * (FIELDS + 2)
        for k in tl.static_range(FIELDS):
            tl.store(at + k, fields[k], mask=begin < n)
        tl.store(at + FIELDS, tl.zeros([ITEMS], tl.int64) + begin, mask=begin < n)
        tl.store(at + FIELDS + 1, start, mask=begin < n)


def table(device: torch.device, items: Sequence[tuple[int, ...]], block: int) -> Tensor:
    """Returns an int64 table with a row for every ``block`` elements of every item, filled in the current stream.

    An item is a tuple (elements, address, ...). A row is its item followed by the row's first element in the item and
    the item's first element among all items'.
    """
    items = [item for item in items if item[0] > 0]
    blocks = [cdiv(n, block) for n, *_ in items]
    if not items:
        return torch.empty(0, 0, dtype=torch.int64, device=device)
    fields = len(items[0])
    made = torch.empty(sum(blocks), fields + 2, dtype=torch.int64, device=device)
    row = column = 0
    most = MOST[fields]
    for first in range(0, len(items), most):
        some = items[first : first + most]
        count = triton.next_power_of_2(len(some))
        values = [_encode(value) for item in some for value in item] + [_encode(0)] * (fields * (count - len(some)))
        launch(_fill, 1, made, tuple(values), row, column, threads=32, ITEMS=count, FIELDS=fields, BLOCK=block)
        row += sum(blocks[first : first + most])
        column += sum(n for n, *_ in some)
    return made


def planned(make: Callable[..., Plan], device: torch.device, *key) -> Plan:
    """``make(device, *key)``, which makes a table: reused as long as the key, which has all its addresses, repeats.

    A table is reused only in the stream that filled it, whose order makes it ready and keeps its memory until it was
    read. While a graph is captured nothing is reused: the graph fills its own tables at every replay, and what it
    fills is not ready for anything else. Nothing is reused under ``_launch.hooks`` either, because a hook may stand in
    for the launch that fills a table.
    """
    stream = _stream(device)
    if stream is None or _launch.hooks:
        return make(device, *key)
    return _planned(make, device, stream, key)


@functools.lru_cache(maxsize=256)
def _planned(make, device, stream, key):
    return make(device, *key)


def _stream(device: torch.device) -> int | None:
    """The handle of the device's current stream, or None if a graph is being captured in it."""
    if device.type != "cuda":
        return 0
    with on(device.index):
        return None if torch.cuda.is_current_stream_capturing() else torch._C._cuda_getCurrentRawStream(device.index)
