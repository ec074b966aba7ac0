"""The gradients of a step: over its micro-batches, and loss by loss where the log or the loss weights need it."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from fmkernels import reparameterize
from fmkernels.ops.path import VelocityStats
from fmpipe.metrics import added, backward, gradient_norms, norm
from fmpipe.train.batches import drawn
from fmpipe.train.loss_weights import LossWeights, pcgrad
from fmpipe.train.losses import Centre
from fmpipe.train.objective import Outcome
from fmpipe.train.run_state import random_state, set_random_state
from fmpipe.train.sharding import like


@dataclass
class StepResult:
    """outcome: returns that of the whole batch. total: its weighted loss. norms: gradient norms for the log, or {}."""

    outcome: Callable[[], Outcome]
    total: Tensor
    norms: dict[str, Tensor]


class Gradients:
    """Computes the gradients of a batch that is divided into micro-batches.

    Args:
        model: the objective as accelerate prepared it.
        objective: the objective itself.
        loss_weights: its ``kind`` tells whether gradients are projected (PCGrad).
        parts: the number of micro-batches in a step.
        seed: of the order of PCGrad's projections.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: nn.Module,
        accelerator: Accelerator,
        loss_weights: LossWeights,
        parts: int,
        seed: int,
    ):
        self.model, self.objective, self.accelerator = model, objective, accelerator
        self.parts, self.seed, self.projects = parts, seed, loss_weights.kind == "pcgrad"
        for centre in (module for module in objective.modules() if isinstance(module, Centre)):
            centre.parts = parts

    def compute(
        self, step: int, batches: list[dict[str, Tensor]], weights: dict[str, float], norms_wanted: bool
    ) -> StepResult:
        """Write ``.grad`` of every parameter; return the losses and, if wanted, the norm of each loss's gradient."""
        outcomes, totals, norms, per_loss = [], [], {}, LossGradients()
        states = self._couple(batches) if self.parts > 1 and getattr(self.objective, "couples", False) else []
        for k, batch in enumerate(batches):
            if states:
                set_random_state(states[k], self.accelerator.device)
            last = k == self.parts - 1
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                outcome = self.model(**batch)
                total = sum(weight * outcome.losses[name] for name, weight in weights.items())
                norms = self._backward(outcome.losses, weights, total, norms_wanted, per_loss)
            outcomes.append(detached(outcome))
            totals.append(total.detach())
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if norms_wanted and per_loss.sums:
            norms = per_loss.norms(parameters)  # with PCGrad, those before the projection
        if self.projects:
            self._project(step, per_loss, parameters)
        eps = [batch.get("eps") for batch in batches]
        return StepResult(lambda: joined(outcomes, eps), torch.stack(totals).mean(0), norms)

    def _couple(self, batches: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Give every micro-batch the pairs of the whole batch, for losses that compare all samples with each other.

        This takes a first pass without gradients through all but the velocity network. Returns the states of the random
        generator before each micro-batch: dropout must be the same in the second pass.
        """
        states, own, device = [], [], self.accelerator.device
        for batch in batches:
            states.append(random_state(device))
            with torch.no_grad():
                own.append(self.objective(**batch, pairs=True).tensors["pairs"])
        pairs, size = self.accelerator.gather(torch.cat(own)), len(own[0])
        for k, batch in enumerate(batches):
            batch |= {"pairs": pairs, "at": (self.accelerator.process_index * self.parts + k) * size}
        return states

    def _backward(
        self,
        losses: dict[str, Tensor],
        weights: dict[str, float],
        total: Tensor,
        norms_wanted: bool,
        per_loss: "LossGradients",
    ) -> dict[str, Tensor]:
        """Run the backward pass of a micro-batch; return the gradient norms of a batch in one part, if wanted."""
        parts = {name: losses[name] for name in weights}
        if not self.projects and (not norms_wanted or len(parts) < 2):
            self.accelerator.backward(total / self.parts)
            return {}
        # The parameters of this graph: of sharded ones, the gathered tensors.
        parameters, norms = [p for p in self.model.parameters() if p.requires_grad], {}
        if self.projects or self.parts > 1:
            per_loss.add({name: weight * losses[name] / self.parts for name, weight in weights.items()}, parameters)
        elif self.accelerator.num_processes == 1 and self.accelerator.scaler is None:
            return backward(parts, parameters, weights)
        else:
            norms = gradient_norms(parts, parameters, weights)
        if not self.projects:
            self.accelerator.backward(total / self.parts)
        return norms

    def _project(self, step: int, per_loss: "LossGradients", parameters: list[Tensor]) -> None:
        """Write the gradients that PCGrad makes of those of all processes."""
        mean = lambda g: None if g is None else self.accelerator.reduce(g, "mean")  # noqa: E731
        grads = [[mean(g) for g in one] for one in per_loss.sums.values()]
        for p, grad in zip(parameters, pcgrad(grads, drawn(self.seed, 4, step)), strict=True):
            p.grad = grad if grad is None else like(grad, p)


class LossGradients:
    """The gradient of each weighted loss, summed over the micro-batches."""

    def __init__(self):
        self.sums: dict[str, list[Tensor | None]] = {}

    def add(self, terms: dict[str, Tensor], parameters: Sequence[Tensor]) -> None:
        """Add the gradients of a micro-batch's weighted losses. Keeps the graph and leaves ``.grad`` unchanged."""
        for name, term in terms.items():
            grads = [None] * len(parameters)
            if term.requires_grad:
                grads = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
            self.sums[name] = added(self.sums.get(name, [None] * len(grads)), grads)

    def norms(self, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return ``grad/<name>`` of each loss and ``grad/total`` of their sum, as ``metrics.gradient_norms`` does."""
        total: list[Tensor | None] = [None] * len(parameters)
        for grads in self.sums.values():
            total = added(total, grads)
        return {f"grad/{name}": norm(grads, parameters) for name, grads in {**self.sums, "total": total}.items()}


def detached(outcome: Outcome) -> Outcome:
    """Return the outcome without its graph."""
    parts = ("losses", "tensors", "metrics")
    return replace(outcome, **{part: {k: x.detach() for k, x in getattr(outcome, part).items()} for part in parts})


def joined(outcomes: Sequence[Outcome], eps: Sequence[Tensor | None]) -> Outcome:
    """Return the outcome of a batch from those of its micro-batches, all of one size.

    Losses and metrics are means over samples, so those of the batch are the means of the micro-batches'. The statistics
    of the velocity have sums per sample; those of the head are computed again from mu, logvar and ``eps``, the noise of
    each micro-batch.
    """
    if len(outcomes) == 1:
        return outcomes[0]
    first = outcomes[0]
    losses, metrics = (
        {name: torch.stack([getattr(x, part)[name] for x in outcomes]).mean(0) for name in getattr(first, part)}
        for part in ("losses", "metrics")
    )
    tensors = {name: torch.cat([x.tensors[name] for x in outcomes]) for name in first.tensors}
    stats = []
    for k, one in enumerate(first.stats):
        if isinstance(one, VelocityStats):
            rows = [x.stats[k] for x in outcomes]
            t = None if one.t is None else torch.cat([row.t for row in rows])
            stats.append(VelocityStats(torch.cat([row.sums for row in rows]), one.n, t))
        else:
            stats.append(reparameterize(tensors["mu"], tensors["logvar"], eps=torch.cat(list(eps)))[2])
    return Outcome(losses, tensors, stats, metrics)
