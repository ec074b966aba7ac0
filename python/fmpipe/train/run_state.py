"""The state of a stage between two steps: saved, restored, and continued as if the run had not been interrupted."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from fmpipe.train import checkpoint
from fmpipe.train.config import Config
from fmpipe.train.ema import EMA
from fmpipe.train.interrupt import StoppedError
from fmpipe.train.loss_weights import LossWeights
from fmpipe.train.processes import in_any_process
from fmpipe.train.sharding import full, load_model, load_optimizer, local


class RunState:
    """Everything that a stage needs to continue: network, averages, optimizer, scaler, loss weights, random generators.

    ``newest``: the checkpoint that was saved or restored last, as :func:`checkpoint.find` takes it. ``before_save``:
    called before a checkpoint is written.
    """

    def __init__(
        self,
        folder: Path,
        stage: str,
        config: Config,
        accelerator: Accelerator,
        objective: nn.Module,
        ema: EMA,
        optimizer: torch.optim.Optimizer,
        loss_weights: LossWeights,
    ):
        self.folder, self.stage, self.config, self.accelerator = folder, stage, config, accelerator
        self.objective, self.ema, self.optimizer, self.loss_weights = objective, ema, optimizer, loss_weights
        self.newest = "latest"
        self.before_save: Callable[[], None] = lambda: None

    def save(self, step: int) -> Path:
        """Save the state of all processes after ``step`` steps; the first process writes it.

        Raises StoppedError if the state is not finite: it would replace the last good one.
        """
        self.check(step)
        self.before_save()
        random = gather_object([random_state(self.accelerator.device)])
        parts = {"model": self.objective, "ema": self.ema, "optimizer": self.optimizer}
        tensors = {name: full(part.state_dict()) for name, part in parts.items()}
        path = self.folder
        if self.accelerator.is_main_process:
            state = {
                **tensors,
                "scaler": self.accelerator.scaler.state_dict() if self.accelerator.scaler else {},
                "weights": self.loss_weights.state_dict(),
                "rng": {f"{rank}{kind}": x for rank, states in enumerate(random) for kind, x in states.items()},
                "meta": {"stage": self.stage, "step": step, "config": asdict(self.config)},
            }
            path = checkpoint.save(path, step, state, keep=self.config.keep)
        self.accelerator.wait_for_everyone()
        self.newest = str(step)
        return path

    def check(self, step: int, metrics: dict[str, object] | None = None) -> None:
        """Raise StoppedError if the state after ``step`` steps is not finite. metrics: those of the last step."""
        if problem := self.problem(step):
            raise StoppedError(f"{self.stage}: {problem}", step, metrics)

    def problem(self, step: int) -> str | None:
        """Return why the state after ``step`` steps cannot be saved: a weight, an average or a value of the optimizer
        is not finite. This waits for the device; all processes must call it.
        """
        tensors = {}
        for name, p in self.objective.named_parameters():
            if p.requires_grad:
                tensors[name] = p
                tensors |= {f"{name} ({key} of the optimizer)": x for key, x in self.optimizer.state.get(p, {}).items()}
        tensors |= {f"{name} (average)": x for name, x in self.ema.shadow.items()}
        tensors = {name: local(x.detach()) for name, x in tensors.items() if isinstance(x, Tensor)}
        finite = torch.stack([x.isfinite().all().to(self.accelerator.device) for x in tensors.values()]).tolist()
        first = next((name for name, good in zip(tensors, finite, strict=True) if not good), None)
        if not in_any_process(self.accelerator, first is not None):
            return None
        return (
            f"{first or 'a weight'} is not finite after step {step}, so this state is not saved; the last good "
            f"checkpoint is {checkpoint.latest(self.folder) or 'none'}"
        )

    def restore(self, which: str) -> int:
        """Load a checkpoint ("latest", a step or a path) and return its step."""
        path = checkpoint.find(self.folder, which)
        state = checkpoint.load(path)
        settings = [{k: x for k, x in group.items() if k != "params"} for group in self.optimizer.param_groups]
        try:
            load_model(self.objective, state["model"])
            load_optimizer(self.optimizer, state["optimizer"])
            self.ema.load_state_dict(state["ema"])
        except (RuntimeError, ValueError, KeyError) as error:
            said = " ".join(str(error).split())[:300]
            raise checkpoint.InvalidCheckpointError(f"resume: {path} does not fit this config: {said}") from error
        for group, own in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(own)  # weight decay and betas are those of the config, not of the checkpoint
        if self.accelerator.scaler:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.loss_weights.load_state_dict(state["weights"])
        rank, device = self.accelerator.process_index, self.accelerator.device
        kinds = {kind: f"{rank}{kind}" for kind in random_state(device)}
        set_random_state({kind: state["rng"][name] for kind, name in kinds.items() if name in state["rng"]}, device)
        self.newest = str(path)
        return state["meta"]["step"]


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the generators that dropout uses: the CPU's under "", the device's under its type."""
    states = {"": torch.get_rng_state()}
    if device.type != "cpu":
        states[f"/{device.type}"] = torch.get_device_module(device).get_rng_state(device)
    return states


def set_random_state(states: dict[str, Tensor], device: torch.device) -> None:
    for kind, state in states.items():
        if kind:
            torch.get_device_module(device).set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
