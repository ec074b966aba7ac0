"""Tables in a text: aligned columns, commas, tabs, Markdown, boxes, matrices, with the titles above them."""

import re
from collections.abc import Callable, Iterator

from fmpipe.diagnose.read.lines import COMPARED, SIDES, SPEED_RATIO, tenths, value_of
from fmpipe.diagnose.read.names import EPOCHS, HELD_OUT, OWN, SHUFFLED, STEPS, canonical
from fmpipe.diagnose.read.probes import COUNT
from fmpipe.diagnose.read.prose import N
from fmpipe.diagnose.read.series import Row, whole

_BARS = ("|", "│", "┃")
_STATISTICS = ("mean", "std", "min", "max")
_RULED = re.compile(r"[-=+|: \u2500-\u257f]{3,}")
_THOUSAND = re.compile(r"\d{1,3}(?:,\d{3})+")
_NUMBERED = re.compile(r"(?:^|[\s=:])[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?(?=[\s,;]|$)")
_ERROR = re.compile(r"mse|err", re.IGNORECASE)
_SEPARATORS = [  # what a line must have, and what separates its cells
    ("\t", re.compile(r"\s*\t\s*")),
    ("[|│]", re.compile(r"\s+[|│]\s+")),
    ("[,;]", re.compile(r"\s*[,;](?![^(]*\))\s*")),
    ("  ", re.compile(r"\s{2,}")),
    (r"\s", re.compile(r"\s+")),
]
_NOTHING = ("", "-", "--", "none", "null", "n/a", "nan")
_TAGS = {"ema", "raw", "train", *HELD_OUT, *OWN, *SHUFFLED}  # rows of a table that stand for other metrics
_TENSORS = r"[xz]_?[01t]|[uv]\*|[uv]_(?:t|pred|tgt|target)"
_MEASURES = {  # words in a title, and the measure that they give to the columns below it
    "norm": "norm|‖|范数",
    "cos_pred": "corr|cos|余弦|相关",
    "mse": "mse|loss|error|损失|误差",
    "dw_w": "update",
}
_ABOUT_T = re.compile(r"(?<![\w.])(?:t|timesteps?|time_?dist)(?![\w.]|\s*[=(])|时间步", re.IGNORECASE)
_SAYS = re.compile(r"teacher|exact|endpoint|r?mse\b|cos|norm|corr|shoot|rollout", re.IGNORECASE)
_T = r"([01]?\.\d+|0|1)"
_BIN = re.compile(rf"(?:t\s*(?:in|∈|=)?\s*)?[(\[]?\s*{_T}\s*(?:–|—|-|~|to|,|\.\.)\s*{_T}\s*[)\]]?")


def contexts(lines: list[str], again: Callable[[str], bool]) -> Iterator[tuple[str, str, Row | None]]:
    """Yield (heading and title above, line, row) of every line; row: that of a table, or of a box of key | value.

    again: takes a line outside of tables whose shape is known.
    """
    heading, title, before, header, box, titles = "", "", "", [], {}, {}
    for at, line in enumerate(lines):
        if not header and not box and again(line):
            continue
        text = line.strip()
        bars = text.startswith(_BARS)
        ruled = _RULED.fullmatch(text) and not re.search(r"[^\W_]", text)
        if box and (ruled or not bars):
            yield f"{heading} | {title}", "", _row(box)
            box = {}
        if ruled:
            continue
        context = f"{heading} | {title}"
        tabled = f"{context} {titles.get(tuple(header), '')} {' '.join(header)}"
        rows = _splits(text if text.startswith("##") else text.lstrip("# "), len(header)) if header or bars else ()
        fits = (_values(header, cells, bars) for cells in rows if len(cells) == len(header) > 1)
        found = next(filter(None, fits), None)
        boxed = next(_splits(text)) if bars else []
        boxed = boxed if len(boxed) == 2 and _cell(boxed[0]) is None and _cell(boxed[1]) is not None else []
        if boxed and not (found and canonical(header[1])):
            if canonical(boxed[0]) is None:
                yield tabled, " ".join(boxed), None  # it may be a pair of prompts
            box[boxed[0]] = _cell(boxed[1])
        elif found and found[0] and found[0][0] in header[1:]:  # a matrix
            for name, x in zip(header[1:], found[1].values()):
                yield tabled, f"{found[0][0]} / {name} {x}", None
        elif found:
            labels, values = found
            number = next((x for x in values.values() if x is not None), "")
            yield tabled, f"{' / '.join(labels)} {number}" if labels else line if bars else "", _row(values)
        elif names := _header(text, _below(lines, at), bars):
            below = _below(lines, at).split()
            header = _measured(names, f"{title} {before}", _cell(below[0]) is not None if below else False)
            titles.setdefault(tuple(header), f"{title} {before}")
        else:
            above, before, header = before.strip(), line, header if bars else []
            if is_heading(line):
                heading, title = text.strip("`#* ").rstrip(":："), ""
                context = heading
            elif _is_title(text):
                more = above == title != "" and _SAYS.search(title) and not _SAYS.search(text)  # the title continues
                title = f"{title}; {text}" if more else text
            yield context, line, None
    if box:
        yield heading, "", _row(box)


def _measured(names: list[str], title: str, counted: bool) -> list[str]:
    """Return the names of columns with the measure in the title: "L2 norms" above z0, z1, v.

    counted: whether the rows begin with a number, as by batch; else with what they are about.
    """
    statistics = [name.lower() in _STATISTICS for name in names]
    if counted and sum(statistics) > 1 and _ABOUT_T.search(title):
        return [f"t_{name}" if k else name for name, k in zip(names, statistics)]
    bare = [name.isascii() and name[:1].isalpha() and canonical(name) is None for name in names]
    for measure, word in _MEASURES.items():
        full = [f"{measure}_{name}" if unknown else name for name, unknown in zip(names, bare)]
        if re.search(word, title, re.I) and sum(a != b and bool(canonical(a)) for a, b in zip(full, names)) > 1:
            return [a if canonical(a) else b for a, b in zip(full, names)]
    return names


def _is_title(text: str) -> bool:
    """Tell whether a line is a title of the numbers below it: words, and few numbers."""
    words, numbers = (len(re.findall(x, text)) for x in (r"[\u4e00-\u9fff]|[^\W\d_]{2,}", r"(?<![\w.])\d+"))
    decimal = re.search(r"(?<![\w.])\d*\.\d", re.sub(r"\(.*\)", "", text))
    return words > max(1 if _SAYS.search(text) else 2, 2 * numbers) and not decimal


def _below(lines: list[str], at: int) -> str:
    """Return the next line that is neither empty nor a rule."""
    return next((x.strip() for x in lines[at + 1 : at + 4] if x.strip() and not _RULED.fullmatch(x.strip())), "")


def _splits(text: str, width: int = 0) -> Iterator[list[str]]:
    """Yield the cells of a line for every separator that it may have; width: that of the table, if it is known."""
    text = _called(text)
    if text.startswith(_BARS):
        bar, cells = text[0], re.split(rf"(?:^|\s){re.escape(text[0])}(?=\s|$)", text)[1:-1]
        if any(bar in cell for cell in cells) and not any(cell.count(bar) % 2 for cell in cells):
            yield [c.strip(" *") for c in cells]  # | loss | |grad| |
        yield [c.strip(" *") for c in text.strip("|│┃").split(bar)]
        return
    text = text.strip(" ,;")
    for mark, separator in _SEPARATORS:
        cells = separator.split(text) if re.search(mark, text) else [text]
        if len(cells) > width > 2 and all(_cell(cell) is None for cell in cells[width:]):
            del cells[width:]  # a remark behind the columns
        yield cells


def _header(text: str, below: str, bars: bool) -> list[str]:
    """Return the names of the columns if a line is the header of a table, "" for a first column without a name."""
    if _NUMBERED.search(text) and not bars and not text.replace(" ", "").isdigit():
        return []
    for kind, cells in [*enumerate(_splits(text)), *(enumerate(_splits(text.lstrip("# "))) if text[:1] == "#" else ())]:
        names = [re.sub(r"(?<=\w)\s*[=:]$", "", cell) for cell in cells]
        counted = len(cells) > 2 and cells == [str(k) for k in range(len(cells))]  # a matrix
        if any(_cell(name) is not None for name in names) and not counted:
            continue
        others = [*_splits(below, len(names))] if not bars and len(names) > 1 else []
        for width, row in enumerate(others[3:] if kind > 2 else others[kind : kind + 1]):
            more = len(row) - len(names)
            filled = [_cell(c) is not None or c.lower() in _NOTHING for c in row]
            labels = filled.index(True) if True in filled else len(row)
            known = canonical(names[-1]) and not more and kind < 4 and not width  # columns that are told from words
            fits = labels < 3 if known else labels == 0 or (labels == 1 and len(row) > 2)
            if more in (0, 1) and fits and len(row) > labels and all(filled[labels:]) and (more or not counted):
                return [""] * more + names
        known = sum(
            canonical(c) is not None or bool(_ERROR.search(c)) or c.lower() in (*STEPS, *EPOCHS, *COUNT, "t", "dt")
            for c in names
        )
        plain = all(re.fullmatch(r"[^\W\d][\w/.@*()%‖∥|\[\]-]*|[|‖∥].*", c) for c in names)
        plain = plain and len(_NUMBERED.findall(below)) > 1 and not re.search(r"[=:]\s*[-+]?\d", below)
        if len(names) > 1 and (bars or (plain and known >= max(2, len(cells) // 2))):
            return names
    return []


def _values(header: list[str], cells: list[str], bars: bool) -> tuple[list[str], dict[str, float | None]] | None:
    """Return the labels in front of a row of a table, and its numbers by name; None if it is not a row."""
    numbers = [_cell(cell) for cell in cells]
    empty = [cell.lower() in _NOTHING for cell in cells]
    if all(n is None for n in numbers):
        return None
    if (where := _BIN.fullmatch(cells[0])) and (tens := tenths(float(where[1]), float(where[2]))):
        known = {k: (canonical(k), n) for k, n in zip(header, numbers) if canonical(k)}
        slices = {f"{c}_t{k}": n for c, n in known.values() if c in ("flow/cos", "flow/nmse") for k in tens}
        return [], slices | {k: n for k, (c, n) in known.items() if c == "flow/cond_gain_cos"}
    count = next(k for k, (n, e) in enumerate(zip(numbers, empty)) if n is not None or (e and k))
    if header[1:] == [str(k) for k in range(len(header) - 1)] and not header[0]:  # a matrix with numbers for names
        count = 1
    if not bars and (count > 2 or not all(n is not None or e for n, e in zip(numbers[count:], empty[count:]))):
        return None
    labels, values = [cell for cell in cells[:count] if cell], {}
    for name, n, e in zip(header[count:], numbers[count:], empty[count:]):
        if name and (n is not None or e):
            statistic = name.lower() in ("mean", "std", "min", "max", "var")
            if len(labels) == 1 and (statistic or not canonical(name) or labels[0].lower() in _TAGS):
                both = [f"{labels[0]}_{name}", f"{name}_{labels[0]}"][: 1 if statistic else 2]
                name = next((key for key in both if canonical(key)), both[0] if statistic else name)
            values[name] = n
    return labels, values


def _cell(cell: str) -> float | None:
    """Return the number in a cell of a table, with a unit or a mark of it."""
    found = re.fullmatch(rf"{N}\s*(dB|%|✓|✗|✔|x|×|k)?", cell, re.I)
    value = value_of(found[1]) if found else float(cell.replace(",", "")) if _THOUSAND.fullmatch(cell) else None
    return value * 1000 if value is not None and found and found[2] in ("k", "K") else value


def _called(text: str) -> str:
    """Rewrite calls and norms in a line of a table, whose bars and spaces are not those of the table."""
    if not re.search(r"[|(‖∥]", text):
        return text
    if "(" in text or "|/|" in text or "| / |" in text:
        for pattern, new in (SPEED_RATIO, COMPARED):
            text = pattern.sub(new, text)
    text = re.sub(r"\|\|\s*([\w*]+)\s*\|\|", r"norm_\1", text)
    text = re.sub(r"(?<=\s)\|([xv])\|(?=\s|$)", r"abs_\1", text)
    return re.sub(rf"(?<=\s)\|({_TENSORS})\|(?=\s|$)", r"norm_\1", text)


def _row(values: dict[str, float | None]) -> Row:
    values = {f"{key}_loss" if SIDES.fullmatch(key) else key: x for key, x in values.items()}
    lower = {key.lower(): key for key in values}
    step = next((values[lower[key]] for key in (*STEPS, *EPOCHS) if key in lower and key not in ("steps",)), None)
    kept = {key: x for key, x in values.items() if key.lower() not in STEPS or key.lower() in COUNT}
    return Row(whole(step), None, {k: x for k, x in kept.items() if canonical(k) != ""})


def is_heading(line: str) -> bool:
    words = line.strip().strip("`#* ")
    titled = re.match(r"[=\-~]{2,}\s*\w", words)
    return bool(words) and bool(
        titled or line.lstrip().startswith("#") or words[-1] in ":：" or re.match(r"\d+[).）]\s", words)
    )
