"""The report as one HTML page that points nowhere else: cards, and plots drawn by a few lines of JavaScript."""

import json
import math
from collections.abc import Sequence
from html import escape

import numpy as np

from fmpipe.diagnose.report.compare import Comparison
from fmpipe.diagnose.report.judge import CONFIRMED, REJECTED, UNKNOWN, Hypothesis
from fmpipe.diagnose.report.said import into
from fmpipe.diagnose.report.script import SCRIPT, STYLE
from fmpipe.diagnose.report.stats import RunStats
from fmpipe.diagnose.report.write import (
    about,
    advice,
    findings,
    follows,
    headline,
    observations,
    runs,
    tree,
    word,
)
from fmpipe.page import document, table

POINTS = 600  # of a line, about
LINES = 8  # of a plot
_CLASS = {CONFIRMED: "fail", REJECTED: "pass", UNKNOWN: "skipped"}


def thinned(x: np.ndarray, y: np.ndarray, most: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """At most about ``most`` points: of each bucket its least, its greatest and, so that a gap shows, a NaN."""
    if len(y) <= most:
        return x, y
    kept = set()
    for part in np.array_split(np.arange(len(y)), most // 2):
        values = y[part]
        good = np.isfinite(values)
        if good.any():
            kept |= {
                int(part[np.where(good, values, np.inf).argmin()]),
                int(part[np.where(good, values, -np.inf).argmax()]),
            }
        if not good.all():
            kept.add(int(part[(~good).argmax()]))
    index = np.array(sorted(kept | {0, len(y) - 1}))
    return x[index], y[index]


def _line(name: str, x: np.ndarray, y: np.ndarray) -> dict[str, object]:
    x, y = thinned(np.asarray(x), np.asarray(y, dtype=np.float64))
    shown = [float(f"{v:.6g}") if math.isfinite(v) else None for v in y.tolist()]
    return {"name": name, "x": [float(f"{v:.10g}") for v in x.tolist()], "y": shown}


def lines_of(h: Hypothesis, stats: RunStats, other: RunStats | None = None) -> list[dict[str, object]]:
    """What its plot shows: its series in every stage (of B too), the traces, or the schedule's curve."""
    if h.name == "integration":  # beside its beginning: one trace may be ten times another
        shown = list(enumerate(stats.traces, 1))[:LINES]
        return [_line(f"|x| / |x|₀ {k} {t.label}".strip(), np.arange(len(t)), t.x / (t.x[0] or 1)) for k, t in shown]
    if h.name == "schedule_constants":
        return _schedule(stats)
    out = []
    for owner, run in (("", stats), ("B ", other)) if other is not None else (("", stats),):
        for stage, s in runs(run).items():
            place = f"{owner}{stage + ' ' if run.stages else ''}"
            out += [_line(f"{place}{n}", s.metrics[n].steps, s.metrics[n].values) for n in h.metrics if n in s.metrics]
    return [line for line in out if line["x"]][:LINES]


def _schedule(stats: RunStats) -> list[dict[str, object]]:
    """alphas_cumprod of linear betas with the log's ends, and the two values that the log has."""
    s = next((s for s in runs(stats).values() if s.constants), stats)
    betas, kept = s.constants.get("const/betas"), s.constants.get("const/alphas_cumprod")
    out = []
    if betas:
        out.append(_line("linear betas", np.arange(1000), np.cumprod(1 - np.linspace(betas[0], betas[-1], 1000))))
    if kept:
        out.append(_line("alphas_cumprod", np.linspace(0, 999, len(kept)), np.array(kept)))
    return out


def _list(lines, lang: str, marks: Sequence[bool] = ()) -> str:
    marks = [f'<b class="{"ok" if ok else "bad"}">{"✓" if ok else "✗"}</b> ' for ok in marks]
    items = [f"{marks[k] if marks else ''}{escape(str(into(line, lang)))}" for k, line in enumerate(lines)]
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>" if items else f"<p>{word(lang, 'none')}</p>"


def html(
    stats: RunStats,
    hypotheses: Sequence[Hypothesis],
    lang: str = "en",
    comparison: Comparison | None = None,
    other: RunStats | None = None,
    refresh: float = 0.0,
) -> str:
    """The page. other: run B, drawn beside. refresh: seconds after which a browser reads it again; 0 never."""
    charts: list[list[dict[str, object]]] = []

    def chart(lines: list[dict[str, object]]) -> str:
        if not lines:
            return ""
        charts.append(lines)
        return f'<figure class="wide chart" data-k="{len(charts) - 1}"></figure>'

    body = [f"<p class=lead>{escape(headline(hypotheses, lang))}</p>"]
    for root, below in tree(hypotheses):
        bad = [e for e, ok in zip(root.evidence, root.marks) if not ok]
        more = [f"{h.letter} {h.title.into(lang)} ({follows(h, hypotheses, lang)})" for h in below]
        body.append(
            f'<section class="fail"><h3>{root.letter} {escape(root.title.into(lang))}</h3>{_list(bad, lang)}'
            f"<p>→ {escape(' '.join(into(a, lang) for a in root.advice))}</p>{_list(more, lang) if more else ''}"
            f"</section>"
        )
    if comparison is not None:
        body.append(f"<h2>{word(lang, 'compare')}</h2>{_list(comparison.lines, lang)}")
    body.append(f"<h2>{word(lang, 'hypotheses')}</h2><p><small>{word(lang, 'hover')}</small></p>")
    for h in hypotheses:
        why = follows(h, hypotheses, lang)
        verdict = word(lang, f"verdict/{h.verdict}") + (f", {why}" if why else "")
        said = _list(h.evidence, lang, h.marks) if h.evidence else f"<p>{word(lang, 'no_data')}</p>"
        body.append(
            f'<section class="{_CLASS[h.verdict]}"><h3>{h.letter} {escape(h.title.into(lang))} <small>{verdict}</small>'
            f"</h3>{said}<p><small>{word(lang, 'rule')}: {escape(into(h.rule, lang))}</small></p>"
            f"{chart(lines_of(h, stats, other))}</section>"
        )
    for key, lines in (
        ("findings", findings(stats)),
        ("observations", observations(stats)),
        ("advice", advice(hypotheses)),
    ):
        body.append(f"<h2>{word(lang, key)}</h2>{_list(list(lines), lang)}")
    body.append(f"<h2>{word(lang, 'log')}</h2>{table(about(stats, lang))}")
    data = json.dumps({"log": word(lang, "plot/log"), "charts": charts}, ensure_ascii=False).replace("</", "<\\/")
    again = f'<meta http-equiv="refresh" content="{refresh:g}">' if refresh else ""
    script = f'<script type="application/json" id="data">{data}</script><script>{SCRIPT}</script>'
    title = f"{word(lang, 'report')} {stats.source}".strip()
    return document(title, f"{again}<style>{STYLE}</style>{''.join(body)}{script}", lang)
