"""The metrics of the steps that are logged."""

import contextlib
from contextlib import AbstractContextManager

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from fmpipe.metrics import Metrics, UpdateRatios
from fmpipe.train.gradients import StepResult
from fmpipe.train.objective import LOG_NAMES
from fmpipe.train.processes import mean_over_processes
from fmpipe.train.sharding import full


class StepMetrics:
    """Collects the metrics of a step under the names of the log.

    Args:
        every: number of steps between two that are logged; 0 logs none.
        heads: dotted names of the layers whose update ratios are logged.
    """

    def __init__(
        self,
        every: int,
        accelerator: Accelerator,
        objective: nn.Module,
        optimizer: torch.optim.Optimizer,
        heads: dict[str, str],
    ):
        self.metrics, self.accelerator = Metrics(every) if every else None, accelerator
        self.ratios = UpdateRatios(objective, optimizer, heads)

    def due(self, step: int) -> bool:
        """Tell whether a step is logged."""
        return self.metrics is not None and self.metrics.should(step)

    def update_ratios(self, logged: bool) -> AbstractContextManager[dict[str, Tensor] | None]:
        """Measure the optimizer's step in the block, if it is logged."""
        return self.ratios.step() if logged else contextlib.nullcontext()

    def collect(
        self, result: StepResult, weights: dict[str, float], norm: Tensor, ratios: dict[str, Tensor], lr: float
    ) -> dict[str, object]:
        """Return the metrics of a step. norm: of the gradients of all losses.

        Losses are means over all processes; the other metrics are those of this process.
        """
        outcome, norms, metrics = result.outcome(), result.norms, self.metrics
        if len(weights) == 1:
            norms = dict.fromkeys((f"grad/{next(iter(weights))}", "grad/total"), norm)
        metrics.add(*outcome.stats, outcome.metrics, {**norms, **full(ratios), "lr": lr})
        metrics.add({"loss/total": result.total})
        if self.accelerator.scaler is not None:
            metrics.add({"scaler/scale": self.accelerator.scaler.get_scale()})
        metrics.add({f"loss/{name}": loss for name, loss in outcome.losses.items()})
        metrics.add({f"w/{name}": weight for name, weight in weights.items()})
        for name, logged_as in LOG_NAMES.items():
            if name in outcome.tensors:
                metrics.tensor(logged_as, outcome.tensors[name])
        values = metrics.collect()
        losses = {name: x for name, x in values.items() if name.startswith("loss/")}
        return values | mean_over_processes(self.accelerator, losses)
