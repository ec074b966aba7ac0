"""``fmpipe report``: what a run's log says is wrong, on one page."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from fmpipe.cli.base import (
    THRESHOLD_HELP,
    Refused,
    check_place,
    command,
    out,
    out_option,
    overrides_of,
    say,
    working,
    write,
)

PAUSE = 5.0  # seconds between two looks at a log that grows


@command("Diagnose")
def report(
    run: Annotated[
        Path,
        typer.Argument(
            help="Folder of a training run, or a log: JSON lines, CSV, TensorBoard event files, or any text with "
            "printed figures.",
            show_default=False,
        ),
    ],
    other: Annotated[Path | None, typer.Argument(help="A second run to compare with.", show_default=False)] = None,
    lang: Annotated[Literal["en", "zh"], typer.Option(help="Language of the report: English or Chinese.")] = "en",
    follow: Annotated[
        bool, typer.Option("--follow", help="Write the report again whenever the log has grown, until Ctrl-C.")
    ] = False,
    limit: Annotated[
        list[str] | None, typer.Option("--set", help=THRESHOLD_HELP.format("leak/cos=0.95"), show_default=False)
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(
            "--alias",
            help="Name of a metric in your log and its canonical name, for example my_fm=loss/flow. May be repeated.",
            show_default=False,
        ),
    ] = None,
    refreshes: Annotated[int, typer.Option(hidden=True, help="With --follow: number of looks at the log.")] = 0,
    place: out_option("Folder for report.md and report.html.") = Path("report"),
) -> None:
    """Find out what is wrong with a training run from its log: hypotheses with their evidence, root causes first.

    [b]fmpipe report runs/mine[/b]

    Two runs can be compared if their autoencoder, resolution, latent size and scale are the same.
    """
    check_place("--out", place, folder=True)
    for path in (run, other):
        if path is not None and not path.exists():
            raise Refused(f"there is no file or folder {path}")
    from fmpipe.diagnose.report import limits

    overrides = overrides_of(limit, limits)
    aliases = dict(item.partition("=")[::2] for item in alias or [])
    if wrong := [item for item in alias or [] if not all(item.partition("="))]:
        raise Refused(f"--alias must be theirs=ours, for example my_fm=loss/flow, got {wrong[0]!r}")
    seen, looks = None, 0
    try:
        while True:
            state = [_size(path) for path in (run, other) if path is not None]
            if state != seen:
                seen = state
                _once(run, other, lang, overrides, aliases, place, PAUSE if follow else 0.0)
            looks += 1
            if not follow or looks == refreshes:
                return
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        say("ended; the last report is complete")


def _once(
    run: Path, other: Path | None, lang: str, overrides: dict, aliases: dict, place: Path, refresh: float
) -> None:
    from fmpipe.diagnose import report

    try:
        with working(f"reading {run}"):
            stats = report.read(run, aliases)
            second = None if other is None else report.read(other, aliases)
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
