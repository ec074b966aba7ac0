"""``fmpipe evaluate``: how well a pipeline follows its prompts, and how near its images are to real ones."""

import time
from pathlib import Path
from typing import Annotated

import typer

from fmpipe.cli import evaluation_modes as modes
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
    pipeline: Annotated[str, typer.Argument(help="Pipeline to evaluate: a folder, a run, or a name.")] = "default",
    images: Annotated[
        Path | None,
        typer.Option(
            help="Real images with captions to compare with: a folder, shards, a dataset or parquet, as for training. "
            "Needs --features, --clip or both.",
            show_default=False,
        ),
    ] = None,
    captions: Annotated[
        Path | None,
        typer.Option(
            help="File with the captions of a folder of images: .jsonl, .csv or .txt.",
            show_default="metadata.jsonl or another captions file in the folder, or a .txt beside each image",
        ),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            help="Folder of an image encoder of transformers (DINOv2, CLIP, SigLIP, ViT, ConvNeXt) on whose features "
            "FD, KID, precision and recall are computed.",
            show_default=False,
        ),
    ] = None,
    clip: Annotated[
        Path | None,
        typer.Option(help="Folder of a CLIP or SigLIP model for the CLIP score.", show_default=False),
    ] = None,
    scenes: Annotated[
        bool,
        typer.Option(
            "--scenes",
            help="Ask for scenes with several objects and score counts, colors, their binding and positions. For "
            "pipelines trained on them, such as the preset shapes-scenes.",
        ),
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(
            help="Images to generate; with --scenes, for each kind of prompt.",
            show_default="as many as there are real images; 48 of each kind with --scenes",
        ),
    ] = None,
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

    For a pipeline trained on other images, [b]fmpipe evaluate runs/mine --images my-images --features dinov2-base
    --clip clip-vit-base[/b] computes FD, KID, precision and recall on the features of any image encoder, and the CLIP
    score. Each figure has a reference, the same figure of real images. Compare two models only with the same images,
    encoder and [b]--count[/b].

    For a pipeline trained on drawn scenes, [b]fmpipe evaluate runs/shapes-scenes --scenes[/b] measures the share of
    prompts that are drawn right, for six kinds of prompts as in GenEval, and shows what is wrong with the others.
    docs/evaluation.md explains every figure.
    """
    check_options(num_inference_steps=steps)
    check_place("--out", place)
    modes.check(
        images=images, captions=captions, features=features, clip=clip, scenes=scenes, count=count, font=font,
        paraphrases=paraphrases, sheet=sheet,
    )  # fmt: skip
    if sheet is not None:
        check_file("--sheet", sheet, IMAGES)
    if paraphrases is not None and not paraphrases.is_file():
        raise Refused(f"--paraphrases: there is no file {paraphrases}")
    began = time.perf_counter()
    pipe = load_pipeline(pipeline, device=device, precision=precision)
    loading = time.perf_counter() - began
    if images is not None or scenes:
        about = {"pipeline": pipeline, "steps": steps or pipe.config.num_inference_steps, "seed": seed}
        if scenes:
            report = modes.by_scenes(pipe, count, steps, seed, sheet)
        else:
            report = modes.by_features(pipe, images, captions, features, clip, count, steps, seed)
        modes.write_report(place, about | report)
        return
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
