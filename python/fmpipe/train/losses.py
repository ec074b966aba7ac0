"""The losses of a training step, each a function of plain tensors; the weights are in ``weights.py``."""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from fmkernels import flow_loss
from fmkernels.eager.head import _Clamp  # outside, its gradient passes where it leads back inside
from fmkernels.ops.path import VelocityStats

MAX_LOG_TEMPERATURE = math.log(100.0)  # CLIP's bound: beyond it one pair of a batch takes the whole gradient
GAMMA = 5.0  # of min-SNR


def _wide(x: Tensor) -> Tensor:
    """fp32, or fp64 if it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def multi_scale(net: nn.Module, target: Tensor) -> list[Tensor]:
    """What each velocity of ``net`` is to be: ``net.targets(target)`` of a DiMR, coarse to fine, else the target."""
    return net.targets(target) if hasattr(net, "targets") else [target]


def flow(
    velocities: Sequence[Tensor], target: Tensor, targets: Sequence[Tensor], t: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, VelocityStats]:
    """``Σ_k mean_b weight[b] · mean((v_k[b] - targets_k[b])²)`` and the statistics of the finest scale, the last.

    velocities, targets: (B, C, H_k, W_k), coarse to fine; targets: :func:`multi_scale` of target (B, C, H, W).
    t, weight: (B,). The gradient goes to the velocities alone. ValueError for velocities and targets that do not pair.
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
    """``mean ½(mu² + exp(logvar) - 1 - logvar)`` over all elements, from the (B,) sums of ``reparameterize``.

    mu, logvar: (B, ...). logvar is in kl already: it is taken so that both KLs begin with the same two.
    """
    return kl.sum() / mu.numel()


def kl_crossflow(mu: Tensor, logvar: Tensor, clamp: tuple[float, float] = (-6.0, 6.0)) -> Tensor:
    """``mean ½((0.3 mu)⁶ + exp(logvar) - 1 - logvar)``: mu is free up to about 3 and held hard beyond.

    mu, logvar: (B, ...). logvar is clamped as ``reparameterize`` does it: outside, its gradient passes only where it
    leads back inside.
    """
    logvar = _Clamp.apply(_wide(logvar), *clamp)
    return 0.5 * ((0.3 * _wide(mu)).pow(6) + logvar.exp() - 1 - logvar).mean()


class _Gather(torch.autograd.Function):
    """Every process's x, (B, ...) -> (world · B, ...) in the order of ranks.

    All processes make one and the same loss L of it, so each knows dL / d(its own rows) without asking the others: the
    backward has no collective call to wait in. DDP then takes the mean of the processes' gradients where their sum is
    dL / dθ, hence the factor world, here and not on L: a parameter that enters L behind the gathering (the
    temperature) has the whole of its gradient in every process.
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
    """pairs (N, ...), constants, with x (B, ...) in the rows from ``at`` on: what :class:`_Gather` is to processes.

    Every micro-batch makes the same loss L of it, and the mean of their gradients is taken where the sum is
    dL / dθ, hence the factor N / B. No process is asked: pairs has the rows of all.
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
    """Return the rows of text and image, (B, D) each, at length 1, as (B, 2, D) in fp32.

    ValueError for shapes that do not pair.
    """
    if text.dim() != 2 or text.shape != image.shape:
        raise ValueError(
            f"contrastive: text and image must be (B, D) alike, got {tuple(text.shape)}, {tuple(image.shape)}"
        )
    return torch.stack([F.normalize(_wide(text), dim=1), F.normalize(_wide(image), dim=1)], dim=1)


def contrastive(
    text: Tensor, image: Tensor, log_temperature: Tensor, batch: Tensor | None = None, at: Tensor | int = 0
) -> Tensor:
    """Symmetric InfoNCE, ``½(CE(s · a bᵀ) + CE(s · b aᵀ))`` to the diagonal; a, b: the rows of text, image at length 1.

    text, image: (B, D), row k of both a pair. log_temperature: 0-d, learned; ``s = exp(log_temperature)`` as CLIP's
    logit_scale, at most 100, where its gradient passes only downwards. The rows of all processes are negatives: the
    loss is the same in each, that of the whole batch, and DDP's mean of the gradients is its gradient. B must be the
    same in each. Under no_grad (validation, where all have the same rows) the own rows alone count. In fp32.

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
    with torch.autocast(device, enabled=False):  # a product in bf16, times 100, is off by whole units
        logits = _Clamp.apply(log_temperature, -math.inf, MAX_LOG_TEMPERATURE).exp() * text @ image.T
    label = torch.arange(len(logits), device=logits.device)
    return 0.5 * (F.cross_entropy(logits, label) + F.cross_entropy(logits.T, label))


def dino(
    student_logits: Tensor, teacher_logits: Tensor, centre: Tensor, t_student: float = 0.1, t_teacher: float = 0.04
) -> tuple[Tensor, Tensor]:
    """``mean_b -Σ_k p_k log softmax(student / t_student)_k`` and ``p = softmax((teacher - centre) / t_teacher)``.

    Logits: (B, K). centre: (K,), of :class:`Centre`. In fp32; no gradient goes to the teacher.
    """
    p = ((_wide(teacher_logits.detach()) - centre) / t_teacher).softmax(-1)
    return -(p * (_wide(student_logits) / t_student).log_softmax(-1)).sum(-1).mean(), p


class Centre(nn.Module):
    """``value ← momentum · value + (1 - momentum) · mean(teacher_logits)``, (K,), the mean over all processes' rows.

    Taken off the teacher's logits, it keeps one prototype from taking every sample. Update it after the loss.
    parts: with micro-batches, their number; the value changes once for all of them, at the last one.
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
    """``mean((mu - z1)²)`` over all elements: draws mu to the mean picture of its text, where the flow has least to do.

    mu, z1: (B, ...). In fp32; the gradient goes to mu alone.
    """
    return (_wide(mu) - _wide(z1.detach())).square().mean()


def turned(z1: Tensor, degrees: float) -> Tensor:
    """z1 with its channels turned in pairs: ``(a, b) -> (a cos - b sin, a sin + b cos)``; (B, C, ...), C even.

    What mu is drawn to. At z1 itself the flow's target would be noise alone, which nobody can tell near t = 1; turned,
    most of it is known wherever the picture is, and no x_t on the way loses it, as one to -z1 would.
    """
    if not degrees:
        return z1
    a, b = z1.unflatten(1, (-1, 2)).unbind(2)
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return torch.stack([c * a - s * b, s * a + c * b], 2).flatten(1, 2)


def match(mu: Tensor, z1: Tensor, temperature: float = 0.1, own: Tensor | None = None) -> Tensor:
    """Cross-entropy of ``-mean((mu[b] - z1[n])²) / temperature`` over n, its own the right one: nearest of all.

    mu: (B, ...). z1: (N, ...). own: (B,), which of z1 is that of mu[b]; left out, B is N and z1[b] is. A squared error
    alone lets mu of a text that says little rest between all pictures. In fp32; the gradient goes to mu alone.
    """
    mu, z1 = (_wide(x).flatten(1) for x in (mu, z1.detach()))
    apart = torch.cdist(mu, z1).square() / mu.shape[1]
    return F.cross_entropy(-apart / temperature, torch.arange(len(mu), device=mu.device) if own is None else own)


def norm_alignment(v_pred: Tensor, v_target: Tensor) -> Tensor:
    """``mean_b (‖v_pred[b]‖ - ‖v_target[b]‖)² / n``, n the elements a sample: never above the flow loss.

    v_pred, v_target: (B, ...). In fp32; the gradient goes to v_pred alone, and is 0 where v_pred is 0.
    """
    predicted, wanted = (_wide(v).flatten(1).norm(dim=1) for v in (v_pred, v_target.detach()))
    return (predicted - wanted).square().mean() / v_pred[:1].numel()


class Diffusion(nn.Module):
    """The plain diffusion objective: linear betas, x0 predicted from ``√ᾱ_t x0 + √(1 - ᾱ_t) noise``, t in 0 … T - 1.

    Time weight: min-SNR, ``w_t ∝ min(ᾱ_t / (1 - ᾱ_t), 5)`` with mean 1 over t. It is the usual one for x0: the weight
    of the noise objective, SNR, would give all to the last few steps, which a copy of x_t solves; none gives most to
    the noisiest, where only the mean of the data can be learned. With mean 1 it does not change the learning rate's
    meaning. The schedule is a constant: its buffers are made in fp64, rounded to fp32 and left out of the state dict.
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

    def add_noise(self, x0: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """x_t in fp32. x0, noise: (B, ...). t: (B,) of whole numbers."""
        signal, rest = (
            row[t].view(-1, *[1] * (x0.dim() - 1))
            for row in (self.sqrt_alphas_cumprod, self.sqrt_one_minus_alphas_cumprod)
        )
        return signal * x0.float() + rest * noise.float()

    def loss(self, predicted_x0: Tensor, x0: Tensor, t: Tensor, time_weight: bool) -> Tensor:
        """``mean_b w_t · mean((predicted_x0[b] - x0[b])²)``, w_t = 1 unless asked; the gradient to predicted_x0."""
        return flow_loss(predicted_x0, v_target=x0, weight=self.time_weight[t] if time_weight else None)
