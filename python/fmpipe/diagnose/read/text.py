"""Metrics in any text: printed lines, progress bars, tables, probes of debugging code, and figures stated in prose."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.read.names import EPOCHS, HELD_OUT, NEGATED, OWN, SHUFFLED, STEPS, canonical
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
_TRAINED, _HELD = "(?:trn?|train(?:ing)?|训练)", "(?:va|val|valid(?:ation)?|dev|ho|test|验证)"
SIDES = re.compile(rf"(?:({_TRAINED})|{_HELD})(?:_ema)?", re.IGNORECASE)  # columns of losses
_DECIMAL = r"(?=\s*[:=：]?\s*(?:\d+\.\d+(?:e[-+]?\d+)?|nan)(?![\d.]|\s?(?:[%/]|(?:s|ms|secs?|min|h|k|m|gb|db)\b)))"
_BOTH = re.compile(rf"(?<![\w/.-])({_TRAINED})({_DECIMAL}.*?(?<![\w/.-]))({_HELD}){_DECIMAL}", re.IGNORECASE)
_MEASURE = re.compile(r"(?<!loss)(?<!losses)(?<!info)(?<!epoch)(?<!损失)(?<=[^\W\d_])[\s:=(]*$", re.IGNORECASE)
_TAGGED = ("loss/", "flow/", "quality/", "vae/")  # metrics that a tag in front of a line is about
_THOUSAND = re.compile(r"\d{1,3}(?:,\d{3})+")
_THOUSANDS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)k(?=[/)\]\s,:]|$)")  # a step of 12.5k
_SECOND = (
    r"(?:loss|cos|norm|rate|mse|kl|scale|ratio|error|psnr|entropy|steps/sec|lr|skipped|iterations|similarity|weight"
    r"|mean|std|min|max|grad|prompts?|h)"
)
_PAIR = re.compile(
    rf"['\"]?(?P<key>[A-Za-z_|‖∥\u4e00-\u9fff][\w/.@|*‖∥\-\[\]\u4e00-\u9fff]*(?:\(\w+\*?\)\w*)?(?:\s{_SECOND}\b){{0,2}})(?:\s*\([a-zA-Z%]{{1,4}}\))?"
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
    (re.compile(r"(?<=\w)\(\s*\)"), ""),
    (re.compile(r"\b(\w*skip\w*|\w*overflow\w*)([\s:=]+\d+)\s*/\s*\d+", re.I), r"\1\2"),
    (re.compile(r"\btorch\.\w+|[(\[]\s*\d+(?:\s*[,x×]\s*\d+)+,?\s*[)\]]"), " "),
    (re.compile(r"\b(?:shape|dtype|device)\s*=\s*\S*|\b(?:u?int|b?float)\d+\b"), " "),
    (re.compile(rf"\(\s*{N}\s*,?\s*\)"), r" \1 "),
    (re.compile(r"reducing to (\d+)", re.I), r" loss_scale=\1 "),
    (re.compile(r"\s*([_^]?[₂²]|\^2)(?=[\s=:≈|/,)])"), ""),
    (
        re.compile(rf"[<⟨]\s*({NAMES})\s*,\s*({NAMES})\s*[>⟩]\s*/\s*\(?[|‖∥][|‖∥.·*\s\w-]*[|‖∥]\)?(?=\s*[=:])", re.I),
        r"cos(\1,\2)",
    ),
    (_BOTH, lambda m: m[0] if _MEASURE.search(m.string[: m.start()]) else f"{m[1]}_loss{m[2]}{m[3]}_loss"),
    (re.compile(rf"[|‖∥]+\s*({NAMES})\s*[|‖∥]+\s*/\s*[|‖∥]+\s*({NAMES})\s*[|‖∥]+", re.I), " speed_ratio "),
    (re.compile(r"[<⟨]\|\s*([xvzu])\s*\|[>⟩]", re.I), lambda m: f" abs_{'x' if m[1] in 'xzXZ' else 'v'} "),
    (re.compile(r"(?:mean\s*)?(?:abs\(\s*(x|v)\s*\)|(?<![|‖∥])\|\s*(x|v)\s*\|(?!\|))(?:_mean|\.mean\(\))?", re.I),
     lambda m: f" abs_{next(filter(None, m.groups())).lower()} "),
    (re.compile(r"[|‖∥]{1,2}\s*(?:g|grad)\s*[|‖∥]{1,2}(?:_2)?", re.I), " grad_norm "),
    (re.compile(rf"\b(cos|corr|mse|rmse|cosine|cos_sim)\(\s*({NAMES})\s*,\s*({NAMES})\s*\)", re.I),
     lambda m: f" {re.sub(r'[ -]+', '_', NEGATED.sub('negated', '_'.join(m.groups())))} "),
    (re.compile(rf"\b({TENSOR})\s*[:=(]*\s*({_KINDS})\)?\s*[:=]?\s*((?:{NUMBER})(?:\s*/\s*(?:{NUMBER}))+)", re.I),
     lambda m: "".join(f" {m[1]}_{kind.strip()}={x} " for kind, x in zip(m[2].split("/"), m[3].split("/")))),
    (re.compile(rf"\b(?:dw/w|upd(?:ate)?(?:[ _]ratio|/param)s?)[:\s]+((?:\w+[\s=:]+(?:{NUMBER})[,\s]*)+)", re.I),
     lambda m: re.sub(r"([A-Za-z_]\w*)(?=[\s=:])", r" dw_w_\1", m[1])),
    (re.compile(rf"\b({TENSOR})\s*[:=]?\s*(?:mean\s*[±+]\S*\s*std)?\s*[:=]?\s*{N}\s*(?:±|\+/?-)\s*{N}", re.I),
     r" \1_mean=\2 \1_std=\3 "),
]  # fmt: skip
_STATISTIC = re.compile(
    rf"(?<![\w/.])({TENSOR})(?:\.\w+)?\b['\"]?(?:\s*\([^)]*\)|\s*~\s*[\w-]+\s*(?:[(\[][^)\]]*[)\]])?)?\s*[:=|({{\[,]*\s*"
    rf"((?:['\"]?(?:min|max|mean|std|var|nan)['\"]?\s*[:=]?\s*(?:{NUMBER})[\s,;|/]*){{1,6}})",
    re.IGNORECASE,
)
_ONE_STATISTIC = re.compile(rf"(min|max|mean|std|var|nan)['\"]?\s*[:=]?\s*{N}", re.IGNORECASE)
_RULED = re.compile(r"[-=+|: \u2500-\u257f]{3,}")
_NUMBERED = re.compile(r"(?:^|[\s=:])[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?(?=[\s,;]|$)")
_SEPARATORS = [(mark, re.compile(separator)) for mark, separator in (
    ("\t", r"\s*\t\s*"), ("[|│]", r"\s+[|│]\s+"), ("[,;]", r"\s*[,;](?![^(]*\))\s*"), ("  ", r"\s{2,}"),
    (r"\s", r"\s+"),
)]  # fmt: skip
_NOTHING = ("", "-", "--", "none", "null", "n/a", "nan")
_TAGS = {"ema", "raw", "train", *HELD_OUT, *OWN, *SHUFFLED}  # rows of a table that stand for other metrics
_TENSORS = r"[xz]_?[01t]|[uv]\*|[uv]_(?:t|pred|tgt|target)|mu"
_MEASURES = {  # what a title says about the columns below it
    "norm": "norm|‖|范数", "cos_pred": "corr|cos|余弦|相关", "mse": "mse|loss|error|损失|误差", "dw_w": "update",
}  # fmt: skip
_ABOUT_T = re.compile(r"(?<![\w.])(?:t|timesteps?|time_?dist)(?![\w.]|\s*[=(])|时间步", re.IGNORECASE)
_SAYS = re.compile(r"teacher|exact|endpoint|r?mse\b|cos|norm|corr|shoot|rollout", re.IGNORECASE)
_T = r"([01]?\.\d+|0|1)"
_BIN = re.compile(rf"(?:t\s*(?:in|∈|=)?\s*)?[(\[]?\s*{_T}\s*(?:–|—|-|~|to|,|\.\.)\s*{_T}\s*[)\]]?")
_SLICED = re.compile(rf"(?<![\w.])(?:t\s*(?:in|∈|=|:)?|bin|slice)\s*[(\[]\s*{_T}\s*[-–,~]\s*{_T}\s*[)\]]")
_QUIET = re.compile(r"\b\w*(?:alarm|abort|terminat|kill)\w*\s*[=:]\s*(?:0|false|none)\b", re.IGNORECASE)
_OVERFIT = re.compile(
    r"(?:over-?fit\w*|memori[sz]\w*)\W+(?:\w+\W+){0,3}?\d+\s*(?:fixed\s+)?(?:samples?|images?|pairs?|examples?)"
    r"|(?:single|one)[- ]batch\W+over-?fit|over-?fit\w*\W+(?:\w+\W+)?(?:single|one|1)[- ]batch"
    r"|过拟合\D{0,6}\d+\s*[张个对条]",
    re.IGNORECASE,
)
_RECIPE = re.compile(
    r"(?<!no )(?<!without )\b(std_range|anchor|detach(?:_\w+)?)\b['\"]?"
    r"(?:\s*[=:]\s*(?!none|null|false|0\b|off)|(?<!detach)\((?=[\w.])|\s+(?:on|holds?|keeps?|of)\s+(?:the\s+)?(?:mu|z0|head|std)\b)",
    re.IGNORECASE,
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
    out = gathered(name, rows + probes.left)
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
    if _OVERFIT.search(text):
        out.texts["recipe/overfit"] = "on"
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
        r"^\s*(\d+):\s|\[\s*(\d+)/\d+\]|第\s*(\d+)\s*步|^[\[(#]+\s*(\d+)(?:/\d+)?[\])\s]", line
    ):
        step = int(next(filter(None, found.groups())))
        line = line[found.end() :] if found.re is _FIRST else line
    for pattern, new in _REWRITE:
        line = pattern.sub(new, line)
    values: dict[str, float | None] = {}
    tags, begin, end = None, 0, 0  # in front of a line's first metric, or of a part's: "raw: fid 13 | ema: fid 30"
    for name, part in _STATISTIC.findall(line):
        values |= {f"{name}_{kind.lower()}": _value(x) for kind, x in _ONE_STATISTIC.findall(part)}
    line = _STATISTIC.sub(" ", line)
    slices = _SLICED.search(line)
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
        between, before, end = line[end : match.start()], end, match.end()
        if tags is not None and re.search(r"[|;,\[]|:\s*$", between) and _TAG.search(between):
            tags, begin = None, before
        head = _TAG.findall(line[begin : match.start()]) if tags is None else [tags]
        if known is None and any(head) and canonical(f"loss_{key}") in ("loss/total", "loss/shuffled"):
            key, known = f"loss_{key}", "loss/total"  # val@500: true 0.87 shuffled 0.88
        tagged = known is not None and known.removeprefix("val/").startswith(_TAGGED)
        if tagged and tags is None:
            tags = "".join(f"{tag}/" for tag in head)
        probe = role(key) in ("t", "n", "x", "v", "dt") or key.lower() in STEPS or re.search(r"mse|err", key, re.I)
        if key and (probe or known or (known is None and step is not None)):
            values.setdefault(f"{tags}{key}" if tagged else key, _value(number))
    if slices:  # t in (0.1, 0.2]: nmse 0.6
        tens = _tenths(float(slices[1]), float(slices[2]))
        for key in [key for key in values if tens and canonical(key) in ("flow/cos", "flow/nmse")]:
            x = values.pop(key)
            values |= {f"{canonical(key)}_t{k}": x for k in tens}
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


def _contexts(lines: list[str], again: Callable[[str], bool]) -> Iterator[tuple[str, str, Row | None]]:
    """Yield (what is said above, line, row) of every line; row: that of a table, or of a box of key | value.

    again: takes a line outside of tables whose shape is known.
    """
    heading, title, before, header, box, titles = "", "", "", [], {}, {}
    for at, line in enumerate(lines):
        if not header and not box and again(line):
            continue
        text = line.strip()
        bars = text.startswith(("|", "│", "┃"))
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
            said, before, header = before.strip(), line, header if bars else []
            if _is_heading(line):
                heading, title = text.strip("`#* ").rstrip(":："), ""
                context = heading
            elif _is_title(text):
                more = said == title != "" and _SAYS.search(title) and not _SAYS.search(text)  # the line above goes on
                title = f"{title}; {text}" if more else text
            yield context, line, None
    if box:
        yield heading, "", _row(box)


def _measured(names: list[str], title: str, counted: bool) -> list[str]:
    """Return the names of columns after what the title says is measured: "L2 norms" over z0, z1, v.

    counted: whether the rows begin with a number, as by batch; else with what they are about.
    """
    statistics = [name.lower() in ("mean", "std", "min", "max") for name in names]
    if counted and sum(statistics) > 1 and _ABOUT_T.search(title):
        return [f"t_{name}" if k else name for name, k in zip(names, statistics)]
    bare = [name.isascii() and name[:1].isalpha() and canonical(name) is None for name in names]
    for measure, word in _MEASURES.items():
        full = [f"{measure}_{name}" if unknown else name for name, unknown in zip(names, bare)]
        if re.search(word, title, re.I) and sum(a != b and bool(canonical(a)) for a, b in zip(full, names)) > 1:
            return [a if canonical(a) else b for a, b in zip(full, names)]
    return names


def _is_title(text: str) -> bool:
    """Tell whether a line says what the numbers below it are: words, and few numbers."""
    words, numbers = (len(re.findall(x, text)) for x in (r"[\u4e00-\u9fff]|[^\W\d_]{2,}", r"(?<![\w.])\d+"))
    decimal = re.search(r"(?<![\w.])\d*\.\d", re.sub(r"\(.*\)", "", text))
    return words > max(1 if _SAYS.search(text) else 2, 2 * numbers) and not decimal


def _below(lines: list[str], at: int) -> str:
    """Return the next line that is neither empty nor a rule."""
    return next((x.strip() for x in lines[at + 1 : at + 4] if x.strip() and not _RULED.fullmatch(x.strip())), "")


def _splits(text: str, width: int = 0) -> Iterator[list[str]]:
    """Yield the cells of a line for every separator that it may have; width: that of the table, if it is known."""
    text = _called(text)
    if text.startswith(("|", "│", "┃")):
        yield [c.strip(" *") for c in text.strip("|│┃").split(text[0])]
        return
    text = text.strip(" ,;")
    for mark, separator in _SEPARATORS:
        cells = separator.split(text) if re.search(mark, text) else [text]
        if len(cells) > width > 2 and not any(map(_cell, cells[width:])):
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
    if (where := _BIN.fullmatch(cells[0])) and (tens := _tenths(float(where[1]), float(where[2]))):
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


def _tenths(low: float, high: float) -> list[int]:
    """Return the tenths of [0, 1] whose middles are in a bin of t; the one that the bin is in if it is narrow."""
    if not 0 <= low < high <= 1:
        return []
    return [k for k in range(10) if low <= k / 10 + 0.05 < high] or [min(9, int(5 * (low + high) + 1e-6))]


def _cell(cell: str) -> float | None:
    """Return the number in a cell of a table, with a unit or a mark of it."""
    found = re.fullmatch(rf"{N}\s*(dB|%|✓|✗|✔|x|×|k)?", cell, re.I)
    value = _value(found[1]) if found else float(cell.replace(",", "")) if _THOUSAND.fullmatch(cell) else None
    return value * 1000 if value is not None and found and found[2] in ("k", "K") else value


def _called(text: str) -> str:
    """Rewrite calls and norms in a line of a table, whose bars and spaces are not those of the table."""
    if not re.search(r"[|(‖∥]", text):
        return text
    if "(" in text or "|/|" in text or "| / |" in text:
        for pattern, new in _REWRITE:
            if new == " speed_ratio " or pattern.pattern.startswith(r"\b(cos|corr"):
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
