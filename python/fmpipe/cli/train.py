"""``fmpipe train``, ``overfit``, ``ablate``."""

from pathlib import Path
from typing import Annotated

import typer

from fmpipe.cli.base import Refused, app, err, out
from fmpipe.cli.check import tell

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="as flow.optim.lr=1e-3")]


Configuration = Annotated[
    str, typer.Option("--config", help="a YAML file, or a preset: shapes-tiny, emoji-64, crossflow-256")
]


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
    """Train: the stages of a config in order (autoencoder, maybe the text head alone, flow), resumable at any moment.

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
    tell(verdicts)
    if not all(verdicts):
        raise typer.Exit(1)
