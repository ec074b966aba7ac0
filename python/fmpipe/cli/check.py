"""``fmpipe check``, ``calibrate`` and ``info``: what a pipeline or a model is, and whether it is sound."""

import re
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal

import typer

from fmpipe.bundled import INDEX
from fmpipe.cli.base import (
    THRESHOLD_HELP,
    DeviceOption,
    PipelineOption,
    Refused,
    SeedOption,
    StepsOption,
    check_device,
    check_options,
    command,
    err,
    load_pipeline,
    locate,
    out,
    out_option,
    overrides_of,
    side_of,
    working,
)
from fmpipe.cli.files import check_place, save_image, write
from fmpipe.untrusted import read_json

FACTORY = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
IMAGE_SIZE = 256  # of a model that does not have image_size
Captions = Annotated[
    Path | None,
    typer.Option(help="Captions of the images: a .jsonl file, or a .txt file with one per line.", show_default=False),
]


def is_factory(what: str) -> bool:
    """Tell whether an argument names the factory of a model, package.module:factory, and not a file or folder."""
    return bool(re.fullmatch(FACTORY, what)) and not Path(what).exists()


def load_factory(what: str, device: str):
    """Return the model of ``package.module:factory``."""
    if device != "auto":
        raise Refused(f"--device {device} is not supported with {what}: the factory places the model on a device")
    with working(f"loading {what}"):
        from fmpipe.own_model import ModelError, load_model

        try:
            return load_model(what)
        except ModelError as error:
            raise Refused(error) from None


@command("Diagnose")
def check(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE",
            help="Pipeline to check: its folder, the folder of a training run, or its name (default). Or a model of "
            "your own code: package.module:factory. Or a text file with printed figures.",
        ),
    ],
    images: Annotated[
        Path | None,
        typer.Option(
            help="Images to measure on: a folder of images, a Hugging Face dataset on disk, or parquet or tar files. "
            "Without it, the pipeline's own training data are used if they can be rebuilt; otherwise checks that need "
            "images are skipped.",
            show_default=False,
        ),
    ] = None,
    captions: Captions = None,
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
    gain: Annotated[
        float | None,
        typer.Option(
            help="Also run the shooting check with the velocity multiplied by this factor, for example 3.5.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option("--set", help=THRESHOLD_HELP.format("one_step/cos=0.4"), show_default=False)
    ] = None,
    lang: Annotated[Literal["en", "zh"], typer.Option(help="Language of the findings: English or Chinese.")] = "en",
    device: DeviceOption = "auto",
    place: out_option("Folder for check.json, check.html and the images of the probes.") = Path("check"),
) -> None:
    """Check a pipeline or a model: every check that its inputs allow, each with a verdict. Exit code 1 if one fails.

    [b]fmpipe check runs/mine[/b]

    A model of your own code can be checked too. The factory is called without arguments and returns an object with
    velocity(x, t) and as many of embed, encode, decode, sample_z0 and loss as there are, or an OpenUni-like model:
    [b]fmpipe check package.module:factory --images DIR --captions FILE[/b]

    Figures that your own code printed, or notes that state them, can be checked too: [b]fmpipe check notes.txt[/b]
    """
    import json

    check_options(num_inference_steps=steps)
    if gain is not None and not isfinite(gain):
        raise Refused(f"--gain must be a finite number, got {gain}")
    check_device(device)
    check_place("--out", place, folder=True)
    text, own = Path(what).is_file(), is_factory(what)
    if (captions and not images) or (text and (images or log or gain is not None)):
        raise Refused("--captions needs --images; a text file of figures takes neither --images, --log nor --gain")
    _check_paths(images, captions, log)
    if not text and not own:
        locate(what)
        if log is None and (Path(what) / "flow" / "log.jsonl").is_file():
            log = Path(what)

    from fmpipe.diagnose.thresholds import limits

    overrides = overrides_of(limit, limits)
    model = None if text else load_factory(what, device) if own else load_pipeline(what, device=device)
    from fmpipe.diagnose.engine import judge
    from fmpipe.diagnose.read import read
    from fmpipe.diagnose.render.html import html
    from fmpipe.diagnose.render.terminal import tell
    from fmpipe.diagnose.run_checks import CheckResults, run_checks
    from fmpipe.run_log import strict

    try:
        with working("measuring"):
            if text:
                figures = read(what)
                found = CheckResults(judge(figures, overrides), {}, figures)
            else:
                pixels, texts = _pictures(images, captions, n, model, own)
                figures = None if log is None else read(log)
                if figures is not None:
                    figures.measured = {}  # of an earlier check
                options = {"steps": steps, "seed": seed, "gain": gain, "overrides": overrides}
                found = run_checks(model, pixels, texts, figures, **options)
    except (OSError, ValueError, ImportError, FloatingPointError) as error:
        raise Refused(error) from None
    if all(f.status == "skipped" for f in found.findings):
        tell(found.findings, out, lang)
        why = "no figures in it could be judged" if text else "see above which methods and options are missing"
        raise Refused(f"no check could run on {what}: {why}")
    pictures = {name: _row(tensor[:8]) for name, tensor in found.pictures.items()}
    for name, picture in pictures.items():
        save_image(picture, place / f"{name}.png")
    settings = {
        "checked": what,
        "images": images or ("" if text or own else model.config.get("source")),
        "captions": captions,
        "log": log,
        "seed": seed,
        **({} if gain is None else {"gain": gain}),
        **overrides,
    }
    tell(found.findings, out, lang)
    measured = {name: x for name, x in found.figures.measured.items() if "not_measured" not in x}
    data = {"measured": measured, "findings": [f.as_dict(lang) for f in found.findings]}
    write(place / "check.json", json.dumps(strict(data), indent=1, ensure_ascii=False).encode())
    page = html(found.figures, found.findings, lang, pictures=pictures, settings=settings)
    write(place / "check.html", page.encode())
    if not all(found.findings):
        raise typer.Exit(1)


def _check_paths(images: Path | None, captions: Path | None, log: Path | None = None) -> None:
    for option, path in (("--images", images), ("--captions", captions), ("--log", log)):
        if path is not None and not path.exists():
            raise Refused(f"{option}: there is no {path}")


def _pictures(images: Path | None, captions: Path | None, n: int, model, own: bool):
    """Return images (n, 3, H, W) in [-1, 1] of the model's size, and their first captions; None for what is missing.

    They come from the folder, or from the data that a pipeline was trained on, evenly spaced.
    """
    import torch

    from fmpipe.data import Folder, to_pixels
    from fmpipe.data.sources import kind_of, open_source

    side = getattr(model, "image_size", IMAGE_SIZE) if own else side_of(model)
    if images is not None:
        kind = kind_of(images)
        if captions and kind != "folder":
            raise Refused(f"--captions is for a folder of images; {images} already contains captions")
        if kind == "folder" and not captions:
            captions = None if Folder.has_captions(images) else False
        data = open_source(kind, images, captions, side)
    elif own:
        return None, None
    else:
        from fmpipe.data.rebuilt import REBUILT, rebuilt

        if model.config.get("source") not in REBUILT:
            return None, None
        try:
            data = rebuilt(model.config.source, side)
        except FileNotFoundError as error:
            err.print(f"not measured on pictures: {error}", highlight=False, soft_wrap=True)
            return None, None
    items = [data[i] for i in torch.linspace(0, len(data) - 1, min(n, len(data))).long().tolist()]
    pixels = to_pixels(torch.stack([item.image for item in items]))
    return pixels, [item.captions[0] for item in items] if all(item.captions for item in items) else None


def _row(images):
    """Pictures (N, 3, H, W) in [-1, 1] side by side."""
    from fmpipe.image_grid import to_image

    return to_image(images.permute(1, 2, 0, 3).flatten(2))


@command("Diagnose")
def calibrate(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE",
            help="Pipeline to calibrate: its folder, the folder of a training run, or its name. Or a model of your own "
            "code: package.module:factory.",
        ),
    ],
    images: Annotated[
        Path | None,
        typer.Option(
            help="Images to measure on: a folder of images, a Hugging Face dataset on disk, or parquet or tar files. "
            "Without it, the pipeline's own training data are used if they can be rebuilt.",
            show_default=False,
        ),
    ] = None,
    captions: Captions = None,
    save: Annotated[
        bool, typer.Option("--save", help="Store the gain in the pipeline's folder as its default fm_gain.")
    ] = False,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Largest number of images to measure on.")] = 64,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Measure fm_gain, the factor by which the predicted velocity is too small: median(|v_target| / |v_pred|).

    [b]fmpipe calibrate runs/mine --images DIR --captions FILE --save[/b]

    A gain of 1 means that the predicted speed is unbiased. A gain corrects the length of the velocity, not its
    direction: run [b]fmpipe check[/b] too.
    """
    import json

    check_device(device)
    own = is_factory(what)
    if captions and not images:
        raise Refused("--captions needs --images")
    _check_paths(images, captions)
    folder = None if own else locate(what)
    if save and not isinstance(folder, Path):
        kind = "a model of your own code: set the gain there" if own else "a bundled pipeline, which is read-only"
        raise Refused(f"--save is not supported: {what} is {kind}")
    if own and images is None:
        raise Refused(f"{what} needs --images DIR with captions")
    model = load_factory(what, device) if own else load_pipeline(what, device=device)
    from fmpipe.diagnose.run_checks import calibrate_gain

    try:
        with working("measuring"):
            pixels, texts = _pictures(images, captions, n, model, own)
            if texts is None:
                raise Refused(f"{what} needs images with captions: use --images DIR and --captions FILE")
            measure = calibrate_gain if own else type(model).calibrate_gain
            gain = measure(model, pixels, texts, seed=seed)
    except (OSError, ValueError, FloatingPointError) as error:
        raise Refused(error) from None
    out.print(f"fm_gain {gain:.4g}, measured on {len(texts)} images", highlight=False)
    if save:
        index = folder / INDEX
        settings = read_json(index)
        write(index, (json.dumps({**settings, "fm_gain": gain}, indent=2) + "\n").encode())


@command("Diagnose")
def info(pipeline: PipelineOption = "default") -> None:
    """Show a pipeline's parts, sizes, digests and sampling settings, what a lower precision of its velocity network
    gains on this machine, and which backend computes each op."""
    from rich.table import Table

    import fmkernels
    from fmpipe.data.cache import weights_sha256
    from fmpipe.precision import gains

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
    names += ("velocity_precision",)
    out.print(", ".join(f"{name} {pipe.config[name]}" for name in names), highlight=False, soft_wrap=True)
    with working("timing the velocity network"):
        found = gains(pipe.velocity_net)
    for precision, gain in found.items():
        out.print(f"velocity_precision {precision}: {gain}", highlight=False, soft_wrap=True)
    fmkernels.explain()
