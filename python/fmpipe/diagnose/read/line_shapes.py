"""Parses lines that differ only in their numbers once: the plan of the first line locates each value."""

import re
from collections.abc import Callable

from fmpipe.diagnose.read.series import Row

_NUMBER = re.compile(r"(?<![\w.])\d+(?:(\.\d*)?(?:[eE][-+]?\d+)?)?(?![\w.])")
MOST = 2000  # shapes that are kept


class LineShapes:
    """``plans(line)`` returns (known, row): whether a line of its shape was learned, and the metrics of this one."""

    def __init__(self, parse: Callable[[str], Row | None]):
        self.parse = parse
        self.plans: dict[str, tuple | None] = {}

    def __call__(self, line: str) -> tuple[bool, Row | None]:
        if not self.plans:
            return False, None
        numbers: list[str] = []
        shape = _shape(line, numbers)
        if shape not in self.plans:
            return False, None
        plan = self.plans[shape]
        if plan is None:
            return True, None
        step, rank, values = plan
        row = {key: x if at is None else sign * float(numbers[at]) for key, at, sign, x in values}
        return True, Row(None if step is None else int(float(numbers[step])), rank, row)

    def learn(self, line: str, row: Row | None) -> None:
        """Keep the plan of a line that was parsed to a row, if every value of it is one of the line's numbers."""
        numbers: list[str] = []
        shape = _shape(line, numbers)
        if not numbers or len(self.plans) >= MOST:
            return
        if row is None:
            self.plans[shape] = None
            return
        marks = {100003.0 + k if text.isdigit() else 100003.5 + k: k for k, text in enumerate(numbers)}
        stand_ins = iter(f"{mark:.0f}" if mark == int(mark) else f"{mark}" for mark in marks)
        again = self.parse(_NUMBER.sub(lambda _: next(stand_ins), line))
        if again is None or not again.values.keys() >= row.values.keys() or again.rank != row.rank:
            return
        values = []
        for key, x in row.values.items():
            mark = again.values[key]
            if mark is not None and abs(mark) in marks:
                values.append((key, marks[abs(mark)], -1.0 if mark < 0 else 1.0, None))
            elif mark is None or mark != mark:  # null, or NaN
                values.append((key, None, 1.0, x))
            else:
                return
        step = None if row.step is None else marks.get(float(again.step)) if again.step is not None else None
        if (row.step is None) == (step is None):
            self.plans[shape] = (step, row.rank, values)


def _shape(line: str, numbers: list[str]) -> str:
    """Return the line with its numbers replaced by marks of their kind; they are appended to ``numbers``."""

    def mark(match: re.Match) -> str:
        numbers.append(match[0])
        return "\x01" if match[0].isdigit() else "\x02"

    return _NUMBER.sub(mark, line)
