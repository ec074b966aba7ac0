"""``fmpipe check`` and ``info``: what a pipeline is, and whether it is sound."""

from pathlib import Path
from typing import Annotated

import typer

from fmpipe.cli.base import (
    THRESHOLD_HELP,
    DeviceOption,
    PipelineOption,
    Refused,
    SeedOption,
    StepsOption,
    check_device,
    check_options,
    check_place,
    command,
    err,
    load_pipeline,
    locate,
    out,
    out_option,
    overrides_of,
    save_image,
    working,
    write,
)
from fmpipe.cli.verdicts import tell
from fmpipe.page import verdict_page


@command("Diagnose")
def check(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE",
            help="Pipeline to check: its folder, the folder of a training run, or its name (default). Or a text file "
            "with printed figures.",
        ),
    ],
    images: Annotated[
        Path | None,
        typer.Option(
            help="Folder of images to measure on. Without it, the pipeline's own training data are used if they can be "
            "rebuilt; otherwise checks that need images are skipped.",
            show_default=False,
        ),
    ] = None,
    captions: Annotated[
        Path | None,
        typer.Option(
            help="Captions of the images: a .jsonl file, or a .txt file with one per line.", show_default=False
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a training run, or its log.jsonl, to check too. A run given as PIPELINE brings its own.",
            show_default=False,
        ),
    ] = None,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Largest number of images to measure on.")] = 8,
    steps: StepsOption = None,
    seed: SeedOption = 0,
    limit: Annotated[
        list[str] | None, typer.Option("--set", help=THRESHOLD_HELP.format("one_step/cos=0.4"), show_default=False)
    ] = None,
    device: DeviceOption = "auto",
    place: out_option("Folder for check.json, check.html and the images of the probes.") = Path("check"),
) -> None:
    """Check a pipeline: every check that its inputs allow, each with a verdict. Exit code 1 if one fails.

    [b]fmpipe check runs/mine[/b]

    Figures that your own code printed (lines with \\[fm], \\[text], \\[shoot], \\[teacher-euler]) can be checked too:
    [b]fmpipe check notes.txt[/b]
    """
    import json

    check_options(num_inference_steps=steps)
    check_device(device)
    check_place("--out", place, folder=True)
    text = Path(what).is_file()
    if (captions and not images) or (text and (images or log)):
        raise Refused("--captions needs --images; a text file of figures takes neither --images nor --log")
    for option, path in (("--images", images), ("--captions", captions), ("--log", log)):
        if path is not None and not path.exists():
            raise Refused(f"{option}: there is no {path}")
    if not text:
        locate(what)
        if log is None and (Path(what) / "flow" / "log.jsonl").is_file():
            log = Path(what)

    from fmpipe.diagnose.verdict import limits

    overrides = overrides_of(limit, limits)
    pipe = None if text else load_pipeline(what, device=device)
    from fmpipe.diagnose import diary
    from fmpipe.diagnose.examine import Examination, examine, history_of
    from fmpipe.diagnose.log import read_log, strict

    try:
        if text:
            found = Examination(diary.verdicts(Path(what).read_text(encoding="utf-8"), overrides=overrides), {})
        else:
            with working("measuring"):
                pixels, texts = _pictures(images, captions, n, pipe)
                if log is not None and (log / "flow").is_dir():
                    log = log / "flow"  # a run's folder
                history = None if log is None else history_of(read_log(log))
                found = examine(pipe, pixels, texts, history, steps=steps, seed=seed, overrides=overrides)
    except (OSError, ValueError, FloatingPointError) as error:
        raise Refused(error) from None
    pictures = {name: _row(tensor[:8]) for name, tensor in found.pictures.items()}
    for name, picture in pictures.items():
        save_image(picture, place / f"{name}.png")
    settings = {
        "checked": what,
        "images": images or ("" if text else pipe.config.get("source")),
        "captions": captions,
        "log": log,
        "seed": seed,
        **overrides,
    }
    tell(found.verdicts)
    write(place / "check.json", json.dumps(strict([v.as_dict() for v in found.verdicts]), indent=1).encode())
    write(place / "check.html", verdict_page(found.verdicts, pictures, settings).encode())
    if not all(found.verdicts):
        raise typer.Exit(1)


def _pictures(images: Path | None, captions: Path | None, n: int, pipe):
    """(n, 3, H, W) in [-1, 1] of the pipeline's size, and their first captions; None for what there is not.

    Of the folder, or of what the pipeline was trained on, n of them from its beginning to its end.
    """
    import torch

    from fmpipe.data import Folder, to_pixels
    from fmpipe.train.config import Data
    from fmpipe.train.stages import REBUILT, source_of

    side = pipe.text_head.config.latent_shape[-1] * pipe.vae.factor
    if images is not None:
        source = Folder(images, captions if captions or Folder.has_captions(images) else False, size=side)
    elif pipe.config.get("source") not in REBUILT:
        return None, None
    else:
        try:
            source = source_of(Data(source=pipe.config.source, size=side))
        except FileNotFoundError as error:
            err.print(f"not measured on pictures: {error}", highlight=False, soft_wrap=True)
            return None, None
    items = [source[i] for i in torch.linspace(0, len(source) - 1, min(n, len(source))).long().tolist()]
    pixels = to_pixels(torch.stack([item.image for item in items]))
    return pixels, [item.captions[0] for item in items] if all(item.captions for item in items) else None


def _row(images):
    """Pictures (N, 3, H, W) in [-1, 1] side by side."""
    from fmpipe.sheet import to_image

    return to_image(images.permute(1, 2, 0, 3).flatten(2))


@command("Diagnose")
def info(pipeline: PipelineOption = "default") -> None:
    """Show a pipeline's parts, sizes, digests and sampling settings, and which backend computes each op."""
    from rich.table import Table

    import fmkernels
    from fmpipe.data.cache import weights_sha256

    pipe = load_pipeline(pipeline)
    table = Table("part", "class", "parameters", "sha256 of the weights")
    for name, part in pipe.components.items():
        if part is None:
            table.add_row(name, "none", "", "")
            continue
        count = sum(p.numel() for p in part.parameters())
        table.add_row(name, type(part).__name__, f"{count:,}", weights_sha256(part)[:16])
    out.print(table)
    out.print(f"scale factor {pipe.vae.config.scaling_factor}", highlight=False)
    names = ("num_inference_steps", "solver", "schedule", "guidance_scale", "max_guidance", "fm_gain", "source")
    out.print(", ".join(f"{name} {pipe.config[name]}" for name in names), highlight=False, soft_wrap=True)
    fmkernels.explain()
