"""Metrics in printed lines: ``key: value``, ``key=value``, ``key value``, dictionaries, tqdm bars, logging prefixes."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fmpipe.diagnose.read.names import STEPS, canonical

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)|None|null"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[\d{1,2}m")
_RANK = re.compile(r"^\W*\[?rank[\s:]*(\d+)\]?\W|\[rank (\d+)\]", re.IGNORECASE)
_BAR = re.compile(r"(?:^|\|)\s*(\d+)/\d+\s*\[[^\]]*?(?:it/s|s/it|<)[^\]]*?(?:,\s*(?=[A-Za-z_]+=)([^\]]*))?\]")
_WORDS = "|".join(sorted((re.escape(name) for name in STEPS if name.isidentifier()), key=len, reverse=True))
_STEP = re.compile(
    rf"(?:^|[\s(\[|,:]|global[ _])(?:{_WORDS}|iters?|iterations?)\b(?:\(\w+\))?"
    r"[\s=:#\[{'\"]*(\d+)(?:\s*/\s*\d+)?(?![\d.e])",
    re.IGNORECASE,
)
_SECOND = r"(?:loss|cos|norm|rate|mse|kl|scale|ratio|error|psnr|entropy|steps/sec|lr)"
_CALL = re.compile(r"\b(corr|cos)\(\s*\w+\s*,\s*([\w*-]+)\s*\)")  # corr(v_pred, noise) is corr_noise
_FIRST = re.compile(r"^(?:\W*\[?rank[\s:]*\d+\]?\W+)?\s*(\d+)\s+(?=[A-Za-z_])", re.IGNORECASE)  # a bare step in front
_PAIR = re.compile(
    rf"['\"]?(?P<key>[A-Za-z_|‖∥][\w/.@|*‖∥\-]*(?:\s{_SECOND}\b)?)['\"]?\s*(?:(?:[:=]|->|→|\bis\b)\s*|\s)['\"]?"
    rf"(?P<value>{NUMBER})['\"]?(?![\w:/-]|\.\d)",
    re.IGNORECASE,
)
_STOPPED = re.compile(
    r"\balarm|abort|stopp(?:ed|ing)|terminat|halt(?:ed|ing)|giving up|watchdog|assertionerror|runtimeerror",
    re.IGNORECASE,
)


class Row(NamedTuple):
    """The metrics of one line. step: None if the line has none. rank: of the process, None if the line does not say."""

    step: int | None
    rank: int | None
    values: dict[str, float | None]


def rows(lines: Iterable[str]) -> Iterator[Row]:
    """Yield the metrics of every line that has some whose name is known, or that has a step."""
    for line in lines:
        for part in line.split("\r"):  # a progress bar redraws itself
            row = parse(part)
            if row is not None:
                yield row


def parse(line: str) -> Row | None:
    """Return the metrics of one line, None if it has none."""
    line = _CALL.sub(r"\1_\2", _ANSI.sub("", line))
    if not any(c.isdigit() for c in line):
        return None
    rank = _RANK.search(line)
    bar = _BAR.search(line)
    step = None
    if bar:
        step, line = int(bar[1]), bar[2] or ""
    elif found := _STEP.search(line):
        step = int(found[1])
        line = line[: found.start()] + " " + line[found.end() :]
    elif found := _FIRST.search(line) or re.search(r"\[\s*(\d+)/\d+\]|第\s*(\d+)\s*步", line):
        step = int(next(filter(None, found.groups())))
        line = line[found.end() :] if found.re is _FIRST else line
    values: dict[str, float | None] = {}
    for match in _PAIR.finditer(line):
        key, text = match["key"].strip("| "), match["value"].lower()
        known = canonical(key)
        if known is None and " " in key:
            key = key.rpartition(" ")[2]
            known = canonical(key)
        if (known == "" or not key or (known is None and step is None)) and key.lower() not in STEPS:
            continue
        values[key] = None if text in ("none", "null") else float(text)
    named = next((values.pop(key) for key in list(values) if key.lower() in STEPS), None)
    if bar and named is not None:  # the bar counts an epoch, its postfix the run
        step = int(named)
    if not any(canonical(key) for key in values):
        return None
    return Row(step, int(next(filter(None, rank.groups()))) if rank else None, values)


def tables(lines: Iterable[str]) -> Iterator[Row]:
    """Yield the rows of tables with a header, aligned by spaces or with Markdown's bars, and of key | value boxes."""
    header: list[str] = []
    box: dict[str, float] = {}
    for line in lines:
        text = line.strip()
        if re.fullmatch(r"[-=+|: ]{3,}", text) and box:
            yield _row(box)
            box = {}
        cells = [cell.strip() for cell in text.strip("|").split("|")] if text.startswith("|") else text.split()
        numbers = [_value(cell) for cell in cells]
        if len(cells) == 2 and text.startswith("|") and numbers[0] is None and numbers[1] is not None and not header:
            box[cells[0]] = numbers[1]
        elif len(cells) == len(header) > 1 and None not in numbers:
            yield _row(dict(zip(header, numbers, strict=True)))
        elif len(cells) > 1 and all(number is None for number in numbers):
            known = sum(canonical(cell) is not None or cell.lower() in STEPS for cell in cells)
            header = cells if known >= max(2, len(cells) // 2) else header if text.startswith("|-") else []
    if box:
        yield _row(box)


def _value(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _row(values: dict[str, float]) -> Row:
    step = next((values[key] for key in values if key.lower() in STEPS), None)
    kept = {key: value for key, value in values.items() if key.lower() not in STEPS and canonical(key) != ""}
    return Row(None if step is None else int(step), None, kept)


def stop_reason(lines: list[str]) -> str | None:
    """Return the sentence with which a run ended itself, from the last lines of its log."""
    return next((line.strip()[:300] for line in reversed(lines[-8:]) if _STOPPED.search(line)), None)
