"""Estimate what a step of a stage needs: networks and batches are on the meta device, which has no memory."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fmpipe.models import DiMR
from fmpipe.text.encoders import DTYPES
from fmpipe.text.meta_query import MetaQueryText
from fmpipe.train.config import Config, Encoder, Losses
from fmpipe.train.objective import DiffusionObjective, FlowObjective, HeadObjective, VAEObjective
from fmpipe.train.settings import SettingsError
from fmpipe.train.stages import build_head, build_vae
from fmpipe.train.switches import enable_checkpointing
from fmpipe.train.teacher import Teacher
from fmpipe.untrusted import load_pretrained, read_json
from fmpipe.vae import LatentVAE


@dataclass
class Estimate:
    """Memory in bytes and floating-point operations of one optimizer step of a stage, in one process.

    parameters: (number, number of trained ones) by the name of the network. activations: what the forward pass keeps
    for the backward pass, of one micro-batch. Convolutions and matrix products are counted, element-wise operations and
    a teacher of images are not.
    """

    stage: str
    batch: int
    accumulate: int
    parameters: dict[str, tuple[int, int]]
    weights: int
    gradients: int
    optimizer: int
    ema: int
    activations: int
    forward: float
    backward: float

    @property
    def memory(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.ema + self.activations


def estimate(config: Config, stage: str) -> Estimate:
    """Return the estimate of a stage. SettingsError if a network's sizes are neither in the config nor in a folder."""
    build, optim = {
        "vae": (_vae, config.vae.optim),
        "head": (_head, config.flow.head_optim),
        "flow": (_flow, config.flow.optim),
        "diffusion": (_diffusion, config.diffusion.optim),
    }[stage]
    with torch.device("meta"):
        objective, batch = build(config, optim.batch // optim.accumulate)
    enable_checkpointing(objective, config.checkpointing)
    objective.train()
    forward, backward, activations = _counted(objective, batch, config.precision != "no")
    trained = [p for p in objective.parameters() if p.requires_grad]
    parts = {name: list(module.parameters()) for name, module in objective.named_children()}
    return Estimate(
        stage,
        optim.batch,
        optim.accumulate,
        {k: (_count(ps), _count(p for p in ps if p.requires_grad)) for k, ps in parts.items() if ps},
        sum(p.nbytes for p in objective.parameters()),
        sum(p.nbytes for p in trained),
        2 * sum(p.nbytes for p in trained),
        4 * _count(trained),
        activations,
        forward * optim.accumulate,
        backward * optim.accumulate,
    )


def _count(parameters) -> int:
    return sum(p.numel() for p in parameters)


def _counted(objective: nn.Module, batch: dict[str, Tensor], half: bool) -> tuple[float, float, int]:
    """Return the operations of the forward and the backward pass, and the bytes kept between them."""
    kept: dict[int, int] = {}
    own = {p.untyped_storage()._cdata for p in objective.parameters()}
    inside: list[bool] = []  # the velocity network, if it stays in fp32
    if getattr(objective, "fp32_net", False):
        objective.velocity_net.register_forward_pre_hook(lambda *_: inside.append(True))
        objective.velocity_net.register_forward_hook(lambda *_: inside.clear())

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage._cdata not in own:
            size = storage.nbytes()
            kept[storage._cdata] = size // 2 if half and not inside and x.dtype == torch.float32 else size
        return x

    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            total = sum(objective(**batch).losses.values())
        forward = counter.get_flop_counts()["Global"].copy()
        total.backward()
    both = counter.get_flop_counts()["Global"]
    # Torch's count of a convolution's backward pass ignores groups: it is twice the forward pass.
    aten = torch.ops.aten
    convolutions = sum(forward.get(op, 0) for op in (aten.convolution, aten._convolution))
    rest = sum(both.values()) - sum(forward.values()) - both.get(aten.convolution_backward, 0)
    return sum(forward.values()), rest + 2 * convolutions, sum(kept.values())


# The objective and a batch of each stage


def _latent(config: Config) -> tuple[int, int, int]:
    path = config.vae.path
    if path and Path(path).is_dir():
        with torch.device("cpu"):
            vae = LatentVAE.from_folder(path)
        channels, factor = vae.channels, vae.factor
    else:  # the config's own numbers describe it
        channels, factor = config.vae.channels, 2 ** (len(config.vae.widths) - 1)
    return channels, config.data.size // factor, config.data.size // factor


def _vae(config: Config, batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
    size = config.data.size
    return VAEObjective(build_vae(config.vae)), {
        "pixels": torch.empty(batch, 3, size, size),
        "eps": torch.empty(batch, *_latent(config)),
    }


def _texts(config: Config, count: int) -> tuple[object, MetaQueryText | None, dict[str, Tensor]]:
    """Return something with the encoder's ``dim`` and ``tokens``, the encoder if it is trained, and its batch."""
    given, tokens = config.flow.encoder, config.flow.tokens
    if isinstance(given, Encoder) and given.kind == "meta_query":
        spec = given.spec() | {"prompt_tokens": given.prompt_tokens or tokens}
        dtype = DTYPES[spec.pop("dtype", "fp32")]
        del spec["kind"], spec["model"]
        encoder = MetaQueryText(_language_model(given, dtype), None, **spec)
        if encoder.trainable:
            shape = count, spec["prompt_tokens"]
            ids, mask = torch.zeros(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.bool)
            return encoder, encoder, {"ids": ids, "mask": mask}
        like = encoder
    else:
        model = given if isinstance(given, str) else given.model
        like = SimpleNamespace(dim=_hidden_size(model), tokens=tokens)
    states = torch.empty(count, like.tokens, like.dim)
    return like, None, {"states": states, "mask": torch.ones(count, like.tokens, dtype=torch.bool)}


def _language_model(given: Encoder, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoConfig, AutoModel

    from fmpipe.train.caption_lm import ARCHITECTURE

    if Path(given.model).is_dir():
        config = load_pretrained(AutoConfig, given.model)
    elif given.model == "captions":
        config = AutoConfig.for_model("llama", **ARCHITECTURE)
    elif given.architecture:
        config = AutoConfig.for_model(**given.architecture)
    else:
        raise SettingsError(
            ("flow", "encoder", "model"),
            f"there is no folder {given.model!r}; a dry run without it needs flow.encoder.architecture",
        )
    return AutoModel.from_config(config, dtype=dtype)


def _hidden_size(model: str) -> int:
    if model == "minilm":
        return 384
    found = read_json(Path(model) / "config.json")
    size = found.get("text_config", found).get("hidden_size") or found.get("d_model")
    return size or 768  # CLIP ViT-L's, if the folder is not there


def _head(config: Config, batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
    losses, shape = config.flow.losses, _latent(config)
    like, _, texts = _texts(config, batch + losses.others)
    head = build_head(config.flow, like, shape)
    return HeadObjective(head, losses), {**texts, **_pairs(shape, batch, losses.others)}


def _flow(config: Config, batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
    losses, shape = config.flow.losses, _latent(config)
    like, encoder, texts = _texts(config, batch + losses.others)
    teacher, features = _teacher(losses, batch)
    objective = FlowObjective(
        build_head(config.flow, like, shape),
        DiMR(**config.flow.net),
        losses,
        teacher,
        features.get("features"),
        encoder,
        fp32_net=config.flow.fp32_net,
    )
    return objective, {
        **texts,
        **features,
        **_pairs(shape, batch, losses.others),
        "t": torch.empty(batch),
        "null": torch.zeros(batch, dtype=torch.bool),
    }


def _teacher(losses: Losses, batch: int) -> tuple[Teacher | None, dict[str, Tensor]]:
    """Return the teacher of images, whose folder must exist, and what it makes of a batch."""
    if not losses.teacher or not (losses.dino or losses.repa):
        return None, {}
    try:
        with torch.device("cpu"):
            teacher = Teacher.from_folder(losses.teacher)
    except (OSError, ValueError) as error:
        raise SettingsError(("flow", "losses", "teacher"), str(error)) from None
    features = {"features": torch.empty(batch, teacher.dim)}
    return teacher, features | ({"patches": torch.empty(batch, teacher.dim, *teacher.grid)} if losses.repa else {})


def _pairs(shape: tuple[int, int, int], batch: int, others: int) -> dict[str, Tensor]:
    made = {"z1": torch.empty(batch, *shape), "eps": torch.empty(batch, *shape)}
    if others:
        made |= {"candidates": torch.empty(batch + others, *shape), "rows": torch.arange(batch)}
    return made


def _diffusion(config: Config, batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
    shape = _latent(config)
    objective = DiffusionObjective(DiMR(**config.diffusion.net), config.diffusion.time_weight)
    steps = torch.zeros(batch, dtype=torch.int64)
    return objective, {"z1": torch.empty(batch, *shape), "eps": torch.empty(batch, *shape), "steps": steps}


def describe(found: Estimate, say: Callable[[str], None]) -> None:
    """Say an estimate in a few lines."""
    gib = 2**30
    parts = f" in {found.accumulate} micro-batches" * (found.accumulate > 1)
    say(f"stage {found.stage}, batch {found.batch}{parts}, one process, estimated:")
    for name, (count, trained) in found.parameters.items():
        say(f"  {name:<14} {count / 1e6:10.2f} M parameters, {trained / 1e6:.2f} M trained")
    parts = ("weights", "gradients", "optimizer", "ema", "activations")
    sizes = ", ".join(f"{name} {getattr(found, name) / gib:.2f}" for name in parts)
    per_image = found.activations * found.accumulate / found.batch / gib
    say(f"  memory         {found.memory / gib:10.2f} GiB: {sizes} ({per_image:.3g} per image)")
    say(
        f"  FLOPs per step {(found.forward + found.backward) / 1e12:10.3f} T: "
        f"forward {found.forward / 1e12:.3f}, backward {found.backward / 1e12:.3f}"
    )
