"""The losses of a training step as functions of tensors; their weights are in ``loss_weights.py``."""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from fmkernels import flow_loss
from fmkernels.eager import inward_clamp
from fmkernels.ops.path import VelocityStats

MAX_LOG_TEMPERATURE = math.log(100.0)  # CLIP's bound: beyond it, one pair of a batch has the whole gradient
GAMMA = 5.0  # of min-SNR
MATCH_TEMPERATURE = 0.1  # mean squared difference of latents that counts as one nat


def _wide(x: Tensor) -> Tensor:
    """Return x in fp32; fp64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def multi_scale(net: nn.Module, target: Tensor) -> list[Tensor]:
    """Return the target of each velocity of ``net``: ``net.targets(target)`` of a DiMR, coarse to fine."""
    return net.targets(target) if hasattr(net, "targets") else [target]


def flow(
    velocities: Sequence[Tensor], target: Tensor, targets: Sequence[Tensor], t: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, VelocityStats]:
    """Return ``Σ_k mean_b weight[b] · mean((v_k[b] - targets_k[b])²)`` and the statistics of the last (finest) scale.

    velocities, targets: (B, C, H_k, W_k), coarse to fine; targets: :func:`multi_scale` of target (B, C, H, W).
    t, weight: (B,). Only the velocities get gradients. Raises ValueError if velocities and targets do not pair.
    """
    if len(velocities) != len(targets) or targets[-1].shape != target.shape:
        raise ValueError(
            f"flow: {len(velocities)} velocities need as many targets, the last of target's shape "
            f"{tuple(target.shape)}; got {[tuple(x.shape) for x in targets]}"
        )
    *coarse, (finest, finest_target) = zip(velocities, targets, strict=True)
    loss, stats = flow_loss(finest, v_target=finest_target, t=t, weight=weight, return_stats=True)
    return sum((flow_loss(v, v_target=x, weight=weight) for v, x in coarse), loss), stats


def kl_standard(mu: Tensor, logvar: Tensor, kl: Tensor) -> Tensor:
    """Return ``mean ½(mu² + exp(logvar) - 1 - logvar)`` over all elements, from the (B,) sums of ``reparameterize``.

    mu, logvar: (B, ...). logvar is unused: both KLs have the same first arguments.
    """
    return kl.sum() / mu.numel()


def kl_crossflow(mu: Tensor, logvar: Tensor, clamp: tuple[float, float] = (-6.0, 6.0)) -> Tensor:
    """Return ``mean ½((0.3 mu)⁶ + exp(logvar) - 1 - logvar)``: mu is free up to about 3 and strongly bounded beyond.

    mu, logvar: (B, ...). logvar is clamped as in ``reparameterize``: outside the bounds, its gradient passes only where
    it leads back inside.
    """
    logvar = inward_clamp(_wide(logvar), *clamp)
    return 0.5 * ((0.3 * _wide(mu)).pow(6) + logvar.exp() - 1 - logvar).mean()


class _Gather(torch.autograd.Function):
    """Gathers x of all processes, (B, ...) to (world · B, ...), in the order of ranks.

    All processes compute the same loss L, so each knows dL / d(its own rows), and the backward needs no collective
    call. DDP averages the processes' gradients, but dL / dθ is their sum, hence the factor world. It is not applied to
    L, because a parameter that enters L after the gathering (the temperature) has its whole gradient in every process.
    """

    @staticmethod
    def forward(ctx, x):
        ctx.rows, ctx.rank, ctx.world = len(x), dist.get_rank(), dist.get_world_size()
        everybody = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(ctx.world)]
        dist.all_gather(everybody, x.contiguous())
        return torch.cat(everybody)

    @staticmethod
    def backward(ctx, grad):
        return ctx.world * grad[ctx.rank * ctx.rows : (ctx.rank + 1) * ctx.rows]


class _Placed(torch.autograd.Function):
    """Writes x (B, ...) into the rows of pairs (N, ...) from ``at`` on; pairs are constants. As :class:`_Gather`.

    Every micro-batch computes the same loss L. The gradients of micro-batches are averaged, but dL / dθ is their sum,
    hence the factor N / B. There is no communication: pairs contains the rows of all processes.
    """

    @staticmethod
    def forward(ctx, x, pairs, at):
        ctx.rows, ctx.factor = slice(at, at + len(x)), len(pairs) / len(x)
        pairs = pairs.to(x.dtype, copy=True)
        pairs[ctx.rows] = x
        return pairs

    @staticmethod
    def backward(ctx, grad):
        return ctx.factor * grad[ctx.rows], None, None


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def pairs(text: Tensor, image: Tensor) -> Tensor:
    """Return the rows of text and image, (B, D) each, normalized to length 1, as (B, 2, D) in fp32."""
    if text.dim() != 2 or text.shape != image.shape:
        raise ValueError(
            f"contrastive: text and image must be (B, D) alike, got {tuple(text.shape)}, {tuple(image.shape)}"
        )
    return torch.stack([F.normalize(_wide(text), dim=1), F.normalize(_wide(image), dim=1)], dim=1)


def contrastive(
    text: Tensor, image: Tensor, log_temperature: Tensor, batch: Tensor | None = None, at: Tensor | int = 0
) -> Tensor:
    """Return symmetric InfoNCE, ``½(CE(s · a bᵀ) + CE(s · b aᵀ))`` with the diagonal as labels, in fp32.

    text, image: (B, D); a, b are their rows, normalized to length 1, and row k of both is a pair. log_temperature:
    learned; ``s = exp(log_temperature)`` as CLIP's logit_scale, at most 100, where its gradient passes only downwards.
    The rows of all processes are negatives: the loss is that of the whole batch in every process, and DDP's mean of the
    gradients is its gradient. B must be the same in all. Under no_grad (validation), only the process's own rows count.

    batch: for a micro-batch, the :func:`pairs` of the whole batch, of which it is the rows from ``at`` on. The loss is
    then that of the whole batch, and the mean of the micro-batches' gradients is its gradient.
    """
    own = pairs(text, image)
    if batch is not None:
        own = _Placed.apply(own, batch, int(at))
    elif _distributed() and torch.is_grad_enabled():
        own = _Gather.apply(own)
    text, image = own.unbind(1)
    device = "cpu" if text.is_meta else text.device.type  # meta: a dry run
    with torch.autocast(device, enabled=False):  # bf16 products times 100 have too large rounding errors
        logits = inward_clamp(log_temperature, -math.inf, MAX_LOG_TEMPERATURE).exp() * text @ image.T
    label = torch.arange(len(logits), device=logits.device)
    return 0.5 * (F.cross_entropy(logits, label) + F.cross_entropy(logits.T, label))


def dino(
    student_logits: Tensor, teacher_logits: Tensor, centre: Tensor, t_student: float = 0.1, t_teacher: float = 0.04
) -> tuple[Tensor, Tensor]:
    """Return ``mean_b -Σ_k p_k log softmax(student / t_student)_k``, ``p = softmax((teacher - centre) / t_teacher)``.

    Logits: (B, K). centre: (K,), of :class:`Centre`. Computed in fp32; the teacher gets no gradient.
    """
    p = ((_wide(teacher_logits.detach()) - centre) / t_teacher).softmax(-1)
    return -(p * (_wide(student_logits) / t_student).log_softmax(-1)).sum(-1).mean(), p


class Centre(nn.Module):
    """``value ← momentum · value + (1 - momentum) · mean(teacher_logits)``, (K,), the mean over all processes' rows.

    Subtracted from the teacher's logits, it prevents one prototype from getting all samples. Update it after the loss.
    parts: number of micro-batches; the value changes once per step, at the last one.
    """

    def __init__(self, prototypes: int, momentum: float = 0.9):
        super().__init__()
        self.momentum, self.parts, self._means = momentum, 1, []
        self.register_buffer("value", torch.zeros(prototypes))

    @torch.no_grad()
    def update(self, teacher_logits: Tensor) -> None:
        self._means.append(teacher_logits.to(self.value.dtype).mean(0))
        if len(self._means) < self.parts:
            return
        mean, self._means = torch.stack(self._means).mean(0), []
        if _distributed():
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        self.value.lerp_(mean, 1 - self.momentum)


def anchor(mu: Tensor, z1: Tensor) -> Tensor:
    """Return ``mean((mu - z1)²)`` over all elements, which pulls mu toward the mean image of its text.

    mu, z1: (B, ...). Computed in fp32; only mu gets a gradient.
    """
    return (_wide(mu) - _wide(z1.detach())).square().mean()


def turned(z1: Tensor, degrees: float) -> Tensor:
    """Return z1 (B, C, ...) with its channels rotated in pairs: ``(a, b) -> (a cos - b sin, a sin + b cos)``, C even.

    This is the target of mu. If mu were z1 itself, the flow would have only noise as its target, which is unpredictable
    near t = 1. With a rotation, most of it follows from the image, and no x_t between the two loses the image, as it
    would with -z1.
    """
    if not degrees:
        return z1
    a, b = z1.unflatten(1, (-1, 2)).unbind(2)
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return torch.stack([c * a - s * b, s * a + c * b], 2).flatten(1, 2)


def match(mu: Tensor, z1: Tensor, temperature: float = MATCH_TEMPERATURE, own: Tensor | None = None) -> Tensor:
    """Return the cross-entropy of ``-mean((mu[b] - z1[n])²) / temperature`` over n, with its own image as the label.

    mu: (B, ...). z1: (N, ...). own: (B,), the index in z1 of the image of mu[b]; b if None. A squared error alone
    leaves mu of a vague text between all images. Computed in fp32; only mu gets a gradient.
    """
    mu, z1 = (_wide(x).flatten(1) for x in (mu, z1.detach()))
    apart = torch.cdist(mu, z1).square() / mu.shape[1]
    return F.cross_entropy(-apart / temperature, torch.arange(len(mu), device=mu.device) if own is None else own)


def norm_alignment(v_pred: Tensor, v_target: Tensor) -> Tensor:
    """Return ``mean_b (‖v_pred[b]‖ - ‖v_target[b]‖)² / n``, n elements per sample; never larger than the flow loss.

    v_pred, v_target: (B, ...). Computed in fp32; only v_pred gets a gradient, which is 0 where v_pred is 0.
    """
    predicted, wanted = (_wide(v).flatten(1).norm(dim=1) for v in (v_pred, v_target.detach()))
    return (predicted - wanted).square().mean() / v_pred[:1].numel()


class Diffusion(nn.Module):
    """The plain diffusion objective: linear betas, z1 predicted from ``√ᾱ_t z1 + √(1 - ᾱ_t) eps``, t in 0 … T - 1.

    Time weight: min-SNR, ``w_t ∝ min(ᾱ_t / (1 - ᾱ_t), 5)``, usual for predicting data. The weight of the noise
    objective, SNR, is concentrated on the last few steps, for which a copy of x_t is a solution; without a weight, the
    noisiest steps dominate, where only the mean of the data can be learned. The mean over t is 1, which keeps the
    meaning of the learning rate. The buffers are computed in fp64, rounded to fp32, and not in the state dict.
    """

    def __init__(self, T: int = 1000, beta_start: float = 1e-4, beta_end: float = 0.02):  # noqa: N803
        super().__init__()
        if T < 1 or not 0 < beta_start <= beta_end < 1:
            raise ValueError(
                f"Diffusion: T must be at least 1 and 0 < beta_start <= beta_end < 1, got {T}, {beta_start}, {beta_end}"
            )
        betas = torch.linspace(beta_start, beta_end, T, dtype=torch.float64)
        kept = (1 - betas).cumprod(0)
        weight = (kept / (1 - kept)).clamp(max=GAMMA)
        rows = {
            "betas": betas,
            "alphas_cumprod": kept,
            "sqrt_alphas_cumprod": kept.sqrt(),
            "sqrt_one_minus_alphas_cumprod": (1 - kept).sqrt(),
            "time_weight": weight / weight.mean(),
        }
        for name, row in rows.items():
            self.register_buffer(name, row.float(), persistent=False)

    def add_noise(self, z1: Tensor, eps: Tensor, t: Tensor) -> Tensor:
        """Return x_t in fp32. z1, eps: (B, ...). t: (B,), integers."""
        rows = self.sqrt_alphas_cumprod, self.sqrt_one_minus_alphas_cumprod
        signal, rest = (row[t].view(-1, *[1] * (z1.dim() - 1)) for row in rows)
        return signal * z1.float() + rest * eps.float()

    def loss(self, z1_pred: Tensor, z1: Tensor, t: Tensor, time_weight: bool) -> Tensor:
        """Return ``mean_b w_t · mean((z1_pred[b] - z1[b])²)``; w_t = 1 without time_weight."""
        return flow_loss(z1_pred, v_target=z1, weight=self.time_weight[t] if time_weight else None)
