"""Check before the first stage what would otherwise fail in a later one; errors name the key of the config."""

from contextlib import contextmanager

import torch

from fmpipe.models import DiMR
from fmpipe.train.config import Config
from fmpipe.train.settings import SettingsError
from fmpipe.train.stages import Material, build_head, build_vae


def check(config: Config, material: Material, processes: int = 1) -> None:
    """Raise SettingsError if a stage cannot be built, or if the parts of the pipeline do not fit together.

    Networks are built on the meta device, without memory. The text encoder is loaded: it is needed anyway, and only
    loading it shows whether it can be used.
    """
    for stage in config.stages:
        optim, key = {
            "vae": (config.vae.optim, ("vae", "optim")),
            "head": (config.flow.head_optim, ("flow", "head_optim")),
            "flow": (config.flow.optim, ("flow", "optim")),
            "diffusion": (config.diffusion.optim, ("diffusion", "optim")),
        }[stage]
        if optim.batch % processes:
            raise SettingsError((*key, "batch"), f"must be a multiple of {processes} processes, got {optim.batch}")
    channels, side = _latent(config, material)
    if {"head", "flow"} & set(config.stages):
        with _named("flow", "encoder"):
            encoder = material.encoder
        with _named("flow", "head"), torch.device("meta"):
            build_head(config.flow, encoder, (channels, side, side))
    for part in ("flow", "diffusion"):
        if part in config.stages:
            _check_net(config, part, channels, side)


def _latent(config: Config, material: Material) -> tuple[int, int]:
    """Return the channels and the side of the latents."""
    if "vae" in config.stages:
        with _named("vae"), torch.device("meta"):
            build_vae(config.vae)
        channels, factor = config.vae.channels, 2 ** (len(config.vae.widths) - 1)
        why = f"vae.widths has {len(config.vae.widths)} levels"
    else:
        with _named("vae", "path"):
            vae = material.vae()
        channels, factor, why = vae.channels, vae.factor, "the autoencoder reduces images that much"
    if config.data.size % factor:
        raise SettingsError(("data", "size"), f"must be a multiple of {factor} ({why}), got {config.data.size}")
    return channels, config.data.size // factor


def _check_net(config: Config, part: str, channels: int, side: int) -> None:
    with _named(part, "net"), torch.device("meta"):
        net = DiMR(**getattr(config, part).net)
    if net.config.channels != channels:
        raise SettingsError(
            (part, "net", "channels"), f"must be {channels}, as the latents have, got {net.config.channels}"
        )
    largest = max(net.ratios)
    if side % largest:
        raise SettingsError(
            ("data", "size"),
            f"{config.data.size} pixels give latents of {side} x {side}, not a multiple of {largest}, the largest "
            f"patch * image_ratio in {part}.net",
        )
    for k, (stage, ratio) in enumerate(zip(net.config.stage_configs, net.ratios, strict=True)):
        grid, needed = stage["grid"], side // ratio
        if min(grid) < needed:
            raise SettingsError(
                (part, "net", "stage_configs", k, "grid"),
                f"data.size {config.data.size} gives latents of {side} x {side}, which need a grid of "
                f"[{needed}, {needed}] here, got {list(grid)}; change it, or use data.size="
                f"{config.data.size * min(grid) // needed}",
            )


@contextmanager
def _named(*key: str):
    """Name the key of the config in errors that do not."""
    try:
        yield
    except SettingsError:
        raise
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise SettingsError(key, str(error)) from error
