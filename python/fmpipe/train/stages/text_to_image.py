"""The stages ``head`` and ``flow``: train on pairs of captions and image latents."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fmkernels import reparameterize
from fmkernels.flow import Sample, Trace, sample, uniform
from fmpipe import metrics
from fmpipe.data.cache import Prompts, States, weights_sha256
from fmpipe.data.rebuilt import REBUILT
from fmpipe.models import DiMR, LinearHead, MixtureHead, TextHead, VariationalHead
from fmpipe.pipeline import FlowPipeline
from fmpipe.train.batches import FlowBatches, drawn
from fmpipe.train.config import LOSSES, Config, Flow
from fmpipe.train.inputs import StageInputs, differing_arguments, held_out_captions
from fmpipe.train.loss_weights import LossWeights
from fmpipe.train.losses import turned
from fmpipe.train.objective import FlowObjective, HeadObjective
from fmpipe.train.stages.base import IMAGES, Stage, on_device_of, save_sheet
from fmpipe.train.teacher import teacher_inputs

STEPS = 25  # of the sampler, for sheets and metrics
SAMPLING = {"schedule": "uniform", "solver": "ab2", "num_inference_steps": 20}  # see docs/default-model.md


def build_head(settings: Flow, encoder, latent_shape: tuple[int, int, int]) -> VariationalHead:
    if settings.head_kind == "mixture" and not settings.losses.match:
        raise ValueError("flow.head_kind 'mixture' learns its weights from the loss match: set flow.losses.match")
    kind = {"transformer": TextHead, "linear": LinearHead, "mixture": MixtureHead}[settings.head_kind]
    return kind(width=encoder.dim, tokens=encoder.tokens, latent_shape=latent_shape, **settings.head)


class TextToImageStage(Stage):
    """A stage with a text head, captions and image latents."""

    def __init__(self, config: Config, inputs: StageInputs):
        super().__init__(config, inputs)
        settings = config.flow
        self.vae, self.encoder = inputs.vae(), inputs.encoder
        self.latents = inputs.latents(self.vae)
        self.states = inputs.states(self.encoder, self.latents)
        self.shape = (self.vae.channels, *self.latents.moments.shape[2:])
        self.head = build_head(settings, self.encoder, self.shape)
        self.train, self.val = inputs.train, inputs.val
        self.train_captions = self.val_captions = None
        if settings.hold_out == "captions":
            parts = (held_out_captions(item, config.data) for item in self.latents.items)
            self.train_captions, self.val_captions = zip(*parts, strict=True)
            self.train = range(len(self.train_captions))
            self.val = [i for i, captions in enumerate(self.val_captions) if captions]
            if not self.val:  # too few captions to hold any out
                self.val, self.val_captions = list(self.train), self.train_captions
        if isinstance(self.head, MixtureHead):
            self._prepare_mixture()
        inputs.load_start(text_head=self.head)

    def _prepare_mixture(self) -> None:
        """Set the components of the head to the training images, and let it remember the training texts."""
        latents = turned(self.vae.mode(self.latents.moments), self.config.flow.losses.turn)
        self.head.start_from(latents[torch.tensor(self.train)])
        if isinstance(self.states, States):  # those of an encoder that is trained would move
            texts = _distinct_texts(
                self.train_captions or [item["captions"] for item in self.latents.items], self.train
            )
            self.head.remember(**self.states.rows(list(texts)), images=list(texts.values()), latents=latents)

    def make_batches(self, settings: Flow, teacher_inputs: Callable | None = None) -> None:
        """Set ``batches``, and ``held_out``, whose samples are as in inference: no dropped tokens, none null."""
        data, options = (self.latents, self.states, self.vae), {"source": self.inputs.source}
        options["teacher_inputs"] = teacher_inputs
        plain = replace(settings, token_dropout=0.0, losses=replace(settings.losses, null=0.0))
        count, seed = min(settings.optim.batch, len(self.val)), self.config.seed
        self.batches = FlowBatches(*data, self.train, settings, seed, captions=self.train_captions, **options)
        self.held_out = FlowBatches(
            *data, self.val, plain, seed + 1, batch=count, captions=self.val_captions, **options
        )

    def first_texts(self, objective: nn.Module) -> tuple[dict[str, Tensor], list[str]]:
        """Return what the objective's ``texts`` takes for the first held-out captions, and the captions."""
        captions = [self.held_out.texts[i][0] for i in self.val[:IMAGES]]
        return on_device_of(objective, self.states.rows(captions)), captions

    def nearest(self, z: Tensor, items: Tensor, turn: float = 0.0) -> float:
        """Return the share of latents that are nearest to their own image's. Metrics of the field do not show this."""
        means = turned(self.vae.mode(self.latents.moments), turn)
        return (torch.cdist(z.to(means).flatten(1), means.flatten(1)).argmin(1) == items).float().mean().item()


def _distinct_texts(captions: Sequence[Sequence[str]], items: Sequence[int]) -> dict[str, list[int]]:
    """Return the texts to remember, and the items of each.

    Words that more than half of the items have in their captions are those of templates. Of the captions of an item
    that differ only in such words, the shortest one is remembered.
    """
    words = {i: [re.findall(r"\w+", caption.lower()) for caption in captions[i]] for i in items}
    counts = Counter(word for found in words.values() for word in set().union(*found))
    texts: dict[str, list[int]] = {}
    for i in items:
        shortest: dict[tuple[str, ...], str] = {}
        for caption, found in sorted(zip(captions[i], words[i], strict=True), key=lambda pair: len(pair[0])):
            shortest.setdefault(tuple(word for word in found if counts[word] <= len(items) / 2), caption)
        for caption in shortest.values():
            texts.setdefault(caption, []).append(i)
    return texts


class HeadStage(TextToImageStage):
    """Trains the text head alone, with ``anchor``, ``match`` and the KL; the stage ``flow`` then keeps it.

    If the flow loss does not train the head (``detach``), the result is that of joint training, at a sixth of the time
    per step.
    """

    name = "head"

    def __init__(self, config: Config, inputs: StageInputs):
        super().__init__(config, inputs)
        self.losses, self.optim = config.flow.losses, config.flow.head_optim
        self.make_batches(replace(config.flow, optim=self.optim))
        chosen = {name: getattr(self.losses, name) for name in ("kl", "anchor", "match")}
        self.weights = LossWeights(chosen, self.optim.steps, replace(self.losses, weighting="constant"))
        self.objective = HeadObjective(self.head, self.losses)
        self.heads = metrics.default_heads(self.objective)

    def validate(self, objective: nn.Module) -> dict[str, float]:
        batch = on_device_of(objective, self.held_out(0))
        mu = objective.text_head(batch["states"], batch["mask"])[0][: len(batch["z1"])]
        nearest = self.nearest(mu, self.held_out.order(0), self.losses.turn)
        return super().validate(objective) | {"val/nearest": nearest}

    def draw(self, objective: nn.Module, path: Path) -> None:
        texts, captions = self.first_texts(objective)
        mu, _ = objective.text_head(**texts)
        save_sheet(self.vae.decode(turned(mu, -self.losses.turn).to(self.vae.device)), captions, path)

    def finish(self, objective: nn.Module) -> Path:
        objective.text_head.save_pretrained(self.result)
        return self.result


class FlowStage(TextToImageStage):
    """Trains the velocity network and, unless the stage ``head`` has done so, the text head; leaves a pipeline."""

    name = "flow"

    def __init__(self, config: Config, inputs: StageInputs):
        super().__init__(config, inputs)
        settings, self.optim, head = config.flow, config.flow.optim, self.head
        if self._load_finished_head():
            settings = replace(settings, losses=replace(settings.losses, kl=0.0, anchor=0.0, match=0.0, others=0))
        losses = self.losses = settings.losses
        if losses.detach and not any((losses.kl, losses.anchor, losses.match, losses.contrastive, losses.dino)):
            head.requires_grad_(False)  # nothing trains it, and DDP would wait for its gradients
        head_trains = any(p.requires_grad for p in head.parameters())
        encoder = self.encoder if isinstance(self.states, Prompts) else None
        if encoder and not head_trains:
            encoder.requires_grad_(False)
        teacher, cache = inputs.teacher, config.data.cache
        features, for_batches = teacher_inputs(teacher, losses, inputs.source, self.train, cache)
        net = DiMR(**settings.net)
        self.objective = FlowObjective(head, net, losses, teacher, features, encoder, fp32_net=settings.fp32_net)
        inputs.load_start(velocity_net=net, **({"text_encoder": encoder} if encoder else {}))
        self.make_batches(settings, for_batches)
        self.weights = LossWeights({name: getattr(losses, name) for name in LOSSES}, self.optim.steps, losses)
        self.heads = metrics.default_heads(self.objective)
        if encoder and encoder.queries.requires_grad:
            self.heads["queries"] = "text_encoder.queries"
        if not head_trains:
            del self.heads["z_head"]
        self.alarm = losses.alarm
        self.constants = {  # runs can be compared only if they agree in these
            "run/vae_digest": weights_sha256(self.vae),
            "run/resolution": str(config.data.size),
            "run/latent_size": "x".join(map(str, self.shape)),
            "run/scale": f"{self.vae.config.scaling_factor:g}",
        }

    def _load_finished_head(self) -> bool:
        """Load and freeze the head that the stage ``head`` has trained, if there is one."""
        finished = self.inputs.folder / "head" / "result"
        if not finished.is_dir():
            return False
        ready = type(self.head).from_pretrained(finished)
        if other := differing_arguments(ready, self.head):
            raise ValueError(
                f"the head in {finished} has {other}, unlike flow.head: train the stage head again in another folder"
            )
        self.head.load_state_dict(ready.state_dict())
        self.head.requires_grad_(False)
        return True

    def validate(self, objective: nn.Module) -> dict[str, float]:
        batch = on_device_of(objective, self.held_out(0))
        tensors = objective(**batch).tensors
        ends = objective.velocity, tensors["z0"], tensors["z1"]
        values = super().validate(objective) | metrics.endpoint(*ends)
        values["val/nearest"] = self.nearest(integrated(objective, tensors["z0"]).x, self.held_out.order(0))
        if len(batch["t"]) > 1:  # with one sample, there is no other condition
            values |= metrics.condition(*ends, batch["t"], generator=drawn(self.config.seed, 5))
        return values

    def generate(self, objective: nn.Module) -> tuple[Sample, list[str]]:
        """Return (z1, trace) of the first held-out captions, and the captions."""
        texts, captions = self.first_texts(objective)
        return generate(objective, **texts, seed=self.config.seed), captions

    def draw(self, objective: nn.Module, path: Path) -> None:
        generated, captions = self.generate(objective)
        save_sheet(self.vae.decode(generated.x.to(self.vae.device)), captions, path)

    def finish(self, objective: nn.Module) -> Path:
        folder, data = self.inputs.folder, self.config.data
        self.generate(objective)[0].trace.to_jsonl(folder / "flow" / "trace.jsonl")  # for fmpipe report
        pipe = FlowPipeline(
            objective.text_encoder or self.encoder,
            objective.text_head,
            objective.velocity_net,
            self.vae,
            source=data.source if data.source in REBUILT and not data.sources and not data.path else None,
            max_guidance=None if self.losses.null else 1.0,
            **SAMPLING,
        )
        pipe.save_pretrained(folder / "pipeline")
        return folder / "pipeline"


@torch.no_grad()
def generate(objective: FlowObjective, *, seed: int = 0, steps: int = STEPS, **texts: Tensor) -> Sample:
    """Return (z1, trace) of texts as a batch contains them; the noise depends on the seed."""
    mu, logvar = objective.text_head(*objective.texts(**texts))
    eps = torch.randn(mu.shape, generator=drawn(seed, 6)).to(mu)
    z0, _, _ = reparameterize(mu.float(), logvar.float(), eps=eps)
    return integrated(objective, z0, steps)


def integrated(objective: FlowObjective, z0: Tensor, steps: int = STEPS) -> Sample:
    """Return (z1, trace). A state that is not finite raises no error here: the losses of training do."""
    return sample(objective.velocity, z0, uniform(steps), trace=Trace(nonfinite="continue"))
