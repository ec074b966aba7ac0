"""The command ``fmpipe``. Nothing heavy is imported before a command runs: ``--help`` answers at once."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="rich", help=(
    "Text to image by flow matching: prompts become z0, a velocity field carries z0 to z1, a VAE decodes it.\n\n"
    "A pipeline is a folder, as FlowPipeline.save_pretrained writes it.\n\n"
    "[b]fmpipe generate my-pipeline \"a red cat\" --steps 50 --out cat.png --trace[/b]"
))  # fmt: skip
out, err = Console(), Console(stderr=True)

Pipeline = Annotated[str, typer.Argument(help="folder of a pipeline", show_default=False)]
Steps = Annotated[int, typer.Option(min=1, help="steps of the solver")]
Solver = Annotated[str, typer.Option(help="euler, heun, ab2 or dopri5")]
Schedule = Annotated[str, typer.Option(help="crossflow, logit_normal, uniform, midpoint or shifted")]
Guidance = Annotated[float | None, typer.Option(help="guidance scale; the pipeline's own if left out")]
Seed = Annotated[int, typer.Option(help="of the noise; each prompt's depends on the prompt and on this")]
Dtype = Annotated[str, typer.Option(help="of the networks: float32, bfloat16 or float16")]
Gain = Annotated[float | None, typer.Option(help="gain of the velocity; the pipeline's own if left out")]
Out = Annotated[Path, typer.Option(help="the picture, or a folder for several")]
Lines = Annotated[bool, typer.Option("--trace", help="print |x|, |v| and dt of every step, as the diary does")]


def _fail(message: object) -> typer.Exit:
    """Bad input: one line, no traceback, exit code 2."""
    err.print(f"[red]fmpipe:[/red] {' '.join(str(message).split())}", highlight=False)
    return typer.Exit(2)


def _load(folder: str, dtype: str):
    import torch

    from fmpipe.pipeline import FlowPipeline

    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in kinds:
        raise _fail(f"--dtype must be one of {', '.join(kinds)}, got {dtype!r}")
    if not (Path(folder) / "model_index.json").is_file():
        raise _fail(f"no pipeline in {folder!r}: a folder with a model_index.json is needed")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        pipe = FlowPipeline.from_pretrained(folder, torch_dtype=kinds[dtype]).to(device)
    except (OSError, ValueError, RuntimeError) as error:
        raise _fail(f"{folder} cannot be loaded: {error}") from None
    pipe.set_progress_bar_config(disable=True)
    return pipe


def noise_of(prompt: str, seed: int, index: int = 0):
    """The generator of one picture: of the prompt, the seed and its number, whatever batch or process draws it."""
    import hashlib

    import torch

    digest = hashlib.sha256(f"{seed}\n{index}\n{prompt}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _run(call, steps: int, **options):
    """``call(**options)`` under a progress bar with the live |x|; what is wrong with the arguments ends the command."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("flow"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("flow", total=steps, state="")

        def shown(pipe, step, t, tensors):
            x = tensors["latents"].float().abs().mean().item()
            progress.update(task, advance=1, state=f"t={t:.2f} |x|={x:.4f}")
            return {}

        watched = {} if options.get("solver") == "dopri5" else {"callback_on_step_end": shown}
        try:
            return call(num_inference_steps=steps, **watched, **options)
        except (ValueError, TypeError, FloatingPointError, ImportError) as error:
            raise _fail(error) from None


def _save(images, place: Path, names: list[str]) -> None:
    """One picture under the name itself, several in a folder of that name; never half a file."""
    paths = [place] if len(images) == 1 and place.suffix else [place / f"{name}.png" for name in names]
    for image, path in zip(images, paths, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        image.save(part, format="JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else "PNG")
        part.replace(path)
        out.print(f"written: {path}", highlight=False)


@app.command()
def generate(
    pipeline: Pipeline,
    prompts: Annotated[list[str], typer.Argument(help="prompts, or @file with one a line", show_default=False)],
    steps: Steps = 50,
    solver: Solver = "euler",
    schedule: Schedule = "crossflow",
    guidance: Guidance = None,
    seed: Seed = 0,
    n: Annotated[int, typer.Option(min=1, help="pictures of each prompt")] = 1,
    dtype: Dtype = "float32",
    fm_gain: Gain = None,
    dt_scale: Annotated[float, typer.Option(help="factor of every step")] = 1.0,
    time_dir: Annotated[str, typer.Option(help="'0->1', or '1->0' for t and dt reversed")] = "0->1",
    align_variance: Annotated[bool, typer.Option(help="set every z0's std to 1")] = False,
    velocity_dtype: Annotated[str | None, typer.Option(help="of the velocity network's forward")] = None,
    place: Annotated[Path, typer.Option("--out", help="the picture, or a folder for several")] = Path("out.png"),
    trace: Lines = False,
) -> None:
    """Pictures of prompts."""
    import torch

    texts = [line for prompt in prompts for line in _lines(prompt)]
    if not texts:
        raise _fail("no prompt given")
    if velocity_dtype not in (None, "float32", "bfloat16", "float16"):
        raise _fail(f"--velocity-dtype must be float32, bfloat16 or float16, got {velocity_dtype!r}")
    pipe = _load(pipeline, dtype)
    result = _run(
        pipe,
        steps,
        prompt=texts,
        solver=solver,
        schedule=schedule,
        guidance_scale=guidance,
        num_images_per_prompt=n,
        generator=[noise_of(text, seed, i) for text in texts for i in range(n)],
        fm_gain=fm_gain,
        dt_scale=dt_scale,
        time_dir=time_dir,
        align_variance=align_variance,
        velocity_dtype=None if velocity_dtype is None else getattr(torch, velocity_dtype),
    )
    if trace:
        out.print("\n".join(result.trace.lines()), highlight=False)
    several = len(result.images) > 1
    _save(result.images, place.with_suffix("") if several else place, [f"{i:04d}" for i in range(len(result.images))])


def _lines(prompt: str) -> list[str]:
    """A prompt, or the lines of @file."""
    if not prompt.startswith("@"):
        return [prompt]
    path = Path(prompt[1:])
    if not path.is_file():
        raise _fail(f"no file {path} of prompts")
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


@app.command()
def interpolate(
    pipeline: Pipeline,
    a: Annotated[str, typer.Argument(show_default=False)],
    b: Annotated[str, typer.Argument(show_default=False)],
    n: Annotated[int, typer.Option(min=2, help="pictures from a to b, both included")] = 8,
    steps: Steps = 50,
    dtype: Dtype = "float32",
    place: Annotated[Path, typer.Option("--out", help="one picture of the row")] = Path("row.png"),
) -> None:
    """A row of pictures from one prompt to another, along the line between them in the latent."""
    pipe = _load(pipeline, dtype)
    _save([_row(_run(lambda **o: pipe.interpolate(a, b, n, **o), steps).images)], place, ["row"])


@app.command()
def arith(
    pipeline: Pipeline,
    add: Annotated[list[str], typer.Option("--add", help="a prompt to add; may be given again")],
    subtract: Annotated[list[str] | None, typer.Option("--subtract", help="one to take away")] = None,
    steps: Steps = 50,
    dtype: Dtype = "float32",
    place: Annotated[Path, typer.Option("--out")] = Path("sum.png"),
) -> None:
    """The picture of a sum of prompts less others, in the latent."""
    pipe = _load(pipeline, dtype)
    _save(_run(lambda **o: pipe.arithmetic(add, subtract or [], **o), steps).images, place, ["sum"])


def _row(images):
    from PIL import Image

    width, height = images[0].size
    row = Image.new("RGB", (width * len(images), height))
    for i, image in enumerate(images):
        row.paste(image, (i * width, 0))
    return row


@app.command()
def info(pipeline: Pipeline) -> None:
    """A pipeline's parts, sizes, scale factors and digests, and who serves fmkernels' calls."""
    import hashlib

    from rich.table import Table

    import fmkernels

    pipe = _load(pipeline, "float32")
    table = Table("part", "class", "parameters", "sha256 of the weights")
    for name, part in pipe.components.items():
        weights = sorted((Path(pipeline) / name).rglob("*.safetensors"))
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in weights)).hexdigest()[:16] if weights else "–"
        count = sum(p.numel() for p in part.parameters())
        table.add_row(name, type(part).__name__, f"{count:,}", digest)
    out.print(table)
    out.print(f"scale factor {pipe.vae.config.scaling_factor}, fm_gain {pipe.config.fm_gain}", highlight=False)
    fmkernels.explain()


if __name__ == "__main__":
    app()
