"""``fmpipe generate``: images of prompts."""

from pathlib import Path
from typing import Annotated

import typer

from fmpipe.cli.base import (
    DeviceOption,
    DtypeOption,
    GuidanceOption,
    PipelineOption,
    PrecisionOption,
    Refused,
    ScheduleOption,
    SeedOption,
    SolverOption,
    StepsOption,
    command,
    load_pipeline,
    out,
    out_option,
)
from fmpipe.cli.files import IMAGES, check_file, check_place, is_image, save_gif, save_image, slug, write
from fmpipe.cli.progress import Bars
from fmpipe.cli.run_sampling import GIF, OUT, Sampling, ScaleOption, noise_of
from fmpipe.distributed import OtherRankError, Ranks
from fmpipe.image_grid import image_grid, to_image
from fmpipe.page import Batch, page
from fmpipe.sampling import TimeDirection, VelocityDtype

DEBUG = {"rich_help_panel": "Debugging"}


def _texts(prompts: list[str] | None, file: Path | None) -> list[str]:
    """Return the prompts given, then those of the file, one per line."""
    texts = list(prompts or [])
    if file is not None:
        if not file.is_file():
            raise Refused(f"--prompts: there is no file {file}")
        try:
            texts += [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        except UnicodeDecodeError:
            raise Refused(f"--prompts: {file} is not UTF-8 text") from None
    if not texts:
        raise Refused('no prompt given: fmpipe generate "a red cat", or --prompts FILE')
    return texts


def _names(texts: list[str], n: int, seed: int) -> list[str]:
    """Return a file name for each image: its prompt, the seed if that is not 0, and a number if it is needed."""
    names: dict[str, None] = {}
    for text in texts:
        for _ in range(n):
            base = slug(text) + (f"-seed{seed}" if seed else "")
            number = next(k for k in range(1, len(names) + 2) if (base if k == 1 else f"{base}-{k}") not in names)
            names[base if number == 1 else f"{base}-{number}"] = None
    return list(names)


def _animated(pipe, states: list, captions: list[str], scale: int) -> list:
    """Decode the states of a trajectory; one frame shows all images of the batch."""
    decoded = (pipe.vae.decode(state.to(pipe.vae.device, pipe.vae.dtype)).float() for state in states)
    return [image_grid([to_image(x) for x in images], captions, columns=4, side=128 * scale) for images in decoded]


@command("Generate")
def generate(
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            help="One or more prompts, each in quotes. The default model reads English.", show_default=False
        ),
    ] = None,
    pipeline: PipelineOption = "default",
    prompts: Annotated[Path | None, typer.Option(help="Text file with more prompts, one per line.")] = None,
    steps: StepsOption = None,
    solver: SolverOption = None,
    schedule: ScheduleOption = None,
    guidance: GuidanceOption = None,
    diversity: Annotated[
        float,
        typer.Option(
            help="How freely one of the meanings of a vague prompt is chosen: 0 is always the most likely one, larger "
            "values choose unlikely ones more often. Only for models with a mixture head, such as the default one."
        ),
    ] = 1.0,
    seed: SeedOption = 0,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Number of images for each prompt.")] = 1,
    place: out_option(
        "Folder for the images, named after their prompts. For a single image also a file ending in .png, .jpg, .jpeg."
    ) = OUT,
    scale: ScaleOption = 1,
    grid: Annotated[
        Path | None, typer.Option(help="Also write all images as one labeled grid to this .png or .jpg file.")
    ] = None,
    gif: Annotated[
        Path | None,
        typer.Option(
            help="Also write the path from z0 to the images of the first batch, decoded at every step, as .gif."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write one HTML page with the images, the trace, the probes and all settings."),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print |x|, |v| and dt of every step.")] = False,
    batch: Annotated[
        int, typer.Option(min=1, help="Images per forward pass; those of a finished batch are on disk.")
    ] = 8,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    precision: PrecisionOption = None,
    velocity_dtype: Annotated[
        VelocityDtype | None,
        typer.Option(
            help="Data type of the velocity network's forward only, for example float32 with --dtype bfloat16. auto: "
            "bfloat16 if that is faster here.",
            **DEBUG,
        ),
    ] = None,
    fm_gain: Annotated[
        float | None,
        typer.Option(
            help="Factor for the velocity, to correct a network that predicts it too small. Measure it with the check "
            "one_step before you change it.",
            show_default="the pipeline's own; usually 1",
            **DEBUG,
        ),
    ] = None,
    dt_scale: Annotated[float, typer.Option(help="Factor for every step size.", **DEBUG)] = 1.0,
    time_dir: Annotated[
        TimeDirection, typer.Option(help="Direction of time; '1->0' reverses t and dt.", **DEBUG)
    ] = "0->1",
    align_variance: Annotated[
        bool, typer.Option("--align-variance", help="Rescale every z0 to a standard deviation of 1.", **DEBUG)
    ] = False,
) -> None:
    """Generate images from prompts.

    [b]fmpipe generate "a cat" "a blue heart" --grid grid.png[/b]

    Settings that are omitted are the pipeline's own. Images store their settings in the PNG metadata. Under torchrun,
    the prompts are shared among the processes: [b]torchrun --nproc-per-node 2 -m fmpipe generate --prompts FILE[/b]
    """
    texts = _texts(prompt, prompts)
    sampling = Sampling(
        pipeline, device, steps, solver, schedule, guidance, diversity=diversity, fm_gain=fm_gain, dt_scale=dt_scale,
        time_dir=time_dir, align_variance=align_variance, velocity_dtype=velocity_dtype,
    )  # fmt: skip
    work = [(text, i) for text in texts for i in range(n)]
    single = is_image("--out", place)
    if single and len(work) > 1:
        raise Refused(
            f"--out: {place} is one file, but {len(work)} images were requested; name a folder, or use --grid"
        )
    names = [place] if single else [place / f"{name}.png" for name in _names(texts, n, seed)]
    check_place("--out", place, folder=not single)
    for option, path, suffixes in (("--html", html, (".html", ".htm")), ("--grid", grid, IMAGES), ("--gif", gif, GIF)):
        if path is not None:
            check_file(option, path, suffixes)
    if gif is not None and solver == "dopri5":
        raise Refused("--gif needs a solver with fixed steps: use --solver euler, ab2 or heun instead of dopri5")
    runs, animation = [], []
    try:
        with Ranks() as ranks:
            pipe, mine = load_pipeline(pipeline, dtype, device, precision), ranks.share(list(enumerate(work)))
            if gif is not None and (solver or pipe.config.solver) == "dopri5":
                raise Refused(
                    "--gif needs a solver with fixed steps, and this pipeline's own is dopri5: use --solver ab2"
                )
            batches = [mine[begin : begin + batch] for begin in range(0, len(mine), batch)]
            with Bars(quiet=ranks.rank > 0) as bars:
                for b, part in enumerate(batches, 1):
                    ranks.check()
                    captions = [text for _, (text, _) in part]
                    draws = [noise_of(text, seed, i) for _, (text, i) in part]
                    frames = None if gif is None or animation else []
                    result = sampling.run(
                        pipe, pipe, bars, f"batch {b}/{len(batches)}", each_step=ranks.check, frames=frames,
                        prompt=captions, generator=draws, probes=html is not None,
                    )  # fmt: skip
                    for (k, (text, i)), image in zip(part, result.images, strict=True):
                        info = sampling.info(pipe, text, seed) | {"number": i, "dtype": dtype, **sampling.debug}
                        info["precision"] = result.trace.precision
                        save_image(image, names[k], info, scale)
                    if trace:
                        computed = f"velocity computed in {result.trace.precision}"
                        out.print("\n".join([computed, *result.trace.lines()]), highlight=False)
                    if frames is not None:
                        animation = _animated(pipe, [result.z0, *frames], captions, scale)
                    if html is not None or grid is not None:
                        runs.append(Batch(result.images, captions, result.trace, result.probes))
            gathered = ranks.gather(runs) if html is not None or grid is not None else None
    except OtherRankError as error:
        raise Refused(error, 1) from None
    info = sampling.info(pipe, "; ".join(texts), seed)
    if animation and ranks.rank == 0:
        save_gif(animation, gif, info)
    if gathered is None:
        return
    runs = [run for runs in gathered for run in runs]
    if html is not None:
        used = {"dtype": dtype, "precision": runs[0].trace.precision, "device": pipe.device}
        write(html, page(runs, {**info, **used, **sampling.debug}).encode())
    if grid is not None:
        images, captions = ([x for run in runs for x in run[k]] for k in (0, 1))
        save_image(image_grid(images, captions, columns=4, side=max(128, images[0].width) * scale), grid, info)
