"""A run from its config: its stages in order, each resumed where it was cut."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import set_seed

from fmpipe.train import checkpoint, preflight, settings, trackers
from fmpipe.train.config import Config
from fmpipe.train.loop import Trainer
from fmpipe.train.stages import STAGES, Material

Shown = Callable[[str, int, int, dict], None]


def run(
    config: Config,
    *,
    resume: str | None = None,
    shown: Shown | None = None,
    device: str | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> dict[str, Path]:
    """Run the stages of a config and return what each of them produced, by its name.

    Args:
        resume: ``latest``, a step, or the path of a checkpoint, for the stage that was interrupted. With ``latest``,
            finished stages are skipped and a stage without a checkpoint starts.
        shown: called as ``shown(stage, step, steps, figures)`` at every step that logs.
        device: ``cpu`` trains on the CPU although there is a GPU; ``cuda:1`` selects a GPU. None is a GPU if there is
            one, and the process's own under torchrun.
        told: called with a sentence for everything that happens between steps.

    Under torchrun, every process calls it. Before the first stage, raises SettingsError for settings that do not fit
    and ImportError, with the command, for a package that they need.
    """
    trackers.check(config.report_to)
    material = Material(config)
    AcceleratorState._reset_state()  # of an earlier run in this process, whose precision would be held on to
    if device and device.startswith("cuda:"):
        torch.cuda.set_device(device)
    if device in ("mps", "xpu"):
        raise ValueError(f"training on {device} is not supported: use cuda or cpu")
    if device and torch.device(device).type == torch._C._get_privateuse1_backend_name():
        AcceleratorState._reset_state(reset_partial_state=True)
        os.environ["ACCELERATE_TORCH_DEVICE"] = device  # accelerate does not look for a plug-in's devices itself
    accelerator = Accelerator(mixed_precision=config.precision, cpu=device == "cpu" or not torch.cuda.is_available())
    if config.precision == "fp16" and accelerator.device.type == "cpu":
        raise ValueError("precision 'fp16' needs a GPU (accelerate would train in fp32 here): use bf16 or no")
    material.device = accelerator.device
    preflight.check(config, material, accelerator.num_processes)
    folder, left = Path(config.out), {}
    for name in config.stages if resume is None else ():
        if checkpoint.latest(folder / name / "checkpoints") is not None:
            raise FileExistsError(
                f"{folder / name} has checkpoints already: resume it with --resume latest, or choose another out=..."
            )
    if accelerator.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        settings.dump(config, folder / "config.yaml")
    accelerator.wait_for_everyone()
    for name in config.stages:
        set_seed(config.seed)
        place = folder / name
        if accelerator.is_main_process:  # caches are made by one, then read by all
            stage, finish = STAGES[name](config, material)
        accelerator.wait_for_everyone()
        if not accelerator.is_main_process:
            stage, finish = STAGES[name](config, material)
        start, found = resume, checkpoint.latest(place / "checkpoints")
        if resume == "latest":
            start = str(found) if found else None
        set_seed(config.seed)
        trainer = Trainer(stage, config, place, accelerator)
        tell = None
        if shown is not None and accelerator.is_main_process:
            tell = lambda step, figures, s=stage: shown(s.name, step, s.optim.steps, figures)  # noqa: E731
        if start is not None and accelerator.is_main_process:
            told(f"resuming stage {name} from {start}")
        objective = trainer.run(start, tell)
        if accelerator.is_main_process:
            left[name] = finish(objective)
        accelerator.wait_for_everyone()
        accelerator.free_memory()
    return left
