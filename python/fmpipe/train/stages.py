"""The stages of a run, built from its config: what each trains on, checks itself by, and leaves behind."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from fmkernels import reparameterize
from fmkernels.flow import Sample, Trace, sample, uniform
from fmpipe import metrics
from fmpipe.data import Mixture, Source, split
from fmpipe.data.cache import Latents, Prompts, States, cache_prefixes, cache_states, weights_sha256
from fmpipe.data.latents import all_latents
from fmpipe.data.rebuilt import REBUILT, rebuilt
from fmpipe.data.source import captions_of, keys_of
from fmpipe.data.sources import open_source
from fmpipe.models import DiMR, LinearHead, TextHead, VariationalHead
from fmpipe.pipeline import FlowPipeline
from fmpipe.sheet import sheet, to_image
from fmpipe.text import load_text_encoder
from fmpipe.train.batches import DiffusionBatches, FlowBatches, PixelBatches, drawn
from fmpipe.train.caption_lm import caption_lm
from fmpipe.train.config import LOSSES, Autoencoder, Config, Data, DataSource, Flow
from fmpipe.train.loop import Stage, Weigher
from fmpipe.train.losses import turned
from fmpipe.train.objective import DiffusionObjective, FlowObjective, HeadObjective, VAEObjective
from fmpipe.train.settings import to_dict
from fmpipe.train.teacher import Teacher, shown_to
from fmpipe.vae import LatentVAE

VAL_BATCHES = 4
FIRST_LOGVAR = -6.0  # of an autoencoder: a sigma of 1 would drown what the encoder first finds
PICTURES, STEPS = 8, 25  # of a sheet, of its sampling
SAMPLING = {"schedule": "uniform", "solver": "ab2", "num_inference_steps": 20}  # see docs/default-model.md


def source_of(data: Data) -> Source:
    """Return the source of the settings: one, or a mixture of ``data.sources``."""
    if not data.sources:
        return _opened(data, data, "data")
    sources = {}
    for k, one in enumerate(data.sources):
        name = f"{one.source} {one.path}" if one.path else one.source
        if name in sources:
            raise ValueError(f"data.sources[{k}]: {name} is given twice; change its weight instead")
        sources[name] = _opened(one, data, f"data.sources[{k}]")
    return Mixture(sources, [one.weight for one in data.sources])


def _opened(one: DataSource, data: Data, key: str) -> Source:
    if one.source in REBUILT:
        return rebuilt(one.source, data.size, count=data.count, seed=data.seed, font=one.path)
    if one.path is None:
        raise ValueError(f"{key}.path is missing: {key}.source {one.source!r} needs one")
    options = {"image_column": one.image_column, "latents_scaled": one.latents_scaled}
    return open_source(one.source, one.path, one.captions, data.size, **options)


class Material:
    """What stages share: the source, its split, and what the frozen parts make of it, each when first asked for.

    device: where the frozen parts are, and what they make is computed.
    """

    def __init__(self, config: Config):
        self.config, self.source, self.device = config, source_of(config.data), torch.device("cpu")
        self.parts, ranges = [self.source], [range(len(self.source))]
        if isinstance(self.source, Mixture):
            self.parts, ranges = self.source.sources, self.source.parts
        train, self.val = [], []
        for part, items in zip(self.parts, ranges, strict=True):  # by its own keys: other sources move no item
            some, held_out = split(keys_of(part), config.data.val, config.data.seed)
            train.append([items[i] for i in some or held_out])
            self.val += [items[i] for i in held_out]
        self.train = [i for items in train for i in items]
        if config.data.limit is not None:  # the first of every source, then the second
            turns = (i for turn in zip_longest(*train) for i in turn if i is not None)
            self.train, self.val = list(islice(turns, config.data.limit)), []
        if not self.train or not self.val:  # too few to hold any out
            self.train = self.val = self.train or self.val
        self.folder = Path(config.out)

    @cached_property
    def encoder(self):
        """The text encoder."""
        given = self.config.flow.encoder
        spec = given if isinstance(given, str) else given.spec()
        if isinstance(spec, dict) and spec["model"] == "captions":
            captions = [caption for part in self.parts for caption in captions_of(part)]
            spec["model"] = str(caption_lm(captions, self.config.data.cache, self.config.seed))
        torch.manual_seed(self.config.seed)  # of new queries, LoRA weights and connectors
        return load_text_encoder(spec, tokens=self.config.flow.tokens).to(self.device)

    @cached_property
    def teacher(self) -> Teacher | None:
        """The external teacher, if a loss that uses it has a weight."""
        losses = self.config.flow.losses
        if not losses.teacher or not (losses.dino or losses.repa):
            return None
        return Teacher.from_folder(losses.teacher).to(self.device)

    def vae(self) -> LatentVAE:
        path = Path(self.config.vae.path or self.folder / "vae" / "result")
        if path.is_dir():
            return LatentVAE.from_folder(path).to(self.device)
        if self.start is None or self.config.vae.path:
            raise FileNotFoundError(f"no autoencoder at {path}: put vae before the other stages, or give vae.path")
        return self.start.vae.to(self.device)

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
        return all_latents(self.source, vae, self.config.data.cache, self.config.data.size)

    def states(self, encoder, latents: Latents) -> States | Prompts:
        """Return what the text head gets: cached states, or prompts if the encoder is trained."""
        captions, settings = [caption for item in latents.items for caption in item["captions"]], self.config.flow
        if not _trains(encoder):
            return cache_states(captions, encoder, self.config.data.cache)
        reuse = isinstance(settings.encoder, str) or settings.encoder.reuse_prefix
        if reuse and "text_encoder" not in self.config.checkpointing:  # transformers' checkpointing takes no prefix
            return cache_prefixes(captions, encoder, self.config.data.cache)
        return Prompts(encoder)


def _trains(encoder) -> bool:
    """Tell whether a text encoder has parameters that are trained."""
    return getattr(encoder, "trainable", False)


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
        self.source, self.train, self.val = material.source, material.train, material.val
        self.told = self.asked = None
        if settings.hold_out == "captions":
            parts = (held_out_captions(item, config.data) for item in self.latents.items)
            self.told, self.asked = zip(*parts, strict=True)
            self.train, self.val = range(len(self.told)), [i for i, captions in enumerate(self.asked) if captions]
            if not self.val:  # too few captions to hold any out
                self.val, self.asked = list(self.train), self.told

    def batches(self, settings: Flow, shown: Callable | None = None) -> tuple[FlowBatches, FlowBatches]:
        """To train on, and held out: those as users ask, nothing dropped. shown: see FlowBatches."""
        data = self.latents, self.states, self.vae
        plain = replace(settings, token_dropout=0.0, losses=replace(settings.losses, null=0.0))
        count, more = min(settings.optim.batch, len(self.val)), {"source": self.source, "shown": shown}
        return (
            FlowBatches(*data, self.train, settings, self.seed, captions=self.told, **more),
            FlowBatches(*data, self.val, plain, self.seed + 1, batch=count, captions=self.asked, **more),
        )

    def first(self, held_out: FlowBatches, objective: nn.Module) -> tuple[dict[str, Tensor], list[str]]:
        """Return what the objective's ``texts`` takes for the first held-out captions, and the captions."""
        captions = [held_out.texts[i][0] for i in self.val[:PICTURES]]
        return _beside(objective, self.states.rows(captions)), captions

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
    encoder = pairs.encoder if isinstance(pairs.states, Prompts) else None
    if encoder and not any(p.requires_grad for p in head.parameters()):
        encoder.requires_grad_(False)
    features, shown = shown_to(material.teacher, losses, material.source, pairs.train, config.data.cache)
    objective = FlowObjective(
        head, DiMR(**settings.net), losses, material.teacher, features, encoder, fp32_net=settings.fp32_net
    )
    material.begin(velocity_net=objective.velocity_net, **({"text_encoder": encoder} if encoder else {}))
    batches, held_out = pairs.batches(settings, shown)

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
        alone = not config.data.sources and not config.data.path
        known = config.data.source if config.data.source in REBUILT and alone else None
        guided = None if settings.losses.null else 1.0
        pipe = FlowPipeline(
            objective.text_encoder or pairs.encoder,
            objective.text_head,
            objective.velocity_net,
            vae,
            source=known,
            max_guidance=guided,
            **SAMPLING,
        )
        pipe.save_pretrained(material.folder / "pipeline")
        return material.folder / "pipeline"

    chosen = {name: getattr(losses, name) for name in LOSSES}
    heads = metrics.default_heads(objective)
    if encoder and encoder.queries.requires_grad:
        heads["queries"] = "text_encoder.queries"
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
    source, count = material.source, min(optim.batch, len(material.val))
    batches = DiffusionBatches(latents, vae, material.train, optim.batch, config.seed, source=source)
    held_out = DiffusionBatches(latents, vae, material.val, count, config.seed + 1, source=source)

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
def generate(objective: FlowObjective, *, seed: int = 0, steps: int = STEPS, **texts: Tensor) -> Sample:
    """Return (z1, trace) of texts as a batch has them; the noise depends on the seed."""
    mu, logvar = objective.text_head(*objective.texts(**texts))
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
