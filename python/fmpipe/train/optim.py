"""Parameter groups, the learning rate's course, and the moving average of the weights."""

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fmpipe.train.sharding import full, like
from fmpipe.train.weights import cosine


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float, scales: Mapping[str, float] | None = None
) -> list[dict]:
    """Groups for a torch optimizer, each trainable parameter in exactly one: ``params, lr, weight_decay, name``.

    Weight decay is 0 for what a part of its name calls ``nodecay_…``, for biases, and for all of at most one dimension
    (scales of norms). scales: dotted name of a module or parameter -> factor on lr for all in it; the longest that fits
    counts. ValueError for a name that the model has not, with the nearest.
    """
    known = {name.rsplit(".", cut)[0] for name, _ in model.named_parameters() for cut in range(name.count(".") + 1)}
    for prefix in scales or {}:
        if prefix not in known:
            (near,) = difflib.get_close_matches(prefix, sorted(known), 1, 0.0)
            raise ValueError(
                f"parameter_groups: scales has {prefix!r}, which is no part of the model; nearest: {near!r}"
            )
    groups: dict[str, dict] = {}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        prefix = max((x for x in scales or {} if f"{name}.".startswith(f"{x}.")), key=len, default=None)
        parts = name.split(".")
        plain = p.dim() < 2 or parts[-1] == "bias" or any(part.startswith("nodecay_") for part in parts)
        group = {
            "params": [],
            "lr": lr * (scales[prefix] if prefix else 1.0),
            "weight_decay": 0.0 if plain else weight_decay,
            "name": (prefix or "all") + ("/nodecay" if plain else ""),
        }
        groups.setdefault(group["name"], group)["params"].append(p)
    return list(groups.values())


def learning_rate(step: int, total: int, warmup: int, floor: float) -> float:
    """The factor on lr: ``(step + 1) / warmup`` for the first ``warmup`` steps, then a cosine from 1 to ``floor``."""
    if step < warmup:
        return (step + 1) / warmup
    return cosine(step - warmup, total - warmup, 1.0, floor)


class EMA:
    """``shadow ← d · shadow + (1 - d) · parameter`` of every trainable parameter, in fp32 whatever the model's dtype.

    d is ``decay``, or with ``warm`` ``min(decay, (1 + n) / (10 + n))`` at the n-th update, so that the first random
    weights are soon forgotten. Frozen parameters are left out; buffers are copied. Shadows are where the model was.
    Give it the model itself, not what DDP or compile wrap around it: names must stay. Shadows of sharded parameters are
    sharded alike; what goes in and out of files, and into a model that is not sharded, is whole.
    """

    def __init__(self, model: nn.Module, decay: float = 0.999, warm: bool = True):
        if not 0 <= decay < 1:
            raise ValueError(f"EMA: decay must be in [0, 1), got {decay!r}")
        self.decay, self.warm, self.updates = decay, warm, 0
        self.shadow = {name: x.detach().float().clone() for name, x in _trained(model).items()}
        self.buffers = {name: x.detach().clone() for name, x in model.named_buffers()}
        self._followed: tuple[nn.Module | None, list, list] = (None, [], [])

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """After the optimizer's step. The model's tensors are looked up once: they must change in place."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warm else self.decay
        if self._followed[0] is not model:  # walking a model of many small modules costs a twentieth of its step
            now, buffers = _trained(model), dict(model.named_buffers())
            self._followed = model, [now[name] for name in self.shadow], [buffers[name] for name in self.buffers]
        _, parameters, buffers = self._followed
        torch._foreach_lerp_(list(self.shadow.values()), [x.float() for x in parameters], 1 - decay)
        for mine, x in zip(self.buffers.values(), buffers, strict=True):
            mine.copy_(x)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """The averages, whole, into the model, in its dtype."""
        tensors = _tensors(model)
        for name, x in {**self.shadow, **self.buffers}.items():
            tensors[name].copy_(full(x))

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Within the block the model has the averages; after it its own values again, bit by bit."""
        tensors = _tensors(model)
        own = {name: tensors[name].detach().clone() for name in {**self.shadow, **self.buffers}}
        self.copy_to(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, x in own.items():
                    tensors[name].copy_(x)

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors alone, fit for safetensors: under the model's names, and the count of updates, ``ema_updates``."""
        return {**self.shadow, **self.buffers, "ema_updates": torch.tensor(self.updates)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """ValueError, before anything is loaded, if the names are not this EMA's."""
        mine = {**self.shadow, **self.buffers}
        if differing := set(state) ^ {*mine, "ema_updates"}:
            raise ValueError(f"EMA.load_state_dict: missing or unexpected: {', '.join(sorted(differing))}")
        for name, x in mine.items():
            x.copy_(like(state[name], x))
        self.updates = int(state["ema_updates"])


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
