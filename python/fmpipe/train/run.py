"""Run the stages of a config in order, each from its newest checkpoint if the run is resumed."""

import contextlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list, set_seed

from fmkernels.precision import unsupported
from fmpipe.train import checkpoint, preflight, settings, trackers
from fmpipe.train.config import Config
from fmpipe.train.inputs import StageInputs
from fmpipe.train.lock import LockedRunError, locked
from fmpipe.train.loop import Trainer
from fmpipe.train.resume import check as check_resumed
from fmpipe.train.stages import STAGES

OnLog = Callable[[str, int, int, dict], None]


def run(
    config: Config,
    *,
    resume: str | None = None,
    override: bool = False,
    on_log: OnLog | None = None,
    device: str | None = None,
    on_message: Callable[[str], None] = lambda _: None,
) -> dict[str, Path]:
    """Run the stages of a config and return the folder that each of them produced, by its name.

    Args:
        resume: ``latest``, a step, or the path of a checkpoint, for the stage that was interrupted. With ``latest``,
            finished stages are skipped and a stage without a checkpoint starts.
        override: resume also with settings that the checkpoint contradicts, such as another seed or loss weight.
        on_log: called as ``on_log(stage, step, steps, metrics)`` at every logged step.
        device: ``cpu`` trains on the CPU even if there is a GPU; ``cuda:1`` selects a GPU. None selects a GPU if there
            is one; under torchrun, each process uses its own.
        on_message: called with a sentence for each event between steps.

    Under torchrun, every process must call it. Before the first stage, raises SettingsError for invalid settings,
    ImportError, with the command that installs it, for a missing package, LockedRunError if another run writes to the
    same folder, and ValueError if a resumed run has settings that may not change (:mod:`fmpipe.train.resume`).
    """
    settings.from_dict(Config, settings.to_dict(config))  # values that were set in Python are checked too
    if not config.stages:
        raise settings.SettingsError(("stages",), "names no stage to run (vae is left out if vae.path is given)")
    trackers.check(config.report_to)
    inputs = StageInputs(config)
    AcceleratorState._reset_state()  # it would keep the precision of an earlier run in this process
    if device and device.startswith("cuda:"):
        torch.cuda.set_device(device)
    if device in ("mps", "xpu"):
        raise ValueError(f"training on {device} is not supported: use cuda or cpu")
    if device and torch.device(device).type == torch._C._get_privateuse1_backend_name():
        AcceleratorState._reset_state(reset_partial_state=True)
        os.environ["ACCELERATE_TORCH_DEVICE"] = device  # accelerate does not detect the devices of plug-ins
    accelerator = Accelerator(mixed_precision=config.precision, cpu=device == "cpu" or not torch.cuda.is_available())
    if config.precision == "fp16" and accelerator.device.type == "cpu":
        raise ValueError("precision 'fp16' needs a GPU (accelerate would train in fp32 here): use bf16 or no")
    if config.precision == "bf16" and (reason := unsupported("bf16", accelerator.device)):
        warnings.warn(f"precision bf16: {reason}; steps are slower than with precision no", stacklevel=2)
    inputs.device = accelerator.device
    preflight.check(config, inputs, accelerator.num_processes)
    with contextlib.ExitStack() as held:
        _lock(held, Path(config.out), accelerator)
        return _run_stages(config, inputs, accelerator, resume, override, on_log, on_message)


def _lock(held: contextlib.ExitStack, folder: Path, accelerator: Accelerator) -> None:
    """Lock the folder of the run in the first process; every process raises LockedRunError if it is locked already."""
    refused = [None]
    if accelerator.is_main_process:
        try:
            held.enter_context(locked(folder))
        except LockedRunError as error:
            refused = [str(error)]
    if message := broadcast_object_list(refused)[0]:
        raise LockedRunError(message)


def _run_stages(
    config: Config,
    inputs: StageInputs,
    accelerator: Accelerator,
    resume: str | None,
    override: bool,
    on_log: OnLog | None,
    on_message: Callable[[str], None],
) -> dict[str, Path]:
    """Run the stages in the locked folder."""
    folder, results, main = Path(config.out), {}, accelerator.is_main_process
    starts = _starts(config.stages, folder, resume)
    differing = check_resumed(config, starts, override)
    if differing and main:
        on_message(f"settings that differ from those of the checkpoint: {differing}")
    for name in config.stages if resume is None else ():
        if checkpoint.latest(folder / name / "checkpoints") is not None:
            raise FileExistsError(
                f"{folder / name} already has checkpoints: resume it with --resume latest, or choose another out=..."
            )
    if resume is None and main:
        settings.dump(config, folder / "config.yaml")
    accelerator.wait_for_everyone()
    for name in config.stages:
        set_seed(config.seed)
        if accelerator.is_main_process:  # one process writes the caches, then all read them
            stage = STAGES[name](config, inputs)
        accelerator.wait_for_everyone()
        if not accelerator.is_main_process:
            stage = STAGES[name](config, inputs)
        set_seed(config.seed)
        trainer = Trainer(stage, config, folder / name, accelerator)
        listener = None
        if on_log is not None and accelerator.is_main_process:
            listener = lambda step, metrics, s=stage: on_log(s.name, step, s.optim.steps, metrics)  # noqa: E731
        if name in starts:
            if main:
                on_message(f"resuming stage {name} from {starts[name]}")
            trainer.restore(str(starts[name]))
        if main:  # the checkpoint fits: the settings of a resumed run are accepted
            settings.dump(config, folder / "config.yaml")
        objective = trainer.run(listener)
        if accelerator.is_main_process:
            results[name] = stage.finish(objective)
        accelerator.wait_for_everyone()
        accelerator.free_memory()
    return results


def _starts(stages: list[str], folder: Path, resume: str | None) -> dict[str, Path]:
    """Return the checkpoint that each stage continues from; a stage without one starts."""
    if resume is None:
        return {}
    folders = {name: folder / name / "checkpoints" for name in stages}
    if resume == "latest":
        return {name: path for name in stages if (path := checkpoint.latest(folders[name])) is not None}
    return {name: checkpoint.find(folders[name], resume) for name in stages}
