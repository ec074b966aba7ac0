"""Metrics in any text: printed lines, tables, probes of debugging code, and numbers stated in prose."""

import re
from collections.abc import Iterable, Iterator, Mapping

from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.read.content import PRINTED
from fmpipe.diagnose.read.line_shapes import LineShapes
from fmpipe.diagnose.read.lines import parse
from fmpipe.diagnose.read.names import canonical
from fmpipe.diagnose.read.probes import COUNT, Probes
from fmpipe.diagnose.read.prose import statements
from fmpipe.diagnose.read.series import LIMIT, STOPPED, Row, figures_of
from fmpipe.diagnose.read.text_tables import contexts, is_heading
from fmpipe.diagnose.texts import Message

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[\d{1,2}m")
_BLANK = re.compile(r"[\r\n]{3,}")
_QUIET = re.compile(r"\b\w*(?:alarm|abort|terminat|kill)\w*\s*[=:]\s*(?:0|false|none)\b", re.IGNORECASE)
_OVERFIT = re.compile(  # a run that learns a few samples by heart on purpose
    r"""
      (?: over-?fit\w* | memori[sz]\w* ) \W+ (?: \w+\W+ ){0,3}? \d+ \s* (?: fixed\s+ )?
      (?: samples? | images? | pairs? | examples? )
    | (?: single | one ) [- ] batch \W+ over-?fit
    | over-?fit\w* \W+ (?: \w+\W+ )? (?: single | one | 1 ) [- ] batch
    | 过拟合 \D{0,6} \d+ \s* [张个对条]
    """,
    re.IGNORECASE | re.VERBOSE,
)
_FINETUNE = re.compile(r"\blora\b|fine-?tun|dream-?booth|textual[ _]inversion|微调", re.IGNORECASE)
_RECIPE = re.compile(  # what holds the head instead of the KL
    r"""
    (?<! no\  ) (?<! without\  ) \b ( std_range | anchor | detach (?:_\w+)? ) \b ['"]?
    (?:
        \s* [=:] \s* (?! none | null | false | 0\b | off )
      | (?<! detach ) \( (?= [\w.] )
      | \s+ (?: on | holds? | keeps? | of ) \s+ (?: the\s+ )? (?: mu | z0 | head | std ) \b
    )
    """,
    re.IGNORECASE | re.VERBOSE,
)


def read_text(text: str, name: str, aliases: Mapping[str, str] | None = None) -> Figures:
    """Return everything that a text states: metrics, sampling traces, constants, and the numbers of checks.

    aliases: names that count as known, although the table does not have them.
    """
    text = _BLANK.sub("\n\n", text)
    lines = [_ANSI.sub("", part) for line in _without_code(text.splitlines()) for part in line.split("\r")]
    lines = list(_joined(re.sub(r"\*\*|`|^\s*\*\s", "", line) for line in lines))
    too_long = sum(len(line) > PRINTED for line in lines)
    lines = [line for line in lines if len(line) <= PRINTED]
    rows, probes, tabled, prose, plans = [], Probes(), set(), [], LineShapes(parse)

    def again(line: str) -> bool:
        """Take a line of a shape that was seen before."""
        known, row = plans(line)
        if row is not None:
            rows.append(row)
        elif known:
            prose.append(line)
        return known

    for context, line, table in contexts(lines, again):
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
        if not table and not taken and (row is None or row.step is not None) and not is_heading(line):
            plans.learn(line, row)
    text = "\n".join(prose)
    if tabled and not any(row.step is not None for row in rows):  # prose around a table: the table counts
        sure = {canonical(k) for row in rows if id(row) in tabled for k in row.values}
        rows = [
            r if id(r) in tabled else r._replace(values={k: x for k, x in r.values.items() if canonical(k) not in sure})
            for r in rows
        ]
    out = figures_of(name, rows + probes.left)
    out.lines = len(lines)
    out.metrics = {key: x for key, x in out.metrics.items() if key.lower() not in (*COUNT, "t")}
    stated, out.constants = statements(text)
    long = {canonical(key) for key, x in out.metrics.items() if len(x.values) > 4}
    stated = {key: x for key, x in stated.items() if key not in long}
    out.metrics = {key: x for key, x in out.metrics.items() if canonical(key) not in stated} | stated
    out.traces, out.measured = probes.traces, probes.measured()
    if probes.torn + too_long:
        out.remarks.append(Message("remark/torn", count=probes.torn + too_long, file=name, last=""))
    if reason := next(
        (x.strip()[:300] for x in reversed(lines[-12:]) if STOPPED.search(_QUIET.sub("", x)) and not LIMIT.search(x)),
        None,
    ):
        out.texts["stop/reason"] = reason
    if _OVERFIT.search(text):
        out.texts["recipe/overfit"] = "on"
    if _FINETUNE.search(text):
        out.texts["recipe/finetune"] = "on"
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
