"""``fmpipe train``, ``init``, ``overfit``, ``ablate``."""

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from fmpipe.cli.base import (
    DeviceOption,
    Refused,
    check_device,
    command,
    device_of,
    importing_less,
    out,
    quiet_libraries,
    say,
    working,
)
from fmpipe.cli.progress import Bars

NAMES = (
    "shapes-tiny",
    "shapes-queries",
    "shapes-scenes",
    "emoji-64",
    "crossflow-256",
    "crossuni-256",
)  # of fmpipe.train.presets.PRESETS, which is slow to import
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings to change, with dotted keys and YAML values, for example flow.optim.lr=1e-3 out=runs/mine. "
        "fmpipe init lists all keys.",
        show_default=False,
    ),
]
Configuration = Annotated[
    str,
    typer.Option("--config", "-c", help=f"A YAML file, or one of the presets {', '.join(NAMES)}.", show_default=False),
]


def _config(source: str, overrides: list[str] | None, device: str):
    """Return the config of a preset or file with overrides, once everything that is quick to check is right."""
    check_device(device)
    if wrong := [text for text in overrides or [] if text.partition("=")[0].strip() == "base"]:
        raise Refused(f"{wrong[0]}: name the preset with --config, or as the key base of a YAML file")
    if source not in NAMES and not Path(source).is_file():
        raise Refused(f"--config: there is no file {source!r}, and the presets are {', '.join(NAMES)}")
    with working("starting"), importing_less():
        from fmpipe.train import settings
        from fmpipe.train.presets import PRESETS, load

        try:
            return settings.with_overrides(PRESETS[source]() if source in NAMES else load(source), overrides or [])
        except ValueError as error:
            raise Refused(error) from None


def _trained(call, out_folder: str | None = None):
    """Return ``call(on_log)``, with loss, cos, nmse and steps per second shown. What ends a run is one line.

    out_folder: of a run that can be resumed; None for the short runs of overfit and ablate, which start over.
    """
    with working("importing"), importing_less():
        import fmpipe.train.run  # noqa: F401
        from fmpipe.train.checkpoint import InvalidCheckpointError
        from fmpipe.train.interrupt import InterruptedRunError, StoppedError, sigterm_raises
    quiet_libraries()
    names = {"loss/total": "loss", "flow/cos": "cos", "flow/nmse": "nmse", "vae/psnr": "psnr"}
    last: dict[str, dict[str, float]] = {}
    with Bars(transient=False) as bars:

        def on_log(stage, step, steps, figures):
            last.setdefault(stage, {}).update({n: figures[k] for k, n in names.items() if k in figures})
            rate = bars.rate(stage, step)
            state = " ".join(f"{name} {value:.3f}" for name, value in last[stage].items())
            bars.update(stage, step, steps, state + (f" {rate:.1f} steps/s" if rate else ""))

        try:
            with sigterm_raises():
                return call(on_log)
        except (InterruptedRunError, KeyboardInterrupt) as error:
            ended = error
        except (StoppedError, OSError, InvalidCheckpointError) as error:
            raise Refused(error, 1) from None
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(error) from None
    if int(os.environ.get("RANK", 0)) == 0:
        said = str(ended) or "interrupted"
        if out_folder is None:
            said = "interrupted; run the command again to start over"
        elif any(Path(out_folder).glob("*/checkpoints/step-*")):
            said += f"; resume with: {_resuming()}"
        else:
            said += "; nothing was saved yet"
        say(said)
    raise typer.Exit(128 + getattr(ended, "signum", signal.SIGINT))


def _device(name: str) -> str | None:
    return None if name == "auto" else device_of(name)


def _resuming() -> str:
    """Return the command that was run, with --resume latest."""
    words = iter(sys.argv[1:])
    kept = []
    for word in words:
        if word == "--resume":
            next(words, None)
        elif not word.startswith("--resume="):
            kept.append(word)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    program = ["fmpipe"] if processes == 1 else ["torchrun", "--nproc-per-node", str(processes), "-m", "fmpipe"]
    return shlex.join([*program, *kept, "--resume", "latest"])


@command("Train")
def train(
    config: Configuration,
    overrides: Overrides = None,
    resume: Annotated[
        str | None,
        typer.Option(
            help="Continue an interrupted run: latest, the number of a step, or the folder of a checkpoint. The result "
            "is the same, bit for bit, as without the interruption.",
            show_default="start a new run",
        ),
    ] = None,
    override: Annotated[
        bool,
        typer.Option(
            "--override",
            help="With --resume: continue also with settings that the checkpoint contradicts, such as another seed, "
            "batch size or loss weight.",
        ),
    ] = False,
    report_to: Annotated[
        str | None,
        typer.Option(
            help="Trackers, separated by commas: jsonl (always written), tensorboard, wandb, trackio, mlflow.",
            show_default="as in the config",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Train nothing; print the estimated memory and FLOPs of a step and exit.")
    ] = False,
    device: DeviceOption = "auto",
) -> None:
    """Train a model: the stages of a config in order (autoencoder, optionally the text head alone, flow).

    [b]fmpipe train --config shapes-tiny out=runs/mine[/b] takes about a minute and needs no data. For your own images,
    start from [b]fmpipe init shapes-tiny > mine.yaml[/b]; docs/training.md explains every key.

    Ctrl-C saves a checkpoint and prints the command that resumes. Several processes share the batch:
    [b]torchrun --nproc-per-node 2 -m fmpipe train --config shapes-tiny[/b]
    """
    settings = _config(config, [*(overrides or []), *([f"report_to=[{report_to}]"] if report_to else [])], device)

    if override and resume is None:
        raise Refused("--override belongs to --resume: a new run takes every setting as it is")
    if dry_run:
        _estimated(settings)
        return

    def call(on_log):
        from fmpipe.train.run import run

        return run(settings, resume=resume, override=override, on_log=on_log, device=_device(device), on_message=say)

    for stage, place in _trained(call, settings.out).items():
        out.print(f"{stage}: {place}", highlight=False, soft_wrap=True)


def _estimated(settings) -> None:
    with working("estimating"), importing_less():
        from fmpipe.train.dry_run import describe, estimate

        quiet_libraries()
        try:
            found = [estimate(settings, stage) for stage in settings.stages]
        except (ValueError, OSError, TypeError, RuntimeError) as error:  # torch's for sizes that no tensor can have
            raise Refused(error) from None
    for one in found:
        describe(one, lambda line: out.print(line, highlight=False, soft_wrap=True))


@command("Train")
def init(
    preset: Annotated[str, typer.Argument(help=f"Preset to start from: {', '.join(NAMES)}.")] = "shapes-tiny",
) -> None:
    """Print a commented config to edit, with every key of a preset.

    [b]fmpipe init shapes-tiny > mine.yaml[/b], then [b]fmpipe train --config mine.yaml[/b]. Keys that you delete keep
    the values of the preset named by [b]base[/b].
    """
    if preset not in NAMES:
        raise Refused(f"unknown preset {preset!r}; choose one of {', '.join(NAMES)}")
    with importing_less():
        from fmpipe.train.presets import commented

    sys.stdout.write(commented(preset))


@command("Train")
def overfit(
    config: Configuration,
    overrides: Overrides = None,
    samples: Annotated[int, typer.Option(min=2, help="Number of images to memorize.")] = 128,
    device: DeviceOption = "auto",
) -> None:
    """Train on a few images only: a model that cannot memorize them is not worth a long run.

    Needs the run's trained autoencoder: run the stage vae first. Exit code 1 if the model does not memorize them.
    """
    _judged("overfit", config, overrides, device, samples=samples)


@command("Train")
def ablate(
    config: Configuration,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=20, help="Number of optimizer steps of each short run.")] = 200,
    device: DeviceOption = "auto",
) -> None:
    """Run short trainings with one part left out: the flow loss alone, no KL, conditions shuffled (flow and DINO).

    Needs the run's trained autoencoder: run the stage vae first. Exit code 1 if a result is not as it must be.
    """
    _judged("ablate", config, overrides, device, steps=steps)


def _judged(name: str, config: str, overrides: list[str] | None, device: str, **options) -> None:
    """Run ``fmpipe.train.short_runs.<name>`` and print its findings; exit with code 1 if one failed."""
    settings = _config(config, overrides, device)

    def call(on_log):
        from fmpipe.train import short_runs

        return getattr(short_runs, name)(settings, on_log=on_log, device=_device(device), **options)

    findings = _trained(call)
    from fmpipe.diagnose.render.terminal import tell

    tell(findings, out)
    if not all(findings):
        raise typer.Exit(1)
