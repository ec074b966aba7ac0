"""Named configurations: the four released ones, by the names of their files, and small ones."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch

from fmpipe.models.dimr import DiMR
from fmpipe.models.dimr_stage import StageConfig
from fmpipe.models.dit import DiT
from fmpipe.models.networks import Networks
from fmpipe.models.text_head import TextHead, VariationalHead


@dataclass(frozen=True)
class Preset:
    """The arguments of both networks, and the share of null samples in training."""

    velocity_net: type[DiMR] | type[DiT]
    velocity_config: dict
    text_head_config: dict
    null_probability: float = 0.1
    text_head: type[VariationalHead] = TextHead


_TRANSFORMER = {"kind": "transformer", "dim": 1024, "hidden": 2048, "blocks": 65, "grid": (16, 16), "heads": 16}
_FINER = {"kind": "convnext", "dim": 512, "hidden": 1024, "blocks": 33, "grid": (32, 32)}
_FINEST = {"kind": "convnext", "dim": 256, "hidden": 512, "blocks": 33, "grid": (64, 64), "patch": 1}
_256 = [StageConfig(**_TRANSFORMER, patch=2), StageConfig(**_FINER, patch=1)]
_512 = [StageConfig(**_TRANSFORMER, patch=4), StageConfig(**_FINER, patch=2), StageConfig(**_FINEST)]
_T5 = {"width": 4096, "compressed": 1024, "latent_shape": (4, 64, 64)}


def _pair(dim: tuple[int, int], hidden: tuple[int, int], blocks: tuple[int, int], grid: int, kernel: int = 7) -> list:
    """Return a transformer stage and a ConvNeXt stage at twice its resolution."""
    return [
        StageConfig("transformer", dim[0], hidden[0], blocks[0], (grid, grid), patch=2, heads=4),
        StageConfig("convnext", dim[1], hidden[1], blocks[1], (2 * grid, 2 * grid), patch=1, kernel=kernel),
    ]


PRESETS = {
    "t2i_256px_clip_dimr": Preset(DiMR, {"stage_configs": _256}, {"width": 768, "latent_shape": (4, 32, 32)}),
    "t2i_512px_clip_dimr": Preset(DiMR, {"stage_configs": _512}, {"width": 768, "latent_shape": (4, 64, 64)}, 0.15),
    "t2i_512px_t5_dimr": Preset(DiMR, {"stage_configs": _512}, _T5, 0.15),
    "t2i_512px_t5_dit": Preset(DiT, {"size": 64, "dim": 1280, "depth": 36, "heads": 20}, _T5),
    "small_dimr": Preset(
        DiMR,
        {"stage_configs": _pair((32, 16), (64, 32), (9, 5), grid=4, kernel=3)},
        {"width": 64, "tokens": 16, "latent_shape": (4, 8, 8), "blocks": 2, "hidden": 128, "heads": 4, "reductions": 2},
    ),
    "tiny_dimr": Preset(
        DiMR,
        {"stage_configs": _pair((64, 32), (96, 48), (5, 3), grid=16)},
        {"width": 64, "tokens": 7, "latent_shape": (4, 32, 32), "blocks": 2, "hidden": 96, "heads": 4},
    ),
    "tiny_dit": Preset(
        DiT,
        {"size": 32, "dim": 48, "depth": 3, "heads": 4},
        {"width": 64, "tokens": 7, "latent_shape": (4, 32, 32), "blocks": 2, "hidden": 96, "heads": 4},
    ),
}


def build(name: str, device: str | torch.device | None = None) -> Networks:
    """Return the networks of a preset with initial values; on ``"meta"``, they need no memory."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
    preset = PRESETS[name]
    with torch.device(device) if device else nullcontext():
        return Networks(preset.velocity_net(**preset.velocity_config), preset.text_head(**preset.text_head_config))
