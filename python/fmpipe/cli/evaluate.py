"""``fmpipe evaluate``: how well the default model, or one trained like it, follows its prompts."""

import time
from pathlib import Path
from typing import Annotated

import typer

from fmpipe.cli.base import (
    DeviceOption,
    PrecisionOption,
    Refused,
    SeedOption,
    StepsOption,
    check_options,
    command,
    load_pipeline,
    out,
    out_option,
)
from fmpipe.cli.files import IMAGES, check_file, check_place, write
from fmpipe.cli.progress import Bars


@command("Diagnose")
def evaluate(
    pipeline: Annotated[
        str, typer.Argument(help="Pipeline that was trained on the emoji data: a folder, a run, or a name.")
    ] = "default",
    steps: StepsOption = None,
    seed: SeedOption = 0,
    paraphrases: Annotated[
        Path | None,
        typer.Option(
            help="Text file with prompts of your own, one per line: the prompt, a tab, and the names of the acceptable "
            "images, separated by commas.",
            show_default=False,
        ),
    ] = None,
    font: Annotated[
        Path | None,
        typer.Option(
            help="NotoColorEmoji.ttf, if it is not where Debian's fonts-noto-color-emoji puts it.", show_default=False
        ),
    ] = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = None,
    sheet: Annotated[
        Path | None,
        typer.Option(help="Also write the worst and the best images of each group to this .png or .jpg file."),
    ] = None,
    place: out_option("JSON file for the figures and every answer.") = Path("evaluate.json"),
) -> None:
    """Measure how well a pipeline draws the emoji it was trained on. Exit code 1 if a figure misses its target.

    An image is correct if the nearest of all training images is an acceptable one, and blurred if its PSNR to that one
    is below 18 dB. Takes about four minutes.
    """
    check_options(num_inference_steps=steps)
    check_place("--out", place)
    if sheet is not None:
        check_file("--sheet", sheet, IMAGES)
    if paraphrases is not None and not paraphrases.is_file():
        raise Refused(f"--paraphrases: there is no file {paraphrases}")
    began = time.perf_counter()
    pipe = load_pipeline(pipeline, device=device, precision=precision)
    loading = time.perf_counter() - began
    import json

    from rich.table import Table

    from fmpipe import evaluate as measure

    figures = [measure.Figure("loading with its imports, s", loading, 6.0, most=True)]
    with Bars() as bars:
        options = {
            "steps": steps,
            "seed": seed,
            "more": paraphrases,
            "font": font,
            "sheet": sheet,
            "shown": bars.update,
        }
        try:
            more, answers = measure.evaluate(pipe, **options)
        except (OSError, ValueError) as error:
            raise Refused(error) from None
    table = Table("figure", "measured", "to reach", "")
    for figure in (figures := figures + more):
        floor = "" if figure.floor is None else f"{'at most' if figure.most else 'at least'} {figure.floor:g}"
        mark = "" if figure.floor is None else "[green]yes[/]" if figure.reached else "[red]no[/]"
        table.add_row(figure.name, f"{figure.value:.3f}", floor, mark)
    out.print(table)
    rows = [figure._asdict() | {"reached": figure.reached} for figure in figures]
    report = {
        "pipeline": pipeline,
        "steps": steps or pipe.config.num_inference_steps,
        "seed": seed,
        "figures": rows,
        "answers": answers,
    }
    write(place, json.dumps(report, indent=1, ensure_ascii=False).encode())
    if not all(figure.reached for figure in figures):
        raise typer.Exit(1)
