"""``fmpipe report``: find out from the log of a run what is wrong with it."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from fmpipe.cli.base import (
    THRESHOLD_HELP,
    Refused,
    command,
    out,
    out_option,
    overrides_of,
    say,
    working,
)
from fmpipe.cli.files import check_place, write

REFERENCE = "--reference"
PAUSE = 5.0  # seconds between two looks at a log that grows
LONE = "backslashreplace"  # surrogates in the names of a log, which UTF-8 cannot have
LOGS = (".jsonl", ".csv", ".tsv", ".json", ".log", ".out", ".txt")


class Report(typer.core.TyperCommand):
    """Lets ``--reference`` take any number of values, also none, up to the next option.

    If it is the first argument, RUN is the last of its values.
    """

    def parse_args(self, ctx, args: list[str]) -> list[str]:
        if REFERENCE in args:
            at = args.index(REFERENCE) + 1
            end = next((k for k in range(at, len(args)) if args[k].startswith("-")), len(args))
            values, run = args[at:end], args[: at - 1]
            if not run and values:
                run = [values.pop()]
            args = [*run, *(word for value in values or [""] for word in (REFERENCE, value)), *args[end:]]
        return super().parse_args(ctx, args)


@command("Diagnose", cls=Report)
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
    reference: Annotated[
        list[str] | None,
        typer.Option(
            REFERENCE,
            metavar="[NAME|FILE...]",
            help="Compare with healthy runs, and name the first metric that leaves their band. Without a value: those "
            "of the preset that the run is based on. Otherwise the name of a preset, or logs or folders of healthy "
            "runs of your own.",
            show_default=False,
        ),
    ] = None,
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
    place: out_option("Folder for report.md, report.html and report.json.") = Path("report"),
) -> None:
    """Find out what is wrong with a training run from its log: findings with their evidence, root causes first.

    [b]fmpipe report runs/mine[/b]

    [b]fmpipe report runs/mine --reference[/b] answers whether the losses are normal: it draws the run inside the band
    of healthy runs of its preset.

    Logs of other trainers are read too, and metrics are mapped to the names in docs/logging.md; the report lists those
    that it did not recognize. Exit code 2 if nothing was recognized.

    Two runs can be compared if their autoencoder, resolution, latent size and scale are the same.
    """
    check_place("--out", place, folder=True)
    for path in (run, other):
        if path is not None and not path.exists():
            raise Refused(f"there is no file or folder {path}")
    from fmpipe.diagnose.thresholds import limits

    overrides = overrides_of(limit, limits)
    aliases = dict(item.partition("=")[::2] for item in alias or [])
    if wrong := [item for item in alias or [] if not all(item.partition("="))]:
        raise Refused(f"--alias must be theirs=ours, for example my_fm=loss/flow, got {wrong[0]!r}")
    from fmpipe.diagnose.read.names import CANONICAL, canonical

    for theirs, ours in aliases.items():
        if not CANONICAL.fullmatch(ours):
            near = f"; did you mean {canonical(ours)}?" if canonical(ours) else ""
            raise Refused(f"--alias {theirs}={ours}: {ours} is not a name of docs/logging.md{near}")
    seen, looks = None, 0
    try:
        while True:
            state = [_size(path, place) for path in (run, other) if path is not None]
            if state != seen:
                seen = state
                _once(run, other, reference, lang, overrides, aliases, place, PAUSE if follow else 0.0)
            looks += 1
            if not follow or looks == refreshes:
                return
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        say("ended; the last report is complete")


def _once(
    run: Path,
    other: Path | None,
    reference: list[str] | None,
    lang: str,
    overrides: dict,
    aliases: dict,
    place: Path,
    refresh: float,
) -> None:
    import json

    from fmpipe.diagnose import reference as references
    from fmpipe.diagnose.compare import compare
    from fmpipe.diagnose.engine import judge
    from fmpipe.diagnose.read import read
    from fmpipe.diagnose.render.html import html
    from fmpipe.diagnose.render.markdown import markdown
    from fmpipe.diagnose.render.terminal import tell
    from fmpipe.diagnose.texts import into
    from fmpipe.run_log import strict

    try:
        with working(f"reading {run}"):
            figures = read(run, aliases)
            second = None if other is None else read(other, aliases)
            runs = None if reference is None else references.load(figures, [name for name in reference if name])
    except (OSError, ValueError, ImportError) as error:
        raise Refused(error) from None
    try:
        found = judge(figures, overrides)
    except (AttributeError, KeyError, TypeError) as error:
        if not figures.measured:
            raise
        raise Refused(f"the numbers that check.json of {run} has are damaged: {error!r}") from None
    compared = None if second is None else compare(figures, second, overrides, found)
    placement = None if runs is None else references.place(figures, runs, overrides)
    tell(found, out, lang, words="status")
    for line in [*(compared.lines if compared else ()), *(placement.told() if placement else ())]:
        out.print(into(line, lang), highlight=False, soft_wrap=True, markup=False)
    page = html(figures, found, lang, compared, second, refresh, placement=placement)
    write(place / "report.md", markdown(figures, found, lang, compared, placement).encode(errors=LONE))
    write(place / "report.html", page.encode(errors=LONE))
    findings = [f.as_dict(lang) for f in found]
    data = {"source": figures.source, "findings": findings, "names": figures.names, "unknown": figures.unknown}
    data |= {} if placement is None else {"reference": placement.as_dict()}
    write(place / "report.json", json.dumps(strict(data), indent=1, ensure_ascii=False).encode(errors=LONE))


def _size(path: Path, place: Path) -> tuple[tuple[str, int], ...]:
    """Return the size of the file, or of every log in the folder except what was written to ``place``."""
    if path.is_file():
        return ((str(path), path.stat().st_size),)
    files = (p for p in sorted(path.rglob("*")) if (p.suffix in LOGS or "tfevents" in p.name) and p.is_file())
    return tuple((str(p), p.stat().st_size) for p in files if place.resolve() not in p.resolve().parents)
