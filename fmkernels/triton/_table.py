"""Tables of tensor addresses on the device, filled by a kernel that receives the addresses as arguments.

Nothing is uploaded and nothing synchronizes, so a CUDA graph can capture the filling of a table like any other launch,
and the graph contains no pointer to host memory.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from fmkernels.triton import _launch
from fmkernels.triton._launch import Meta, cdiv, launch, meta

Plan = TypeVar("Plan")

MOST = {2: 128, 6: 64}  # fields per item -> items per launch: 2 KB and 3 KB of the 4 KB limit for arguments
BIAS = tl.constexpr(1 << 62)


def _encode(value: int) -> int:
    """Return the value as an odd integer above 2^62.

    Triton specializes a kernel for arguments that are 1, multiples of 16, or below 2^31, and ``do_not_specialize``
    does not apply to the members of a tuple. Encoded values have none of these properties, so the kernel is compiled
    once for each number of items.
    """
    return _ZERO + 2 * value


_ZERO = BIAS.value + 1


@triton.jit(do_not_specialize=["row", "column", "used"])
def _fill(table, values, row, column, used, ITEMS: tl.constexpr, FIELDS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the rows of the first ``used`` of ITEMS items, from ``row`` on.

    column: the number of elements of all items before these. The arguments are first stored in the table itself, which
    has at least one row per item, and loaded back: selecting among them in every lane would need more registers than
    AMD GPUs have.
    """
    item = tl.arange(0, ITEMS)
    scratch = table + row * (FIELDS + 2)
    for j in tl.static_range(ITEMS):
        for k in tl.static_range(FIELDS):
            tl.store(scratch + (j * FIELDS + k), (values[j * FIELDS + k] - BIAS) >> 1, mask=j < used)
    tl.debug_barrier()
    fields = ()
    for k in tl.static_range(FIELDS):
        fields = fields + (tl.load(scratch + item * FIELDS + k, mask=item < used, other=0),)
    tl.debug_barrier()
    n = fields[0]
    blocks = (n + BLOCK - 1) // BLOCK
    first, start = tl.cumsum(blocks) - blocks + row, tl.cumsum(n) - n + column
    for begin in range(0, tl.max(n), BLOCK):
        at = table + (first + begin // BLOCK) * (FIELDS + 2)
        for k in tl.static_range(FIELDS):
            tl.store(at + k, fields[k], mask=begin < n)
        tl.store(at + FIELDS, tl.zeros([ITEMS], tl.int64) + begin, mask=begin < n)
        tl.store(at + FIELDS + 1, start, mask=begin < n)


class Layout(NamedTuple):
    """What a table has in common with all others of items of these sizes."""

    kept: list[int] | None  # items that have elements; None if all have
    rows: int
    launches: list[tuple[slice, int, int, int, Meta, list[int]]]  # items, row, column, used, Meta, encoded arguments


@functools.lru_cache(maxsize=256)
def _layout(sizes: tuple[int, ...], fields: int, block: int) -> Layout:
    kept = [i for i, n in enumerate(sizes) if n > 0]
    filled = [sizes[i] for i in kept]
    row = column = 0
    launches = []
    for first in range(0, len(filled), MOST[fields]):
        some = filled[first : first + MOST[fields]]
        count = triton.next_power_of_2(len(some))
        values = [_ZERO] * (count * fields)
        values[: len(some) * fields : fields] = map(_encode, some)
        constants = meta(threads=32, ITEMS=count, FIELDS=fields, BLOCK=block)
        launches.append((slice(first, first + len(some)), row, column, len(some), constants, values))
        row += sum(cdiv(n, block) for n in some)
        column += sum(some)
    return Layout(None if len(kept) == len(sizes) else kept, row, launches)


def table(device: torch.device, sizes: tuple[int, ...], columns: Sequence[Sequence[int]], block: int) -> Tensor:
    """Return an int64 table with a row for every ``block`` elements of every item, filled in the current stream.

    sizes: the number of elements of each item. columns: further integers of each item, such as addresses. A row
    contains the size and the further integers of its item, the row's first element in the item, and the item's first
    element among those of all items.
    """
    fields = 1 + len(columns)
    layout = _layout(sizes, fields, block)
    made = torch.empty(layout.rows, fields + 2, dtype=torch.int64, device=device)
    if layout.kept is not None:
        columns = [[column[i] for i in layout.kept] for column in columns]
    for items, row, column, used, constants, values in layout.launches:
        values = values.copy()
        for k, numbers in enumerate(columns, 1):
            values[k : used * fields : fields] = [_ZERO + 2 * number for number in numbers[items]]
        launch(_fill, 1, constants, made, tuple(values), row, column, used)
    return made


def planned(make: Callable[..., Plan], device: torch.device, *key) -> Plan:
    """Return ``make(device, *key)``, which contains a table, cached by the key, which contains all its addresses.

    A table is reused only in the stream that filled it: the order of the stream guarantees that it is filled before it
    is read and not freed before. During the capture of a graph, nothing is reused: the graph fills its own tables at
    every replay, and they contain nothing until then. Nothing is reused under ``_launch.hooks`` either, because a hook
    may replace the launch that fills a table.
    """
    stream = reusable_in(device)
    return make(device, *key) if stream is None else _planned(make, device, stream, key)


@functools.lru_cache(maxsize=256)
def _planned(make, device, stream, key):
    return make(device, *key)


def reusable_in(device: torch.device) -> int | None:
    """The handle of the device's current stream, or None if tables must not be reused now."""
    return None if _launch.hooks else _stream(device)


def _stream(device: torch.device) -> int | None:
    """The handle of the device's current stream, or None if a graph is being captured in it."""
    if device.type != "cuda":
        return 0
    with nullcontext() if device.index == torch.cuda.current_device() else torch.cuda.device(device):
        return None if torch.cuda.is_current_stream_capturing() else torch._C._cuda_getCurrentRawStream(device.index)
