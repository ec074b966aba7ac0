"""Micro-batches of a step: gradients loss by loss, the outcome of the whole batch, and pairs for coupled losses."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fmkernels import reparameterize
from fmkernels.ops.path import VelocityStats
from fmpipe.metrics import added, norm
from fmpipe.train.objective import Outcome


class LossGradients:
    """The sums of the gradients of each weighted loss over the micro-batches: one set of gradients per loss."""

    def __init__(self):
        self.sums: dict[str, list[Tensor | None]] = {}

    def add(self, terms: dict[str, Tensor], parameters: Sequence[Tensor]) -> None:
        """terms: the weighted losses of a micro-batch. Its graph stays; no ``.grad`` is touched."""
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
    parts = {part: {k: x.detach() for k, x in getattr(outcome, part).items()} for part in ("losses", "made", "figures")}
    return replace(outcome, **parts)


def joined(outcomes: Sequence[Outcome], eps: Sequence[Tensor | None]) -> Outcome:
    """Return the outcome of a batch from those of its micro-batches, all of one size.

    Losses and figures are means over samples, so theirs are the means of the micro-batches'. Statistics are of the
    whole batch: those of the velocity have sums per sample, those of the head are computed again from mu, logvar and
    ``eps``, the noise of each micro-batch.
    """
    if len(outcomes) == 1:
        return outcomes[0]
    first = outcomes[0]
    losses, figures = (
        {name: torch.stack([getattr(x, part)[name] for x in outcomes]).mean(0) for name in getattr(first, part)}
        for part in ("losses", "figures")
    )
    made = {name: torch.cat([x.made[name] for x in outcomes]) for name in first.made}
    stats = []
    for k, one in enumerate(first.stats):
        if isinstance(one, VelocityStats):
            rows = [x.stats[k] for x in outcomes]
            t = None if one.t is None else torch.cat([row.t for row in rows])
            stats.append(VelocityStats(torch.cat([row.sums for row in rows]), one.n, t))
        else:
            stats.append(reparameterize(made["mu"], made["logvar"], eps=torch.cat(list(eps)))[2])
    return Outcome(losses, made, stats, figures)
