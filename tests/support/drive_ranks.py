"""The command fmpipe as torchrun starts it for test_cli.py: keeps the latents, and dies where it is told to."""

import os
import signal
import time
from pathlib import Path

import torch

from fmpipe.cli import app
from fmpipe.pipeline import FlowPipeline

LATENTS, DEATH, RANK = Path(os.environ["DRIVE_LATENTS"]), os.environ.get("DRIVE_DEATH"), int(os.environ["RANK"])
drawn, draw = [], FlowPipeline.__call__


def watched(pipe, *args, **options):
    if DEATH:
        first = LATENTS / "first"
        if RANK == 0 and drawn:  # its picture is on disk: now the other may die
            first.touch()
            options["callback_on_step_end"] = wait_at_every_step(options["callback_on_step_end"])
        if RANK == 1:
            while not first.exists():
                time.sleep(0.01)
            if DEATH == "raise":
                raise ValueError("no more")
            os.kill(os.getpid(), signal.SIGKILL)
    result = draw(pipe, *args, **options)
    for prompt, z1 in zip(options["prompt"], result.z1, strict=True):
        torch.save(z1.clone(), LATENTS / f"{prompt}.pt")
    drawn.append(result)
    return result


def wait_at_every_step(callback):
    """A slow picture: it is not done before the other's death is known."""

    def slow(*arguments):
        for _ in range(3000):
            callback(*arguments)
            time.sleep(0.01)

    return slow


LATENTS.mkdir(exist_ok=True)
FlowPipeline.__call__ = watched
app()
