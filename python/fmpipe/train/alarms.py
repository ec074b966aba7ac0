"""Alarms that end a run: losses or gradients that are not finite, and a z0 that runs away."""

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from fmpipe.train.gradients import StepResult
from fmpipe.train.interrupt import StoppedError
from fmpipe.train.objective import LOG_NAMES, Outcome
from fmpipe.train.processes import in_any_process
from fmpipe.train.run_state import RunState
from fmpipe.train.sharding import full


class Alarms:
    """Checks every step, and stops the run with a checkpoint of the last good state.

    Reading CPU memory needs no synchronization. On a device, ``bad`` collects the result, and the host reads it at some
    steps only (:meth:`any_bad`); while the steps since the newest checkpoint are repeated, ``every_step`` is True.

    Args:
        stage: name of the stage, for messages.
        largest: the largest E|z0| and E|v*|, as a multiple of E|z1|; 0 is no limit.
        state: the state to save.
    """

    def __init__(self, stage: str, largest: float, accelerator: Accelerator, objective: nn.Module, state: RunState):
        self.stage, self.largest, self.accelerator, self.objective = stage, largest, accelerator, objective
        self.state = state
        self.every_step = accelerator.device.type == "cpu"
        self.bad = torch.zeros((), dtype=torch.bool, device=accelerator.device)

    def check_loss(self, step: int, result: StepResult, weights: dict[str, float]) -> None:
        """Stop the run if a loss is not finite."""
        if self.every_step and in_any_process(self.accelerator, not torch.isfinite(result.total)):
            outcome = result.outcome()
            self.stop(step, _not_finite(step, outcome, weights), _losses(outcome, result.total))

    def check_gradients(self, step: int, result: StepResult, norm: Tensor) -> None:
        """Stop the run if a gradient is not finite; on a device, remember it. norm: of the gradients of all losses."""
        checked = result.total if self.accelerator.scaler else result.total + norm  # a scaler skips such steps itself
        if not self.every_step:
            self.bad |= ~torch.isfinite(checked)
        elif not torch.isfinite(checked):
            names = (name for name, p in self.objective.named_parameters() if not _finite(full(p.grad)))
            why = f"step {step}: the gradient of {next(names, 'a parameter')} is not finite, the losses are"
            self.stop(step, why, {**_losses(result.outcome(), result.total), "grad/total": norm.item()})

    def any_bad(self) -> bool:
        """Read whether a loss or gradient was not finite in any process. This waits for the device."""
        return in_any_process(self.accelerator, bool(self.bad))

    def check_scale(self, step: int, metrics: dict[str, object]) -> None:
        """Stop the run if z0 grows too large: its targets grow with it, so the metrics of the flow do not show it."""
        if not self.largest or "scale/z1" not in metrics:
            return
        for name in ("z0", "v*"):
            ratio = metrics[f"scale/{name}"] / metrics["scale/z1"]
            if in_any_process(self.accelerator, not ratio <= self.largest):
                self.stop(
                    step,
                    f"step {step}: E|{name}| is {ratio:.3g} times E|z1| (alarm at {self.largest:g}): z0 runs "
                    f"away. Raise flow.losses.kl, set mu_rms in flow.head, or lower flow.optim.lr",
                    metrics,
                )

    def stop(self, step: int, why: str, metrics: dict[str, object]) -> None:
        """Save the state after ``step`` steps, if it is finite, and raise StoppedError."""
        kept = self.state.problem(step) or f"The state before it is saved: {self.state.save(step)}"
        raise StoppedError(f"{self.stage}: {why}. {kept}", step, metrics)


def _finite(x: Tensor | None) -> bool:
    return x is None or bool(torch.isfinite(x).all())


def _losses(outcome: Outcome, total: Tensor) -> dict[str, float]:
    """Return the losses of a step as the log names them."""
    return {"loss/total": total.item(), **{f"loss/{name}": loss.item() for name, loss in outcome.losses.items()}}


def _not_finite(step: int, outcome: Outcome, weights: dict[str, float]) -> str:
    """Name the loss that is not finite, and the first tensor of the step that is not, as in the log."""
    parts = [name for name in weights if not _finite(outcome.losses[name])]
    first = next((LOG_NAMES.get(name, name) for name, x in outcome.tensors.items() if not _finite(x)), None)
    where = f"the first tensor that is not is {first}" if first else "every tensor that went into it is finite"
    return f"step {step}: the loss {', '.join(parts) or 'total'} is not finite; {where}"
