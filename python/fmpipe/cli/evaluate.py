"""``fmpipe evaluate``: how well the default model, or one trained as it was, draws what it is asked."""

import time
from pathlib import Path
from typing import Annotated

import typer

from fmpipe.cli.base import Refused, Seed, Steps, app, check_place, err, load_pipeline, out, out_option, write


@app.command()
def evaluate(
    pipeline: Annotated[str, typer.Argument(help="folder or name of a pipeline that was trained on emoji")] = "default",
    steps: Steps = 25,
    seed: Seed = 0,
    paraphrases: Annotated[
        Path | None, typer.Option(help="more phrases to ask: a line each, phrase<TAB>name of the picture")
    ] = None,
    font: Annotated[Path | None, typer.Option(help="NotoColorEmoji.ttf, if it is not where Debian has it")] = None,
    place: out_option("the figures and every answer, as JSON") = Path("evaluate.json"),
) -> None:
    """How well does it draw the emoji it was trained on? A table of figures beside what they must reach.

    Pictures are right if the caption's own is the nearest of all. Exit code 1 if a figure is not reached.
    """
    check_place("--out", place)
    began = time.perf_counter()
    pipe = load_pipeline(pipeline)  # and import what it needs
    loading = time.perf_counter() - began
    import json

    from rich.progress import Progress
    from rich.table import Table

    from fmpipe import evaluate as measure

    figures = [measure.Figure("loading with its imports, s", loading, 6.0, most=True)]
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        tasks = {}

        def shown(name, done, of):
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=of)
            progress.update(tasks[name], completed=done)

        try:
            more, answers = measure.evaluate(pipe, steps=steps, seed=seed, more=paraphrases, font=font, shown=shown)
        except (OSError, ValueError) as error:
            raise Refused(error) from None
    table = Table("figure", "measured", "to reach", "")
    for figure in (figures := figures + more):
        floor = "" if figure.floor is None else f"{'at most' if figure.most else 'at least'} {figure.floor:g}"
        mark = "" if figure.floor is None else "[green]yes[/]" if figure.reached else "[red]no[/]"
        table.add_row(figure.name, f"{figure.value:.3f}", floor, mark)
    out.print(table)
    rows = [figure._asdict() | {"reached": figure.reached} for figure in figures]
    report = {"pipeline": pipeline, "steps": steps, "seed": seed, "figures": rows, "answers": answers}
    write(place, json.dumps(report, indent=1, ensure_ascii=False).encode())
    if not all(figure.reached for figure in figures):
        raise typer.Exit(1)
