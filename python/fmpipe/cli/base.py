"""What the commands share: the app, its options and errors, and loading a pipeline."""

import contextlib
import gc
import inspect
import re
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fmpipe.bundled import find_pipeline
from fmpipe.requirements import install_line
from fmpipe.sampling import Dtype, Precision, SamplingOptions, Schedule, Solver

out, err = Console(), Console(stderr=True)
# Optional imports of diffusers and transformers that take seconds and that no command needs.
OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory")  # torch, on CPUs and on GPUs
UNUSED = ("scipy", "sklearn", "sentence_transformers", "pandas")


class Refused(Exception):  # noqa: N818
    """Bad input (exit code 2) or a failure elsewhere (exit code 1). It is printed as one line, without a traceback."""

    def __init__(self, message: object, code: int = 2):
        super().__init__(" ".join(str(message).split()))
        self.code = code


class Commands(typer.core.TyperGroup):
    """Prints every error as one line on stderr, and Python warnings of fmpipe and fmkernels too."""

    def main(self, *args, standalone_mode: bool = True, **options):
        with contextlib.suppress(AttributeError):
            sys.stdout.reconfigure(errors="replace"), sys.stderr.reconfigure(errors="replace")
        _show_only_our_warnings()
        try:
            code = super().main(*args, standalone_mode=False, **options)
        except Refused as error:
            say(error, "red")
            code = error.code
        except ImportError as error:
            line = install_line(error)
            if line is None:
                raise
            say(line, "red")
            code = 1
        except Exception as error:
            if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)):
                say(f"out of memory: {str(error) or 'a smaller batch or size may fit'}".splitlines()[0], "red")
                code = 1
            elif not hasattr(error, "format_message"):  # not one of typer's
                raise
            else:
                code = _usage_error(error, list(options.get("args") or (args[0] if args else None) or sys.argv[1:]))
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


def _usage_error(error, argv: list[str]) -> int:
    """Print an error in the arguments as one line: the option, what it got, and the command whose help explains it."""
    context, names = getattr(error, "ctx", None), getattr(getattr(error, "param", None), "opts", ())
    if type(error).__name__ == "NoArgsIsHelpError":
        err.print(error.format_message(), highlight=False)
        return 2
    message = " ".join(error.format_message().split()).replace("Value error, ", "").rstrip(".")
    given = [argv[i + 1] for i, word in enumerate(argv[:-1]) if word in names]
    given += [word.partition("=")[2] for word in argv if word.partition("=")[0] in names and "=" in word]
    if given and repr(given[-1]) not in message:
        message += f", got {given[-1]!r}"
    say(message + (f"; see {context.command_path} --help" if context else ""), "red")
    return getattr(error, "exit_code", 2)


def _show_only_our_warnings() -> None:
    if sys.warnoptions:
        return
    warnings.filterwarnings("ignore")
    warnings.filterwarnings("default", module=r"fm(pipe|kernels)\b")
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}", "yellow")


def say(message: object, colour: str | None = None) -> None:
    """Print one line on stderr, unwrapped, so that commands in it can be copied."""
    prefix = f"[{colour}]fmpipe:[/]" if colour else "fmpipe:"
    err.print(f"{prefix} {escape(' '.join(str(message).split()))}", highlight=False, soft_wrap=True)


app = typer.Typer(
    name="fmpipe",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Text to image by flow matching: generate images, train models, and find out what is wrong with a run.\n\n"
        "A prompt becomes a latent z0, a velocity network carries z0 to the image latent z1, and a VAE decodes z1. "
        "A pipeline holds these networks: it is the name [b]default[/b], a folder written by save_pretrained, or the "
        "folder of a training run.\n\n"
        'Start with [b]fmpipe generate "a cat"[/b], [b]fmpipe train --config shapes-tiny[/b], or '
        "[b]fmpipe report RUN[/b]. Every command explains itself with [b]--help[/b]."
    ),
)


def command(panel: str, **options) -> Callable:
    """Register a function as a command, its docstring as its help; panel: the heading that lists it."""

    def register(function: Callable) -> Callable:
        paragraphs = inspect.cleandoc(function.__doc__).split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        return app.command(help=text, rich_help_panel=panel, **options)(function)

    return register


def _version(asked: bool) -> None:
    if asked:
        out.print(f"fmpipe {version('fmkernels')}", highlight=False)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# Options that several commands have

PipelineOption = Annotated[
    str,
    typer.Option(
        "--pipeline",
        "-p",
        help="Pipeline to use: a folder written by save_pretrained, the folder of a training run, or the name of a "
        "bundled pipeline.",
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of solver steps. More steps are slower and follow the flow more exactly; 10 to 50 is common.",
        show_default="the pipeline's own; 20 for the default model",
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(help="Random seed. The noise of an image depends on its prompt and on this number, on nothing else."),
]
SolverOption = Annotated[
    Solver | None,
    typer.Option(
        help="Integration method. euler: one evaluation per step, first order. ab2: one evaluation per step, second "
        "order; the best choice for most models, with the schedule uniform. heun: two evaluations per step, second "
        "order. dopri5: adaptive and slow; use it as a reference (--steps has no effect).",
        show_default="the pipeline's own; ab2 for the default model",
    ),
]
ScheduleOption = Annotated[
    Schedule | None,
    typer.Option(
        help="Times at which the velocity is evaluated. uniform: equal steps from 0 to 1, the best choice for ab2 and "
        "heun. crossflow: as in CrossFlow's sampler, for euler and released checkpoints. logit_normal: short steps in "
        "the middle of the path; does not cover its ends. midpoint: equal steps, evaluated in the middle, for euler. "
        "shifted: shorter steps toward the image.",
        show_default="the pipeline's own; uniform for the default model",
    ),
]
GuidanceOption = Annotated[
    float | None,
    typer.Option(
        help="Guidance scale. 1 has no effect; larger values follow the prompt more closely, at twice the cost per "
        "step, and distort the image if they are too large. Only for models trained with the null indicator.",
        show_default="the pipeline's own; 1 for the default model",
    ),
]
DtypeOption = Annotated[
    Dtype,
    typer.Option(
        help="Data type of the networks' weights. float32 is exact; bfloat16 halves the memory and is faster on GPUs "
        "and on CPUs with AVX-512 BF16. The state of the solver is always float32."
    ),
]
PrecisionOption = Annotated[
    Precision | None,
    typer.Option(
        help="Precision of the velocity network's matrix products. int8 and bf16 are faster on CPUs with VNNI or "
        "AVX-512 BF16 and need a quarter or half of the memory; fp8 needs a GPU with sm_89. auto: the fastest that "
        "this machine has instructions for. Layers that would not become faster, or are too sensitive, are left "
        "unchanged.",
        show_default="the pipeline's own; fp32 for the default model",
    ),
]
DeviceOption = Annotated[
    str, typer.Option(help="Device to run on: auto (a GPU if torch sees one), cpu, cuda, cuda:1, mps or xpu.")
]
THRESHOLD_HELP = "Change a threshold: NAME=VALUE, for example {}. May be repeated."


def out_option(text: str) -> object:
    return Annotated[Path, typer.Option("--out", "-o", help=text)]


def option_name(name: str) -> str:
    """Map an argument of FlowPipeline to the option that sets it."""
    renamed = {"num_inference_steps": "steps", "guidance_scale": "guidance", "num_images_per_prompt": "n"}
    return f"--{renamed.get(name, name).replace('_', '-')}"


def check_options(**settings) -> SamplingOptions:
    """Return validated sampling options, without importing anything heavy; refuse invalid ones by their option."""
    try:
        return SamplingOptions(**settings, label=option_name)
    except ValueError as error:
        raise Refused(error) from None


# Devices and pipelines


def check_device(name: str) -> None:
    """Refuse what cannot be the name of a device; imports nothing."""
    if not re.fullmatch(r"auto|cpu|mps|(cuda|xpu)(:\d+)?", name) and not is_custom(name):
        raise Refused(f"--device must be auto, cpu, cuda, cuda:N, mps or xpu, got {name!r}")


def is_custom(name: str) -> bool:
    """True for a device that a plug-in of torch has registered under its own name (PrivateUse1), such as ``npu``."""
    torch = sys.modules.get("torch")  # plug-ins import it
    return torch is not None and name.partition(":")[0] == torch._C._get_privateuse1_backend_name()


def device_of(name: str) -> str:
    """Return the device to run on; refuse one that torch does not see."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    count = 1 if kind == "cpu" else torch.get_device_module(kind).device_count()
    if int(index or 0) >= count:
        built = f"torch {torch.__version__} sees {count} {kind} device{'s' * (count != 1)}"
        raise Refused(f"--device {name}: {built}; use --device cpu, or install a build of torch for your GPU")
    return name


@contextlib.contextmanager
def importing_less():
    """Import diffusers and transformers in two thirds of the time, and exit a second earlier.

    Optional modules that no command needs are hidden, and the garbage collector neither runs during the imports nor
    looks at what they created afterwards. For the command line only, which owns its process.
    """
    hidden = [name for name in UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    gc.disable()
    try:
        yield
    finally:
        for name in hidden:
            if sys.modules.get(name) is None:
                del sys.modules[name]
        gc.freeze()
        gc.enable()


def quiet_libraries() -> None:
    """Turn off the progress bars and the messages of the libraries."""
    import diffusers
    import transformers

    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()


def locate(name: str) -> str | Path:
    """Return where a pipeline is; refuse a name that is none."""
    try:
        return find_pipeline(name)
    except FileNotFoundError as error:
        raise Refused(error) from None


def load_pipeline(name: str, dtype: str = "float32", device: str = "auto", precision: str | None = None):
    """Load a pipeline onto a device. Checks what it can before the imports. precision: None is the pipeline's own."""
    place = locate(name)
    check_device(device)
    with working(f"loading {name}"):
        with importing_less():
            import torch

            from fmpipe.pipeline import FlowPipeline
        quiet_libraries()
        device = device_of(device)
        if device == "cpu" and dtype == "float16":
            say(
                "float16 on a CPU: weights are stored in float16 and most CPUs convert them for every operation, so "
                "this is slower than float32 and less exact; use --dtype float32, or bfloat16"
            )
        try:
            pipe = FlowPipeline.from_pretrained(place, dtype=getattr(torch, dtype))
        except ImportError:
            raise
        except (OSError, ValueError, RuntimeError, TypeError, AttributeError, KeyError) as error:
            raise Refused(f"{name} cannot be loaded: {error}") from None
        pipe = pipe.to(device)
        if precision is not None and precision != pipe.config.velocity_precision:
            pipe.set_velocity_precision(precision)
            if pipe.quantization is not None and not pipe.quantization.swapped:
                say(f"--precision {precision}: the network stays as it is. {pipe.quantization}")
    pipe.set_progress_bar_config(disable=True)
    return pipe


def side_of(pipe) -> int:
    """Return the side of a pipeline's images in pixels."""
    return pipe.text_head.config.latent_shape[-1] * pipe.vae.factor


@contextlib.contextmanager
def working(what: str):
    """Show that something of unknown length is under way: a spinner, or one line if stderr is not a terminal."""
    if not err.is_terminal:
        say(what)
        yield
        return
    with err.status(what):
        yield


def overrides_of(items: list[str] | None, limits: Callable) -> dict[str, float]:
    """Parse the thresholds of ``--set name=value``. limits raises KeyError for an unknown name."""
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
