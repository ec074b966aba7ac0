"""Weights of the losses: schedules over a run, and methods that balance the losses by their gradients."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fmpipe.train.config import Losses, LossSchedule

CYCLES = 4  # of beta(kind="cyclic")


def _progress(step: float, total: float) -> float:
    return min(1.0, step / total) if total > 0 else 1.0


def warm_up(step: int, total: int, share: float = 0.1) -> float:
    """Return a factor that rises linearly from 0 to 1 over the first ``share`` of the run."""
    return _progress(step, share * total)


def cosine(step: float, total: float, start: float, end: float) -> float:
    """Return ``end + (start - end) · ½(1 + cos(π step / total))``, and ``end`` from step = total on."""
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * _progress(step, total)))


def scheduled(step: int, total: int, schedule: LossSchedule) -> float:
    """Return the factor of a loss's schedule: start until ``begin``, then a cosine or a line to end at ``until``."""
    begin, until = schedule.begin * total, schedule.until * total
    if step < begin:
        return schedule.start
    if schedule.kind == "cosine":
        return cosine(step - begin, until - begin, schedule.start, schedule.end)
    return schedule.start + (schedule.end - schedule.start) * _progress(step - begin, until - begin)


def beta(step: int, total: int, kind: str) -> float:
    """Return the KL's factor in [0, 1] over a run; p = step / total.

    ``constant``: 1. ``linear``: p. ``cosine``: ½(1 - cos πp). ``cyclic``: in each quarter of the run, from 0 to 1 in
    the first half, 1 in the second. Raises ValueError for another kind.
    """
    p = _progress(step, total)
    kinds = {
        "constant": 1.0,
        "linear": p,
        "cosine": cosine(step, total, 0.0, 1.0),
        "cyclic": 1.0 if p == 1 else min(1.0, 2 * (CYCLES * p % 1)),
    }
    if kind not in kinds:
        raise ValueError(f"beta: kind must be one of {', '.join(kinds)}, got {kind!r}")
    return kinds[kind]


def by_gradient_share(
    norms: Mapping[str, float],
    shares: Mapping[str, float],
    weights: Mapping[str, float],
    *,
    smoothing: float = 0.9,
    bound: float = 1.5,
) -> dict[str, float]:
    """Return weights that move ``norms[k] / norms["flow"]`` toward ``shares[k]``.

    ``w_k ← w_k · clamp((shares[k] norms["flow"] / norms[k])^(1 - smoothing), 1/bound, bound)``. norms: of the gradients
    of the weighted losses, ``grad/…`` in the log, with these weights and without a warm-up, which this would undo.
    Losses without a share (flow, for example) and losses whose gradient is 0 or not finite keep their weight.
    Raises ValueError if a loss with a share has no norm or weight, or if flow has no norm.
    """
    if missing := {"flow", *shares} - set(norms) | set(shares) - set(weights):
        raise ValueError(
            f"by_gradient_share: no norm or weight of {sorted(missing)}, got {list(norms)} and {list(weights)}"
        )
    out = dict(weights)
    for name in shares.keys() - {"flow"}:
        wanted = shares[name] * norms["flow"]
        if 0 < wanted < math.inf and 0 < norms[name] < math.inf:
            out[name] *= min(bound, max(1 / bound, (wanted / norms[name]) ** (1 - smoothing)))
    return out


class GradNorm:
    """GradNorm (Chen et al. 2018): weights, positive and summing to their count, that bring the gradient norms G_k of
    the weighted losses to ``G_k ∝ r_k^alpha``, ``r_k = (L_k / L_k(0)) / mean_j (L_j / L_j(0))``: with alpha = 0 to one
    size, above it the losses that fell least get more.

    The paper minimizes ``Σ |G_k - mean(G) r_k^alpha|`` by autograd through the norms, which needs a second graph and
    can make weights negative. Here, the norms are those of the log, and
    ``log w_k ← log w_k - rate · log(G_k / (mean(G) r_k^alpha))``, at most a factor of 2; then the sum is restored. The
    fixed point has the paper's proportions, and the speed does not depend on the units of the losses.
    """

    def __init__(self, names: Iterable[str], alpha: float = 1.5, rate: float = 0.1):
        self.alpha, self.rate = alpha, rate
        self.weights = dict.fromkeys(names, 1.0)
        self.first: dict[str, float] = {}  # the loss when it was first above 0

    def update(self, norms: Mapping[str, float], losses: Mapping[str, float]) -> dict[str, float]:
        """Return the new weights. norms: of the weighted losses' gradients; losses: unweighted; both of one step.

        A loss whose norm or value is not a positive number is not adjusted.
        """
        known = [k for k in self.weights if 0 < norms[k] < math.inf and 0 < losses[k] < math.inf]
        if known:
            pace = {k: losses[k] / self.first.setdefault(k, losses[k]) for k in known}
            size, mean_pace = (sum(row[k] for k in known) / len(known) for row in (norms, pace))
            for k in known:
                factor = (norms[k] / (size * (pace[k] / mean_pace) ** self.alpha)) ** -self.rate
                self.weights[k] *= min(2.0, max(0.5, factor))
            scale = len(self.weights) / sum(self.weights.values())
            self.weights = {k: w * scale for k, w in self.weights.items()}
        return dict(self.weights)

    def state_dict(self) -> dict[str, dict[str, float]]:
        return {"weights": dict(self.weights), "first": dict(self.first)}

    def load_state_dict(self, state: Mapping[str, Mapping[str, float]]) -> None:
        self.weights, self.first = dict(state["weights"]), dict(state["first"])


@torch.no_grad()
def pcgrad(grads: Sequence[Sequence[Tensor | None]], generator: torch.Generator) -> list[Tensor | None]:
    """PCGrad (Yu et al. 2020): ``Σ_i g_i``, each g_i first freed of what works against another's gradient:
    ``g_i -= min(0, g_i·g_j) / ‖g_j‖² g_j`` for the other j in random order.

    grads[i][p]: the gradient of loss i for parameter p, None being 0. Products are over all parameters together.
    Returns one gradient a parameter, None where no loss has one. generator: of the CPU. With several processes give it
    gradients that are the mean of theirs already, and generators of one seed: the projection is not linear.
    """
    like = [next((g for g in column if g is not None), None) for column in zip(*grads, strict=True)]
    kept = [k for k, x in enumerate(like) if x is not None]
    if not kept:
        return like
    rows = [
        torch.cat([(like[k].new_zeros(()).expand_as(like[k]) if g[k] is None else g[k]).flatten() for k in kept])
        for g in grads
    ]
    squares = [row.dot(row).clamp_min(torch.finfo(row.dtype).tiny) for row in rows]
    total = torch.zeros_like(rows[0])
    for i, row in enumerate(rows):
        mine = row.clone()
        for j in torch.randperm(len(rows), generator=generator).tolist():
            if j != i:
                mine -= mine.dot(rows[j]).clamp(max=0) / squares[j] * rows[j]
        total += mine
    for k, part in zip(kept, total.split([like[k].numel() for k in kept]), strict=True):
        like[k] = part.view_as(like[k]).to(like[k].dtype)
    return like


class LossWeights:
    """The weights of the losses at a step: constant, warmed up and scheduled, or balanced by their gradients."""

    def __init__(self, weights: dict[str, float], total: int, config: Losses | None = None):
        self.given = {name: weight for name, weight in weights.items() if weight}
        self.base, self.total, self.config = dict(self.given), total, config
        self.kind = config.weighting if config else "constant"
        self.gradnorm = GradNorm(self.given) if self.kind == "gradnorm" else None

    def __call__(self, step: int) -> dict[str, float]:
        weights, config = dict(self.base), self.config
        if config and "kl" in weights:
            weights["kl"] *= warm_up(step, self.total, config.kl_warmup) * beta(step, self.total, config.kl_beta)
        for name, schedule in config.schedules.items() if config else ():
            if name in weights:
                weights[name] *= scheduled(step, self.total, schedule)
        return weights

    def adjust(self, step: int, norms: dict[str, float], losses: dict[str, float]) -> None:
        """Adjust the weights after a logged step. norms: of the weighted losses' gradients; losses: unweighted."""
        if self.kind not in ("share", "gradnorm") or step < self.config.kl_warmup * self.total:
            return
        if self.kind == "share":
            shares = {name: share for name, share in self.config.shares.items() if name in self.base}
            self.base = by_gradient_share(norms, shares, self.base)
        else:
            factors = self.gradnorm.update(norms, losses)
            self.base = {name: weight * factors[name] for name, weight in self.given.items()}

    def state_dict(self) -> dict:
        gradnorm = self.gradnorm.state_dict() if self.gradnorm else None
        return {"given": self.given, "base": self.base, "gradnorm": gradnorm}

    def load_state_dict(self, state: dict) -> None:
        """Load adjusted weights; those of a run whose config had other weights are not used."""
        if self.kind not in ("share", "gradnorm") or state.get("given", self.given) != self.given:
            return
        self.base = dict(state["base"])
        if self.gradnorm and state["gradnorm"]:
            self.gradnorm.load_state_dict(state["gradnorm"])
