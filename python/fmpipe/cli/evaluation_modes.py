"""``fmpipe evaluate`` with --images or --scenes: the figures that need no emoji."""

import json
from pathlib import Path

from fmpipe.cli.base import Refused, out, say, side_of
from fmpipe.cli.files import IMAGES, check_file, write
from fmpipe.cli.progress import Bars

LEAST = 4  # generated images; of the real ones, two for each half


def check(*, images, captions, features, clip, scenes, count, font, paraphrases, sheet) -> None:
    """Refuse options that contradict each other, or paths without files, before anything heavy is imported."""
    if images is not None and scenes:
        raise Refused("--scenes and --images exclude each other: run the command twice")
    if images is None:
        for option, value in (("--captions", captions), ("--features", features), ("--clip", clip)):
            if value is not None:
                raise Refused(f"{option} needs --images, the folder of real images with captions")
        if count is not None and not scenes:
            raise Refused("--count needs --images or --scenes; the questions about the emoji are fixed")
    elif features is None and clip is None:
        raise Refused("--images: give --features or --clip as well, the folder of the model to measure with")
    if images is not None or scenes:
        for option, value in (("--font", font), ("--paraphrases", paraphrases)):
            if value is not None:
                raise Refused(f"{option} is for the emoji data only, without --images and --scenes")
        if count is not None and count < (least := 1 if scenes else LEAST):
            raise Refused(f"--count must be at least {least}, got {count}")
    if images is not None:
        if sheet is not None:
            raise Refused("--sheet is not available with --images; fmpipe generate --grid draws one")
        if not images.exists() and not any(Path().glob(str(images))) and "{" not in str(images):
            raise Refused(f"--images: there is no folder or file {images}")
        if captions is not None and not captions.is_file():
            raise Refused(f"--captions: there is no file {captions}")
        for option, folder, what in (("--features", features, "an image encoder"), ("--clip", clip, "a model")):
            if folder is not None and not (folder / "config.json").is_file():
                raise Refused(f"{option}: {str(folder)!r} is not a folder with {what} of transformers")
    elif sheet is not None:
        check_file("--sheet", sheet, IMAGES)


def by_features(pipe, images, captions, features, clip, count, steps, seed) -> dict:
    """Print and return the figures of generated images next to real ones."""
    from rich.table import Table

    from fmpipe import feature_metrics
    from fmpipe.data.sources import kind_of, open_source

    kind = kind_of(images)
    if captions is not None and kind != "folder":
        raise Refused(f"--captions is for a folder of images; {images} already contains captions")
    try:
        source = open_source(kind, images, captions, side_of(pipe))
    except (OSError, ValueError) as error:
        raise Refused(f"--images: {error}") from None
    if len(source) < LEAST:
        raise Refused(f"--images: at least {LEAST} images are needed, {images} has {len(source)}")
    with Bars() as bars:
        options = {"features": features, "clip": clip, "count": count, "steps": steps, "seed": seed}
        try:
            report = feature_metrics.evaluate(pipe, source, shown=bars.update, **options)
        except (OSError, ValueError) as error:
            raise Refused(error) from None
    table = Table("figure", "generated", "real images", "better")
    for figure in report["figures"]:
        table.add_row(figure["name"], f"{figure['value']:.4g}", f"{figure['reference']:.4g}", figure["better"])
    out.print(table)
    least = min(report["real"], report["generated"])
    if report["dimensions"] and least <= report["dimensions"]:
        say(
            f"{least} images are fewer than features ({report['dimensions']}): FD is larger than it would be with many "
            "images, and comparable only at the same number; KID has no such bias",
            "yellow",
        )
    chosen = {"images": str(images), "features": features and str(features), "clip": clip and str(clip)}
    return chosen | report


def by_scenes(pipe, each, steps, seed, sheet) -> dict:
    """Print and return the columns of the compositional score."""
    from rich.table import Table

    from fmpipe import compositional

    with Bars() as bars:
        options = {"steps": steps, "seed": seed, "sheet": sheet, "shown": bars.update}
        columns, answers = compositional.evaluate(pipe, each=each or compositional.EACH, **options)
    table = Table("kind of prompt", "right", "its own part", "judged")
    for column in columns:
        own = "-" if column.own is None else f"{column.own:.3f}"
        table.add_row(column.name, f"{column.right:.3f}", own, f"{column.judged} of {column.asked}")
    score = sum(column.right for column in columns) / len(columns)
    table.add_row("mean", f"{score:.3f}", "", "")
    out.print(table)
    return {"score": score, "columns": [column._asdict() for column in columns], "answers": answers}


def write_report(place: Path, report: dict) -> None:
    write(place, json.dumps(report, indent=1, ensure_ascii=False).encode())
