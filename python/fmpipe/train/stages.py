"""The stages of a run, built from its config: what each trains on, checks itself by, and leaves behind."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from fmkernels import reparameterize
from fmkernels.flow import Sample, Trace, sample, uniform
from fmpipe.data import Folder, Shards, Source, split
from fmpipe.data.cache import Latents, States, cache_latents, cache_states, weights_sha256
from fmpipe.data.rebuilt import REBUILT, rebuilt
from fmpipe.diagnose import metrics
from fmpipe.models import DiMR, LinearHead, TextHead, VariationalHead
from fmpipe.pipeline import FlowPipeline
from fmpipe.sheet import sheet, to_image
from fmpipe.text import load_text_encoder
from fmpipe.train.batches import DiffusionBatches, FlowBatches, PixelBatches, drawn
from fmpipe.train.config import Autoencoder, Config, Data, Flow
from fmpipe.train.loop import Stage, Weigher
from fmpipe.train.losses import turned
from fmpipe.train.objective import DiffusionObjective, FlowObjective, HeadObjective, VAEObjective
from fmpipe.train.settings import to_dict
from fmpipe.vae import LatentVAE

VAL_BATCHES = 4
FIRST_LOGVAR = -6.0  # of an autoencoder: a sigma of 1 would drown what the encoder first finds
PICTURES, STEPS = 8, 25  # of a sheet, of its sampling
SAMPLING = {"schedule": "uniform", "solver": "ab2", "num_inference_steps": 20}  # see docs/default-model.md


def source_of(data: Data) -> Source:
    if data.source in REBUILT:
        return rebuilt(data.source, data.size, count=data.count, seed=data.seed, font=data.path)
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
        if not self.train or not self.val:  # too few to hold any out
            self.train = self.val = self.train or self.val
        self.folder = Path(config.out)

    @cached_property
    def encoder(self):
        """The text encoder."""
        return load_text_encoder(self.config.flow.encoder, tokens=self.config.flow.tokens)

    def vae(self) -> LatentVAE:
        path = Path(self.config.vae.path or self.folder / "vae" / "result")
        if path.is_dir():
            return LatentVAE.from_pretrained(path)
        if self.start is None or self.config.vae.path:
            raise FileNotFoundError(f"no autoencoder at {path}: put vae before the other stages, or give vae.path")
        return self.start.vae

    @cached_property
    def start(self) -> FlowPipeline | None:
        name = self.config.start
        try:
            return name and FlowPipeline.from_pretrained(name)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"start: {error}") from None

    def begin(self, **modules: nn.Module) -> None:
        """Gives modules the weights of the parts of ``start`` that have their names, if there is one."""
        for name, module in modules.items() if self.start else ():
            part = getattr(self.start, name)
            try:
                module.load_state_dict(getattr(part, "vae", part).state_dict())  # a LatentVAE has its vae
            except RuntimeError as error:
                raise ValueError(f"start: {name} of {self.config.start} is not as this run's: {error}") from None
            if name == "text_head" and (other := _differing(part, module)):
                warnings.warn(f"start: the text head of {self.config.start} had {other}", stacklevel=2)

    def latents(self, vae: LatentVAE) -> Latents:
        return cache_latents(self.source, vae, self.config.data.cache)

    def states(self, encoder, latents: Latents) -> States:
        captions = [caption for item in latents.items for caption in item["captions"]]
        return cache_states(captions, encoder, self.config.data.cache)


def build_vae(settings: Autoencoder) -> AutoencoderKL:
    count = len(settings.widths)
    return AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * count,
        up_block_types=["UpDecoderBlock2D"] * count,
        block_out_channels=settings.widths,
        layers_per_block=settings.layers,
        norm_num_groups=settings.groups,
        latent_channels=settings.channels,
        mid_block_add_attention=False,
    )


def build_head(settings: Flow, encoder, latent_shape: tuple[int, int, int]) -> VariationalHead:
    kind = {"transformer": TextHead, "linear": LinearHead}[settings.head_kind]
    return kind(width=encoder.dim, tokens=encoder.tokens, latent_shape=latent_shape, **settings.head)


def vae_stage(config: Config, material: Material) -> tuple[Stage, Callable[[nn.Module], Path]]:
    """Trains an AutoencoderKL; leaves a :class:`LatentVAE` whose latents have mean 0 and std 1 in every channel."""
    settings, model = config.vae, build_vae(config.vae)
    with torch.no_grad():
        model.quant_conv.bias[settings.channels :] = FIRST_LOGVAR
    material.begin(vae=model)
    side = config.data.size // 2 ** (len(settings.widths) - 1)
    latent, optim = (settings.channels, side, side), settings.optim
    batches = PixelBatches(material.source, material.train, optim.batch, latent, config.seed, settings.augment)
    held_out = PixelBatches(material.source, material.val, min(optim.batch, len(material.val)), latent, config.seed + 1)

    def validate(objective: nn.Module) -> dict[str, float]:
        return _validated(objective, held_out, material.val)

    def draw(objective: nn.Module, path: Path) -> None:
        batch = _beside(objective, held_out(0))
        pairs = batch["pixels"][:PICTURES], objective(**batch).made["predicted_x0"][:PICTURES]
        save_grid(torch.cat(pairs), ["image"] * len(pairs[0]) + ["decoded"] * len(pairs[1]), path, len(pairs[0]))

    def finish(objective: nn.Module) -> Path:
        with torch.no_grad():
            z = torch.cat([objective(**_beside(objective, batches(k))).made["noise"] for k in range(32)]).double()
        mean, std = z.mean((0, 2, 3)).tolist(), z.std((0, 2, 3)).tolist()
        objective.vae.register_to_config(scaling_factor=1.0, latents_mean=mean, latents_std=std)
        LatentVAE.from_diffusers(objective.vae).save_pretrained(material.folder / "vae" / "result")
        return material.folder / "vae" / "result"

    weights = Weigher({"l1": settings.l1, "mse": settings.mse, "kl": settings.kl}, optim.steps)
    heads = {"encoder": "vae.encoder.conv_out", "decoder": "vae.decoder.conv_out"}
    return Stage("vae", VAEObjective(model), batches, optim, weights, heads, validate, draw), finish


class Pairs:
    """Texts and pictures for the stages that need both: the text head, the batches, those held out."""

    def __init__(self, config: Config, material: Material):
        settings, self.seed = config.flow, config.seed
        self.vae, self.encoder = material.vae(), material.encoder
        self.latents = material.latents(self.vae)
        self.states = material.states(self.encoder, self.latents)
        self.shape = (self.vae.channels, *self.latents.moments.shape[2:])
        self.head = build_head(settings, self.encoder, self.shape)
        material.begin(text_head=self.head)
        self.train, self.val, self.told, self.asked = material.train, material.val, None, None
        if settings.hold_out == "captions":
            parts = (held_out_captions(item, config.data) for item in self.latents.items)
            self.told, self.asked = zip(*parts, strict=True)
            self.train, self.val = range(len(self.told)), [i for i, captions in enumerate(self.asked) if captions]
            if not self.val:  # too few captions to hold any out
                self.val, self.asked = list(self.train), self.told

    def batches(self, settings: Flow) -> tuple[FlowBatches, FlowBatches]:
        """To train on, and held out: those as users ask, nothing dropped."""
        data = self.latents, self.states, self.vae
        plain = replace(settings, token_dropout=0.0, losses=replace(settings.losses, null=0.0))
        count = min(settings.optim.batch, len(self.val))
        return (
            FlowBatches(*data, self.train, settings, self.seed, captions=self.told),
            FlowBatches(*data, self.val, plain, self.seed + 1, batch=count, captions=self.asked),
        )

    def first(self, held_out: FlowBatches, objective: nn.Module) -> tuple[dict[str, Tensor], list[str]]:
        """States and mask, where the objective is, of the first captions held out; and the captions."""
        captions = [held_out.texts[i][0] for i in self.val[:PICTURES]]
        states, mask = self.states.rows(captions)
        return _beside(objective, {"states": states, "mask": mask}), captions

    def nearest(self, z: Tensor, items: Tensor, turn: float = 0.0) -> float:
        """Share of the latents whose nearest picture of all is their own: figures of the field do not tell."""
        means = turned(self.vae.mode(self.latents.moments), turn)
        return (torch.cdist(z.to(means).flatten(1), means.flatten(1)).argmin(1) == items).float().mean().item()


def head_stage(config: Config, material: Material) -> tuple[Stage, Callable[[nn.Module], Path]]:
    """Trains the text head alone, by ``anchor``, ``match`` and the KL; leaves it for the stage ``flow`` to keep.

    Where the flow does not move the head (``detach``) that is the same training, and a step costs a sixth.
    """
    pairs, settings = Pairs(config, material), config.flow
    losses, optim = settings.losses, settings.head_optim
    batches, held_out = pairs.batches(replace(settings, optim=optim))

    def validate(objective: nn.Module) -> dict[str, float]:
        batch = _beside(objective, held_out(0))
        mu = objective.text_head(batch["states"], batch["mask"])[0][: len(batch["z1"])]
        found = {"val/nearest": pairs.nearest(mu, held_out.order(0), losses.turn)}
        return _validated(objective, held_out, pairs.val) | found

    def draw(objective: nn.Module, path: Path) -> None:
        texts, captions = pairs.first(held_out, objective)
        mu, _ = objective.text_head(**texts)
        save_grid(pairs.vae.decode(turned(mu, -losses.turn).to(pairs.vae.device)), captions, path)

    def finish(objective: nn.Module) -> Path:
        objective.text_head.save_pretrained(material.folder / "head" / "result")
        return material.folder / "head" / "result"

    chosen = {name: getattr(losses, name) for name in ("kl", "anchor", "match")}
    weights = Weigher(chosen, optim.steps, replace(losses, weighting="constant"))
    objective = HeadObjective(pairs.head, losses)
    heads = metrics.default_heads(objective)
    return Stage("head", objective, batches, optim, weights, heads, validate, draw), finish


def flow_stage(config: Config, material: Material) -> tuple[Stage, Callable[[nn.Module], Path]]:
    """Trains the velocity network and, where no stage ``head`` has done so, the text head; leaves a pipeline."""
    pairs, settings, optim = Pairs(config, material), config.flow, config.flow.optim
    head, vae, val = pairs.head, pairs.vae, pairs.val
    finished = material.folder / "head" / "result"
    if finished.is_dir():
        ready = type(head).from_pretrained(finished)
        if other := _differing(ready, head):
            raise ValueError(f"the head in {finished} has {other}, and flow.head not: train stage head again elsewhere")
        head.load_state_dict(ready.state_dict())
        head.requires_grad_(False)
        settings = replace(settings, losses=replace(settings.losses, kl=0.0, anchor=0.0, match=0.0, others=0))
    losses = settings.losses
    if losses.detach and not any((losses.kl, losses.anchor, losses.match, losses.contrastive, losses.dino)):
        head.requires_grad_(False)  # nothing trains it, and DDP would wait for its gradients
    objective = FlowObjective(head, DiMR(**settings.net), losses)
    material.begin(velocity_net=objective.velocity_net)
    batches, held_out = pairs.batches(settings)

    def validate(objective: nn.Module) -> dict[str, float]:
        batch = _beside(objective, held_out(0))
        made = objective(**batch).made
        ends = objective.velocity, made["noise"], made["x_0"]
        found = _validated(objective, held_out, val) | metrics.endpoint(*ends)
        found["val/nearest"] = pairs.nearest(integrated(objective, made["noise"]).x, held_out.order(0))
        if len(batch["t"]) > 1:  # a condition can only be exchanged for another one
            found |= metrics.condition(*ends, batch["t"], generator=drawn(config.seed, 5))
        return found

    def drawn_from(objective: nn.Module) -> tuple[Sample, list[str]]:
        texts, captions = pairs.first(held_out, objective)
        return generate(objective, **texts, seed=config.seed), captions

    def draw(objective: nn.Module, path: Path) -> None:
        ended, captions = drawn_from(objective)
        save_grid(vae.decode(ended.x.to(vae.device)), captions, path)

    def finish(objective: nn.Module) -> Path:
        drawn_from(objective)[0].trace.to_jsonl(material.folder / "flow" / "trace.jsonl")  # for fmpipe report
        known = config.data.source if config.data.source in REBUILT and not config.data.path else None
        guided = None if settings.losses.null else 1.0
        pipe = FlowPipeline(
            pairs.encoder,
            objective.text_head,
            objective.velocity_net,
            vae,
            source=known,
            max_guidance=guided,
            **SAMPLING,
        )
        pipe.save_pretrained(material.folder / "pipeline")
        return material.folder / "pipeline"

    chosen = {name: getattr(losses, name) for name in ("flow", "kl", "contrastive", "dino", "norm", "anchor", "match")}
    heads = metrics.default_heads(objective)
    if not any(p.requires_grad for p in head.parameters()):
        del heads["z_head"]
    weights = Weigher(chosen, optim.steps, losses)
    alike = {  # only runs that are alike in these can be compared
        "run/vae_digest": weights_sha256(vae),
        "run/resolution": str(config.data.size),
        "run/latent_size": "x".join(map(str, pairs.shape)),
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
        batch = _beside(objective, held_out(0))
        order = batch["steps"].argsort()[:: max(1, len(batch["steps"]) // PICTURES)][:PICTURES]
        pixels = vae.decode(objective(**batch).made["predicted_x0"][order].to(vae.device))
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


STAGES = {"vae": vae_stage, "head": head_stage, "flow": flow_stage, "diffusion": diffusion_stage}


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


def save_grid(pixels: Tensor, captions: Sequence[str], path: Path, columns: int = PICTURES) -> None:
    """Save a sheet of images (N, 3, H, W) in [-1, 1], each above its caption."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet([to_image(x) for x in pixels], captions, columns).save(path)


def _differing(a: nn.Module, b: nn.Module) -> str:
    """The arguments of a that are not b's, and that its weights do not show; dropout is of training alone."""
    mine, other = ({k: str(v) for k, v in to_dict(dict(x.config)).items() if k[0] != "_"} for x in (a, b))
    return ", ".join(f"{k} {v}" for k, v in mine.items() if k != "dropout" and other.get(k) != v)


def _beside(objective: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch where the objective is."""
    device = next(objective.parameters()).device
    return {name: x.to(device) for name, x in batch.items()}


def _validated(objective: nn.Module, batches: Callable, items: Sequence[int]) -> dict[str, float]:
    """The losses and the flow's statistics under ``val/``, means over a few fixed batches."""
    rows = []
    for k in range(min(VAL_BATCHES, max(1, len(items) // batches.order.batch))):
        outcome = objective(**_beside(objective, batches(k)))
        row = {f"loss/{name}": loss.item() for name, loss in outcome.losses.items()}
        row |= {name: x.item() for name, x in outcome.figures.items() if not name.startswith("scale/")}
        if outcome.stats:
            row |= {k: v for k, v in outcome.stats[0].as_dict().items() if "_t" not in k}
        rows.append(row)
    return {f"val/{name}": sum(row[name] for row in rows) / len(rows) for name in rows[0]}
