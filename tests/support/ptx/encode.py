"""A parsed kernel -> arrays for machine.cpp: registers with offsets, constants, instructions, points of reconvergence.

Immediates, special registers and addresses of variables become registers that are filled before a thread starts, so
that an instruction has only registers as operands.
"""

import re
from dataclasses import dataclass

import numpy as np

from .parse import WIDTH, Instruction, Kernel

LANES, MOST = 32, 8  # lanes of a warp; operands of an instruction, elements of a vector counted one by one
SPECIAL = ("tid.x", "tid.y", "tid.z", "ntid.x", "ntid.y", "ntid.z", "ctaid.x", "ctaid.y", "ctaid.z")
SPECIAL += ("nctaid.x", "nctaid.y", "nctaid.z", "laneid", "warpid")
SPACES = {"generic": 0, "global": 1, "shared": 2, "param": 3}
SHUFFLES = ("up", "down", "idx", "bfly")
HOLE = 64  # bytes between shared variables that no access may touch
# Of loads and stores, without effect on values: cache hints and memory models.
HINTS = {
    "nc",
    "wb",
    "cg",
    "ca",
    "cs",
    "lu",
    "cv",
    "wt",
    "volatile",
    "relaxed",
    "acquire",
    "release",
    "gpu",
    "cta",
    "sys",
}

RECORD = np.dtype(
    [(name, np.int32) for name in ("op", "guard", "negated", "target", "join", "dsts", "srcs")]
    + [("dst", np.int32, MOST), ("src", np.int32, MOST)]
    + [(name, np.int32) for name in ("space", "bytes", "count", "is_signed", "kind")]
    + [("offset", np.int64)],
    align=True,
)


@dataclass
class Program:
    name: str
    text: list[str]
    opcodes: list[str]  # with all modifiers
    ops: list[str]  # what machine.cpp looks up, an op of each instruction
    records: np.ndarray
    widths: np.ndarray  # of each register, bytes of a lane; 0: a predicate
    offsets: np.ndarray  # of each register, in the file of a warp
    file_bytes: int
    constants: list[tuple[int, int]]  # register, bits
    specials: list[tuple[int, int]]  # register, index in SPECIAL
    params: list[tuple[int, int]]  # bytes, offset
    shared_size: int  # static, with holes
    shared_parts: list[tuple[int, int]]  # begin and bytes of each static variable
    dynamic_at: int | None


def encode(kernel: Kernel) -> Program:
    return _Encoder(kernel).program()


class _Encoder:
    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.ids, self.widths, self.constants, self.specials = {}, [], [], []
        self.symbols = {}
        self.params, end = [], 0
        for name, (size, align) in kernel.params.items():
            at = -(-end // align) * align
            self.symbols[name] = "param", at
            self.params.append((size, at))
            end = at + size
        self.parts, self.dynamic_at, at = [], None, 0
        for name, (size, align) in sorted(kernel.shared.items(), key=lambda item: item[1][0] is None):
            at = -(-at // max(align, 16)) * max(align, 16)
            self.symbols[name] = "shared", at
            if size is None:
                self.dynamic_at = at
            else:
                self.parts.append((at, size))
                at += size + HOLE
        self.shared_size = at

    def program(self) -> Program:
        instructions = self.kernel.instructions
        records, ops = np.zeros(len(instructions), RECORD), []
        joins = _joins(self.kernel)
        for i, (instruction, record) in enumerate(zip(instructions, records, strict=True)):
            record["guard"] = -1
            try:
                if instruction.guard:
                    name, record["negated"] = instruction.guard
                    record["guard"] = self.register(name)
                ops.append(self.instruction(instruction, record))
            except (KeyError, ValueError) as error:
                raise NotImplementedError(f"{self.kernel.name}: {instruction.text}: {error}") from error
            record["join"] = joins.get(i, -1)
        sizes = [LANES * width or 4 for width in self.widths]
        offsets = np.cumsum([0, *((size + 63) // 64 * 64 for size in sizes)])
        return Program(
            self.kernel.name,
            [instruction.text for instruction in instructions],
            [instruction.op for instruction in instructions],
            ops,
            records,
            np.array(self.widths, np.int32),
            offsets[:-1].astype(np.int64),
            int(offsets[-1]),
            self.constants,
            self.specials,
            self.params,
            self.shared_size,
            self.parts,
            self.dynamic_at,
        )

    def instruction(self, instruction: Instruction, record) -> str:
        op, operands = instruction.op, instruction.operands
        parts = op.split(".")
        if parts[0] == "bra":
            record["target"] = self.kernel.labels[operands[0]]
            return "bra"
        if parts[0] in ("ret", "exit"):
            return "exit"
        if op in ("bar.sync", "barrier.sync", "barrier.sync.aligned"):
            return "bar"
        if parts[0] in ("membar", "fence") or op == "bar.warp.sync":  # the lanes of a warp run in lock step
            return "fence"
        if parts[0] == "createpolicy":  # a hint for caches, an operand of loads and stores that is not read here
            self.fill(record, "dst", [self.register(operands[0])])
            return "createpolicy"
        if parts[0] in ("ld", "st"):
            return self.memory(parts, operands, record)
        if parts[0] == "atom":
            self.address(operands[1], record)
            record["space"] = SPACES[parts[1]]
            self.fill(record, "dst", [self.register(operands[0])])
            self.fill(record, "src", [record["src"][0], *(self.operand(x, WIDTH[parts[-1]]) for x in operands[2:])])
            record["bytes"] = WIDTH[parts[-1]]
            return op
        if parts[0] in ("ldmatrix", "stmatrix"):
            record["space"] = SPACES["shared"]
            vector, place = (0, 1) if parts[0] == "ldmatrix" else (1, 0)
            self.address(operands[place], record)
            parts_of = operands[vector] if isinstance(operands[vector], list) else [operands[vector]]
            listed = [self.register(x) for x in parts_of]
            record["count"] = len(listed)
            if parts[0] == "ldmatrix":
                self.fill(record, "dst", listed)
            else:
                self.fill(record, "src", [record["src"][0], *listed])
            return op
        if parts[0] == "mov":
            return self.move(parts[-1], operands, record)
        if parts[0] == "shfl":
            record["kind"] = SHUFFLES.index(parts[2])
        dst, *sources = operands
        outputs = [self.register(name) for name in dst.split("|")]
        widths = _source_widths(parts, len(sources))
        self.fill(record, "dst", outputs)
        self.fill(record, "src", [self.operand(x, width) for x, width in zip(sources, widths, strict=True)])
        for text, register, width in zip(sources, record["src"], widths):
            if parts[0] == "cvt" and self.widths[register] == 2 * width:
                return f"{op} of b{16 * width}"
            if self.widths[register] != width:
                raise ValueError(f"{text} has {self.widths[register]} bytes instead of {width}")
        return op

    def move(self, kind: str, operands: list, record) -> str:
        dst, src = operands
        width = WIDTH[kind]
        if isinstance(dst, list):
            self.fill(record, "dst", [self.register(x, width // len(dst)) for x in dst])
            self.fill(record, "src", [self.operand(src, width)])
            record["bytes"] = width // len(dst)
            return "unpack"
        if isinstance(src, list):
            self.fill(record, "src", [self.operand(x, width // len(src)) for x in src])
            self.fill(record, "dst", [self.register(dst)])
            record["bytes"] = width // len(src)
            return "pack"
        self.fill(record, "dst", [self.register(dst)])
        self.fill(record, "src", [self.operand(src, width)])
        if self.widths[record["dst"][0]] != self.widths[record["src"][0]]:
            raise ValueError(f"{dst} and {src} differ in size")
        return f"mov.b{8 * width}" if width else "mov.pred"

    def memory(self, parts: list[str], operands: list, record) -> str:
        op, *modifiers, kind = parts
        space, count = "generic", 1
        for modifier in modifiers:
            if modifier in SPACES:
                space = modifier
            elif re.fullmatch(r"v[248]", modifier):
                count = int(modifier[1])
            elif modifier not in HINTS and not modifier.startswith(("L1::", "L2::")):
                raise ValueError(f"modifier .{modifier}")
        vector, place = (0, 1) if op == "ld" else (1, 0)
        values = operands[vector] if isinstance(operands[vector], list) else [operands[vector]]
        if len(values) != count:
            raise ValueError(f"a vector of {count} with {len(values)} registers")
        record["space"], record["bytes"], record["count"] = SPACES[space], WIDTH[kind], count
        record["is_signed"] = kind.startswith("s")
        self.address(operands[place], record)
        if op == "ld":
            self.fill(record, "dst", [self.register(x, WIDTH[kind]) for x in values])
        else:
            self.fill(record, "src", [record["src"][0], *(self.operand(x, WIDTH[kind]) for x in values)])
        return op

    def address(self, operand: str, record) -> None:
        """[register or variable + bytes]: the first source, and the offset."""
        base, sign, offset = re.fullmatch(r"\[\s*([%\w$.]+)\s*(?:(\+)\s*(-?\w+))?\s*\]", operand).groups()
        self.fill(record, "src", [self.operand(base, 8)])
        record["offset"] = int(offset, 0) if sign else 0

    @staticmethod
    def fill(record, key: str, registers: list[int]) -> None:
        record[f"{key}s"] = len(registers)
        record[key][: len(registers)] = registers

    def register(self, name: str, width: int = 4) -> int:
        if name == "_":  # a result that is not wanted
            self.widths.append(width)
            return len(self.widths) - 1
        if name not in self.ids:
            self.widths.append(self.kernel.registers[name])
            self.ids[name] = len(self.widths) - 1
        return self.ids[name]

    def constant(self, bits: int, width: int) -> int:
        key = bits & ((1 << 8 * width) - 1) if width else bits & 1, width
        if key not in self.ids:
            self.widths.append(width)
            self.ids[key] = len(self.widths) - 1
            self.constants.append((self.ids[key], key[0] if width else -key[0] & 0xFFFFFFFF))
        return self.ids[key]

    def operand(self, text: str, width: int) -> int:
        if text in self.kernel.registers:
            return self.register(text)
        if text.lstrip("%") in SPECIAL:
            if text not in self.ids:
                self.widths.append(4)
                self.ids[text] = len(self.widths) - 1
                self.specials.append((self.ids[text], SPECIAL.index(text[1:])))
            return self.ids[text]
        if text in self.symbols:
            return self.constant(self.symbols[text][1], width)
        if number := re.fullmatch(r"0[fFdD]([0-9a-fA-F]+)", text):
            return self.constant(int(number[1], 16), width)
        return self.constant(int(text.rstrip("U"), 0), width)


def _source_widths(parts: list[str], count: int) -> list[int]:
    """Bytes that each source of an arithmetic instruction has, by the PTX manual."""
    op, kind = parts[0], parts[-1]
    kind = {"f16x2": "b32", "bf16x2": "b32", "bf16": "b16"}.get(kind, kind)
    width = WIDTH[kind]
    if op == "cvt":
        return [width] * count
    if op in ("shl", "shr"):
        return [width, 4]
    if op in ("bfe",):
        return [width, 4, 4]
    if op in ("bfi",):
        return [width, width, 4, 4]
    if op == "mad" and "wide" in parts:
        return [width, width, 2 * width]
    if op == "selp":
        return [width, width, 0]
    if op == "setp":
        return [width, width, 0][:count]
    return [width] * count


def _joins(kernel: Kernel) -> dict[int, int]:
    """Conditional branch -> the instruction at which both ways meet: its immediate post-dominator; -1 for the end."""
    code = kernel.instructions
    branches = [i for i, x in enumerate(code) if x.op.split(".")[0] in ("bra", "ret", "exit")]
    starts = sorted({0, *kernel.labels.values(), *(i + 1 for i in branches)} - {len(code)})
    block_of = {start: number for number, start in enumerate(starts)}
    end = len(starts)
    block_of[len(code)] = end
    successors = []
    for stop in [*starts[1:], len(code)]:
        last, follow = code[stop - 1], block_of[stop]
        kind = last.op.split(".")[0]
        if kind == "bra":
            successors.append([block_of[kernel.labels[last.operands[0]]], *([follow] if last.guard else [])])
        elif kind in ("ret", "exit"):
            successors.append([end, *([follow] if last.guard else [])])
        else:
            successors.append([follow])
    immediate = _post_dominators(successors, end)
    found = {}
    for number, stop in enumerate([*starts[1:], len(code)]):
        if code[stop - 1].op.startswith("bra") and code[stop - 1].guard:
            join = immediate[number]
            found[stop - 1] = -1 if join == end else starts[join]
    return found


def _post_dominators(successors: list[list[int]], end: int) -> list[int]:
    """The immediate post-dominator of every block (Cooper, Harvey and Kennedy, on the reversed graph)."""
    predecessors = [[] for _ in range(end + 1)]
    for block, follow in enumerate(successors):
        for other in follow:
            predecessors[other].append(block)
    order, seen, stack = [], {end}, [(end, iter(predecessors[end]))]  # by depth-first search from the end
    while stack:
        block, rest = stack[-1]
        for other in rest:
            if other not in seen:
                seen.add(other)
                stack.append((other, iter(predecessors[other])))
                break
        else:
            order.append(block)
            stack.pop()
    rank = {block: i for i, block in enumerate(order)}
    immediate = {end: end}

    def common(a, b):
        while a != b:
            while rank[a] < rank[b]:
                a = immediate[a]
            while rank[b] < rank[a]:
                b = immediate[b]
        return a

    changed = True
    while changed:
        changed = False
        for block in reversed(order[:-1]):
            known = [other for other in successors[block] if other in immediate]
            best = known[0]
            for other in known[1:]:
                best = common(best, other)
            if immediate.get(block) != best:
                immediate[block], changed = best, True
    return [immediate.get(block, end) for block in range(end)]
