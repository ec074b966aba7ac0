"""``fmpipe report``: what a run's log says is wrong, on one page."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fmpipe.cli.base import Refused, app, check_place, err, out, out_option, overrides_of, write

PAUSE = 5.0  # seconds between two looks at a log that grows


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="a run's folder, or a log: .jsonl, .csv, TensorBoard's, or any text")],
    other: Annotated[Path | None, typer.Argument(help="a second run, to compare with")] = None,
    lang: Annotated[str, typer.Option(help="en or zh")] = "en",
    follow: Annotated[bool, typer.Option(help="again whenever the log has grown, until Ctrl-C")] = False,
    limit: Annotated[list[str] | None, typer.Option("--set", help="a threshold, as leak/cos=0.95")] = None,
    refreshes: Annotated[int, typer.Option(hidden=True, help="with --follow: looks at the log, 0 for no end")] = 0,
    place: out_option("folder of report.md and report.html") = Path("report"),
) -> None:
    """What is wrong with a run, the evidence for it, and what to do: thirteen hypotheses, root causes first.

    Two runs are compared if their VAE, resolution, latent size and scale are the same.
    [b]fmpipe report runs/emoji-64 --lang zh[/b]
    """
    from fmpipe.diagnose.report import limits
    from fmpipe.diagnose.report.said import LANGUAGES

    check_place("--out", place, folder=True)
    if lang not in LANGUAGES:
        raise Refused(f"--lang must be one of {', '.join(LANGUAGES)}, got {lang!r}")
    overrides = overrides_of(limit, limits)
    seen, looks = None, 0
    try:
        while True:
            state = [_size(path) for path in (run, other) if path is not None]
            if state != seen:
                seen = state
                _once(run, other, lang, overrides, place, PAUSE if follow else 0.0)
            looks += 1
            if not follow or looks == refreshes:
                return
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        err.print("fmpipe: ended; the last report stays", highlight=False)


def _once(run: Path, other: Path | None, lang: str, overrides: dict, place: Path, refresh: float) -> None:
    from fmpipe.diagnose import report

    try:
        with err.status(f"reading {run}"):
            stats = report.read(run)
            second = None if other is None else report.read(other)
    except (OSError, ValueError, ImportError) as error:
        raise Refused(error) from None
    found = report.judge(stats, overrides)
    compared = None if second is None else report.compare(stats, second, overrides)
    _tell(found, compared, lang)
    write(place / "report.md", report.markdown(stats, found, lang, compared).encode())
    write(place / "report.html", report.html(stats, found, lang, compared, second, refresh).encode())


def _tell(found, compared, lang: str) -> None:
    from rich.table import Table

    from fmpipe.diagnose.report.said import into
    from fmpipe.diagnose.report.write import follows, headline, word

    colours = {"CONFIRMED": "red", "REJECTED": "green", "NOT ENOUGH DATA": "dim"}
    table = Table("", word(lang, "hypotheses"), "", word(lang, "findings"))
    for h in found:
        shown = [into(e, lang) for e, ok in zip(h.evidence, h.marks) if not ok or not h]
        verdict = f"[{colours[h.verdict]}]{word(lang, f'verdict/{h.verdict}')}[/]"
        title = "\n".join(filter(None, (h.title.into(lang), follows(h, found, lang))))
        table.add_row(h.letter, escape(title), verdict, escape("\n".join(shown if h else shown[:1])))
    out.print(table)
    out.print(escape(headline(found, lang)), highlight=False, soft_wrap=True)
    for line in compared.lines if compared else ():
        out.print(escape(into(line, lang)), highlight=False, soft_wrap=True)


def _size(path: Path) -> tuple[tuple[str, int], ...]:
    """Of every log in a folder, or of the file: what changes when a run goes on."""
    files = [p for p in path.rglob("*") if p.suffix in (".jsonl", ".csv", ".json") or "tfevents" in p.name]
    return tuple((str(p), p.stat().st_size) for p in sorted(files if path.is_dir() else [path]) if p.is_file())
