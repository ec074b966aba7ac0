"""PTX text -> kernels: parameters, shared memory and instructions, as strings."""

import re
from dataclasses import dataclass, field

WIDTH = {"pred": 0} | {kind + bits: int(bits) // 8 for kind in "bsuf" for bits in ("8", "16", "32", "64")}
_SPACE = re.compile(r"\.(shared|local)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)\s*(?:\[(\d*)\])?")
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)([^{]*)\{", re.S)
_PARAM = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s[^,]*?)?([\w$]+)\s*(?:\[(\d+)\])?\s*$")
_LINE_DIRECTIVE = re.compile(r"^\s*\.(?:loc|file)\b.*$", re.M)


@dataclass
class Instruction:
    """``@!p op a, b``: the guard is (register, negated) or None; operands are text, a vector is a list."""

    text: str
    guard: tuple[str, bool] | None
    op: str
    operands: list


@dataclass
class Kernel:
    name: str
    params: dict[str, tuple[int, int]]  # name -> (bytes, alignment)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, int] = field(default_factory=dict)  # name -> bytes of a lane; 0: a predicate
    shared: dict[str, tuple[int | None, int]] = field(
        default_factory=dict
    )  # name -> (bytes or None: dynamic, alignment)


class Module:
    """The entries of a PTX file: ``module[name]`` parses one of them."""

    def __init__(self, text: str):
        text = _LINE_DIRECTIVE.sub("", re.sub(r"//[^\n]*", "", text))
        self.entries, outside, end = {}, [], 0
        for match in _ENTRY.finditer(text):
            outside.append(text[end : match.start()])
            end = _closing_brace(text, match.end())
            self.entries[match[1]] = match[2], text[match.end() : end - 1]
        self.memory = list(_SPACE.finditer("".join(outside)))

    def __getitem__(self, name: str) -> Kernel:
        params, body = self.entries[name]
        declared = [_PARAM.search(part).groups() for part in params.split(",") if part.strip()]
        kernel = Kernel(name, {name: _sized(kind, count, align) for align, kind, name, count in declared})
        _body(kernel, body)
        for declaration in self.memory:
            _declare_memory(kernel, declaration)
        return kernel


def _sized(kind: str, count: str | None, align: str | None) -> tuple[int, int]:
    return WIDTH[kind] * int(count or 1), int(align or WIDTH[kind])


def _declare_memory(kernel: Kernel, match: re.Match) -> None:
    space, align, kind, name, count = match.groups()
    if space != "shared":
        raise NotImplementedError(f"{kernel.name}: {match[0]}: local memory")
    size, alignment = _sized(kind, count, align)
    kernel.shared[name] = (None if count == "" else size, alignment)


def _closing_brace(text: str, at: int) -> int:
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    raise ValueError("PTX: a brace is not closed")


def _body(kernel: Kernel, body: str) -> None:
    """Statements end at semicolons. Braces at the start of a statement open a scope with its own registers."""
    scopes, number, at = [{}], 0, 0
    statement = re.compile(r"\s*(?:([{}])|([\w$]+):(?!:)|([^;]*);)")
    while match := statement.match(body, at):
        at = match.end()
        brace, label, words = match.groups()
        if brace == "{":
            number += 1
            scopes.append({})
        elif brace == "}":
            scopes.pop()
        elif label:
            kernel.labels[label] = len(kernel.instructions)
        elif words.startswith(".reg"):
            _declare_registers(kernel, words, scopes[-1], number if len(scopes) > 1 else 0)
        elif declaration := _SPACE.match(words):
            _declare_memory(kernel, declaration)
        elif not words.startswith("."):  # .pragma
            kernel.instructions.append(_instruction(words, scopes))
    if body[at:].strip():
        raise ValueError(f"{kernel.name}: cannot read {body[at : at + 80]!r}")


def _declare_registers(kernel: Kernel, words: str, scope: dict, number: int) -> None:
    kind, names = re.match(r"\.reg\s+\.(\w+)\s+(.*)", words, re.S).groups()
    for name in re.split(r"\s*,\s*", names.strip()):
        if many := re.fullmatch(r"(.+)<(\d+)>", name):
            kernel.registers |= {f"{many[1]}{i}": WIDTH[kind] for i in range(int(many[2]))}
        else:
            scope[name] = f"{name}@{number}" if number else name
            kernel.registers[scope[name]] = WIDTH[kind]


def _instruction(words: str, scopes: list[dict]) -> Instruction:
    text, guard = " ".join(words.split()), None
    rest = text
    if rest.startswith("@"):
        name, rest = rest[1:].split(None, 1)
        guard = name.lstrip("!"), name.startswith("!")
    op, _, operands = rest.partition(" ")
    local = {name: renamed for scope in scopes[1:] for name, renamed in scope.items()}

    def named(operand: str):
        if operand.startswith("{"):
            return [named(part.strip()) for part in operand[1:-1].split(",")]
        return re.sub(r"[%\w$.]+", lambda m: local.get(m[0], m[0]), operand) if local else operand

    if guard:
        guard = named(guard[0]), guard[1]
    return Instruction(
        text, guard, op, [named(part) for part in re.findall(r"(?:\{[^}]*\}|[^,{\s][^,{]*?)(?=\s*(?:,|$))", operands)]
    )
