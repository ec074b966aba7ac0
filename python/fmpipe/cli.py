"""The command ``fmpipe``. Nothing heavy is imported before a command runs: ``--help`` answers at once."""

import io
import os
import warnings
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fmpipe.page import Run, page, verdict_page, write_whole
from fmpipe.ranks import OtherRankError, Ranks

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="rich", help=(
    "Text to image by flow matching: prompts become z0, a velocity field carries z0 to z1, a VAE decodes it.\n\n"
    "A pipeline is a folder, as FlowPipeline.save_pretrained writes it; without one the default is used.\n\n"
    "[b]fmpipe generate \"a red cat\" --pipeline my-folder --steps 50 --out cat.png --trace[/b]"
))  # fmt: skip
out, err = Console(), Console(stderr=True)

KINDS = ("float32", "bfloat16", "float16")
PICTURES = (".png", ".jpg", ".jpeg")
Prompts = Annotated[list[str] | None, typer.Argument(help="one or several, in quotes", show_default=False)]
Pipeline = Annotated[str, typer.Option(help="folder of a pipeline, or the name of one that comes with fmpipe")]
Steps = Annotated[int, typer.Option(min=1, help="of the solver")]
Solver = Annotated[str, typer.Option(help="euler, heun, ab2 or dopri5")]
Schedule = Annotated[str, typer.Option(help="crossflow, logit_normal, uniform, midpoint or shifted")]
Guidance = Annotated[float | None, typer.Option(help="guidance scale; the pipeline's own if left out")]
Seed = Annotated[int, typer.Option(help="of the noise; each picture's depends on its prompt and on this")]
Dtype = Annotated[str, typer.Option(help="of the networks: float32, bfloat16 or float16")]


def _out(text: str) -> object:
    return Annotated[Path, typer.Option("--out", help=text)]


class Refused(typer.Exit):
    """Bad input, or (code 1) a failure elsewhere: one line, no traceback."""

    def __init__(self, message: object, code: int = 2):
        super().__init__(code)
        self.message = " ".join(str(message).split())
        err.print(f"[red]fmpipe:[/red] {escape(self.message)}", highlight=False, soft_wrap=True)

    def __str__(self) -> str:
        return self.message


def _kind(option: str, name: str | None):
    import torch

    if name is not None and name not in KINDS:
        raise Refused(f"{option} must be one of {', '.join(KINDS)}, got {name!r}")
    return None if name is None else getattr(torch, name)


def _load(name: str, dtype: str = "float32"):
    kind = _kind("--dtype", dtype)
    import diffusers
    import torch
    import transformers

    from fmpipe.bundled import BUNDLED
    from fmpipe.pipeline import FlowPipeline

    if name not in BUNDLED and not (Path(name) / "model_index.json").is_file():
        raise Refused(f"no pipeline in {name!r}: a folder with a model_index.json is needed, or {', '.join(BUNDLED)}")
    for library in (diffusers, transformers):
        library.utils.logging.disable_progress_bar()  # there is one line for all of it
    try:
        with err.status(f"loading {name}"), warnings.catch_warnings(record=True) as said:
            pipe = FlowPipeline.from_pretrained(name, dtype=kind)
    except (OSError, ValueError, RuntimeError, TypeError, AttributeError, KeyError) as error:
        raise Refused(f"{name} cannot be loaded: {error}") from None
    for warning in said:
        err.print(f"[yellow]fmpipe:[/yellow] {escape(str(warning.message))}", highlight=False, soft_wrap=True)
    pipe.set_progress_bar_config(disable=True)
    return pipe.to("cuda" if torch.cuda.is_available() else "cpu")


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


def _check_place(option: str, path: Path, folder: bool = False) -> None:
    """Before the work: whether it can be written."""
    if path.exists() and path.is_dir() != folder:
        raise Refused(f"{option}: {path} is a {'folder' if path.is_dir() else 'file'}")
    above = next(p for p in path.absolute().parents if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise Refused(f"{option}: {path} cannot be written: {above} is no folder one may write to")


def _write(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}", 1) from None
    out.print(f"written: {path}", highlight=False, soft_wrap=True)


def _save(image, path: Path) -> None:
    data = io.BytesIO()
    image.save(data, format="JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else "PNG")
    _write(path, data.getvalue())


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
    place: _out("the picture; of several, a folder") = Path("out.png"),
    trace: Annotated[bool, typer.Option("--trace", help="print |x|, |v| and dt of every step")] = False,
    html: Annotated[Path | None, typer.Option(help="write one page with pictures, trace, probes, settings")] = None,
) -> None:
    """Pictures of prompts.

    Under torchrun the prompts are shared out: [b]torchrun --nproc-per-node 2 -m fmpipe generate --prompts file[/b]
    """
    texts = _texts(prompt, prompts)
    work = [(text, i) for text in texts for i in range(n)]
    folder = place.with_suffix("") if place.suffix.lower() in PICTURES else place
    alone = len(work) == 1 and not place.is_dir()
    names = [place] if alone else [folder / f"{k:04d}.png" for k in range(len(work))]
    _check_place("--out", place if alone else folder, not alone)
    if html is not None:
        _check_place("--html", html)
    options = {
        "solver": solver,
        "schedule": schedule,
        "guidance_scale": guidance,
        "fm_gain": fm_gain,
        "dt_scale": dt_scale,
        "time_dir": time_dir,
        "align_variance": align_variance,
        "velocity_dtype": _kind("--velocity-dtype", velocity_dtype),
    }
    runs = []
    try:
        with Ranks() as ranks:
            pipe, mine = _load(pipeline, dtype), ranks.share(list(enumerate(work)))
            batches = [mine[begin : begin + batch] for begin in range(0, len(mine), batch)]
            for b, part in enumerate(batches, 1):
                ranks.check()
                captions = [text for _, (text, _) in part]
                draws = [noise_of(text, seed, i) for _, (text, i) in part]
                bar = {"title": f"batch {b}/{len(batches)}", "quiet": ranks.rank > 0, "each_step": ranks.check}
                result = _run(pipe, steps, **bar, prompt=captions, generator=draws, **options)
                for (k, _), image in zip(part, result.images, strict=True):
                    _save(image, names[k])
                if trace:
                    out.print("\n".join(result.trace.lines()), highlight=False)
                if html is not None:
                    runs.append(Run(result.images, captions, result.trace, result.probes))
            everybody = ranks.gather(runs) if html is not None else None
    except OtherRankError as error:
        raise Refused(error, 1) from None
    if everybody is not None:
        settings = {"pipeline": pipeline, "steps": steps, "seed": seed, "dtype": dtype, **options}
        _write(html, page([run for runs in everybody for run in runs], settings).encode())


@app.command()
def sweep(
    prompt: Annotated[str, typer.Argument(show_default=False)],
    pipeline: Pipeline = "default",
    dt_scale: Annotated[str, typer.Option(help="values, with commas")] = "0.5,1,2",
    gain: Annotated[str, typer.Option(help="values of fm_gain, with commas")] = "1,2,4",
    steps: Steps = 20,
    seed: Seed = 0,
    dtype: Dtype = "float32",
    place: _out("the grid, one picture") = Path("sweep.png"),
) -> None:
    """The diary's grid: dt_scale by gain, in both directions of time, one labelled picture of one z0."""
    from PIL import Image, ImageDraw

    scales, gains = (_numbers(option, text) for option, text in (("--dt-scale", dt_scale), ("--gain", gain)))
    pipe = _load(pipeline, dtype)
    cells = [(scale, way, g) for way in ("0->1", "1->0") for scale in scales for g in gains]
    images = [
        _run(pipe, steps, prompt=prompt, generator=[noise_of(prompt, seed)], dt_scale=s, time_dir=w, fm_gain=g).images[
            0
        ]
        for s, w, g in cells
    ]
    side, label = max(images[0].width, 128), 14
    sheet = Image.new("RGB", (side * len(gains), (side + label) * 2 * len(scales)), "white")
    draw = ImageDraw.Draw(sheet)
    for k, ((scale, way, g), image) in enumerate(zip(cells, images, strict=True)):
        x, y = k % len(gains) * side, k // len(gains) * (side + label)
        draw.text((x + 2, y), f"dt x {scale:g}, {way}, gain {g:g}", fill="black")
        sheet.paste(image.resize((side, side), Image.Resampling.NEAREST), (x, y + label))
    _save(sheet, place)


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
    place: _out("the row, one picture") = Path("row.png"),
) -> None:
    """A row of pictures from one prompt to another, along the line between them in the latent."""
    from PIL import Image

    pipe = _load(pipeline, dtype)
    images = _run(lambda **o: pipe.interpolate(a, b, n, **o), steps).images
    row = Image.new("RGB", (images[0].width * n, images[0].height))
    for i, image in enumerate(images):
        row.paste(image, (i * image.width, 0))
    _save(row, place)


@app.command()
def arith(
    add: Annotated[list[str], typer.Option("--add", help="a prompt to add; may be given again")],
    subtract: Annotated[list[str] | None, typer.Option("--subtract", help="one to take away")] = None,
    pipeline: Pipeline = "default",
    steps: Steps = 50,
    dtype: Dtype = "float32",
    place: _out("the picture") = Path("sum.png"),
) -> None:
    """The picture of a sum of prompts less others, in the latent."""
    pipe = _load(pipeline, dtype)
    _save(_run(lambda **o: pipe.arithmetic(add, subtract or [], **o), steps).images[0], place)


@app.command()
def check(
    what: Annotated[str, typer.Argument(metavar="PIPELINE", help="a pipeline's folder or name; or a text of figures")],
    images: Annotated[Path | None, typer.Option(help="a folder of pictures to measure on")] = None,
    captions: Annotated[Path | None, typer.Option(help="their captions: .jsonl, or .txt with one a line")] = None,
    log: Annotated[Path | None, typer.Option(help="a training run's folder or log.jsonl")] = None,
    n: Annotated[int, typer.Option(min=1, help="at most so many pictures")] = 32,
    steps: Steps = 25,
    seed: Seed = 0,
    limit: Annotated[list[str] | None, typer.Option("--set", help="a threshold, as one_step/cos=0.4")] = None,
    place: _out("folder of check.json, check.html and the pictures") = Path("check"),
) -> None:
    """Is it sound? Every check its inputs allow, each a verdict; exit code 1 if one fails.

    Also of the diary's own lines ([b][fm][/b], [b][text][/b], [b][shoot][/b], [b][teacher-euler][/b]) in any text file:
    [b]fmpipe check notes.txt[/b]
    """
    import json

    from fmpipe.diagnose import diary
    from fmpipe.diagnose.examine import Examination, examine, history_of
    from fmpipe.diagnose.log import read_log, strict
    from fmpipe.diagnose.verdict import limits

    _check_place("--out", place, folder=True)
    text = Path(what).is_file()
    if (captions and not images) or (text and (images or log)):
        raise Refused("--captions needs --images, and a text of figures neither --images nor --log")
    overrides = {}
    for name, _, value in (item.partition("=") for item in limit or []):
        try:
            overrides[name] = float(value)
            limits(overrides)
            if not isfinite(overrides[name]):
                raise ValueError(f"must be a finite number, got {value!r}")
        except (KeyError, ValueError) as error:
            raise Refused(f"--set {name}: {error.args[0]}") from None
    try:
        if text:
            found = Examination(diary.verdicts(Path(what).read_text(encoding="utf-8"), overrides=overrides), {})
        else:
            pipe = _load(what)
            pixels, texts = (None, None) if images is None else _pictures(images, captions, n, pipe)
            if log is not None and (log / "flow").is_dir():
                log = log / "flow"  # a run's folder
            history = None if log is None else history_of(read_log(log))
            with err.status("measuring"):
                found = examine(pipe, pixels, texts, history, steps=steps, seed=seed, overrides=overrides)
    except (OSError, ValueError, FloatingPointError) as error:
        raise Refused(error) from None
    pictures = {name: _row(tensor[:8]) for name, tensor in found.pictures.items()}
    for name, picture in pictures.items():
        _save(picture, place / f"{name}.png")
    settings = {"checked": what, "images": images, "captions": captions, "log": log, "seed": seed, **overrides}
    _tell(found.verdicts)
    _write(place / "check.json", json.dumps(strict([v.as_dict() for v in found.verdicts]), indent=1).encode())
    _write(place / "check.html", verdict_page(found.verdicts, pictures, settings).encode())
    if not all(found.verdicts):
        raise typer.Exit(1)


def _tell(verdicts) -> None:
    """The verdicts as a table; those skipped in a line."""
    from rich.table import Table

    colours = {"pass": "green", "warn": "yellow", "fail": "red"}
    table = Table("check", "verdict", "what it means, and what to do next", show_lines=True)
    for v in verdicts:
        if v.status != "skipped":
            status = f"[{colours[v.status]}]{v.status}[/]"
            table.add_row(v.name, status, escape("\n".join(filter(None, (v.meaning, v.advice)))))
    out.print(table)
    for why in dict.fromkeys(v.meaning for v in verdicts if v.status == "skipped"):
        names = ", ".join(v.name for v in verdicts if v.status == "skipped" and v.meaning == why)
        out.print(f"skipped, {escape(why)}: {names}", highlight=False, soft_wrap=True)


def _pictures(images: Path, captions: Path | None, n: int, pipe):
    """(n, 3, H, W) in [-1, 1] of the pipeline's size, and their first captions (None if there are none)."""
    import torch

    from fmpipe.data import Folder, to_pixels

    side = pipe.text_head.config.latent_shape[-1] * pipe.vae.factor
    if captions is None and not any(images.rglob("*.txt")):
        captions = False
    source = Folder(images, captions, size=side)
    items = [source[i] for i in range(min(n, len(source)))]
    pixels = to_pixels(torch.stack([item.image for item in items]))
    return pixels, [item.captions[0] for item in items] if all(item.captions for item in items) else None


def _row(images):
    """Pictures (N, 3, H, W) in [-1, 1] side by side."""
    from PIL import Image

    pixels = ((images.clamp(-1, 1) + 1) * 127.5).round().byte().permute(2, 0, 3, 1).flatten(1, 2)
    return Image.fromarray(pixels.contiguous().cpu().numpy())


Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="as flow.optim.lr=1e-3")]
Configuration = Annotated[str, typer.Option("--config", help="a YAML file, or a preset: shapes-tiny, crossflow-256")]


def _config(source: str, overrides: list[str] | None):
    from fmpipe.train import settings
    from fmpipe.train.config import PRESETS, Config

    if source not in PRESETS and not Path(source).is_file():
        raise Refused(f"--config: no file {source!r} and no preset of that name; presets are {', '.join(PRESETS)}")
    try:
        config = PRESETS[source]() if source in PRESETS else settings.load(Config, source)
        return settings.with_overrides(config, overrides or [])
    except ValueError as error:
        raise Refused(error) from None


def _trained(call):
    """``call(shown)`` under a bar with loss, cos, nmse and steps a second; what ends a run is one line, exit code 1."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from fmpipe.train.checkpoint import CheckpointError
    from fmpipe.train.loop import StoppedError

    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[state]}", TimeRemainingColumn()
    tasks, last = {}, {}
    with Progress(*columns, console=err) as progress:

        def shown(stage, step, steps, figures):
            names = {"loss/total": "loss", "flow/cos": "cos", "flow/nmse": "nmse", "vae/psnr": "psnr"}
            last.setdefault(stage, {}).update({n: figures[k] for k, n in names.items() if k in figures})
            state = " ".join(f"{name} {value:.3f}" for name, value in last[stage].items())
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=steps, state="")
            speed = progress.tasks[list(tasks).index(stage)].speed
            progress.update(tasks[stage], completed=step, state=state + (f" {speed:.1f} it/s" if speed else ""))

        try:
            return call(shown)
        except (StoppedError, OSError, CheckpointError) as error:
            failed = error
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(error) from None
    raise Refused(failed, 1) from None


@app.command()
def train(
    config: Configuration,
    overrides: Overrides = None,
    resume: Annotated[str | None, typer.Option(help="latest, a step, or a checkpoint's folder")] = None,
    report_to: Annotated[str | None, typer.Option(help="jsonl, tensorboard, or both with a comma")] = None,
) -> None:
    """Train: the stages of a config in order (autoencoder, then flow), resumable at any moment.

    [b]fmpipe train --config shapes-tiny out=runs/mine flow.optim.steps=200[/b]

    Several processes: [b]torchrun --nproc-per-node 2 -m fmpipe train --config shapes-tiny[/b]
    """
    settings = _config(config, [*(overrides or []), *([f"report_to=[{report_to}]"] if report_to else [])])
    from fmpipe.train.run import run

    for stage, place in _trained(lambda shown: run(settings, resume=resume, shown=shown)).items():
        out.print(f"{stage}: {place}", highlight=False, soft_wrap=True)


@app.command()
def overfit(config: Configuration, overrides: Overrides = None, samples: Annotated[int, typer.Option(min=2)] = 128):
    """Can it learn a few samples by heart? If not, a long run is not worth it. Needs the run's autoencoder."""
    from fmpipe.train import trials

    settings = _config(config, overrides)
    _judged(_trained(lambda shown: trials.overfit(settings, samples=samples, shown=shown)))


@app.command()
def ablate(config: Configuration, overrides: Overrides = None, steps: Annotated[int, typer.Option(min=20)] = 200):
    """Short runs with a part left out: the flow loss alone, no KL, the condition shuffled. Needs the autoencoder."""
    from fmpipe.train import trials

    settings = _config(config, overrides)
    _judged(_trained(lambda shown: trials.ablate(settings, steps=steps, shown=shown)))


def _judged(verdicts) -> None:
    _tell(verdicts)
    if not all(verdicts):
        raise typer.Exit(1)


@app.command()
def info(pipeline: Pipeline = "default") -> None:
    """A pipeline's parts, sizes, scale factors and digests, and who serves fmkernels' calls."""
    from rich.table import Table

    import fmkernels
    from fmpipe.data.cache import weights_sha256

    pipe = _load(pipeline)
    table = Table("part", "class", "parameters", "sha256 of the weights")
    for name, part in pipe.components.items():
        if part is None:
            table.add_row(name, "none", "", "")
            continue
        count = sum(p.numel() for p in part.parameters())
        table.add_row(name, type(part).__name__, f"{count:,}", weights_sha256(part)[:16])
    out.print(table)
    out.print(f"scale factor {pipe.vae.config.scaling_factor}, fm_gain {pipe.config.fm_gain}", highlight=False)
    fmkernels.explain()


if __name__ == "__main__":
    app()
