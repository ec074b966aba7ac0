"""What a stage minimises: a module whose forward takes a batch and gives the losses by name, and what it made."""

import copy
import math
from dataclasses import dataclass, field

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from fmkernels import flow_pair, reparameterize
from fmpipe.diagnose.metrics import entropy
from fmpipe.models import DiMR, DiT, VariationalHead
from fmpipe.train import losses
from fmpipe.train.config import Losses
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
    construction.
    """

    def __init__(self, text_head: VariationalHead, velocity_net: DiMR | DiT, config: Losses):
        super().__init__()
        self.text_head, self.velocity_net, self.config = text_head, velocity_net, config
        shape = tuple(text_head.config.latent_shape)
        if config.contrastive or config.dino:
            self.tower, self.project = ImageTower(shape[0], EMBEDDING), Projection(math.prod(shape), EMBEDDING)
            self.log_temperature = nn.Parameter(torch.tensor([math.log(1 / 0.07)]))  # (1,): shards have rows
        if config.dino:
            self.prototypes, self.centre = (
                Prototypes(EMBEDDING, config.dino_classes),
                losses.Centre(config.dino_classes),
            )
            self.teacher = copy.deepcopy(nn.Sequential(self.tower, self.prototypes)).requires_grad_(False)

    def forward(
        self,
        z1: Tensor,
        states: Tensor,
        mask: Tensor,
        eps: Tensor,
        t: Tensor,
        null: Tensor,
        ends: Tensor | None = None,
        candidates: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Outcome:
        """z1, eps: (B, C, H, W). states: (B, L, D), mask: (B, L). t: (B,). null: (B,) bool.

        ends: where the flow goes, z1 if left out; null samples have another's, so that their velocity knows no text.
        candidates: (N, C, H, W), the latents of N texts for ``anchor`` and ``match``; states and mask are then theirs,
        and ``rows`` (B,) says which of them the batch has.
        """
        config, net, ends = self.config, self.velocity_net, z1 if ends is None else ends
        means, mu, logvar = _moments(self.text_head, states, mask, rows)
        z0, kl, head_stats = reparameterize(mu, logvar, eps=eps)
        x_t, target = flow_pair(t, z0.detach() if config.detach else z0, ends)
        velocities = net.velocities(x_t, t, null=null) if isinstance(net, DiMR) else [net.velocity(x_t, t, null=null)]
        targets = losses.multi_scale(net, target)
        if not config.multi_scale:
            velocities, targets = velocities[-1:], targets[-1:]
        weight = edge_weight(t, config.edge_weight) if config.edge_weight else None
        flow, stats = losses.flow(velocities, target, targets, t, weight)
        v = velocities[-1].float()
        parts, figures = {"flow": flow, **_of_text(config, means, mu, logvar, kl, z1, candidates)}, {}
        if config.contrastive or config.dino:
            text = self.project(z0)
        if config.contrastive:
            parts["contrastive"] = losses.contrastive(text, self.tower(z1), self.log_temperature)
        if config.dino:
            parts["dino"], figures = self._dino(text, z1)
        if config.norm:
            parts["norm"] = losses.norm_alignment(v, target)
        with torch.no_grad():
            ahead = x_t + (1 - t).view(-1, 1, 1, 1) * v
            norms = {"z0": z0, "z1": z1, "v*": target}
            figures |= {f"scale/{name}": x.flatten(1).norm(dim=1).mean() for name, x in norms.items()}
        made = {"states": states, "mu": mu, "logvar": logvar, "x_0": ends, "t": t, "noise": z0, "x_t": x_t}
        made |= {"v_pred": v, "predicted_x0": ahead, "x_0_target": ends}
        return Outcome(parts, made, [stats, head_stats], figures)

    def _dino(self, text: Tensor, z1: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        t_teacher, t_student = self.config.temperatures
        with torch.no_grad():
            teacher = self.teacher(z1)
        student = self.prototypes(text)
        loss, _ = losses.dino(student, teacher, self.centre.value, t_student, t_teacher)
        figures = {
            "ent/teacher": entropy(teacher - self.centre.value, t_teacher),
            "ent/student": entropy(student, t_student),
        }
        if self.training:
            self.centre.update(teacher)
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
        if self.config.dino:
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
        **of_the_flow: Tensor,
    ) -> Outcome:
        """As FlowObjective's, which takes the same batches."""
        means, mu, logvar = _moments(self.text_head, states, mask, rows)
        z0, kl, stats = reparameterize(mu, logvar, eps=eps)
        parts = _of_text(self.config, means, mu, logvar, kl, z1, candidates)
        return Outcome(parts, {"states": states, "mu": mu, "logvar": logvar, "noise": z0, "x_0": z1}, [stats])

    def after_step(self) -> None: ...


def _moments(head: VariationalHead, states: Tensor, mask: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """means of all texts; mu and logvar of the batch's rows."""
    means, logvar = (x.float() for x in head(states, mask))
    return (means, means, logvar) if rows is None else (means, means[rows], logvar[rows])


def _of_text(
    config: Losses, means: Tensor, mu: Tensor, logvar: Tensor, kl: Tensor, z1: Tensor, candidates: Tensor | None
) -> dict[str, Tensor]:
    """The losses of the text head that need no flow. means: of all candidates; mu, logvar, kl, z1: of the batch."""
    parts = {}
    if config.kl:
        kind = config.kl_kind == "crossflow"
        parts["kl"] = losses.kl_crossflow(mu, logvar) if kind else losses.kl_standard(mu, logvar, kl)
    if config.anchor or config.match:
        pictures = losses.turned(z1 if candidates is None else candidates, config.turn)
    for name, loss in (("anchor", losses.anchor), ("match", losses.match)):
        if getattr(config, name):
            parts[name] = loss(means, pictures)
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
