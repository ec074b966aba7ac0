"""What the stages of a run read: the images and captions, their split, and what frozen networks compute from them."""

import warnings
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path

import torch
from torch import nn

from fmpipe.data import Mixture, Source, split
from fmpipe.data.cache import Latents, Prompts, States, cache_prefixes, cache_states
from fmpipe.data.latents import all_latents
from fmpipe.data.rebuilt import REBUILT, rebuilt
from fmpipe.data.source import captions_of, keys_of
from fmpipe.data.sources import open_source
from fmpipe.pipeline import FlowPipeline
from fmpipe.text import load_text_encoder
from fmpipe.train.caption_lm import caption_lm
from fmpipe.train.config import Config, Data, DataSource
from fmpipe.train.settings import to_dict
from fmpipe.train.teacher import Teacher
from fmpipe.vae import LatentVAE


def source_of(data: Data) -> Source:
    """Return the source of the settings: one, or a mixture of ``data.sources``."""
    if not data.sources:
        return _open(data, data, "data")
    sources = {}
    for k, one in enumerate(data.sources):
        name = f"{one.source} {one.path}" if one.path else one.source
        if name in sources:
            raise ValueError(f"data.sources[{k}]: {name} is given twice; change its weight instead")
        sources[name] = _open(one, data, f"data.sources[{k}]")
    return Mixture(sources, [one.weight for one in data.sources])


def _open(one: DataSource, data: Data, key: str) -> Source:
    if one.source in REBUILT:
        return rebuilt(one.source, data.size, count=data.count, seed=data.seed, font=one.path)
    if one.path is None:
        raise ValueError(f"{key}.path is missing: {key}.source {one.source!r} needs one")
    options = {"image_column": one.image_column, "latents_scaled": one.latents_scaled}
    return open_source(one.source, one.path, one.captions, data.size, **options)


def held_out_captions(item: dict, data: Data) -> tuple[list[str], list[str]]:
    """Return an item's captions for training and for validation, split by their hash. The first is for training."""
    first, *rest = item["captions"]
    train, val = split(rest, data.val, data.seed)
    return [first, *(rest[i] for i in train)], [rest[i] for i in val]


class StageInputs:
    """The data of a run and its frozen networks, shared by all stages; each is loaded or computed on first use.

    train, val: indices of the source's items. device: where the frozen networks are and run.
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
        if config.data.limit is not None:  # the first item of every source, then the second
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
        torch.manual_seed(self.config.seed)  # for new queries, LoRA weights and connectors
        return load_text_encoder(spec, tokens=self.config.flow.tokens).to(self.device)

    @cached_property
    def teacher(self) -> Teacher | None:
        """The external teacher, if a loss that uses it has a weight."""
        losses = self.config.flow.losses
        if not losses.teacher or not (losses.dino or losses.repa):
            return None
        return Teacher.from_folder(losses.teacher).to(self.device)

    def vae(self) -> LatentVAE:
        """Return the autoencoder: that of ``vae.path``, of the stage vae, or of the pipeline to start from."""
        path = Path(self.config.vae.path or self.folder / "vae" / "result")
        if path.is_dir():
            return LatentVAE.from_folder(path).to(self.device)
        if self.start is None or self.config.vae.path:
            raise FileNotFoundError(f"no autoencoder at {path}: put vae before the other stages, or give vae.path")
        return self.start.vae.to(self.device)

    @cached_property
    def start(self) -> FlowPipeline | None:
        """The pipeline whose weights the stages start from, if the config names one."""
        name = self.config.start
        try:
            return name and FlowPipeline.from_pretrained(name)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"start: {error}") from None

    def load_start(self, **modules: nn.Module) -> None:
        """Give modules the weights of the parts of ``start`` with the same names, if there is one."""
        for name, module in modules.items() if self.start else ():
            part = getattr(self.start, name)
            try:
                module.load_state_dict(getattr(part, "vae", part).state_dict())  # a LatentVAE has its vae
            except RuntimeError as error:
                raise ValueError(f"start: {name} of {self.config.start} differs from this run's: {error}") from None
            if name == "text_head" and (other := differing_arguments(part, module)):
                warnings.warn(f"start: the text head of {self.config.start} had {other}", stacklevel=2)

    def latents(self, vae: LatentVAE) -> Latents:
        return all_latents(self.source, vae, self.config.data.cache, self.config.data.size)

    def states(self, encoder, latents: Latents) -> States | Prompts:
        """Return what the text head gets: cached states, or prompts if the encoder is trained."""
        captions, settings = [caption for item in latents.items for caption in item["captions"]], self.config.flow
        if not getattr(encoder, "trainable", False):
            return cache_states(captions, encoder, self.config.data.cache)
        reuse = isinstance(settings.encoder, str) or settings.encoder.reuse_prefix
        if reuse and "text_encoder" not in self.config.checkpointing:  # transformers' checkpointing takes no prefix
            return cache_prefixes(captions, encoder, self.config.data.cache)
        return Prompts(encoder)


def differing_arguments(a: nn.Module, b: nn.Module) -> str:
    """Return the arguments of text head a that differ from b's and do not show in its weights, except dropout."""
    mine, other = ({k: str(v) for k, v in to_dict(dict(x.config)).items() if k[0] != "_"} for x in (a, b))
    return ", ".join(f"{k} {v}" for k, v in mine.items() if k != "dropout" and other.get(k) != v)
