"""Load CrossFlow's checkpoints; errors list every key that does not fit."""

import warnings
from functools import reduce
from pathlib import Path
from pickle import UnpicklingError  # nosec B403: only the type of an error

import torch
from torch import Tensor

from fmpipe.models.networks import CheckpointError, Networks, compare
from fmpipe.models.presets import PRESETS, build


def read_state(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a ``.safetensors`` or ``.pth`` file; code in a pickle is never run."""
    path = Path(path).expanduser()
    if not path.is_file():
        inside = ", ".join(sorted(p.name for p in path.glob("*.[ps]*t*"))) if path.is_dir() else ""
        raise FileNotFoundError(f"no checkpoint at {path}" + (f"; this folder has {inside}" if inside else ""))
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:  # torch's message explains how to run the code in the file
        size = f"{path.name} ({path.stat().st_size} bytes)"
        raise RuntimeError(f"{size} cannot be read: it has more than tensors, and its code is never run") from None
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
    """Return the networks of the preset ``name`` with the tensors of a released or saved checkpoint.

    Keys that begin with ``open_clip`` are ignored. If others are missing, unexpected or of another shape, the raised
    :class:`CheckpointError` lists all of them; with ``strict=False``, a warning lists them, and missing tensors keep
    their initial values. dtype: the widest in the file if None. The networks are in eval mode.
    """
    networks = build(name, "meta" if strict else None)
    state = read_state(path)
    fit = compare(state, networks.state_dict())
    if not fit:
        fitting = [other for other in PRESETS if compare(state, build(other, "meta").state_dict())]
        hint = f" (it fits {', '.join(fitting)})" if fitting else ""
        message = f"{Path(path).name} does not fit the preset {name}{hint}:"
        if strict:
            raise CheckpointError(message, fit)
        warnings.warn(f"{message}\n{fit}", stacklevel=2)
    networks.load_state_dict(state, strict=strict, assign=True)
    floating = [v.dtype for v in state.values() if v.is_floating_point()]
    return networks.eval().to(device=device or "cpu", dtype=dtype or reduce(torch.promote_types, floating))
