"""Optimizers with their parameter groups, and schedules of the learning rate."""

import difflib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from fmpipe.train.config import Group, Optim
from fmpipe.train.settings import SettingsError


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
