"""The objectives of the stages: modules whose forward takes a batch and returns its losses and intermediate tensors.

z0 is the text latent, z1 the image latent, x_t a point between them, v the velocity and eps noise.
"""

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
from fmpipe.train.embeddings import ImageTower, Projection, Prototypes, ema_update
from fmpipe.train.switches import without_autocast
from fmpipe.train.teacher import Alignment, SoftTargets, Teacher, repa_layer
from fmpipe.train.times import edge_weight

EMBEDDING = 128
TEACHER_MOMENTUM = 0.99
LOGVAR = (-30.0, 20.0)  # bounds of an autoencoder's logvar, as in LDM
# Tensor of an outcome -> its name in the log (stat/<name>/...), where data is x_0 and what the path starts from noise.
LOG_NAMES = {
    "z1": "x_0",
    "pixels": "x_0",
    "t": "t",
    "z0": "noise",
    "eps": "noise",
    "latent": "noise",
    "x_t": "x_t",
    "z1_pred": "predicted_x0",
    "decoded": "predicted_x0",
    "z1_target": "x_0_target",
    "v_pred": "v_pred",
}


@dataclass
class Outcome:
    """What an objective returns.

    losses: 0-d and not weighted. tensors: those of the step, in the order in which they were computed. stats: of the
    fused ops. metrics: other numbers for the log, 0-d tensors under their names there.
    """

    losses: dict[str, Tensor]
    tensors: dict[str, Tensor]
    stats: list[object] = field(default_factory=list)
    metrics: dict[str, Tensor] = field(default_factory=dict)


class FlowObjective(nn.Module):
    """Text states to z0, a point x_t between z0 and z1, the velocity there, and the losses that have a weight.

    Gradients of the flow loss reach the text head through x_t only (none with ``detach``): its target is detached.

    teacher: the external teacher of ``dino`` and ``repa``, if the config names one; features: (N, D), its features of
    a sample of the training images. text_encoder: one that is trained and runs in every step; None if the batches
    contain its states. Its frozen parameters are not in the state dict. fp32_net: run the network in fp32 in autocast.
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
        if not config.multi_scale:
            _freeze_coarse(velocity_net)
        self.register_state_dict_post_hook(_without_frozen)
        self.register_load_state_dict_pre_hook(_with_frozen)
        self.couples = bool(config.contrastive)  # a sample's gradient depends on the other samples of its batch
        shape = tuple(text_head.config.latent_shape)
        if config.contrastive:
            self.tower = ImageTower(shape[0], EMBEDDING)
            self.log_temperature = nn.Parameter(torch.tensor([math.log(1 / 0.07)]))  # (1,): shards are rows
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
        """Return the outcome of a batch of B samples.

        z1, eps: (B, C, H, W). states, mask: (B, L, D) and (B, L). t, null: (B,), null is bool.
        ids, mask, prefix: the prompts instead of states, for a trained text encoder (``MetaQueryText.encode``).
        ends: the image latent at the end of the flow, z1 if None. Null samples have that of another sample, so that
        their velocity does not depend on their text.
        candidates: (N, C, H, W), the latents of N texts for ``anchor`` and ``match``. states and mask are those of the
        N texts then, and ``rows`` (B,) is the index of each sample among them. With ``own`` (B,) instead of rows,
        states and mask are the batch's, and own is the index of each sample among the candidates.
        pairs, at: of :func:`losses.contrastive` for a micro-batch; with pairs=True, only its pairs are computed.
        features (B, D), patches (B, D, h, w): an external teacher's features of the images of z1, and its patches of
        those of ends. Or pixels: the images of z1 in [-1, 1], and end_pixels: those of ends for the samples end_rows,
        where they differ.
        """
        config, net, ends = self.config, self.velocity_net, z1 if ends is None else ends
        states, mask = self.texts(mask, states, ids, prefix)
        targets = _targets(config, z1, candidates, own)
        means, mu, logvar, nll, mixed = _moments(self.text_head, states, mask, rows, targets)
        z0, kl, head_stats = reparameterize(mu, logvar, eps=eps)
        if pairs is True:
            return Outcome({}, {"pairs": losses.pairs(self.project(z0), self.tower(z1))})
        x_t, target = flow_pair(t, z0.detach() if config.detach else z0, ends)
        options = {"hidden": self.repa.layer} if config.repa else {}
        with without_autocast(x_t) if self.fp32_net else contextlib.nullcontext():
            velocities = net.velocities(x_t, t, null=null, **options)
        if config.repa:
            velocities, hidden = velocities
        targets = losses.multi_scale(net, target)
        if not config.multi_scale:
            velocities, targets = velocities[-1:], targets[-1:]
        weight = edge_weight(t, config.edge_weight) if config.edge_weight else None
        flow, stats = losses.flow(velocities, target, targets, t, weight)
        v = velocities[-1].float()
        text_losses = _text_losses(config, means, mu, logvar, kl, z1, candidates, own, nll)
        parts, metrics = {"flow": flow, **text_losses}, mixed
        if pixels is not None:
            features, patches = self._from_pixels(pixels, end_pixels, end_rows)
        if config.contrastive or config.dino:
            text = self.project(z0)
        if config.contrastive:
            parts["contrastive"] = losses.contrastive(text, self.tower(z1), self.log_temperature, pairs, at)
        if config.dino:
            parts["dino"], entropies = self._dino(text, z1 if self.external is None else features)
            metrics |= entropies
        if config.repa:
            parts["repa"] = self.repa(hidden, patches)
        if config.norm:
            parts["norm"] = losses.norm_alignment(v, target)
        with torch.no_grad():
            z1_pred = x_t + (1 - t).view(-1, 1, 1, 1) * v
            norms = {"z0": z0, "z1": z1, "x_t": x_t, "v*": target}
            metrics |= {f"scale/{name}": x.flatten(1).norm(dim=1).mean() for name, x in norms.items()}
        tensors = {"states": states, "mu": mu, "logvar": logvar, "z1": ends, "t": t, "z0": z0, "x_t": x_t}
        tensors |= {"v_pred": velocities[-1], "z1_pred": z1_pred, "z1_target": ends}
        return Outcome(parts, tensors, [stats, head_stats], metrics)

    def texts(
        self, mask: Tensor, states: Tensor | None = None, ids: Tensor | None = None, prefix: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the states of the batch's texts and their mask."""
        if self.text_encoder is None:
            return states, mask
        states, mask = self.text_encoder.encode(ids, mask, prefix)
        return states.to(self.text_head.dtype), mask

    def _from_pixels(self, pixels: Tensor, end_pixels: Tensor | None, end_rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the teacher's features of the images of z1, and its patches of the images of ends."""
        features, patches = self.external(pixels)
        if end_pixels is not None:
            patches = patches.index_copy(0, end_rows, self.external(end_pixels)[1])
        return features, patches

    def _dino(self, text: Tensor, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and its metrics. images: z1, or the features of an external teacher."""
        t_teacher, t_student = self.config.temperatures
        with torch.no_grad():
            teacher = self.teacher(images) if self.external is None else self.soft_targets(images)
        student = self.prototypes(text)
        loss, _ = losses.dino(student, teacher, self.centre.value, t_student, t_teacher)
        metrics = {
            "ent/teacher": entropy(teacher - self.centre.value, t_teacher),
            "ent/student": entropy(student, t_student),
        }
        if self.training:
            self.centre.update(teacher)
        elif len(text) > 1:  # with the targets of other images, for the ablation
            metrics["ent/shuffled"], _ = losses.dino(
                student, teacher.roll(1, 0), self.centre.value, t_student, t_teacher
            )
        return loss, metrics

    def train(self, mode: bool = True) -> "FlowObjective":
        """Keep a text head that is not trained in eval mode, without dropout."""
        super().train(mode)
        if not any(p.requires_grad for p in self.text_head.parameters()):
            self.text_head.eval()
        return self

    def velocity(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the velocity of conditional samples."""
        return self.velocity_net.velocity(x, t, null=torch.zeros(len(x), dtype=torch.bool, device=x.device))

    def after_step(self) -> None:
        """Update DINO's own teacher, the moving average of the image tower."""
        if self.config.dino and self.external is None:
            ema_update(self.teacher, nn.Sequential(self.tower, self.prototypes), TEACHER_MOMENTUM)


class HeadObjective(nn.Module):
    """The losses of the text head alone: ``anchor``, ``match`` and the KL."""

    def __init__(self, text_head: VariationalHead, config: Losses):
        super().__init__()
        if not config.anchor and not config.match:
            raise ValueError("stage head has no loss to train with: set flow.losses.anchor or flow.losses.match")
        if config.contrastive or config.dino:
            raise ValueError(
                "stage head does not support contrastive or dino: set them to 0 in flow.losses, or remove head from "
                "stages"
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
        """Return the outcome of a batch; the arguments are those of :class:`FlowObjective`."""
        targets = _targets(self.config, z1, candidates, own)
        means, mu, logvar, nll, mixed = _moments(self.text_head, states, mask, rows, targets)
        z0, kl, stats = reparameterize(mu, logvar, eps=eps)
        parts = _text_losses(self.config, means, mu, logvar, kl, z1, candidates, own, nll)
        return Outcome(parts, {"states": states, "mu": mu, "logvar": logvar, "z0": z0, "z1": z1}, [stats], mixed)

    def after_step(self) -> None: ...


def _freeze_coarse(net: DiMR | DiT) -> None:
    """Freeze the velocities of the coarser stages, which no loss uses: DDP would wait for their gradients."""
    for stage in list(getattr(net, "stages", []))[:-1]:
        stage.output_layer.requires_grad_(False)


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


def _targets(config: Losses, z1: Tensor, candidates: Tensor | None, own: Tensor | None) -> Tensor:
    """Return what mu of every text should be: the turned latent of its own image."""
    if candidates is not None:
        z1 = candidates if own is None else candidates[own]
    return losses.turned(z1, config.turn)


def _moments(head: VariationalHead, states: Tensor, mask: Tensor, rows: Tensor | None, targets: Tensor) -> tuple:
    """Return the means of all texts, mu and logvar of the batch's rows, the mixture's loss or None, its statistics.

    A mixture has those of the component that fits the image, so that the flow connects each component with an image.
    """
    means, logvar, nll, mixed = head.fitted(states, mask, targets, losses.MATCH_TEMPERATURE)
    means, logvar = means.float(), logvar.float()
    return means, *((means, logvar) if rows is None else (means[rows], logvar[rows])), nll, mixed


def _text_losses(
    config: Losses,
    means: Tensor,
    mu: Tensor,
    logvar: Tensor,
    kl: Tensor,
    z1: Tensor,
    candidates: Tensor | None,
    own: Tensor | None,
    nll: Tensor | None,
) -> dict[str, Tensor]:
    """Return the losses of the text head that need no flow.

    means: of all texts; mu, logvar, kl, z1: of the batch; nll: the loss of a mixture, which has its own ``match``.
    """
    parts = {}
    if config.kl:
        crossflow = config.kl_kind == "crossflow"
        parts["kl"] = losses.kl_crossflow(mu, logvar) if crossflow else losses.kl_standard(mu, logvar, kl)
    if config.anchor:
        parts["anchor"] = losses.anchor(means, _targets(config, z1, candidates, own))
    if config.match and nll is not None:
        parts["match"] = nll
    elif config.match:
        targets = losses.turned(z1 if candidates is None else candidates, config.turn)
        parts["match"] = losses.match(means, targets, own=own)
    return parts


class VAEObjective(nn.Module):
    """The L1, MSE and KL losses of a diffusers AutoencoderKL, each a mean over elements."""

    def __init__(self, vae: AutoencoderKL):
        super().__init__()
        self.vae = vae

    def forward(self, pixels: Tensor, eps: Tensor) -> Outcome:
        """Return the outcome of a batch. pixels: (B, 3, H, W) in [-1, 1]. eps: (B, C, h, w)."""
        mean, logvar = self.vae.encode(pixels).latent_dist.parameters.float().chunk(2, dim=1)
        latent, kl, _ = reparameterize(mean, logvar, eps=eps, clamp=LOGVAR)
        decoded = self.vae.decode(latent).sample.float()
        error = decoded - pixels
        parts = {"l1": error.abs().mean(), "mse": error.square().mean(), "kl": kl.sum() / mean.numel()}
        with torch.no_grad():
            psnr = (10 * torch.log10(4 / error.square().flatten(1).mean(1).clamp_min(1e-12))).mean()
        tensors = {"pixels": pixels, "mu": mean, "logvar": logvar, "latent": latent, "decoded": decoded}
        return Outcome(parts, tensors, metrics={"vae/psnr": psnr})

    def after_step(self) -> None: ...


class DiffusionObjective(nn.Module):
    """The plain diffusion objective: a velocity network predicts z1 from ``√ᾱ z1 + √(1 - ᾱ) eps``, without text."""

    def __init__(self, net: DiMR, time_weight: bool):
        super().__init__()
        self.velocity_net, self.time_weight, self.diffusion = net, time_weight, losses.Diffusion()
        _freeze_coarse(net)
        for name, parameter in net.named_parameters():
            if name.endswith(("tensor_true", "tensor_false")):  # the null indicator, which is not passed
                parameter.requires_grad_(False)

    def forward(self, z1: Tensor, eps: Tensor, steps: Tensor) -> Outcome:
        """Return the outcome of a batch. z1, eps: (B, C, H, W). steps: (B,) in 0 … T - 1."""
        x_t = self.diffusion.add_noise(z1, eps, steps)
        predicted = self.velocity_net.velocity(x_t, steps / len(self.diffusion.betas)).float()
        loss = self.diffusion.loss(predicted, z1, steps, self.time_weight)
        tensors = {"z1": z1, "t": steps, "eps": eps, "x_t": x_t, "z1_pred": predicted, "z1_target": z1}
        return Outcome({"diffusion": loss}, tensors)

    def after_step(self) -> None: ...
