"""Findings as one HTML page that refers to no other file: cards, and plots drawn by a few lines of JavaScript."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from fmpipe.diagnose.compare import Comparison
from fmpipe.diagnose.engine import RULES
from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.reference import MAIN, Place, Placement
from fmpipe.diagnose.render import about, advices, facts, follows, headline, label, needs, observations, tree
from fmpipe.diagnose.rule import Finding
from fmpipe.diagnose.texts import into, word
from fmpipe.page import document, embedded, table

POINTS = 600  # of a line, about
LINES = 8  # of a plot
STYLE, SCRIPT = (Path(__file__).with_name(f"plots.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))


def thinned(x: np.ndarray, y: np.ndarray, most: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Return about ``most`` points: of each bucket its least, its greatest and, so that a gap shows, a NaN."""
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


def lines_of(finding: Finding, figures: Figures, other: Figures | None = None) -> list[dict[str, object]]:
    """Return what its plot shows: its series in every stage (of B too), the traces, or the curve of the schedule."""
    if finding.name == "sampler_state":  # relative to its beginning: one trace may be ten times another
        shown = list(enumerate(figures.traces, 1))[:LINES]
        return [_line(f"|x| / |x|₀ {k} {t.label}".strip(), np.arange(len(t)), t.x / (t.x[0] or 1)) for k, t in shown]
    if finding.name == "schedule_constants":
        return _schedule(figures)
    out = []
    for owner, run in (("", figures), ("B ", other)) if other is not None else (("", figures),):
        for stage, part in run.all_stages.items():
            place = f"{owner}{stage + ' ' if run.stages else ''}"
            shown = [(n, part.metrics[n]) for n in RULES[finding.name].metrics if n in part.metrics]
            out += [_line(f"{place}{n}", x.steps, x.values) for n, x in shown if len(x.values) > 1]
    return out[:LINES]


def _schedule(figures: Figures) -> list[dict[str, object]]:
    """Return alphas_cumprod of linear betas with the ends of the log, and the values that the log has."""
    part = next((part for part in figures.all_stages.values() if part.constants), figures)
    betas, kept = part.constants.get("const/betas"), part.constants.get("const/alphas_cumprod")
    out = []
    if betas:
        out.append(_line("linear betas", np.arange(1000), np.cumprod(1 - np.linspace(betas[0], betas[-1], 1000))))
    if kept:
        out.append(_line("alphas_cumprod", np.linspace(0, 999, len(kept)), np.array(kept)))
    return out


def _banded(place: Place, lang: str) -> list[dict[str, object]]:
    """Return a metric in its band: the line of the run, and the upper end of the band with the lower one as ``low``."""
    line = _line(place.label, place.steps, place.values)
    if place.left is not None:
        line["mark"] = float(place.steps[place.left])
    band = _line(word(lang, "reference/band"), place.steps, place.high)
    return [line, band | {"low": _line("", place.steps, place.low)["y"]}]


def _list(lines: Iterable, lang: str) -> str:
    items = "".join(f"<li>{escape(str(into(line, lang)))}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else f"<p>{word(lang, 'none')}</p>"


def _evidence(finding: Finding, lang: str) -> str:
    signs = {"pass": '<b class="ok">✓</b> ', "skipped": ""}
    rows = ((signs.get(e.status, '<b class="bad">✗</b> '), escape(e.into(lang))) for e in finding.evidence)
    return f"<ul>{''.join(f'<li>{sign}{text}</li>' for sign, text in rows)}</ul>"


def html(
    figures: Figures,
    findings: Sequence[Finding],
    lang: str = "en",
    comparison: Comparison | None = None,
    other: Figures | None = None,
    refresh: float = 0.0,
    pictures: Mapping[str, object] | None = None,
    settings: Mapping[str, object] | None = None,
    placement: Placement | None = None,
) -> str:
    """Return the page.

    Args:
        other: run B, drawn into the same plots.
        refresh: seconds after which a browser reads the page again; 0 for never.
        pictures: images by name, of ``fmpipe check``.
        settings: of ``fmpipe check``.
        placement: where the run lies in the bands of its reference runs.
    """
    charts: list[list[dict[str, object]]] = []

    def chart(finding: Finding) -> str:
        if not (lines := lines_of(finding, figures, other)):
            return ""
        charts.append(lines)
        return f'<figure class="wide chart" data-k="{len(charts) - 1}"></figure>'

    body = [f"<p class=lead>{escape(headline(findings, lang))}</p><p>{escape(needs(findings, lang))}</p>"]
    for root, below in tree(findings):
        more = [f"{label(f, lang)} ({follows(f, lang)})" for f in below]
        body.append(
            f"<section class=root><h3>{escape(label(root, lang))}</h3>{_list([e.into(lang) for e in root.bad], lang)}"
            f"<p>→ {escape(' '.join(str(into(a, lang)) for a in root.advices))}</p>{_list(more, lang) if more else ''}"
            f"</section>"
        )
    if comparison is not None:
        body.append(f"<h2>{word(lang, 'compare')}</h2>{_list(comparison.lines, lang)}")
    if placement is not None:
        body.append(f"<h2>{word(lang, 'reference')}</h2>{_list(placement.lines, lang)}")
        shown = [p for p in placement.places if len(p.steps) > 1 and (MAIN.fullmatch(p.name) or p.left is not None)]
        plots = []
        for p in shown:
            charts.append(_banded(p, lang))
            end = escape(str(into(p.end, lang)))
            plots.append(f'<div><figure class="wide chart" data-k="{len(charts) - 1}"></figure><p>{end}</p></div>')
        body.append(f'<div class="bands">{"".join(plots)}</div>')
        body.append(
            f"<details><summary>{word(lang, 'reference/ends')}</summary>{_list(placement.ends(), lang)}</details>"
        )
    body.append(f"<h2>{word(lang, 'rules')}</h2><p><small>{word(lang, 'hover')}</small></p>")
    for f in (f for f in findings if f.status != "skipped"):
        why = follows(f, lang)
        verdict = word(lang, f"status/{f.status}") + (f", {why}" if why else "")
        todo = f"<p><b>{word(lang, 'next')}:</b> {escape(' '.join(str(into(a, lang)) for a in f.advices))}</p>"
        rule = f"<p>{word(lang, 'threshold')}: {escape(str(into(f.threshold, lang)))}</p>"
        rule += f"<p><i>{escape(str(into(f.experience, lang)))}</i></p>"
        details = f"<details><summary>{word(lang, 'values')}</summary>{table(f.values)}{rule}</details>"
        body.append(
            f'<section class="{f.status}"><h3>{escape(label(f, lang))} <small>{f.name}: {verdict}</small></h3>'
            f"{_evidence(f, lang)}{todo if f.advices else ''}{details}{chart(f)}</section>"
        )
    if left := [f for f in findings if f.status == "skipped"]:
        rows = (f"{f.name}: {f.says(lang) or word(lang, 'no_data')}" for f in left)
        body.append(f'<section class="skipped"><h3>{word(lang, "status/skipped")}</h3>{_list(rows, lang)}</section>')
    for key, lines in (("findings", facts(figures)), ("observations", observations(figures))):
        body.append(f"<h2>{word(lang, key)}</h2>{_list(list(lines), lang)}")
    body.append(f"<h2>{word(lang, 'advice')}</h2>{_list(advices(findings), lang)}")
    if pictures:
        shown = "".join(
            f'<figure class="wide"><img src="{embedded(image)}" alt="">'
            f"<figcaption>{escape(name)}.png</figcaption></figure>"
            for name, image in pictures.items()
        )
        body.append(f"<h2>{word(lang, 'pictures')}</h2>{shown}")
    if settings:
        body.append(f"<h2>{word(lang, 'settings')}</h2>{table(dict(settings))}")
    if figures.lines:
        body.append(f"<h2>{word(lang, 'log')}</h2>{table(about(figures, lang))}")
    data = json.dumps({"log": word(lang, "plot/log"), "charts": charts}, ensure_ascii=False)
    data = data.replace("<", "\\u003c")  # "<!--<script>" would keep the browser from seeing the end of the script
    again = f'<meta http-equiv="refresh" content="{refresh:g}">' if refresh else ""
    script = f'<script type="application/json" id="data">{data}</script><script>{SCRIPT}</script>'
    title = f"{word(lang, 'report')} {figures.source}".strip()
    return document(title, f"{again}<style>{STYLE}</style>{''.join(body)}{script}", lang)
