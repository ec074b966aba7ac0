"""Checks of a training run: gradient paths and norms, losses, KL, DINO, loss scaling, and short trial runs.

A history is a mapping from a name of the log to its values over time, e.g. ``{"std/mean": [0.3, 0.5, 0.9]}``.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fmpipe.diagnose.checks.base import History, check
from fmpipe.diagnose.figures import Series
from fmpipe.diagnose.rules.training import PRIOR
from fmpipe.diagnose.thresholds import Limits

Numbers = float | Sequence[float]


def ends(history: History, name: str) -> list[float]:
    """Return where a series begins and ends; NaN if it is not finite somewhere. ValueError for a single value."""
    series = _series(history, name)
    return [math.nan] * 2 if series.nonfinite else [series.early, series.late]


def _series(history: History, name: str) -> Series:
    if len(history[name]) < 2:
        raise ValueError(f"history[{name!r}]: a trend needs two values or more, got {len(history[name])}")
    return Series.of([float(x) for x in history[name]])


def listed(x: Numbers, name: str) -> list[float]:
    """Return a number, or a series, as a list. ValueError if it is empty."""
    x = [float(x)] if isinstance(x, (int, float)) or getattr(x, "ndim", 1) == 0 else [float(v) for v in x]
    if not x:
        raise ValueError(f"{name}: there are no values")
    return x


def late(x: Numbers, name: str) -> float:
    """Return where a series ends; NaN if it is not finite somewhere."""
    x = listed(x, name)
    return Series.of(x).late if all(map(math.isfinite, x)) else math.nan


def target_gradient(target: Tensor | Callable[..., Tensor], *sources: Tensor) -> list[float]:
    """Return ``|d<w, target> / d source|`` of each source, w a fixed normal draw (1 for a scalar target); 0 if none.

    target: a callable of the sources, evaluated on detached copies of them, or a tensor whose graph exists, of
    sources that required gradients when it was made (ValueError otherwise: a path could not be seen).
    """
    if callable(target) and not isinstance(target, Tensor):
        sources = [x.detach().clone().requires_grad_() for x in sources]
        with torch.enable_grad():
            target = target(*sources)
    elif not all(x.requires_grad for x in sources):
        raise ValueError(
            "target_gradient: with a tensor as target every source must require gradients; pass a callable"
        )
    if not isinstance(target, Tensor):
        raise TypeError(f"target_gradient: target must be or return a tensor, got {type(target).__name__}")
    if not target.requires_grad:
        return [0.0] * len(sources)
    weight = torch.ones((), dtype=target.dtype, device=target.device)
    if target.dim():
        draw = torch.randn(target.shape, generator=torch.Generator().manual_seed(0))
        weight = draw.to(target.device, target.dtype)
    grads = torch.autograd.grad(target, sources, weight, retain_graph=True, allow_unused=True)
    return [0.0 if g is None else g.double().norm().item() for g in grads]


@check
def gradient_path(
    target: Tensor | Callable[..., Tensor],
    x1: Tensor,
    x0: Tensor | None = None,
    *,
    kl: Tensor | Callable[[Tensor], Tensor] | None = None,
    eps: Tensor | None = None,
    logvar: Tensor | None = None,
    clamp: tuple[float, float] = (-6.0, 6.0),
) -> dict[str, float]:
    """Measure the gradients from the target to x1 (and x0) and from the KL to eps, and the share of clamped logvar.

    target: ``target(x1)``, or ``target(x0, x1)`` if x0 is given: the velocity the loss is taken against, or a scalar
    loss in which x0 and x1 enter through the target ONLY (the prediction held fixed). x_t may depend on x0 and x1, if
    an encoder is trained, so the whole loss is not what to pass. kl: ``kl(eps)``, needs eps. Each may be a tensor
    whose graph exists, see :func:`target_gradient`. logvar: as the head gives it, before or after the clamp.
    """
    if (kl is None) != (eps is None):
        raise ValueError("gradient_path: kl and eps belong together, one of them is missing")
    grads = target_gradient(target, *((x1,) if x0 is None else (x0, x1)))
    out = {"d_target/d_x1": grads[-1]}
    if x0 is not None:
        out["d_target/d_x0"] = grads[0]
    if kl is not None:
        out["d_kl/d_eps"] = target_gradient(kl, eps)[0]
    if logvar is not None:
        out["logvar/clamped"] = 1 - ((logvar > clamp[0]) & (logvar < clamp[1])).double().mean().item()
    return out


@check
def dino(
    teacher_entropy: Numbers,
    student_entropy: Numbers,
    classes: int,
    grad_share: float | None = None,
    temperatures: tuple[float, float] | None = None,
) -> dict:
    """Take ent/teacher and ent/student in nats (a number, or a series), to compare with log(classes).

    grad_share: grad/dino / grad/total. temperatures: (T_t, T_s), for the advice. ValueError for an entropy below 0 or
    above log(classes), which belongs to another number of classes or is in bits.
    """
    if classes < 2:
        raise ValueError(f"dino: classes must be 2 or more, got {classes}")
    history = {"ent/teacher": listed(teacher_entropy, "dino: teacher_entropy")}
    history["ent/student"] = listed(student_entropy, "dino: student_entropy")
    top, numbers = math.log(classes), {"classes": classes}
    for name, x in history.items():
        end = Series.of(x).late
        if end < -1e-3 or end > top * 1.001 + 1e-3:
            raise ValueError(f"dino: {name} must be in nats, from 0 to log({classes}) = {top:.4g}, got {end:.4g}")
        numbers |= {name: math.nan} if not all(map(math.isfinite, x)) else {}
    numbers |= {"grad_share": float(grad_share)} if grad_share is not None else {}
    numbers |= {"temperatures": [float(t) for t in temperatures]} if temperatures else {}
    return numbers | {"history": history}


@check
def gradient_shares(grads: Mapping[str, Numbers]) -> dict:
    """Take gradient norms of each weighted loss alone (``grad/flow``, ...), to compare with ``grad/total``.

    A number each, or a series. Any of them may be absent except grad/total (ValueError). values["weight_factor"]: what
    to multiply the weights by: to the middle of the band dino : flow : kl if flow is given, else to the least share.
    """
    if "grad/total" not in grads:
        raise ValueError(f"gradient_shares: grads must have 'grad/total', got {', '.join(grads) or 'nothing'}")
    history = {name: listed(x, f"gradient_shares: {name}") for name, x in grads.items()}
    broken = {name: math.nan for name, x in history.items() if not all(map(math.isfinite, x))}
    return {**broken, "history": history}


@check
def update_ratios(history: History) -> dict:
    """Take the ``step/*_update_ratio`` of a history, |change| / |parameter| per step."""
    names = [name for name in history if name.startswith("step/") and name.endswith("_update_ratio")]
    return {"history": {name: listed(history[name], f"update_ratios: {name}") for name in names}}


@check
def loss_magnitudes(losses: Mapping[str, Numbers], weights: Mapping[str, float] | None = None) -> dict[str, float]:
    """Measure |weight * loss| of each loss (a number, or a series), to compare them.

    weights: by the same names, 1 if absent; a loss with weight 0 and ``loss/total`` are left out. ValueError for a
    weight without a loss.
    """
    weights = dict(weights or {})
    if unknown := set(weights) - set(losses):
        raise ValueError(
            f"loss_magnitudes: weights without a loss: {', '.join(sorted(unknown))}; losses: {', '.join(losses)}"
        )
    out = {}
    for name, x in losses.items():
        weight = weights.get(name, 1.0)
        if weight and name not in ("total", "loss/total"):
            out[name] = abs(weight * late(x, f"loss_magnitudes: {name}"))
    return out


@check
def overflow(
    scaler_scales: Sequence[float] | None = None,
    skipped: int | None = None,
    steps: int | None = None,
    nonfinite: int = 0,
    *,
    limit: Limits,
) -> dict[str, float]:
    """Measure half-precision overflow from ``GradScaler.get_scale()`` after each step, or from the skipped steps.

    A falling scale is a skipped step. nonfinite: number of losses or parameters that were not finite, without the
    gradients that the scaler caught. skipped requires steps unless scaler_scales is given.
    """
    scales = None if scaler_scales is None else [float(x) for x in scaler_scales]
    if scales is not None and len(scales) < 2:
        raise ValueError(f"overflow: scaler_scales must have two values or more, got {len(scales)}")
    out = {"nonfinite": int(nonfinite)} if nonfinite else {}
    if scales is not None:
        falls = [b < a for a, b in itertools.pairwise(scales)]
        half = falls[len(falls) // 2 :]
        steps, skipped = steps or len(falls), sum(falls) if skipped is None else skipped
        # At the beginning the scaler looks for its scale, which is not a fault.
        out |= {"early": sum(half) <= limit["overflow/skipped"] * len(half), "first": scales[0], "last": scales[-1]}
    if skipped is not None:
        if not steps or steps < 1 or not 0 <= skipped <= steps:
            raise ValueError(f"overflow: skipped must be from 0 to steps, got skipped={skipped} and steps={steps}")
        out["skipped"] = skipped / steps
    return out


def nearer(on: History, off: History, limit: Limits) -> dict[str, dict]:
    """Return how far each statistic comes nearer to its prior with the KL and without, and whether that differs."""
    out = {}
    for name, goal in PRIOR.items():
        if name in on and name in off:
            a, b = ([abs(x - goal) for x in ends(history, name)] for history in (on, off))
            a, b = a[0] - a[1], b[0] - b[1]
            # A statistic that was at the prior from the beginning shows the KL by drifting away without it.
            gone = b <= limit["ablation/left"] * a if a > limit["ablation/drop"] else b < a - limit["ablation/drop"]
            out[name] = {"with_kl": a, "without": b, "gone": gone}
    return out


@check
def kl(history: History, off: History | None = None, *, clamped: float | None = None, limit: Limits) -> dict:
    """Take the statistics of z0, which approach the prior: mu/abs_mean 0, std/mean 1, logvar/mean 0, z_init N(0, 1).

    std/mean too small, or logvar/mean at its clamp, is a collapse. off: the history of a run with w_kl = 0, in which
    the trend must vanish. clamped: share of logvar outside its clamp.
    """
    names = [name for name in PRIOR if name in history]
    broken = {name: math.nan for name in names if math.isnan(ends(history, name)[0])}
    out = {"asked": bool(names), **broken} if names else {}
    if off is not None and names:
        out["without"] = nearer(history, off, limit)
    if clamped is not None:
        out["clamped"] = float(clamped)
    return {**out, "history": {n: x for n, x in history.items() if n.startswith(("mu/", "std/", "logvar/", "z_init/"))}}


@check
def overfit(history: History) -> dict[str, list[float]]:
    """Measure the ends of flow/nmse (or loss/flow), flow/cos, and of the last half of loss/kl on a small fixed set."""
    error = next((name for name in ("flow/nmse", "loss/flow") if name in history), None)
    if error is None:
        return {}
    out = {name: ends(history, name) for name in (error, "flow/cos") if name in history}
    if "loss/kl" in history:
        half = list(history["loss/kl"])[(len(history["loss/kl"]) - 1) // 2 :]
        out["loss/kl"] = ends({"loss/kl": half}, "loss/kl")
    return out


@check
def ablation_only_flow(history: History) -> dict[str, list[float]]:
    """Measure the ends of flow/cos, flow/nmse and flow/endpt_rmse@K in a run of about 200 steps on the flow loss."""
    names = [name for name in history if name in ("flow/cos", "flow/nmse") or name.startswith("flow/endpt_rmse@")]
    return {name: ends(history, name) for name in names}


@check
def ablation_kl_off(with_kl: History, without: History, *, limit: Limits) -> dict[str, dict]:
    """Compare how far mu and sigma approach the prior with the KL and with w_kl = 0, from the same start."""
    return nearer(with_kl, without, limit)


@check
def ablation_condition_shuffled(cos: Numbers, cos_shuffled: Numbers) -> dict[str, float]:
    """Take flow/cos with the right conditions and with shuffled ones (numbers, or series)."""
    both = {"cos": cos, "cos_shuffled": cos_shuffled}
    return {name: late(x, f"ablation_condition_shuffled: {name}") for name, x in both.items()}


@check
def ablation_dino_shuffled(loss: Numbers, loss_shuffled: Numbers, teacher_entropy: Numbers) -> dict[str, float]:
    """Take loss/dino with each text's own targets and with those of other images (numbers, or series).

    teacher_entropy: ent/teacher, the lower bound of a cross-entropy with the targets.
    """
    given = {"loss": loss, "shuffled": loss_shuffled, "entropy": teacher_entropy}
    return {name: late(x, f"ablation_dino_shuffled: {name}") for name, x in given.items()}
