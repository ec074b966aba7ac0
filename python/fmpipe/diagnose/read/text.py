"""Metrics in any text: printed lines, progress bars, tables, probes of debugging code, and figures stated in prose."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.read.names import EPOCHS, STEPS, canonical
from fmpipe.diagnose.read.plans import Plans
from fmpipe.diagnose.read.probes import COUNT, Probes, role
from fmpipe.diagnose.read.prose import NAMES, NUMBER, RANGE, TENSOR, N, statements
from fmpipe.diagnose.read.rows import LIMIT, STOPPED, Row, flat_numbers, gathered, whole
from fmpipe.diagnose.texts import Said

LONGEST = 4000  # characters of a printed line; a longer one is data
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[\d{1,2}m")
_RANK = re.compile(
    r"^\W*\[?(?:rank|gpu|worker)[\s:=]*(\d+)\]?\W|[\[|]\s*(?:rank|gpu)[ :=]*(\d+)\s*[\]|]"
    r"|^\s*(\d{1,3}):\s(?=.*\b(?:step|iter|epoch))",
    re.IGNORECASE,
)
_BAR = re.compile(r"(?:\d+%)?\|?[^|\[]*(?:\||^|:)\s*(\d+)/\d+\s*\[([^\]]*?(?:it/s|s/it|<|\?it)[^\]]*)\]")
_COUNTERS = "|".join(sorted((re.escape(name) for name in STEPS if len(name) > 1), key=len, reverse=True))
_STEP = re.compile(
    rf"(?:^|[\s(\[\]{{|,:'\"]|global[ _])(?:(?:{_COUNTERS})\b|step(?=\d)|iter(?=\d))(?:\(\w+\))?['\"]?"
    r"[\s=:#\[{'\"]*(\d[\d,]*)(?:\s*/\s*\d+)?(?![\d.e%])",
    re.IGNORECASE,
)
_PHASE = re.compile(r"Epoch(?:\((train|val|test)\))?:?\s*\[(\d+)\]\[\s*(\d+)/(\d+)\]", re.IGNORECASE)
_TAG = re.compile(r"(?:^|[\s\[|(])(val|valid|validation|eval|evaluation|test|ema)(?=[\]\s|):@])", re.IGNORECASE)
_ERROR = re.compile(r"mse|err", re.IGNORECASE)
_SIDES = re.compile(r"(?:tr|train|ho|val|valid|test)(?:_ema)?", re.IGNORECASE)  # columns of losses
_TAGGED = ("loss/", "flow/", "quality/", "vae/")  # metrics that a tag in front of a line is about
_THOUSANDS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)k(?=[/)\]\s,:]|$)")  # a step of 12.5k
_SECOND = (
    r"(?:loss|cos|norm|rate|mse|kl|scale|ratio|error|psnr|entropy|steps/sec|lr|skipped|iterations|similarity|weight"
    r"|mean|std|min|max|grad)"
)
_PAIR = re.compile(
    rf"['\"]?(?P<key>[A-Za-z_|‖∥\u4e00-\u9fff][\w/.@|*‖∥\-\[\]\u4e00-\u9fff]*(?:\s{_SECOND}\b){{0,2}})(?:\s*\([a-zA-Z%]{{1,4}}\))?"
    rf"['\"]?\s*(?:(?:[:=：＝]|\bis\b|\.{{3,}})\s*|\s)['\"]?(?P<value>{NUMBER})['\"]?(?!(?!dB\b)[\w/]|:\d|-\d|\.\d|\s?%)",
    re.IGNORECASE,
)
_FIRST = re.compile(
    r"^(?:\W*\[?rank[\s:]*\d+\]?\W+)?\s*(\d+)\s+\|?\s*(?=[A-Za-z_])", re.IGNORECASE
)  # a bare step in front
_KINDS = r"(?:mean|std|min|max)(?:\s*/\s*(?:mean|std|min|max))+"
# How a line is rewritten before its pairs are read: calls, norms and statistics of tensors become plain names.
_REWRITE = [
    (re.compile(r"\b(?:np\.\w+|tensor|torch\.tensor|jnp\.\w+|Array)\(\s*([^(),]*)[^()]*\)"), r"\1"),
    (re.compile(r"\btorch\.\w+|[(\[]\s*\d+(?:\s*[,x×]\s*\d+)+,?\s*[)\]]"), " "),
    (re.compile(r"\b(?:shape|dtype|device)\s*=\s*\S*|\b(?:u?int|b?float)\d+\b"), " "),
    (re.compile(rf"\(\s*{N}\s*,?\s*\)"), r" \1 "),
    (re.compile(r"reducing to (\d+)", re.I), r" loss_scale=\1 "),
    (re.compile(r"\s*([_^]?[₂²]|\^2)(?=[\s=:≈|/,)])"), ""),
    (re.compile(rf"[|‖∥]+\s*({NAMES})\s*[|‖∥]+\s*/\s*[|‖∥]+\s*({NAMES})\s*[|‖∥]+", re.I), " speed_ratio "),
    (re.compile(r"[<⟨]\|\s*([xvzu])\s*\|[>⟩]", re.I), lambda m: f" abs_{'x' if m[1] in 'xzXZ' else 'v'} "),
    (re.compile(r"(?:mean\s*)?(?:abs\(\s*(x|v)\s*\)|(?<![|‖∥])\|\s*(x|v)\s*\|(?!\|))(?:_mean|\.mean\(\))?", re.I),
     lambda m: f" abs_{next(filter(None, m.groups())).lower()} "),
    (re.compile(r"[|‖∥]{1,2}\s*(?:g|grad)\s*[|‖∥]{1,2}(?:_2)?", re.I), " grad_norm "),
    (re.compile(rf"\b(cos|corr|mse|rmse|cosine|cos_sim)\(\s*({NAMES})\s*,\s*({NAMES})\s*\)", re.I),
     lambda m: " " + re.sub(r"[\s-]+", "_", "_".join(m.groups())) + " "),
    (re.compile(rf"\b({TENSOR})\s*[:=(]*\s*({_KINDS})\)?\s*[:=]?\s*((?:{NUMBER})(?:\s*/\s*(?:{NUMBER}))+)", re.I),
     lambda m: "".join(f" {m[1]}_{kind.strip()}={x} " for kind, x in zip(m[2].split("/"), m[3].split("/")))),
    (re.compile(rf"\b(?:dw/w|update[ _]ratios?)[:\s]+((?:\w+[\s=:]+(?:{NUMBER})[,\s]*)+)", re.I),
     lambda m: re.sub(r"([A-Za-z_]\w*)(?=[\s=:])", r" dw_w_\1", m[1])),
    (re.compile(rf"\b({TENSOR})\s*[:=]?\s*(?:mean\s*[±+]\S*\s*std)?\s*[:=]?\s*{N}\s*(?:±|\+/?-)\s*{N}", re.I),
     r" \1_mean=\2 \1_std=\3 "),
]  # fmt: skip
_STATISTIC = re.compile(
    rf"(?<![\w/.])({TENSOR})(?:\.\w+)?\b['\"]?(?:\s*\([^)]*\))?\s*[:=|({{\[,]*\s*"
    rf"((?:['\"]?(?:min|max|mean|std|var|nan)['\"]?\s*[:=]?\s*(?:{NUMBER})[\s,;|/]*){{1,6}})",
    re.IGNORECASE,
)
_ONE_STATISTIC = re.compile(rf"(min|max|mean|std|var|nan)['\"]?\s*[:=]?\s*{N}", re.IGNORECASE)
_QUIET = re.compile(r"\b\w*(?:alarm|abort|terminat|kill)\w*\s*[=:]\s*(?:0|false|none)\b", re.IGNORECASE)
_RECIPE = re.compile(
    r"\b(std_range|anchor|detach(?:_\w+)?)\b['\"]?\s*[=:]\s*(?!none|null|false|0\b|off)", re.IGNORECASE
)


def read_text(text: str, name: str, aliases: Mapping[str, str] | None = None) -> Figures:
    """Return everything that a text states: metrics, sampling traces, constants, and the numbers of checks.

    aliases: names that count as known, although the table does not have them.
    """
    lines = [_ANSI.sub("", part) for line in _without_code(text.splitlines()) for part in line.split("\r")]
    lines = list(_joined(re.sub(r"\*\*|`|^\s*\*\s", "", line) for line in lines))
    rows, probes, tabled, prose, plans = [], Probes(), set(), [], Plans(parse)

    def again(line: str) -> bool:
        """Take a line of a shape that was seen before."""
        known, row = plans(line)
        if row is not None:
            rows.append(row)
        elif known:
            prose.append(line)
        return known

    for context, line, table in _contexts(lines, again):
        row = table or parse(line)
        taken = probes.take(row, line, context)
        if taken or row is None or not _known(row, aliases):
            prose.append(line)
            row = None
        elif row.step is None:
            prose.append(line)
            rows.append(row._replace(values=_stated(row, line)))
        else:
            rows.append(row)
        tabled |= {id(rows[-1])} if table and row is not None else set()
        if not table and not taken and (row is None or row.step is not None) and not _is_heading(line):
            plans.learn(line, row)
    text = "\n".join(prose)
    if tabled and not any(row.step is not None for row in rows):  # prose around a table: the table counts
        sure = {canonical(k) for row in rows if id(row) in tabled for k in row.values}
        rows = [
            r if id(r) in tabled else r._replace(values={k: x for k, x in r.values.items() if canonical(k) not in sure})
            for r in rows
        ]
    out = gathered(name, rows)
    out.lines = len(lines)
    out.metrics = {key: x for key, x in out.metrics.items() if key.lower() not in (*COUNT, "t")}
    stated, out.constants = statements(text)
    long = {canonical(key) for key, x in out.metrics.items() if len(x.values) > 4}
    stated = {key: x for key, x in stated.items() if key not in long}
    out.metrics = {key: x for key, x in out.metrics.items() if canonical(key) not in stated} | stated
    out.traces, out.measured = probes.traces, probes.measured()
    if probes.torn:
        out.remarks.append(Said("remark/torn", count=probes.torn, file=name, last=""))
    if reason := next(
        (x.strip()[:300] for x in reversed(lines[-12:]) if STOPPED.search(_QUIET.sub("", x)) and not LIMIT.search(x)),
        None,
    ):
        out.texts["stop/reason"] = reason
    out.texts |= {f"recipe/{found.lower()}": "on" for found in _RECIPE.findall(text)}
    return out


def _without_code(lines: Iterable[str]) -> Iterator[str]:
    """Leave out the blocks of Markdown that are marked as program code."""
    code = False
    for line in lines:
        if line.lstrip().startswith("```"):
            code = not code and line.strip("` \t").lower() in ("python", "py", "cpp", "c++", "yaml", "json")
        elif not code:
            yield line


def _stated(row: Row, line: str) -> dict[str, float | None]:
    """Return the metrics of a line without a step, which may be a sentence: "clipped or NaN", "VAEs use scale=0.18"."""
    found = {key: x for key, x in row.values.items() if canonical(key)}
    found = {key: x for key, x in found.items() if x is None or x == x or re.search(r"[:=]", line)}
    return {key: x for key, x in found.items() if canonical(key) != "scaler/scale" or (x is not None and x >= 1)}


def _known(row: Row, aliases: Mapping[str, str] | None) -> bool:
    return any(canonical(key, aliases) for key in row.values)


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Join the lines of a printed dictionary that spans several."""
    held: list[str] = []
    for line in lines:
        if not held and not re.match(r"\s*\{\s*['\"]", line):
            yield line
            continue
        held.append(line)
        text = " ".join(held)
        if text.count("{") <= text.count("}"):
            yield text
            held = []
        elif len(held) > 200:
            yield from held
            held = []
    yield from held


def _dictionary(line: str) -> Row | None:
    """Return the metrics of a printed dictionary, nested ones under ``outer/inner``; None if it is not one."""
    if not re.match(r"\s*\{\s*['\"]", line) or not line.rstrip().endswith("}"):
        return None
    try:
        found = ast.literal_eval(re.sub(r"\b(?:np\.\w+|tensor)\(\s*([^(),]*)[^()]*\)", r"\1", line).strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    values = flat_numbers(found) if isinstance(found, dict) else {}
    step = next((values.pop(key) for key in list(values) if key.lower() in STEPS), None)
    return Row(whole(step), None, values) if values else None


def parse(line: str) -> Row | None:
    """Return the metrics of one printed line, None if it has none."""
    if (row := _dictionary(line)) is not None:
        return row
    if found := _PHASE.search(line):  # MMEngine counts the iterations of an epoch
        epoch, at, of = (int(x) for x in found.groups()[1:])
        row = parse(line[found.end() :])
        if row is None:
            return None
        held = (found[1] or "train").lower() != "train"
        values = {f"val/{k}" if held else k: x for k, x in row.values.items()} | {"epoch": epoch}
        return row._replace(step=None if held else epoch * of + at, values=values)
    if len(line) > LONGEST or (not any(c.isdigit() for c in line) and "nan" not in line.lower()):
        return None
    line = _THOUSANDS.sub(lambda m: f"{float(m[1]) * 1000:.0f}", line)
    rank, bar, step = _RANK.search(line), _BAR.search(line), None
    if bar:
        postfix = re.split(r"it/s|s/it|\?it", bar[2])[-1]
        step, line = int(bar[1]), f"{line[: bar.start()]} {postfix} {line[bar.end() :]}"
    elif found := _STEP.search(line):
        step = whole(float(found[1].replace(",", "")))
        line = line[: found.start()] + " " + line[found.end() :]
    elif found := _FIRST.search(line) or re.search(
        r"^\s*(\d+):\s|\[\s*(\d+)/\d+\]|第\s*(\d+)\s*步|^[\[(#]+(\d+)(?:/\d+)?[\])\s]", line
    ):
        step = int(next(filter(None, found.groups())))
        line = line[found.end() :] if found.re is _FIRST else line
    for pattern, new in _REWRITE:
        line = pattern.sub(new, line)
    values: dict[str, float | None] = {}
    tags: str | None = None  # those in front of the first metric
    for name, part in _STATISTIC.findall(line):
        values |= {f"{name}_{kind.lower()}": _value(x) for kind, x in _ONE_STATISTIC.findall(part)}
    line = _STATISTIC.sub(" ", line)
    for name, low, high in RANGE.findall(line):
        values |= {f"{name}_min": _value(low), f"{name}_max": _value(high)}
    line = RANGE.sub(" ", line)
    for match in _PAIR.finditer(line):
        key, number = match["key"].strip(), match["value"]
        key = key if re.fullmatch(r"\|[\w*]+\|", key) else key.strip("| ")
        if re.search(r"\.(?:py|cc|cpp|cu|rs|go|js)$", key):
            continue  # the place in the code that printed the line
        known = canonical(key)
        while known is None and " " in key:
            key = key.partition(" ")[2]
            known = canonical(key)
        head = _TAG.findall(line[: match.start()]) if tags is None else [tags]
        if known is None and any(head) and canonical(f"loss_{key}") in ("loss/total", "loss/shuffled"):
            key, known = f"loss_{key}", "loss/total"  # val@500: true 0.87 shuffled 0.88
        tagged = known is not None and known.removeprefix("val/").startswith(_TAGGED)
        if tagged and tags is None:
            tags = "".join(f"{tag}/" for tag in head)
        probe = role(key) in ("t", "n", "x", "v", "dt") or key.lower() in STEPS or re.search(r"mse|err", key, re.I)
        if key and (probe or known or (known is None and step is not None)):
            values.setdefault(f"{tags}{key}" if tagged else key, _value(number))
    named = next((values.pop(key) for key in list(values) if key.lower() in STEPS and key.lower() not in COUNT), None)
    if named is not None and (bar or step is None):  # the bar counts an epoch, its postfix the run
        step = whole(named)
    counter = next((key for key in values if key.lower() in ("n", "u", "k")), None)
    if step is None and counter and {canonical(k) for k in values} & {"loss/total", "loss/flow", "grad/total"}:
        step = whole(values.pop(counter))
    if not values:
        return None
    return Row(step, int(next(filter(None, rank.groups()))) if rank else None, values)


def _value(text: str) -> float | None:
    if text.lower() in ("none", "null", "-", ""):
        return None
    return float(text.replace(",", ""))


def _is_heading(line: str) -> bool:
    words = line.strip().strip("`#* ")
    titled = re.match(r"[=\-~]{2,}\s*\w", words)
    return bool(words) and bool(
        titled or line.lstrip().startswith("#") or words[-1] in ":：" or re.match(r"\d+[).）]\s", words)
    )


def _contexts(lines: Iterable[str], again: Callable[[str], bool]) -> Iterator[tuple[str, str, Row | None]]:
    """Yield (heading, line, row) of every line; row: that of a table with a header, or of a box of key | value.

    again: takes a line outside of tables whose shape is known.
    """
    heading, before, title, header, box = "", "", "", [], {}
    for line in lines:
        if not header and not box and again(line):
            continue
        text = line.strip()
        text = (
            text.lstrip("# ") if text.startswith("#") and len(text.split()) > 2 and not line.startswith("##") else text
        )
        words = text.strip("`#* ")
        if _is_heading(line):
            heading = words.rstrip(":：")
        ruled = re.fullmatch(r"[-=+|: \u2500-\u257f]{3,}", text) and not re.search(r"[^\W_]", text)
        if ruled:
            if box:
                yield heading, "", _row(box)
                box = {}
            continue
        if box and not text.startswith(("|", "│", "┃")):
            yield heading, "", _row(box)
            box = {}
        bars = text.startswith(("|", "│", "┃"))
        if bars:
            text = re.sub(r"(?<=\s)\|([xv])\|(?=\s)", r"abs_\1", _called(text))
            cells = [c.strip(" *") for c in text.strip("|│┃").split(text[0])]
        elif text.count(" | ") and not re.search(r"[=:{]", text):  # as psql prints them
            cells = [c.strip() for c in text.split("|")]
        else:
            text = _called(text) if "(" in text or "|/|" in text else text
            cells = re.split(r"\s{2,}|\t" if re.search(r"\([^)]*\s", text) else r"\s+|\t", text.strip())
            if len(cells) > len(header) > 2 and not any(map(_cell, cells[len(header) :])):
                cells = cells[: len(header)]  # a remark behind the columns
        numbers = [_cell(cell) for cell in cells]
        empty = [cell.lower() in ("", "-", "--", "none", "null", "n/a", "nan") for cell in cells]
        statistics = [h.lower() for h in header]
        if (
            len(cells) == len(header) > 2
            and {"mean", "std"} <= set(statistics)
            and re.fullmatch(TENSOR, cells[0], re.I)
        ):
            found = {f"{cells[0]}_{h}": n for h, n in zip(statistics, numbers) if n is not None}
            yield heading, "", Row(None, None, found)
            continue
        bin_ = re.fullmatch(r"[(\[]?\s*([01]?\.\d+|0|1)\s*(?:–|—|-|to|,|\.\.)\s*([01]?\.\d+|0|1)\s*[)\]]?", cells[0])
        if bin_ and len(cells) == len(header) > 1 and float(bin_[2]) - float(bin_[1]) <= 0.101:
            gains = {k: n for k, n in zip(header, numbers) if canonical(k) == "flow/cond_gain_cos"}
            slices = {canonical(k): n for k, n in zip(header, numbers) if canonical(k) in ("flow/cos", "flow/nmse")}
            yield (
                heading,
                "",
                Row(None, None, gains | {f"{k}_t{int(float(bin_[1]) * 10 + 1e-6)}": n for k, n in slices.items()}),
            )
        elif bars and len(cells) == 2 and numbers[0] is None and numbers[1] is not None:
            box[cells[0]] = numbers[1]
        elif (
            len(cells) == len(header) > 1
            and any(n is not None for n in numbers)
            and (bars or all(n is not None or e for n, e in zip(numbers, empty)))
        ):
            kept = {k: n for k, n, e in zip(header, numbers, empty) if k and (n is not None or e)}
            yield f"{heading} {title} {' '.join(header)}", line if bars else "", _row(kept)
        else:
            names = [cell for cell, number in zip(cells, numbers) if cell and number is None]
            known = sum(
                canonical(c) is not None
                or bool(_ERROR.search(c))
                or c.lower() in (*STEPS, *EPOCHS, *COUNT, "t", "dt", "|x|", "|v|")
                for c in names
            )
            words_only = not re.search(r"(?<![\w.-])[-+]?\d", re.sub(r"\([^)]*\)", "", text))
            plain = (not bars and " | " in text and words_only) or all(
                re.fullmatch(r"[^\W\d][\w/.@*()%‖∥|\[\]-]*|[|‖∥].*", c) for c in names
            )
            if len(names) == len(cells) > 1 and (bars or plain) and known >= max(2, len(cells) // 2):
                header, title = cells, before
                continue
            if bars and len(names) == len(cells) > 1:  # a header of other words: its numbers may still be named by it
                header, title = cells, before
                continue
            before, header = line, header if bars else []
            yield heading, line, None
    if box:
        yield heading, "", _row(box)


def _cell(cell: str) -> float | None:
    """Return the number in a cell of a table, with a unit or a mark of it."""
    found = re.fullmatch(rf"{N}\s*(dB|%|✓|✗|✔|x|×|k)?", cell, re.I)
    value = _value(found[1]) if found else None
    return value * 1000 if value is not None and found[2] in ("k", "K") else value


def _called(text: str) -> str:
    """Rewrite calls and ratios of norms in the header of a table, whose bars are not those of the table."""
    for pattern, new in _REWRITE:
        if new == " speed_ratio " or pattern.pattern.startswith(r"\b(cos|corr"):
            text = pattern.sub(new, text)
    return re.sub(r"\|\|\s*([\w*]+)\s*\|\|", r"norm_\1", text)


def _row(values: dict[str, float | None]) -> Row:
    values = {f"{key}_loss" if _SIDES.fullmatch(key) else key: x for key, x in values.items()}
    lower = {key.lower(): key for key in values}
    step = next((values[lower[key]] for key in (*STEPS, *EPOCHS) if key in lower and key not in ("steps",)), None)
    kept = {key: x for key, x in values.items() if key.lower() not in STEPS or key.lower() in COUNT}
    return Row(whole(step), None, {k: x for k, x in kept.items() if canonical(k) != ""})
