"""Optimizers with their parameter groups, schedules of the learning rate, and the moving average of the weights."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fmpipe.train.config import Group, Optim
from fmpipe.train.settings import SettingsError
from fmpipe.train.sharding import full, like


def parameter_groups(
    model: nn.Module,
    lr: float,
    weight_decay: float,
    groups: Mapping[str, Group] | None = None,
    *,
    matrices: bool = False,
) -> list[dict]:
    """Return groups for a torch optimizer, each trainable parameter in exactly one: ``params, lr, weight_decay, name``.

    Weight decay is 0 for parameters with a part of their name that starts with ``nodecay_``, for biases, and for
    everything of at most one dimension (scales of norms).

    Args:
        groups: dotted name of a module or parameter -> its own lr and weight decay; the longest name that fits counts.
        matrices: put the 2-D weights of layers other than embeddings into groups whose names end in ``/muon``.

    Raises SettingsError, with the nearest name, for a name that the model does not have.
    """
    known = {name.rsplit(".", cut)[0] for name, _ in model.named_parameters() for cut in range(name.count(".") + 1)}
    for prefix in groups or {}:
        if prefix not in known:
            (near,) = difflib.get_close_matches(prefix, sorted(known), 1, 0.0)
            raise SettingsError(("groups", prefix), f"is not a part of the model; the nearest is {near!r}", "optim")
    found: dict[str, dict] = {}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        prefix = max((x for x in groups or {} if f"{name}.".startswith(f"{x}.")), key=len, default=None)
        own = groups[prefix] if prefix else Group()
        parts = name.split(".")
        plain = p.dim() < 2 or parts[-1] == "bias" or any(part.startswith("nodecay_") for part in parts)
        matrix = matrices and not plain and _is_matrix(model, parts, p)
        decay = weight_decay if own.weight_decay is None else own.weight_decay
        group = {
            "params": [],
            "lr": lr if own.lr is None else own.lr,
            "weight_decay": 0.0 if plain else decay,
            "name": (prefix or "all") + "/nodecay" * plain + "/muon" * matrix,
        }
        found.setdefault(group["name"], group)["params"].append(p)
    return list(found.values())


def _is_matrix(model: nn.Module, parts: list[str], p: Tensor) -> bool:
    """True for the weight of a linear layer. Tables of vectors (embeddings, queries) are not maps: AdamW has them."""
    owner = model.get_submodule(".".join(parts[:-1]))
    return p.dim() == 2 and parts[-1] == "weight" and not isinstance(owner, nn.Embedding)


def check(optim: Optim, sharded: bool) -> None:
    """Raise SettingsError or ImportError, before anything is trained, for an optimizer that cannot be used here."""
    if optim.optimizer == "adamw8bit":
        _bitsandbytes()
        if sharded:
            raise SettingsError(("optimizer",), "adamw8bit does not support parallel=fsdp2; use adamw or muon", "optim")
    schedule(optim)


def make_optimizer(optim: Optim, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a stage for the trainable parameters of a model.

    Muon's learning rate is adjusted to the size of AdamW's updates, so that lr and weight_decay keep their meaning.
    """
    muon = optim.optimizer == "muon"
    groups = parameter_groups(model, optim.lr, optim.weight_decay, optim.groups, matrices=muon)
    betas = tuple(optim.betas)
    if optim.optimizer == "adamw8bit":
        return _bitsandbytes().optim.AdamW8bit(groups, betas=betas)
    matrices = [group for group in groups if group["name"].endswith("/muon")]
    others = [group for group in groups if not group["name"].endswith("/muon")]
    adamw = torch.optim.AdamW(others, betas=betas, fused=True) if others else None
    if not matrices:
        return adamw
    return Joined(*filter(None, (adamw, torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw"))))


def _bitsandbytes():
    try:
        import bitsandbytes
    except ImportError as error:
        raise ImportError(f"optimizer 'adamw8bit' needs bitsandbytes: pip install bitsandbytes ({error})") from None
    return bitsandbytes


class Joined(torch.optim.Optimizer):
    """Several optimizers, each with its own parameters, as one: one step, one list of groups, one state dict."""

    def __init__(self, *parts: torch.optim.Optimizer):
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Give the parts this optimizer's groups and state, which loading a state dict replaces."""
        first = 0
        for part in self.parts:
            last = first + len(part.param_groups)
            part.param_groups, part.state, first = self.param_groups[first:last], self.state, last

    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        self._share()


def schedule(optim: Optim) -> Callable[[int], float]:
    """Return the factor on lr as a function of the step: ``(step + 1) / warmup`` first, then transformers' schedule.

    Of a schedule f that falls from 1 to 0, the result is ``floor + (1 - floor) f``. It is a pure function of the step:
    there is no state that a resumed run could lack. Raises SettingsError for arguments that the schedule does not take.
    """
    from transformers import get_scheduler

    steps, warmup, floor = optim.steps, int(optim.warmup * optim.steps), optim.floor
    name, arguments = optim.schedule, dict(optim.schedule_args)
    if name == "warmup_stable_decay":
        arguments.setdefault("num_decay_steps", max(1, steps // 5))
    try:
        if name == "constant" and arguments:
            raise TypeError(f"constant takes none, got {', '.join(arguments)}")
        probe = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        curve = get_scheduler(name, probe, warmup, steps, arguments).lr_lambdas[0]
        curve(warmup)
    except (TypeError, ValueError) as error:
        raise SettingsError(("schedule_args",), f"of {name}: {error}", "optim") from None
    return lambda step: (step + 1) / warmup if step < warmup else floor + (1 - floor) * curve(step)


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
