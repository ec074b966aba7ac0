"""The report as Markdown."""

from collections.abc import Iterable, Sequence

from fmpipe.diagnose.compare import Comparison
from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.reference import Placement
from fmpipe.diagnose.render import (
    MARKS,
    about,
    advices,
    facts,
    follows,
    headline,
    label,
    needs,
    observations,
    tree,
)
from fmpipe.diagnose.rule import Finding
from fmpipe.diagnose.texts import into, word

SIGNS = {"pass": "✓ ", "skipped": ""}


def markdown(
    figures: Figures,
    findings: Sequence[Finding],
    lang: str = "en",
    comparison: Comparison | None = None,
    placement: Placement | None = None,
) -> str:
    """Return the whole report as text. ValueError for another language than ``en`` and ``zh``."""
    out = [f"# {word(lang, 'report')}: {figures.source or figures.stage}", f"## {word(lang, 'summary')}"]
    out += [headline(findings, lang), needs(findings, lang)]
    for k, (root, below) in enumerate(tree(findings), 1):
        bad, todo = " ".join(e.into(lang) for e in root.bad), " ".join(str(into(a, lang)) for a in root.advices)
        lines = [f"{k}. **{label(root, lang)}.** {bad} → {todo}"]
        lines += [f"   - {label(f, lang)} ({follows(f, lang)})" for f in below]
        out.append("\n".join(lines))
    if comparison is not None:
        out += [f"## {word(lang, 'compare')}", _items(comparison.lines, lang)]
    if placement is not None:
        out += [f"## {word(lang, 'reference')}", _items([*placement.lines, *placement.ends()], lang)]
    out.append(f"## {word(lang, 'rules')}")
    for f in findings:
        if f.status == "skipped":
            continue
        why = follows(f, lang)
        verdict = f"{MARKS[f.status]} **{word(lang, f'status/{f.status}')}**{f' ({why})' if why else ''}"
        evidence = [f"- {SIGNS.get(e.status, '✗ ')}{e.into(lang)}" for e in f.evidence]
        out += [f"### {label(f, lang)} (`{f.name}`) {verdict}", "\n".join(evidence)]
        out.append(f"{word(lang, 'threshold')}: {into(f.threshold, lang)}")
    if left := [f for f in findings if f.status == "skipped"]:
        names = ", ".join(f"`{f.name}`" for f in left)
        out += [f"### {MARKS['skipped']} **{word(lang, 'status/skipped')}**", names]
        out += ["\n".join(why)] if (why := [f"- `{f.name}`: {f.says(lang)}" for f in left if f.evidence]) else []
    out += [f"## {word(lang, 'findings')}", _items(facts(figures), lang)]
    out += [f"## {word(lang, 'observations')}", _items(observations(figures), lang)]
    out += [f"## {word(lang, 'advice')}", _items(advices(findings), lang)]
    rows = [f"| {name} | {value} |" for name, value in about(figures, lang).items()]
    out += [f"## {word(lang, 'log')}", "\n".join(["| | |", "|---|---|", *rows])]
    return "\n\n".join(out) + "\n"


def _items(lines: Iterable, lang: str) -> str:
    return "\n".join(f"- {into(line, lang)}" for line in lines) or word(lang, "none")
