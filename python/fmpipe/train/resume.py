"""Compare the config of a resumed run with the one that its checkpoints were made with."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fmpipe.train import checkpoint
from fmpipe.train.config import Config
from fmpipe.train.settings import to_dict

MAY_CHANGE = (
    *("base", "out", "stages", "parallel", "checkpointing", "compile", "keep", "report_to", "every", "data.cache"),
    "flow.losses.alarm",
)
OPTIM_MAY_CHANGE = (
    *("steps", "accumulate", "lr", "schedule", "schedule_args", "warmup", "floor", "weight_decay", "betas", "clip"),
    "ema",
)
ELSEWHERE = {  # keys that do not concern a stage; vae.path concerns every stage
    "vae": ("flow", "diffusion"),
    "head": ("vae", "diffusion", "flow.optim", "flow.net", "flow.fp32_net"),
    "flow": ("vae", "diffusion", "flow.head_optim"),
    "diffusion": ("vae", "flow"),
}


def check(config: Config, starts: Mapping[str, Path], override: bool) -> str:
    """Return which settings differ from those of the checkpoints, as one line; "" if none does.

    Args:
        starts: checkpoint that a stage continues from, by the name of the stage.
        override: accept every difference.

    Raises ValueError, with the keys, for settings that a resumed run cannot change: its data, networks and losses.
    """
    changed, refused = {}, {}
    for stage, path in starts.items():
        for key, old, new in differences(config, checkpoint.read_meta(path)["config"]):
            if key == "vae.path" or not _within(key, ELSEWHERE[stage]):
                (changed if override or may_change(key) else refused)[key] = f"{key} {_told(old)} → {_told(new)}"
    if refused:
        raise ValueError(
            f"resume: the checkpoint was made with other settings: {', '.join(refused.values())}. Restore them, start "
            "a new run with another out=..., or continue with the new values by adding --override"
        )
    return ", ".join(text for key, text in changed.items() if key != "out")


def may_change(key: str) -> bool:
    """Tell whether a resumed run may change a setting: the new value takes effect, and the rest stays meaningful."""
    for optim in ("vae.optim", "flow.optim", "flow.head_optim", "diffusion.optim"):
        if _within(key, [f"{optim}.{name}" for name in OPTIM_MAY_CHANGE]):
            return True
    return _within(key, MAY_CHANGE)


def differences(new: Any, old: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, old value, new value) where a config differs from the plain values of another one.

    A key that an older version of the program did not have is left out.
    """
    dot = f"{key}." if key else ""
    if dataclasses.is_dataclass(new) and isinstance(old, Mapping):
        for field in dataclasses.fields(new):
            if field.name in old:
                yield from differences(getattr(new, field.name), old[field.name], f"{dot}{field.name}")
    elif isinstance(new, Mapping) and isinstance(old, Mapping):
        for name in dict.fromkeys((*old, *new)):
            yield from differences(new.get(name), old.get(name), f"{dot}{name}")
    elif to_dict(new) != to_dict(old):
        yield key, to_dict(old), to_dict(new)


def _within(key: str, groups: tuple[str, ...] | list[str]) -> bool:
    return any(f"{key}.".startswith(f"{group}.") for group in groups)


def _told(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
