"""``fmpipe generate``, ``sweep``, ``interpolate``, ``arith``: pictures of prompts."""

from pathlib import Path
from typing import Annotated

import typer

from fmpipe.cli.base import (
    Dtype,
    Pipeline,
    Refused,
    Seed,
    Steps,
    app,
    check_place,
    err,
    kind_of,
    load_pipeline,
    out,
    out_option,
    save_picture,
    write,
)
from fmpipe.page import Run, page
from fmpipe.ranks import OtherRankError, Ranks
from fmpipe.sheet import sheet

PICTURES = (".png", ".jpg", ".jpeg")
Prompts = Annotated[list[str] | None, typer.Argument(help="one or several, in quotes", show_default=False)]


Solver = Annotated[str, typer.Option(help="euler, heun, ab2 or dopri5")]


Schedule = Annotated[str, typer.Option(help="crossflow, logit_normal, uniform, midpoint or shifted")]


Guidance = Annotated[float | None, typer.Option(help="guidance scale; the pipeline's own if left out")]


def noise_of(prompt: str, seed: int, index: int = 0):
    """The generator of one picture: of the prompt, the seed and its number, whatever batch or process draws it."""
    import hashlib

    import torch

    digest = hashlib.sha256(f"{seed}\n{index}\n{prompt}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _run(call, steps: int, *, title: str = "flow", quiet: bool = False, each_step=None, **options):
    """``call(**options)`` under a progress bar with the live |x| and |v|; wrong arguments end the command."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[state]}", TimeRemainingColumn()
    progress = Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal)
    task = progress.add_task(title, total=steps, state="")

    def shown(pipe, step, t, tensors):
        if each_step is not None:
            each_step()
        if not progress.disable:
            x, v = tensors["stats"][:, :2].mean(0).tolist()
            progress.update(task, advance=1, state=f"t={t:.2f} |x|={x:.4f} |v|={v:.4f}")

    watched = {"callback_on_step_end": shown, "callback_on_step_end_tensor_inputs": ["stats"]}
    try:
        with progress:
            return call(num_inference_steps=steps, **({} if options.get("solver") == "dopri5" else watched), **options)
    except (ValueError, TypeError, FloatingPointError, ImportError) as error:
        raise Refused(error) from None


def _texts(prompts: list[str] | None, file: Path | None) -> list[str]:
    """The prompts given, then those of the file, one a line."""
    texts = list(prompts or [])
    if file is not None:
        if not file.is_file():
            raise Refused(f"no file {file} of prompts")
        try:
            texts += [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        except UnicodeDecodeError:
            raise Refused(f"{file} is not UTF-8 text") from None
    if not texts:
        raise Refused('no prompt given: fmpipe generate "a red cat", or --prompts file')
    return texts


@app.command()
def generate(
    prompt: Prompts = None,
    pipeline: Pipeline = "default",
    prompts: Annotated[Path | None, typer.Option(help="a file with one a line")] = None,
    steps: Steps = 50,
    solver: Solver = "euler",
    schedule: Schedule = "crossflow",
    guidance: Guidance = None,
    seed: Seed = 0,
    n: Annotated[int, typer.Option(min=1, help="pictures of each prompt")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="pictures at a time; finished ones are on disk")] = 8,
    dtype: Dtype = "float32",
    fm_gain: Annotated[float | None, typer.Option(help="of the velocity; the pipeline's own if left out")] = None,
    dt_scale: Annotated[float, typer.Option(help="factor of every step")] = 1.0,
    time_dir: Annotated[str, typer.Option(help="'0->1', or '1->0' for t and dt reversed")] = "0->1",
    align_variance: Annotated[bool, typer.Option(help="set every z0's std to 1")] = False,
    velocity_dtype: Annotated[str | None, typer.Option(help="of the velocity network's forward")] = None,
    place: out_option("the picture; of several, a folder") = Path("out.png"),
    trace: Annotated[bool, typer.Option("--trace", help="print |x|, |v| and dt of every step")] = False,
    html: Annotated[Path | None, typer.Option(help="write one page with pictures, trace, probes, settings")] = None,
    grid: Annotated[Path | None, typer.Option(help="write one labelled picture of all")] = None,
) -> None:
    """Pictures of prompts.

    Under torchrun the prompts are shared out: [b]torchrun --nproc-per-node 2 -m fmpipe generate --prompts file[/b]
    """
    texts = _texts(prompt, prompts)
    work = [(text, i) for text in texts for i in range(n)]
    folder = place.with_suffix("") if place.suffix.lower() in PICTURES else place
    alone = len(work) == 1 and not place.is_dir()
    names = [place] if alone else [folder / f"{k:04d}.png" for k in range(len(work))]
    check_place("--out", place if alone else folder, not alone)
    for option, path in (("--html", html), ("--grid", grid)):
        if path is not None:
            check_place(option, path)
    options = {
        "solver": solver,
        "schedule": schedule,
        "guidance_scale": guidance,
        "fm_gain": fm_gain,
        "dt_scale": dt_scale,
        "time_dir": time_dir,
        "align_variance": align_variance,
        "velocity_dtype": kind_of("--velocity-dtype", velocity_dtype),
    }
    runs = []
    try:
        with Ranks() as ranks:
            pipe, mine = load_pipeline(pipeline, dtype), ranks.share(list(enumerate(work)))
            batches = [mine[begin : begin + batch] for begin in range(0, len(mine), batch)]
            for b, part in enumerate(batches, 1):
                ranks.check()
                captions = [text for _, (text, _) in part]
                draws = [noise_of(text, seed, i) for _, (text, i) in part]
                bar = {"title": f"batch {b}/{len(batches)}", "quiet": ranks.rank > 0, "each_step": ranks.check}
                result = _run(pipe, steps, **bar, prompt=captions, generator=draws, **options)
                for (k, _), image in zip(part, result.images, strict=True):
                    save_picture(image, names[k])
                if trace:
                    out.print("\n".join(result.trace.lines()), highlight=False)
                if html is not None or grid is not None:
                    runs.append(Run(result.images, captions, result.trace, result.probes))
            everybody = ranks.gather(runs) if html is not None or grid is not None else None
    except OtherRankError as error:
        raise Refused(error, 1) from None
    if everybody is None:
        return
    runs = [run for runs in everybody for run in runs]
    if html is not None:
        settings = {"pipeline": pipeline, "steps": steps, "seed": seed, "dtype": dtype, **options}
        write(html, page(runs, settings).encode())
    if grid is not None:
        images, captions = ([x for run in runs for x in run[k]] for k in (0, 1))
        save_picture(sheet(images, captions, columns=4), grid)


@app.command()
def sweep(
    prompt: Annotated[str, typer.Argument(show_default=False)],
    pipeline: Pipeline = "default",
    dt_scale: Annotated[str, typer.Option(help="values, with commas")] = "0.5,1,2",
    gain: Annotated[str, typer.Option(help="values of fm_gain, with commas")] = "1,2,4",
    steps: Steps = 20,
    seed: Seed = 0,
    dtype: Dtype = "float32",
    place: out_option("the grid, one picture") = Path("sweep.png"),
) -> None:
    """The diary's grid: dt_scale by gain, in both directions of time, one labelled picture of one z0."""
    scales, gains = (_numbers(option, text) for option, text in (("--dt-scale", dt_scale), ("--gain", gain)))
    pipe = load_pipeline(pipeline, dtype)
    cells = [(scale, way, g) for way in ("0->1", "1->0") for scale in scales for g in gains]
    images = [
        _run(pipe, steps, prompt=prompt, generator=[noise_of(prompt, seed)], dt_scale=s, time_dir=w, fm_gain=g).images[
            0
        ]
        for s, w, g in cells
    ]
    labels = [f"dt x {scale:g}, {way}, gain {g:g}" for scale, way, g in cells]
    save_picture(sheet(images, labels, columns=len(gains)), place)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise Refused(f"{option} must be numbers with commas between, got {text!r}") from None


@app.command()
def interpolate(
    a: Annotated[str, typer.Argument(show_default=False)],
    b: Annotated[str, typer.Argument(show_default=False)],
    pipeline: Pipeline = "default",
    n: Annotated[int, typer.Option(min=2, help="pictures from a to b, both included")] = 8,
    steps: Steps = 50,
    dtype: Dtype = "float32",
    place: out_option("the row, one picture") = Path("row.png"),
) -> None:
    """A row of pictures from one prompt to another, along the line between them in the latent."""
    from PIL import Image

    pipe = load_pipeline(pipeline, dtype)
    images = _run(lambda **o: pipe.interpolate(a, b, n, **o), steps).images
    row = Image.new("RGB", (images[0].width * n, images[0].height))
    for i, image in enumerate(images):
        row.paste(image, (i * image.width, 0))
    save_picture(row, place)


@app.command()
def arith(
    add: Annotated[list[str], typer.Option("--add", help="a prompt to add; may be given again")],
    subtract: Annotated[list[str] | None, typer.Option("--subtract", help="one to take away")] = None,
    pipeline: Pipeline = "default",
    steps: Steps = 50,
    dtype: Dtype = "float32",
    place: out_option("the picture") = Path("sum.png"),
) -> None:
    """The picture of a sum of prompts less others, in the latent."""
    pipe = load_pipeline(pipeline, dtype)
    save_picture(_run(lambda **o: pipe.arithmetic(add, subtract or [], **o), steps).images[0], place)
