"""machine.cpp from Python: build it, load programs into it, launch them, count what they executed."""

import ctypes
import hashlib
import os
import subprocess
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from .encode import Program

HERE = Path(__file__).parent
BUILT = HERE.parents[2] / "build" / "ptx"
FLAGS = ["-std=c++20", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC"]
FLAGS += ["-shared", "-Wall", "-Wextra", "-Werror"]


class PtxError(RuntimeError):
    """What a kernel did wrong, with the instruction, block and thread."""


class _Launch(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_int32 * 3)] + [(x, ctypes.c_int32) for x in ("threads", "shared_bytes", "dynamic_at")]
    _fields_ += [("seed", ctypes.c_uint64)]


class _Where(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("pc", "block", "thread")] + [("what", ctypes.c_char * 256)]


def build() -> Path:
    """The interpreter as a shared object, compiled if a source, the compiler or the CPU changed (ten seconds)."""
    compiler = os.environ.get("CXX", "g++")
    target = subprocess.run([compiler, "-march=native", "-Q", "--help=target"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(target + str(FLAGS).encode())
    sources = sorted(HERE.glob("*.cpp"))
    for path in [*sources, *sorted(HERE.glob("*.h"))]:
        digest.update(path.read_bytes())
    made = BUILT / f"{digest.hexdigest()[:16]}.so"
    if not made.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, *FLAGS, *map(str, sources), "-o", str(part)], check=True)
        part.rename(made)
    return made


@cache
def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(build()))
    loaded.ptx_code.restype = ctypes.c_void_p
    return loaded


def opcodes() -> list[str]:
    """Every opcode that machine.cpp executes; of loads, stores, moves and branches one name for all their modifiers."""
    room = ctypes.create_string_buffer(1 << 16)
    library().ptx_ops(room, len(room))
    return sorted(room.value.decode().split())


def perturb(seed: int) -> None:
    """Let approximate instructions be one ulp off, up or down by the seed and the operand; 0: as exact as can be."""
    library().ptx_perturb(ctypes.c_uint64(seed))


def use_memory(find: int) -> None:
    """find: the address of a C function ``int (uint64 address, uint64* begin, uint64* bytes)``: the tensor there."""
    library().ptx_find(ctypes.c_void_p(find))


@dataclass
class Counts:
    """What was executed while counting: instructions of warps by opcode, and bytes of tensors."""

    warps: Counter = field(default_factory=Counter)  # opcode -> issued by how many warps
    lanes: Counter = field(default_factory=Counter)  # opcode -> for how many active threads
    launches: Counter = field(default_factory=Counter)  # kernel -> launches
    by_kernel: dict[str, Counter] = field(default_factory=dict)  # kernel -> as warps

    def issued(self, mov: bool = False) -> int:
        """Instructions that warps issued; mov: including moves between registers, most of which ptxas removes."""
        return sum(n for op, n in self.warps.items() if mov or not op.startswith("mov"))

    def per_element(self, elements: int, mov: bool = False) -> float:
        """Thread instructions per element, idle lanes included: 32 for each instruction that a warp issued."""
        return 32 * self.issued(mov) / elements

    @staticmethod
    def bytes(tensor) -> tuple[int, int]:
        """Bytes read and written in the tensor's memory (all views of it together) since the counting began."""
        out = (ctypes.c_uint64 * 2)()
        library().ptx_traffic(ctypes.c_uint64(tensor.untyped_storage().data_ptr()), out)
        return tuple(out)

    @staticmethod
    def all_bytes() -> tuple[int, int]:
        """Bytes read and written in all tensors since the counting began."""
        out = (ctypes.c_uint64 * 2)()
        library().ptx_all_traffic(out)
        return tuple(out)


_counting: list[Counts] = []


@contextmanager
def counting():
    """Count what the launches inside execute: ``with counting() as counts: ...``."""
    counts = Counts()
    _counting.append(counts)
    library().ptx_clear_traffic()
    try:
        yield counts
    finally:
        _counting.remove(counts)


class Loaded:
    """A program in the interpreter."""

    def __init__(self, program: Program):
        self.program, machine = program, library()
        result = ctypes.c_int32()
        for record, op, text in zip(program.records, program.ops, program.text, strict=True):
            if not machine.ptx_op(op.encode(), ctypes.byref(result)):
                raise NotImplementedError(f"{program.name}: {text}: unknown opcode {op}")
            width = program.widths[record["dst"][0]] if record["dsts"] else -1
            if result.value >= 0 and width != result.value:
                raise NotImplementedError(
                    f"{program.name}: {text}: a result of {width} instead of {result.value} bytes"
                )
        count = len(program.records)
        self._issued, self._lanes = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        self._kept = np.ascontiguousarray(program.records), program.widths, program.offsets
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*self._kept, self._issued, self._lanes)]
        names = (ctypes.c_char_p * count)(*(op.encode() for op in program.ops))
        records, widths, offsets, issued, lanes = pointers
        code = machine.ptx_code(
            count,
            records,
            names,
            len(program.widths),
            widths,
            offsets,
            ctypes.c_int64(program.file_bytes),
            issued,
            lanes,
        )
        self._code = ctypes.c_void_p(code)
        for register, bits in program.constants:
            machine.ptx_constant(self._code, register, ctypes.c_uint64(bits))
        for register, which in program.specials:
            machine.ptx_special(self._code, register, which)
        for begin, size in program.shared_parts:
            machine.ptx_shared(self._code, begin, size)

    def launch(
        self, grid: tuple[int, int, int], threads: int, shared_bytes: int, arguments: list[bytes], seed: int = 0
    ):
        """Run it with the bytes of every parameter; raises PtxError with the first mistake."""
        program = self.program
        sizes = [len(argument) for argument in arguments]
        if sizes != [size for size, _ in program.params]:
            raise PtxError(f"{program.name}: parameters of {[size for size, _ in program.params]} bytes, got {sizes}")
        params = bytearray(max((at + size for size, at in program.params), default=0))
        for argument, (size, at) in zip(arguments, program.params, strict=True):
            params[at : at + size] = argument
        dynamic_at = -1 if program.dynamic_at is None else program.dynamic_at
        launch = _Launch((ctypes.c_int32 * 3)(*grid), threads, shared_bytes, dynamic_at, seed)
        where = _Where()
        self._issued[:], self._lanes[:] = 0, 0
        failed = library().ptx_launch(self._code, ctypes.byref(launch), bytes(params), len(params), ctypes.byref(where))
        if failed:
            raise PtxError(
                f"{program.name}: {where.what.decode()} (block {where.block}, thread {where.thread}), "
                f"at: {program.text[where.pc]}"
            )
        for counts in _counting:
            self._add(counts)

    def _add(self, counts: Counts) -> None:
        counts.launches[self.program.name] += 1
        mine = counts.by_kernel.setdefault(self.program.name, Counter())
        for opcode, issued, lanes in zip(
            self.program.opcodes, self._issued.tolist(), self._lanes.tolist(), strict=True
        ):
            if issued:
                counts.warps[opcode] += issued
                counts.lanes[opcode] += lanes
                mine[opcode] += issued
