"""The stages of a run, built from its config: what each trains on, checks itself by, and leaves behind."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from fmkernels import reparameterize
from fmkernels.flow import Sample, Trace, sample, uniform
from fmpipe.data import Folder, Shapes, Shards, Source, split
from fmpipe.data.cache import Latents, States, cache_latents, cache_states, weights_sha256
from fmpipe.data.emoji import FONT, Emoji
from fmpipe.diagnose import metrics
from fmpipe.models import DiMR, LinearHead, TextHead
from fmpipe.pipeline import FlowPipeline
from fmpipe.sheet import sheet, to_image
from fmpipe.text import load_text_encoder
from fmpipe.train.batches import DiffusionBatches, FlowBatches, PixelBatches, drawn
from fmpipe.train.config import Config, Data
from fmpipe.train.loop import Stage, Weigher
from fmpipe.train.objective import DiffusionObjective, FlowObjective, VAEObjective
from fmpipe.vae import LatentVAE

VAL_BATCHES = 4
FIRST_LOGVAR = -6.0  # of an autoencoder: a sigma of 1 would drown what the encoder first finds
PICTURES, STEPS = 8, 25  # of a sheet, of its sampling


def source_of(data: Data) -> Source:
    if data.source == "shapes":
        return Shapes(data.count, data.size, data.seed)
    if data.source == "emoji":
        return Emoji(data.size, data.path or FONT)
    if data.path is None:
        raise ValueError(f"data.path is missing: data.source {data.source!r} needs one")
    if data.source == "folder":
        return Folder(data.path, data.captions, data.size)
    return Shards(data.path, data.size)


class Material:
    """What stages share: the source, its split, and what the frozen parts make of it, each when first asked for."""

    def __init__(self, config: Config):
        self.config, self.source = config, source_of(config.data)
        keys = [self.source[i].key for i in range(len(self.source))]
        self.train, self.val = split(keys, config.data.val, config.data.seed)
        if config.data.limit is not None:
            self.train, self.val = self.train[: config.data.limit], []
        self.val = self.val or self.train
        self.folder = Path(config.out)

    def vae(self) -> LatentVAE:
        path = Path(self.config.vae.path or self.folder / "vae" / "result")
        if not path.is_dir():
            raise FileNotFoundError(f"no autoencoder at {path}: put vae before the other stages, or give vae.path")
        return LatentVAE.from_pretrained(path)

    def latents(self, vae: LatentVAE) -> Latents:
        return cache_latents(self.source, vae, self.config.data.cache)

    def states(self, encoder, latents: Latents) -> States:
        captions = [caption for item in latents.items for caption in item["captions"]]
        return cache_states(captions, encoder, self.config.data.cache)


def vae_stage(config: Config, material: Material) -> tuple[Stage, Callable[[nn.Module], Path]]:
    """Trains an AutoencoderKL; leaves a :class:`LatentVAE` whose latents have mean 0 and std 1 in every channel."""
    settings = config.vae
    count = len(settings.widths)
    model = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * count,
        up_block_types=["UpDecoderBlock2D"] * count,
        block_out_channels=settings.widths,
        layers_per_block=settings.layers,
        norm_num_groups=settings.groups,
        latent_channels=settings.channels,
        mid_block_add_attention=False,
    )
    with torch.no_grad():
        model.quant_conv.bias[settings.channels :] = FIRST_LOGVAR
    side = config.data.size // 2 ** (count - 1)
    latent, optim = (settings.channels, side, side), settings.optim
    batches = PixelBatches(material.source, material.train, optim.batch, latent, config.seed, settings.augment)
    held_out = PixelBatches(material.source, material.val, min(optim.batch, len(material.val)), latent, config.seed + 1)

    def validate(objective: nn.Module) -> dict[str, float]:
        return _validated(objective, held_out, material.val)

    def draw(objective: nn.Module, path: Path) -> None:
        batch = held_out(0)
        pixels = torch.cat([batch["pixels"][:PICTURES], objective(**batch).made["predicted_x0"][:PICTURES]])
        save_grid(pixels, ["picture"] * PICTURES + ["decoded"] * PICTURES, path)

    def finish(objective: nn.Module) -> Path:
        with torch.no_grad():
            z = torch.cat([objective(**batches(k)).made["noise"] for k in range(32)]).double()
        mean, std = z.mean((0, 2, 3)).tolist(), z.std((0, 2, 3)).tolist()
        objective.vae.register_to_config(scaling_factor=1.0, latents_mean=mean, latents_std=std)
        LatentVAE.from_diffusers(objective.vae).save_pretrained(material.folder / "vae" / "result")
        return material.folder / "vae" / "result"

    weights = Weigher({"l1": settings.l1, "mse": settings.mse, "kl": settings.kl}, optim.steps)
    heads = {"encoder": "vae.encoder.conv_out", "decoder": "vae.decoder.conv_out"}
    return Stage("vae", VAEObjective(model), batches, optim, weights, heads, validate, draw), finish


def flow_stage(config: Config, material: Material) -> tuple[Stage, Callable[[nn.Module], Path]]:
    """Trains the text head and the velocity network; leaves a :class:`FlowPipeline`."""
    settings, vae = config.flow, material.vae()
    encoder = load_text_encoder(settings.encoder, tokens=settings.tokens)
    latents = material.latents(vae)
    states = material.states(encoder, latents)
    shape = (vae.channels, *latents.moments.shape[2:])
    kind = {"transformer": TextHead, "linear": LinearHead}[settings.head_kind]
    head = kind(width=encoder.dim, tokens=encoder.tokens, latent_shape=shape, **settings.head)
    objective = FlowObjective(head, DiMR(**settings.net), settings.losses)
    data, optim, losses = (latents, states, vae), settings.optim, settings.losses
    train, val, texts, other_texts = material.train, material.val, None, None
    if settings.hold_out == "captions":
        texts, other_texts = zip(*(held_out_captions(item, config.data) for item in latents.items), strict=True)
        train, val = range(len(texts)), [i for i, captions in enumerate(other_texts) if captions]
    batches = FlowBatches(*data, train, settings, config.seed, captions=texts)
    asked = replace(settings, token_dropout=0.0, losses=replace(losses, null=0.0))  # as users ask
    count = min(optim.batch, len(val))
    held_out = FlowBatches(*data, val, asked, config.seed + 1, batch=count, captions=other_texts)

    def validate(objective: nn.Module) -> dict[str, float]:
        batch = held_out(0)
        made = objective(**batch).made
        ends = objective.velocity, made["noise"], made["x_0"]
        found = _validated(objective, held_out, val) | metrics.endpoint(*ends)
        found["val/nearest"] = nearest(integrated(objective, made["noise"]).x, held_out.order(0))
        return found | metrics.condition(*ends, batch["t"], generator=drawn(config.seed, 5))

    def nearest(z: Tensor, items: Tensor) -> float:
        """Share of the latents whose nearest picture of all is their own: figures of the field do not tell."""
        means = vae.mode(latents.moments)
        return (torch.cdist(z.flatten(1), means.flatten(1)).argmin(1) == items).float().mean().item()

    def drawn_from(objective: nn.Module) -> tuple[Sample, list[str]]:
        captions = [held_out.texts[i][0] for i in val[:PICTURES]]
        return generate(objective, *states.rows(captions), seed=config.seed), captions

    def draw(objective: nn.Module, path: Path) -> None:
        ended, captions = drawn_from(objective)
        save_grid(vae.decode(ended.x), captions, path)

    def finish(objective: nn.Module) -> Path:
        drawn_from(objective)[0].trace.to_jsonl(material.folder / "flow" / "trace.jsonl")  # for fmpipe report
        pipe = FlowPipeline(encoder, objective.text_head, objective.velocity_net, vae)
        pipe.save_pretrained(material.folder / "pipeline")
        return material.folder / "pipeline"

    chosen = {name: getattr(losses, name) for name in ("flow", "kl", "contrastive", "dino", "norm", "anchor", "match")}
    heads = metrics.default_heads(objective)
    weights = Weigher(chosen, optim.steps, losses)
    alike = {  # only runs that are alike in these can be compared
        "run/vae_digest": weights_sha256(vae),
        "run/resolution": str(config.data.size),
        "run/latent_size": "x".join(map(str, shape)),
        "run/scale": f"{vae.config.scaling_factor:g}",
    }
    return Stage("flow", objective, batches, optim, weights, heads, validate, draw, losses.alarm, alike), finish


def diffusion_stage(config: Config, material: Material) -> tuple[Stage, Callable[[nn.Module], Path]]:
    """Trains a network to predict x0; leaves it."""
    settings, vae = config.diffusion, material.vae()
    latents, optim = material.latents(vae), settings.optim
    objective = DiffusionObjective(DiMR(**settings.net), settings.time_weight)
    batches = DiffusionBatches(latents, vae, material.train, optim.batch, config.seed)
    held_out = DiffusionBatches(latents, vae, material.val, min(optim.batch, len(material.val)), config.seed + 1)

    def validate(objective: nn.Module) -> dict[str, float]:
        return _validated(objective, held_out, material.val)

    def draw(objective: nn.Module, path: Path) -> None:
        batch = held_out(0)
        order = batch["steps"].argsort()[:: max(1, len(batch["steps"]) // PICTURES)][:PICTURES]
        pixels = vae.decode(objective(**batch).made["predicted_x0"][order])
        save_grid(pixels, [f"from step {k}" for k in batch["steps"][order].tolist()], path)

    def finish(objective: nn.Module) -> Path:
        objective.velocity_net.save_pretrained(material.folder / "diffusion" / "result")
        return material.folder / "diffusion" / "result"

    heads = {"flow_head": f"velocity_net.stages.{len(objective.velocity_net.stages) - 1}.output_layer.2"}
    weights, constants = Weigher({"diffusion": 1.0}, optim.steps), metrics.constants(objective.diffusion.betas)
    stage = Stage("diffusion", objective, batches, optim, weights, heads, validate, draw, constants=constants)
    return stage, finish


def held_out_captions(item: dict, data: Data) -> tuple[list[str], list[str]]:
    """An item's captions to train on and those held out, by their hash; the first, its plainest, is trained on."""
    first, *rest = item["captions"]
    train, val = split(rest, data.val, data.seed)
    return [first, *(rest[i] for i in train)], [rest[i] for i in val]


STAGES = {"vae": vae_stage, "flow": flow_stage, "diffusion": diffusion_stage}


@torch.no_grad()
def generate(objective: FlowObjective, states: Tensor, mask: Tensor, *, seed: int = 0, steps: int = STEPS) -> Sample:
    """(z1, trace) of text states; the noise depends on the seed."""
    mu, logvar = objective.text_head(states, mask)
    eps = torch.randn(mu.shape, generator=drawn(seed, 6)).to(mu)
    z0, _, _ = reparameterize(mu.float(), logvar.float(), eps=eps)
    return integrated(objective, z0, steps)


def integrated(objective: FlowObjective, z0: Tensor, steps: int = STEPS) -> Sample:
    """Whatever comes of it: a run that is not finite ends by its losses, not by its pictures."""
    return sample(objective.velocity, z0, uniform(steps), trace=Trace(nonfinite="continue"))


def save_grid(pixels: Tensor, captions: Sequence[str], path: Path) -> None:
    """Pictures (N, 3, H, W) in [-1, 1], each over its caption."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet([to_image(x) for x in pixels], captions, PICTURES).save(path)


def _validated(objective: nn.Module, batches: Callable, items: Sequence[int]) -> dict[str, float]:
    """The losses and the flow's statistics under ``val/``, means over a few fixed batches."""
    rows = []
    for k in range(min(VAL_BATCHES, max(1, len(items) // batches.order.batch))):
        outcome = objective(**batches(k))
        row = {f"loss/{name}": loss.item() for name, loss in outcome.losses.items()}
        row |= {name: x.item() for name, x in outcome.figures.items() if not name.startswith("scale/")}
        if outcome.stats:
            row |= {k: v for k, v in outcome.stats[0].as_dict().items() if "_t" not in k}
        rows.append(row)
    return {f"val/{name}": sum(row[name] for row in rows) / len(rows) for name in rows[0]}
