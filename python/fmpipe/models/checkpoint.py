"""Reads the original's checkpoints, and says exactly what does not fit."""

import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fmpipe.models.presets import PRESETS, Networks, build

IGNORED = "open_clip"  # keys that begin so belong to an encoder the original's training carried along


@dataclass
class Fit:
    """How a checkpoint's keys compare with a preset's; ``misshapen``: key -> (its shape, the preset's)."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return not (self.missing or self.unexpected or self.misshapen)

    def __str__(self) -> str:
        shapes = [f"{k}: {list(got)}, expected {list(want)}" for k, (got, want) in self.misshapen.items()]
        parts = (("missing", self.missing), ("unexpected", self.unexpected), ("of another shape", shapes))
        lines = [line for title, keys in parts if keys for line in (f"{len(keys)} {title}:", *(f"  {k}" for k in keys))]
        return "\n".join([*lines, f"{len(self.ignored)} {IGNORED}* keys ignored"])


class CheckpointError(RuntimeError):
    """A checkpoint that does not fit; ``fit`` has every key."""

    def __init__(self, message: str, fit: Fit):
        super().__init__(f"{message}\n{fit}")
        self.fit = fit


def compare(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Fit:
    """Every key of either that is not in both with one shape."""
    fit = Fit(missing=[key for key in expected if key not in state])
    for key, value in state.items():
        if key.startswith(IGNORED):
            fit.ignored.append(key)
        elif key not in expected:
            fit.unexpected.append(key)
        elif value.shape != expected[key].shape:
            fit.misshapen[key] = tuple(value.shape), tuple(expected[key].shape)
    return fit


def read_state(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` or ``.pth`` file, mapped and not copied; code in a pickle is never run."""
    path = Path(path).expanduser()
    if not path.is_file():
        inside = ", ".join(sorted(p.name for p in path.glob("*.[ps]*t*"))) if path.is_dir() else ""
        raise FileNotFoundError(f"no checkpoint at {path}" + (f"; this folder has {inside}" if inside else ""))
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:
        raise RuntimeError(f"{path.name} ({path.stat().st_size} bytes) cannot be read: {error}") from error
    others = [k for k, v in state.items() if not isinstance(v, Tensor)] if isinstance(state, dict) else [type(state)]
    if others:
        raise ValueError(
            f"{path.name}: expected a dict of tensors by name, got also {', '.join(map(str, others[:5]))}; if the "
            f"tensors are under one of these, save that alone"
        )
    return state


def load_checkpoint(
    path: str | Path,
    name: str,
    *,
    strict: bool = True,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Networks:
    """The networks of the preset ``name`` with the tensors of a released checkpoint, or of ``Networks.state_dict``.

    Keys that begin with ``open_clip`` are ignored. Any other that is missing, unexpected or of another shape raises
    :class:`CheckpointError`, which lists them all; with ``strict=False`` they are listed in a warning, and what is
    missing keeps its initial value. Dtypes are the file's unless ``dtype`` is given. The networks are in eval mode.
    """
    networks = build(name, "meta" if strict else None)
    state, expected = read_state(path), networks.state_dict()
    fit = compare(state, expected)
    if not fit:
        fitting = [other for other in PRESETS if compare(state, build(other, "meta").state_dict())]
        hint = f" (it fits {', '.join(fitting)})" if fitting else ""
        message = f"{Path(path).name} does not fit the preset {name}{hint}:"
        if strict:
            raise CheckpointError(message, fit)
        warnings.warn(f"{message}\n{fit}", stacklevel=2)
    wanted = {k: v for k, v in state.items() if k in expected and k not in fit.misshapen}
    networks.load_state_dict(wanted, strict=strict, assign=True)
    return networks.eval().to(device=device or "cpu", dtype=dtype)
