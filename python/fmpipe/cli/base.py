"""What the commands share: the app, its consoles and options, refusals, loading a pipeline, writing a file."""

import io
import os
import warnings
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fmpipe.page import write_whole

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="rich", help=(
    "Text to image by flow matching: prompts become z0, a velocity field carries z0 to z1, a VAE decodes it.\n\n"
    "A pipeline is a folder, as FlowPipeline.save_pretrained writes it; without one the default is used.\n\n"
    "[b]fmpipe generate \"a red cat\" --pipeline my-folder --steps 50 --out cat.png --trace[/b]"
))  # fmt: skip
out, err = Console(), Console(stderr=True)

KINDS = ("float32", "bfloat16", "float16")
Pipeline = Annotated[str, typer.Option(help="folder of a pipeline, or the name of one that comes with fmpipe")]
Steps = Annotated[int, typer.Option(min=1, help="of the solver")]
Seed = Annotated[int, typer.Option(help="of the noise; each picture's depends on its prompt and on this")]
Dtype = Annotated[str, typer.Option(help="of the networks: float32, bfloat16 or float16")]


def out_option(text: str) -> object:
    return Annotated[Path, typer.Option("--out", help=text)]


class Refused(typer.Exit):
    """Bad input, or (code 1) a failure elsewhere: one line, no traceback."""

    def __init__(self, message: object, code: int = 2):
        super().__init__(code)
        self.message = " ".join(str(message).split())
        err.print(f"[red]fmpipe:[/red] {escape(self.message)}", highlight=False, soft_wrap=True)

    def __str__(self) -> str:
        return self.message


def kind_of(option: str, name: str | None):
    import torch

    if name is not None and name not in KINDS:
        raise Refused(f"{option} must be one of {', '.join(KINDS)}, got {name!r}")
    return None if name is None else getattr(torch, name)


def load_pipeline(name: str, dtype: str = "float32"):
    kind = kind_of("--dtype", dtype)
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


def overrides_of(items: list[str] | None, limits) -> dict[str, float]:
    """The thresholds of ``--set name=value``. limits: what raises KeyError for a name it does not know."""
    overrides = {}
    for name, _, value in (item.partition("=") for item in items or []):
        try:
            overrides[name] = float(value)
            limits(overrides)
            if not isfinite(overrides[name]):
                raise ValueError(f"must be a finite number, got {value!r}")
        except (KeyError, ValueError) as error:
            raise Refused(f"--set {name}: {error.args[0]}") from None
    return overrides


def check_place(option: str, path: Path, folder: bool = False) -> None:
    """Before the work: whether it can be written."""
    if path.exists() and path.is_dir() != folder:
        raise Refused(f"{option}: {path} is a {'folder' if path.is_dir() else 'file'}")
    above = next(p for p in path.absolute().parents if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise Refused(f"{option}: {path} cannot be written: {above} is no folder one may write to")


def write(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}", 1) from None
    out.print(f"written: {path}", highlight=False, soft_wrap=True)


def save_picture(image, path: Path) -> None:
    data = io.BytesIO()
    image.save(data, format="JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else "PNG")
    write(path, data.getvalue())
