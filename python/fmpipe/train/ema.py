"""The exponential moving average of the weights, and the objective with these averages."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fmpipe.train.sharding import full, like


class EMA:
    """``shadow ← d · shadow + (1 - d) · parameter`` of every trainable parameter, in fp32 whatever the model's dtype.

    d is ``decay``, or with ``warm`` ``min(decay, (1 + n) / (10 + n))`` at the n-th update, so that the random initial
    weights are soon forgotten. Frozen parameters are left out; buffers are copied. Shadows are on the model's device.
    Pass the model itself, not the wrapper of DDP or compile, which changes the names. Shadows of sharded parameters are
    sharded the same way; in files, and in a model that is not sharded, tensors are whole.
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
        """Update the averages after the optimizer's step. The model's tensors must change in place."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warm else self.decay
        if self._followed[0] is not model:  # the lookup takes 5 % of a step with many small modules
            now, buffers = _trained(model), dict(model.named_buffers())
            self._followed = model, [now[name] for name in self.shadow], [buffers[name] for name in self.buffers]
        _, parameters, buffers = self._followed
        torch._foreach_lerp_(list(self.shadow.values()), [x.float() for x in parameters], 1 - decay)
        for mine, x in zip(self.buffers.values(), buffers, strict=True):
            mine.copy_(x)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Write the averages into a model that is not sharded, in its dtype."""
        tensors = _tensors(model)
        for name, x in {**self.shadow, **self.buffers}.items():
            tensors[name].copy_(full(x))

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averages within the block, and its own values again, bit for bit, after it."""
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
        """Return tensors only, as safetensors needs: by the model's names, and the number of updates (ema_updates)."""
        return {**self.shadow, **self.buffers, "ema_updates": torch.tensor(self.updates)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the averages. Raises ValueError, before anything is loaded, if the names are not those of this EMA."""
        mine = {**self.shadow, **self.buffers}
        if differing := set(state) ^ {*mine, "ema_updates"}:
            raise ValueError(f"EMA.load_state_dict: missing or unexpected: {', '.join(sorted(differing))}")
        for name, x in mine.items():
            x.copy_(like(state[name], x))
        self.updates = int(state["ema_updates"])


class AveragedObjective:
    """The objective with its averaged weights, for validation, sample images and the result of the stage.

    whole: for a sharded objective, a copy of it from before it was sharded, on the CPU.
    """

    def __init__(self, objective: nn.Module, ema: EMA, device: torch.device, whole: nn.Module | None):
        self.objective, self.ema, self.device, self.whole = objective, ema, device, whole

    def call(self, function: Callable[[nn.Module], object]):
        """Return ``function(objective)`` with averaged weights, in eval mode. Call it in every process."""
        if self.whole is not None:
            with torch.no_grad():
                result = function(self._gathered().eval())
            self.whole.cpu()
            return result
        with torch.no_grad(), self.ema.applied(self.objective):
            self.objective.eval()
            try:
                return function(self.objective)
            finally:
                self.objective.train()

    def result(self) -> nn.Module:
        """Return the objective with averaged weights for good, in eval mode. Call it in every process."""
        if self.whole is not None:
            return self._gathered().eval()
        self.ema.copy_to(self.objective)
        return self.objective.eval()

    def _gathered(self) -> nn.Module:
        self.whole.load_state_dict(full(self.objective.state_dict()))  # what is not averaged
        self.ema.copy_to(self.whole.to(self.device))
        return self.whole


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
