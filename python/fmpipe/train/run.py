"""A run from its config: its stages in order, each resumed where it was cut."""

from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import set_seed

from fmpipe.train import checkpoint, settings
from fmpipe.train.config import Config
from fmpipe.train.loop import Trainer
from fmpipe.train.stages import STAGES, Material

Shown = Callable[[str, int, int, dict], None]


def run(config: Config, *, resume: str | None = None, shown: Shown | None = None) -> dict[str, Path]:
    """What each stage left behind, by its name. resume: ``latest``, a step or a path; of the stage that was cut.

    With ``latest`` stages that are done are passed over, and one never begun begins. shown: called
    ``shown(stage, step, steps, figures)`` at every step that logs. Under torchrun every process calls it.
    """
    material = Material(config)
    AcceleratorState._reset_state()  # of an earlier run in this process, whose precision would be held on to
    accelerator = Accelerator(mixed_precision=config.precision, cpu=not torch.cuda.is_available())
    if config.precision == "fp16" and accelerator.device.type == "cpu":
        raise ValueError("precision 'fp16' needs a GPU (accelerate would train in fp32 here): take bf16, or no")
    folder, left = Path(config.out), {}
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
        if start is None and found is not None:
            raise FileExistsError(f"{place} has checkpoints already: --resume latest goes on, out=... begins elsewhere")
        set_seed(config.seed)
        trainer = Trainer(stage, config, place, accelerator)
        tell = None if shown is None else lambda step, figures, s=stage: shown(s.name, step, s.optim.steps, figures)
        objective = trainer.run(start, tell)
        if accelerator.is_main_process:
            left[name] = finish(objective)
        accelerator.wait_for_everyone()
        accelerator.free_memory()
    return left
