"""What a stage minimises: a module whose forward takes a batch and gives the losses by name, and what it made."""

import contextlib
import copy
import math
from dataclasses import dataclass, field

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from fmkernels import flow_pair, reparameterize
from fmpipe.metrics import entropy
from fmpipe.models import DiMR, DiT, VariationalHead
from fmpipe.text import MetaQueryText
from fmpipe.train import losses
from fmpipe.train.config import Losses
from fmpipe.train.switches import without_autocast
from fmpipe.train.teacher import Alignment, SoftTargets, Teacher, repa_layer
from fmpipe.train.times import edge_weight
from fmpipe.train.tower import ImageTower, Projection, Prototypes, ema_update

EMBEDDING = 128
TEACHER_MOMENTUM = 0.99
LOGVAR = (-30.0, 20.0)  # of an autoencoder, LDM's
STATISTICS = ("x_0", "t", "noise", "x_t", "predicted_x0", "x_0_target", "v_pred")  # the log's


@dataclass
class Outcome:
    """losses: 0-d, not weighted. made: the step's tensors in the order they were made. stats: of the fused ops.

    figures: other numbers for the log, 0-d tensors under their names there.
    """

    losses: dict[str, Tensor]
    made: dict[str, Tensor]
    stats: list[object] = field(default_factory=list)
    figures: dict[str, Tensor] = field(default_factory=dict)


class FlowObjective(nn.Module):
    """Text states to z0, x_t on the way to z1, the velocity there; and whichever losses have a weight.

    Gradients of the flow loss reach the head through x_t only (``detach``: not at all): its target is cut off by
    construction. teacher: the external one of ``dino`` and ``repa``, if the config names one; features (N, D): what it
    makes of a sample of the training images. text_encoder: one that is trained and runs in every step; None if the
    batches have its states. Its frozen parameters are not in the state dict.
    """

    def __init__(
        self,
        text_head: VariationalHead,
        velocity_net: DiMR | DiT,
        config: Losses,
        teacher: Teacher | None = None,
        features: Tensor | None = None,
        text_encoder: MetaQueryText | None = None,
        *,
        fp32_net: bool = False,
    ):
        super().__init__()
        self.text_head, self.velocity_net, self.config, self.fp32_net = text_head, velocity_net, config, fp32_net
        self.text_encoder = text_encoder
        self.register_state_dict_post_hook(_without_frozen)
        self.register_load_state_dict_pre_hook(_with_frozen)
        self.couples = bool(config.contrastive)  # a sample's gradient depends on the others of its batch
        shape = tuple(text_head.config.latent_shape)
        if config.contrastive:
            self.tower = ImageTower(shape[0], EMBEDDING)
            self.log_temperature = nn.Parameter(torch.tensor([math.log(1 / 0.07)]))  # (1,): shards have rows
        if config.contrastive or config.dino:
            self.project = Projection(math.prod(shape), EMBEDDING)
        if config.dino:
            self.prototypes, self.centre = (
                Prototypes(EMBEDDING, config.dino_classes),
                losses.Centre(config.dino_classes),
            )
            if teacher is None:
                self.teacher = copy.deepcopy(nn.Sequential(self.tower, self.prototypes)).requires_grad_(False)
            else:
                self.soft_targets = SoftTargets(features, config.dino_classes, EMBEDDING)
        if config.repa:
            layer = repa_layer(velocity_net, config.repa_layer)
            self.repa = Alignment(velocity_net.hidden_widths[layer], teacher.dim, layer)
        self.external = teacher

    def forward(
        self,
        z1: Tensor,
        mask: Tensor,
        eps: Tensor,
        t: Tensor,
        null: Tensor,
        states: Tensor | None = None,
        ends: Tensor | None = None,
        candidates: Tensor | None = None,
        rows: Tensor | None = None,
        ids: Tensor | None = None,
        prefix: Tensor | None = None,
        features: Tensor | None = None,
        patches: Tensor | None = None,
        pixels: Tensor | None = None,
        end_pixels: Tensor | None = None,
        end_rows: Tensor | None = None,
        own: Tensor | None = None,
        pairs: Tensor | bool | None = None,
        at: int = 0,
    ) -> Outcome:
        """z1, eps: (B, C, H, W). states: (B, L, D), mask: (B, L). t: (B,). null: (B,) bool.

        ids, mask, prefix: the prompts in place of states, for a trained text encoder (``MetaQueryText.encode``).

        ends: where the flow goes, z1 if left out; null samples have another's, so that their velocity knows no text.
        candidates: (N, C, H, W), the latents of N texts for ``anchor`` and ``match``; states and mask are then theirs,
        and ``rows`` (B,) says which of them the batch has. With ``own`` (B,) instead of rows, the texts are the batch's
        alone, and own says which of the candidates is theirs.
        pairs, at: of :func:`losses.contrastive` for a micro-batch; pairs=True only makes the pairs of this one.
        features (B, D): an external teacher's of z1's images; patches (B, D, h, w): its patches of the images at ends.
        Or pixels: the images of z1, in [-1, 1], and end_pixels: those at ends of the samples end_rows, which differ.
        """
        config, net, ends = self.config, self.velocity_net, z1 if ends is None else ends
        states, mask = self.texts(mask, states, ids, prefix)
        means, mu, logvar = _moments(self.text_head, states, mask, rows)
        z0, kl, head_stats = reparameterize(mu, logvar, eps=eps)
        if pairs is True:
            return Outcome({}, {"pairs": losses.pairs(self.project(z0), self.tower(z1))})
        x_t, target = flow_pair(t, z0.detach() if config.detach else z0, ends)
        more = {"hidden": self.repa.layer} if config.repa else {}
        with without_autocast(x_t) if self.fp32_net else contextlib.nullcontext():
            velocities = net.velocities(x_t, t, null=null, **more)
        if config.repa:
            velocities, hidden = velocities
        targets = losses.multi_scale(net, target)
        if not config.multi_scale:
            velocities, targets = velocities[-1:], targets[-1:]
        weight = edge_weight(t, config.edge_weight) if config.edge_weight else None
        flow, stats = losses.flow(velocities, target, targets, t, weight)
        v = velocities[-1].float()
        parts, figures = {"flow": flow, **_of_text(config, means, mu, logvar, kl, z1, candidates, own)}, {}
        if pixels is not None:
            features, patches = self._encoded(pixels, end_pixels, end_rows)
        if config.contrastive or config.dino:
            text = self.project(z0)
        if config.contrastive:
            parts["contrastive"] = losses.contrastive(text, self.tower(z1), self.log_temperature, pairs, at)
        if config.dino:
            parts["dino"], figures = self._dino(text, z1 if self.external is None else features)
        if config.repa:
            parts["repa"] = self.repa(hidden, patches)
        if config.norm:
            parts["norm"] = losses.norm_alignment(v, target)
        with torch.no_grad():
            ahead = x_t + (1 - t).view(-1, 1, 1, 1) * v
            norms = {"z0": z0, "z1": z1, "x_t": x_t, "v*": target}
            figures |= {f"scale/{name}": x.flatten(1).norm(dim=1).mean() for name, x in norms.items()}
        made = {"states": states, "mu": mu, "logvar": logvar, "x_0": ends, "t": t, "noise": z0, "x_t": x_t}
        made |= {"v_pred": velocities[-1], "predicted_x0": ahead, "x_0_target": ends}
        return Outcome(parts, made, [stats, head_stats], figures)

    def texts(
        self, mask: Tensor, states: Tensor | None = None, ids: Tensor | None = None, prefix: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the states of the batch's texts and their mask."""
        if self.text_encoder is None:
            return states, mask
        states, mask = self.text_encoder.encode(ids, mask, prefix)
        return states.to(self.text_head.dtype), mask

    def _encoded(self, pixels: Tensor, end_pixels: Tensor | None, end_rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """The teacher's features of the images, and its patches of those at the ends."""
        features, patches = self.external(pixels)
        if end_pixels is not None:
            patches = patches.index_copy(0, end_rows, self.external(end_pixels)[1])
        return features, patches

    def _dino(self, text: Tensor, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """images: z1, or the features of an external teacher."""
        t_teacher, t_student = self.config.temperatures
        with torch.no_grad():
            teacher = self.teacher(images) if self.external is None else self.soft_targets(images)
        student = self.prototypes(text)
        loss, _ = losses.dino(student, teacher, self.centre.value, t_student, t_teacher)
        figures = {
            "ent/teacher": entropy(teacher - self.centre.value, t_teacher),
            "ent/student": entropy(student, t_student),
        }
        if self.training:
            self.centre.update(teacher)
        elif len(text) > 1:  # with the targets of other images, for the ablation
            figures["ent/shuffled"], _ = losses.dino(
                student, teacher.roll(1, 0), self.centre.value, t_student, t_teacher
            )
        return loss, figures

    def train(self, mode: bool = True) -> "FlowObjective":
        """A head that is finished is not trained: nothing is dropped in it."""
        super().train(mode)
        if not any(p.requires_grad for p in self.text_head.parameters()):
            self.text_head.eval()
        return self

    def velocity(self, x: Tensor, t: Tensor) -> Tensor:
        """Of what is not null."""
        return self.velocity_net.velocity(x, t, null=torch.zeros(len(x), dtype=torch.bool, device=x.device))

    def after_step(self) -> None:
        """The teacher follows the tower."""
        if self.config.dino and self.external is None:
            ema_update(self.teacher, nn.Sequential(self.tower, self.prototypes), TEACHER_MOMENTUM)


class HeadObjective(nn.Module):
    """The text head alone: what ``anchor``, ``match`` and the KL ask of it."""

    def __init__(self, text_head: VariationalHead, config: Losses):
        super().__init__()
        if not config.anchor and not config.match:
            raise ValueError("stage head has nothing to learn by: give flow.losses.anchor or flow.losses.match")
        if config.contrastive or config.dino:
            raise ValueError(
                "stage head knows no contrastive or dino: take them out of flow.losses, or it out of stages"
            )
        self.text_head, self.config = text_head, config

    def forward(
        self,
        z1: Tensor,
        states: Tensor,
        mask: Tensor,
        eps: Tensor,
        candidates: Tensor | None = None,
        rows: Tensor | None = None,
        own: Tensor | None = None,
        **of_the_flow: Tensor,
    ) -> Outcome:
        """As FlowObjective's, which takes the same batches."""
        means, mu, logvar = _moments(self.text_head, states, mask, rows)
        z0, kl, stats = reparameterize(mu, logvar, eps=eps)
        parts = _of_text(self.config, means, mu, logvar, kl, z1, candidates, own)
        return Outcome(parts, {"states": states, "mu": mu, "logvar": logvar, "noise": z0, "x_0": z1}, [stats])

    def after_step(self) -> None: ...


def _frozen(objective: FlowObjective) -> dict[str, Tensor]:
    """Return the parameters of the text encoder that are not trained, by their names in the objective."""
    if objective.text_encoder is None:
        return {}
    parameters = objective.text_encoder.named_parameters(prefix="text_encoder")
    return {name: p for name, p in parameters if not p.requires_grad}


def _without_frozen(objective: FlowObjective, state: dict[str, Tensor], prefix: str, *_) -> None:
    for name in _frozen(objective):
        state.pop(prefix + name, None)


def _with_frozen(objective: FlowObjective, state: dict[str, Tensor], prefix: str, *_) -> None:
    for name, p in _frozen(objective).items():
        state.setdefault(prefix + name, p.detach())


def _moments(head: VariationalHead, states: Tensor, mask: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """means of all texts; mu and logvar of the batch's rows."""
    means, logvar = (x.float() for x in head(states, mask))
    return (means, means, logvar) if rows is None else (means, means[rows], logvar[rows])


def _of_text(
    config: Losses,
    means: Tensor,
    mu: Tensor,
    logvar: Tensor,
    kl: Tensor,
    z1: Tensor,
    candidates: Tensor | None,
    own: Tensor | None,
) -> dict[str, Tensor]:
    """The losses of the text head that need no flow. means: of all texts; mu, logvar, kl, z1: of the batch."""
    parts = {}
    if config.kl:
        kind = config.kl_kind == "crossflow"
        parts["kl"] = losses.kl_crossflow(mu, logvar) if kind else losses.kl_standard(mu, logvar, kl)
    if config.anchor or config.match:
        pictures = losses.turned(z1 if candidates is None else candidates, config.turn)
    if config.anchor:
        parts["anchor"] = losses.anchor(means, pictures if own is None else pictures[own])
    if config.match:
        parts["match"] = losses.match(means, pictures, own=own)
    return parts


class VAEObjective(nn.Module):
    """``L1``, ``MSE`` and the KL to N(0, I), each a mean over elements, of a diffusers AutoencoderKL."""

    def __init__(self, vae: AutoencoderKL):
        super().__init__()
        self.vae = vae

    def forward(self, pixels: Tensor, eps: Tensor) -> Outcome:
        """pixels: (B, 3, H, W) in [-1, 1]. eps: (B, C, h, w)."""
        mean, logvar = self.vae.encode(pixels).latent_dist.parameters.float().chunk(2, dim=1)
        z, kl, _ = reparameterize(mean, logvar, eps=eps, clamp=LOGVAR)
        decoded = self.vae.decode(z).sample.float()
        apart = decoded - pixels
        parts = {"l1": apart.abs().mean(), "mse": apart.square().mean(), "kl": kl.sum() / mean.numel()}
        with torch.no_grad():
            psnr = (10 * torch.log10(4 / apart.square().flatten(1).mean(1).clamp_min(1e-12))).mean()
        made = {"x_0": pixels, "mu": mean, "logvar": logvar, "noise": z, "predicted_x0": decoded}
        return Outcome(parts, made, figures={"vae/psnr": psnr})

    def after_step(self) -> None: ...


class DiffusionObjective(nn.Module):
    """The plain objective: x0 predicted from ``√ᾱ x0 + √(1 - ᾱ) noise`` by a velocity network, no text."""

    def __init__(self, net: DiMR, time_weight: bool):
        super().__init__()
        self.velocity_net, self.time_weight, self.diffusion = net, time_weight, losses.Diffusion()

    def forward(self, z1: Tensor, noise: Tensor, steps: Tensor) -> Outcome:
        """z1, noise: (B, C, H, W). steps: (B,) in 0 … T - 1."""
        x_t = self.diffusion.add_noise(z1, noise, steps)
        predicted = self.velocity_net.velocity(x_t, steps / len(self.diffusion.betas)).float()
        loss = self.diffusion.loss(predicted, z1, steps, self.time_weight)
        made = {"x_0": z1, "t": steps, "noise": noise, "x_t": x_t, "predicted_x0": predicted, "x_0_target": z1}
        return Outcome({"diffusion": loss}, made)

    def after_step(self) -> None: ...
