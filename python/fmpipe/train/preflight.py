"""Check before the first stage what would otherwise fail in a later one; errors name the key of the config."""

from contextlib import contextmanager

import torch

from fmpipe.data import LatentFiles
from fmpipe.models import DiMR
from fmpipe.train.config import Config, Optim
from fmpipe.train.inputs import StageInputs
from fmpipe.train.objective import DiffusionObjective, FlowObjective, HeadObjective, VAEObjective
from fmpipe.train.optim import check as check_optimizer
from fmpipe.train.optim import parameter_groups
from fmpipe.train.settings import SettingsError
from fmpipe.train.stages import build_head, build_vae
from fmpipe.train.teacher import repa_layer


def check(config: Config, inputs: StageInputs, processes: int = 1) -> None:
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
        if optim.batch % (processes * optim.accumulate):
            parts = f"{processes} processes" + f" times {optim.accumulate} micro-batches" * (optim.accumulate > 1)
            raise SettingsError((*key, "batch"), f"must be a multiple of {parts}, got {optim.batch}")
        with _named(*key):
            check_optimizer(optim, config.parallel == "fsdp2" and processes > 1)
    channels, side = _latent(config, inputs)
    if {"head", "flow"} & set(config.stages):
        with _named("flow", "encoder"):
            encoder = inputs.encoder
        if getattr(encoder, "trainable", False):
            _check_trained_encoder(config)
            _check_start(config, inputs, "text_encoder", encoder)
        with _named("flow", "head"), torch.device("meta"):
            head = build_head(config.flow, encoder, (channels, side, side))
        _check_start(config, inputs, "text_head", head)
        if "head" in config.stages:
            _check_groups(config.flow.head_optim, ("flow", "head_optim"), HeadObjective, head, config.flow.losses)
    for part in ("flow", "diffusion"):
        if part in config.stages:
            net = _check_net(config, part, channels, side)
            if part == "flow":
                with _named("flow", "losses", "teacher"):
                    teacher = inputs.teacher
                    if teacher and any(isinstance(part, LatentFiles) for part in inputs.parts):
                        raise ValueError("a teacher needs images, and data.source 'latents' has none")
                with _named("flow", "losses", "repa_layer"):
                    repa_layer(net, config.flow.losses.repa_layer)
                _check_start(config, inputs, "velocity_net", net)
                features = torch.empty(2, teacher.dim, device="meta") if teacher else None
                trained = encoder if getattr(encoder, "trainable", False) else None
                parts = head, net, config.flow.losses, teacher, features, trained
                _check_groups(config.flow.optim, ("flow", "optim"), FlowObjective, *parts)
            else:
                _check_groups(config.diffusion.optim, ("diffusion", "optim"), DiffusionObjective, net, False)


def _check_trained_encoder(config: Config) -> None:
    """Refuse settings that need the cached states of a frozen text encoder."""
    if "head" in config.stages:
        raise SettingsError(
            ("stages",), "the stage head trains the text head alone; flow.encoder is trained too, so use flow only"
        )
    if config.flow.token_dropout:
        raise SettingsError(
            ("flow", "token_dropout"), f"must be 0 with a text encoder that is trained, got {config.flow.token_dropout}"
        )


def _latent(config: Config, inputs: StageInputs) -> tuple[int, int]:
    """Return the channels and the side of the latents."""
    if "vae" in config.stages:
        with _named("vae"), torch.device("meta"):
            vae = build_vae(config.vae)
        _check_groups(config.vae.optim, ("vae", "optim"), VAEObjective, vae)
        channels, factor = config.vae.channels, 2 ** (len(config.vae.widths) - 1)
        why = f"vae.widths has {len(config.vae.widths)} levels"
    else:
        with _named("vae", "path"):
            vae = inputs.vae()
        channels, factor, why = vae.channels, vae.factor, "the autoencoder reduces images that much"
    if config.data.size % factor:
        raise SettingsError(("data", "size"), f"must be a multiple of {factor} ({why}), got {config.data.size}")
    for k, part in enumerate(inputs.parts):
        if isinstance(part, LatentFiles):
            key = ("data", "sources", k) if config.data.sources else ("data",)
            if "vae" in config.stages:
                raise SettingsError(key, "latents cannot train an autoencoder: give the one they are of in vae.path")
            with _named(*key):
                part.check(vae, config.data.size)
    return channels, config.data.size // factor


def _check_groups(optim: Optim, key: tuple[str, ...], objective: type[torch.nn.Module], *args) -> None:
    """Compare the names of parameter groups with those of the objective's parameters."""
    if optim.groups:
        with _named(*key), torch.device("meta"):
            parameter_groups(objective(*args), optim.lr, optim.weight_decay, optim.groups)


def _check_start(config: Config, inputs: StageInputs, name: str, module: torch.nn.Module) -> None:
    """Compare a part of this run with that of the pipeline it starts from."""
    if inputs.start is None:
        return
    parts = module, getattr(inputs.start, name)
    mine, theirs = ({k: tuple(x.shape) for k, x in part.state_dict().items()} if part else {} for part in parts)
    if differing := sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k)):
        first = differing[0]
        raise SettingsError(
            ("start",),
            f"{name} of {config.start} has other shapes than this run's: {first} is {theirs.get(first, 'missing')}, "
            f"here {mine.get(first, 'missing')} ({len(differing)} differ)",
        )


def _check_net(config: Config, part: str, channels: int, side: int) -> DiMR:
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
    return net


@contextmanager
def _named(*key: str):
    """Name the key of the config in errors that do not."""
    try:
        yield
    except SettingsError as error:
        if error.key[: len(key)] == key:
            raise
        raise SettingsError((*key, *error.key), error.problem) from error
    except ImportError:  # has the command that installs what is missing
        raise
    except Exception as error:  # whatever the libraries beneath make of such settings
        raise SettingsError(key, str(error) or type(error).__name__) from error
