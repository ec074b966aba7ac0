"""Findings as a table on the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fmpipe.diagnose.render import headline, label, needs, tree
from fmpipe.diagnose.rule import Finding
from fmpipe.diagnose.texts import into, word

COLORS = {"fail": "red", "warn": "yellow", "pass": "green"}


def tell(findings: Sequence[Finding], out: Console, lang: str = "en", words: str = "check") -> None:
    """Print the findings, what was not judged and why, and the headline.

    words: ``check`` for pass, warn, fail; ``status`` for the words of the report.
    """
    table = Table(word(lang, "rule"), word(lang, "verdict"), word(lang, "evidence"), show_lines=True)
    for f in findings:
        if f.status != "skipped":
            status = f"[{COLORS[f.status]}]{word(lang, f'{words}/{f.status}')}[/]"
            title = f.name if f.status == "pass" else f"{escape(label(f, lang))}\n[dim]{f.name}[/]"
            todo = [str(into(a, lang)) for a in f.advices]
            table.add_row(title, status, escape("\n".join([f.says(lang), *todo])))
    if table.row_count:
        out.print(table)
    why = {f.name: f.says(lang) for f in findings if f.status == "skipped" and f.evidence}
    for reason in dict.fromkeys(why.values()):
        names = [name for name in why if why[name] == reason]
        out.print(escape(word(lang, "skipped", why=reason, names=names)), highlight=False, soft_wrap=True)
    summary = f"[b]{escape(headline(findings, lang))}[/b]"
    roots = tree(findings)
    if roots and roots[0][1]:
        summary += " " + escape(word(lang, "explains", names=[f.name for f in roots[0][1]]))
    out.print(summary, highlight=False, soft_wrap=True)
    if words == "status":
        out.print(escape(needs(findings, lang)), highlight=False, soft_wrap=True)
