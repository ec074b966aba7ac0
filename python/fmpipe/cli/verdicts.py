"""Verdicts of checks on the terminal."""

from rich.markup import escape

from fmpipe.cli.base import out


def tell(verdicts) -> None:
    """Print the verdicts as a table, the skipped checks in a line, and, if several fail, the one to look at first."""
    from rich.table import Table

    from fmpipe.diagnose.faults.ranking import rank

    colours = {"pass": "green", "warn": "yellow", "fail": "red"}
    table = Table("check", "verdict", "what it means and what to do next", show_lines=True)
    for v in verdicts:
        if v.status != "skipped":
            status = f"[{colours[v.status]}]{v.status}[/]"
            table.add_row(v.name, status, escape("\n".join(filter(None, (v.meaning, v.advice)))))
    out.print(table)
    for why in dict.fromkeys(v.meaning for v in verdicts if v.status == "skipped"):
        names = ", ".join(v.name for v in verdicts if v.status == "skipped" and v.meaning == why)
        out.print(f"skipped, {escape(why)}: {names}", highlight=False, soft_wrap=True)
    fired = rank(v for v in verdicts if v.status == "fail")
    if len(fired) > 1:
        first = fired[0].name
        follow = ", ".join(s.name for s in fired if first in {cause.split("/")[0] for cause in s.causes})
        said = f"[b]Look first at {first}[/b]" + (f": it would explain {follow}." if follow else ".")
        out.print(said, highlight=False, soft_wrap=True)
