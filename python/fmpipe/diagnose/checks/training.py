"""Checks of a training run: where gradients go, how large they are, what the KL, the heads and the scaler do.

A history is a mapping from a name of the log to its values over time, e.g. ``{"std/mean": [0.3, 0.5, 0.9]}``.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fmpipe.diagnose.verdict import Overrides, Verdict, limits, nonfinite, not_finite
from fmpipe.diagnose.verdict import skipped as no_verdict

History = Mapping[str, Sequence[float]]
Finding = tuple[str, str, str]  # status, what was seen, what to do


def ends(xs: Sequence[float], name: str) -> tuple[float, float]:
    """Means of the first and of the last tenth of xs (one value at least); NaN if any of xs is not finite."""
    xs = [float(x) for x in xs]
    if len(xs) < 2:
        raise ValueError(f"history[{name!r}]: a trend needs two values or more, got {len(xs)}")
    if not all(map(math.isfinite, xs)):
        return math.nan, math.nan
    tenth = max(1, len(xs) // 10)
    return statistics.fmean(xs[:tenth]), statistics.fmean(xs[-tenth:])


def late(xs: float | Sequence[float], name: str) -> float:
    """xs itself, or the median of its last half; NaN if any of xs is not finite."""
    if isinstance(xs, str) or not hasattr(xs, "__len__") or (isinstance(xs, Tensor) and xs.dim() == 0):
        return float(xs)
    if not len(xs):
        raise ValueError(f"{name}: there are no values")
    xs = [float(x) for x in xs]
    return statistics.median(xs[len(xs) // 2 :]) if all(map(math.isfinite, xs)) else math.nan


def verdict_of(name, findings: Sequence[Finding], values, threshold: str, fine: str, experience: str) -> Verdict:
    """The worst of the findings with all of its texts; ``fine`` if there are none. A value not finite fails alone."""
    if nonfinite(values):
        return not_finite(name, values, threshold, experience)
    status = next((s for s in ("fail", "warn") if any(f[0] == s for f in findings)), "pass")
    meaning = "; ".join(what for _, what, _ in findings) or fine
    advice = " ".join(dict.fromkeys(todo for _, _, todo in findings))
    if "/" not in meaning.split()[0]:  # a name of the log stays as it is
        meaning = meaning[0].upper() + meaning[1:]
    return Verdict(name, status, values, threshold, meaning + ".", advice, experience)


def target_gradient(target: Tensor | Callable[..., Tensor], *sources: Tensor) -> list[float]:
    """``|d<w, target> / d source|`` of each source, w a fixed normal draw (1 for a scalar target); 0 without a path.

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


def judge_gradient_path(
    x1: float | None = None,
    x0: float | None = None,
    eps: float | None = None,
    clamped: float | None = None,
    *,
    overrides: Overrides = None,
) -> Verdict:
    """x1, x0: ``|d target / d x1|`` and x0's. eps: ``|d KL / d eps|``. clamped: share of logvar at its clamp."""
    limit = limits(overrides)
    values = {"d_target/d_x1": x1, "d_target/d_x0": x0, "d_kl/d_eps": eps, "logvar/clamped": clamped}
    values = {name: x for name, x in values.items() if x is not None}
    if not values:
        return no_verdict("gradient_path", "no target, no KL and no logvar was given")
    leak, findings = limit["gradient_path/leak"], []
    for name, todo in (
        ("d_target/d_x1", "Detach x0 and x1 where the target is built (fmkernels.flow_loss and flow_pair do)."),
        ("d_target/d_x0", "Detach x0 and x1 where the target is built (fmkernels.flow_loss and flow_pair do)."),
        ("d_kl/d_eps", "Compute the KL from mu and logvar, not from the sample z (fmkernels.reparameterize does)."),
    ):
        if not values.get(name, 0.0) <= leak:
            findings.append(("fail", f"|{name}| is {values[name]:.3g} and should be 0", todo))
    if clamped:
        status = "warn" if clamped <= limit["kl/clamped"] else "fail"
        todo = "Warm the KL up over the first 10 % of the run and start logvar near 0."
        findings.append((status, f"{clamped:.1%} of logvar is at or outside its clamp", todo))
    return verdict_of(
        "gradient_path",
        findings,
        values,
        f"|d target / d x0|, |d target / d x1| and |d KL / d eps| at most {leak:g}; no logvar at or outside its clamp "
        f"(fails above {limit['kl/clamped']:.0%})",
        f"no gradient where none belongs ({', '.join(values)})",
        "In the diary a target that carried gradients became a moving target: x0 and x1 have to be detached in v*, "
        "while z0 may pass gradients to mu and logvar through x_t.",
    )


def gradient_path(
    target: Tensor | Callable[..., Tensor],
    x1: Tensor,
    x0: Tensor | None = None,
    *,
    kl: Tensor | Callable[[Tensor], Tensor] | None = None,
    eps: Tensor | None = None,
    logvar: Tensor | None = None,
    clamp: tuple[float, float] = (-6.0, 6.0),
    overrides: Overrides = None,
) -> Verdict:
    """The target gives no gradient to x1 (and x0), the KL none to eps, and logvar is inside its clamp.

    target: ``target(x1)``, or ``target(x0, x1)`` where x0 is given: the velocity the loss is taken against, or a scalar
    loss in which x0 and x1 enter by the target ONLY (the prediction held fixed). x_t depends on x0 and x1 rightly,
    where an encoder is trained, so the whole loss is not the thing to pass. kl: ``kl(eps)``, needs eps. Each may be
    a tensor whose graph exists, see :func:`target_gradient`. logvar: as the head gives it, before or after the clamp.
    """
    if (kl is None) != (eps is None):
        raise ValueError("gradient_path: kl and eps belong together, one of them is missing")
    sources = (x1,) if x0 is None else (x0, x1)
    grads = target_gradient(target, *sources)
    share = None
    if logvar is not None:
        low, high = clamp
        share = 1 - ((logvar > low) & (logvar < high)).double().mean().item()
    return judge_gradient_path(
        grads[-1],
        grads[0] if x0 is not None else None,
        target_gradient(kl, eps)[0] if kl is not None else None,
        share,
        overrides=overrides,
    )


def dino(
    teacher_entropy: float | Sequence[float],
    student_entropy: float | Sequence[float],
    classes: int,
    grad_share: float | None = None,
    temperatures: tuple[float, float] | None = None,
    *,
    overrides: Overrides = None,
) -> Verdict:
    """ent/teacher and ent/student (nats; a number, or a series, of whose last half the median) against log(classes).

    grad_share: grad/dino / grad/total. temperatures: (T_t, T_s), for the report. ValueError for an entropy below 0 or
    above log(classes): it is of another number of classes, or in bits.
    """
    if classes < 2:
        raise ValueError(f"dino: classes must be 2 or more, got {classes}")
    limit, findings, top = limits(overrides), [], math.log(classes)
    entropy = {"ent/teacher": late(teacher_entropy, "dino: teacher_entropy")}
    entropy["ent/student"] = late(student_entropy, "dino: student_entropy")
    for name, x in entropy.items():
        if x < -1e-3 or x > top * 1.001 + 1e-3:
            raise ValueError(f"dino: {name} must be in nats, from 0 to log({classes}) = {top:.4g}, got {x:.4g}")
    share = {name: x / top for name, x in entropy.items()}
    values = {**entropy, "log_classes": top, "share": share}
    heat = ("", "")
    if temperatures is not None:
        values["T_t"], values["T_s"] = map(float, temperatures)
        heat = (f" (now {values['T_t']:g})", f" (now {values['T_s']:g})")
    if grad_share is not None:
        values["grad_share"] = float(grad_share)
    floor, weak = limit["dino/entropy"], limit["dino/gradient"]
    if share["ent/teacher"] < floor:
        what = f"the teacher's entropy is {share['ent/teacher']:.1%} of log K: its targets are one-hot"
        findings.append(("fail", what, f"Raise T_t{heat[0]}, and look at the centring."))
    if share["ent/student"] < floor and (grad_share is None or grad_share < weak):
        what = f"the student's entropy is {share['ent/student']:.1%} of log K"
        what += f" with {grad_share:.1%} of the gradient" if grad_share is not None else ", its gradient unknown"
        todo = f"Raise T_s{heat[1]}, or w_dino by 2 to 4 times."
        findings.append(("warn" if grad_share is None else "fail", what, todo))
    return verdict_of(
        "dino",
        findings,
        values,
        f"ent/teacher at least {floor:.0%} of log K; ent/student too, unless grad/dino is {weak:.0%} of the total",
        f"entropies are {share['ent/teacher']:.0%} (teacher) and {share['ent/student']:.0%} (student) of log K",
        "The diary: a teacher with an entropy near 0 saturates the student early and the gradient dies; it raised T_t "
        "or T_s, or w_dino by 2 to 4 times.",
    )


def gradient_shares(grads: Mapping[str, float | Sequence[float]], *, overrides: Overrides = None) -> Verdict:
    """Norms of the gradients of each weighted loss alone (``grad/flow``, ...) against ``grad/total`` and each other.

    A number each, or a series, of whose last half the median. Any of them may be absent but grad/total (ValueError).
    values["weight_factor"]: what to multiply the weight by: to the middle of the band dino : flow : kl where flow is
    there, else to the least share.
    """
    if "grad/total" not in grads:
        raise ValueError(f"gradient_shares: grads must have 'grad/total', got {', '.join(grads) or 'nothing'}")
    limit, findings = limits(overrides), []
    norm = {name: late(x, f"gradient_shares: {name}") for name, x in grads.items()}
    total = norm.pop("grad/total")
    if not norm:
        return no_verdict("gradient_shares", "there is grad/total only, of no loss alone")
    share = {name: x / total if total else 0.0 for name, x in norm.items()}
    flow, factor, ratio = norm.get("grad/flow", 0.0), {}, {}
    auto = "or balance by GradNorm or PCGrad."
    for name in ("grad/dino", "grad/kl"):
        if name not in norm or not flow > 0:
            continue
        key = name.replace("grad", "share")
        low, high, ratio[name] = limit[f"{key}_low"], limit[f"{key}_high"], norm[name] / flow
        if not low <= ratio[name] <= high:
            what = f"{name} is {ratio[name]:.3g} of grad/flow, outside {low:g} to {high:g}"
            todo = "Look for a detach."
            if norm[name] > 0:
                factor[name] = (low + high) / 2 / ratio[name]
                todo = f"Multiply the weight of {name[5:]} by {factor[name]:.3g}, {auto}"
            findings.append(("warn", what, todo))
    for name, x in share.items():
        if x < limit["share/warn"]:
            status = "fail" if x < limit["share/fail"] else "warn"
            todo = "Look for a detach, or for parameters that do not require gradients."
            # Where another's weight already has a factor, flow rises by that; both at once would overshoot.
            if norm[name] > 0 and not (name == "grad/flow" and factor):
                factor.setdefault(name, limit["share/warn"] / x)
            if norm[name] > 0:
                moved = name if name in factor else next(iter(factor))
                todo = f"Multiply the weight of {moved[5:]} by {factor[moved]:.3g}, {auto}"
            findings.append((status, f"{name} is {x:.2%} of grad/total: drowned", todo))
    return verdict_of(
        "gradient_shares",
        findings,
        {"grad/total": total, **norm, "share": share, "of_flow": ratio, "weight_factor": factor},
        f"each at least {limit['share/warn']:.0%} of grad/total (fails below {limit['share/fail']:.0%}); "
        f"dino : flow : kl = {limit['share/dino_low']:g}-{limit['share/dino_high']:g} : 1 : "
        f"{limit['share/kl_low']:g}-{limit['share/kl_high']:g}",
        "every loss has its share: " + ", ".join(f"{name} {x:.0%}" for name, x in share.items()),
        "The diary weighs by gradients, not by the losses' values: each loss is back-propagated alone, below 5 to 10 % "
        "of the total it is too weak to teach anything.",
    )


def update_ratios(history: History, *, overrides: Overrides = None) -> Verdict:
    """``step/*_update_ratio``, |change| / |parameter| a step: median of the last half, neither still nor jumping."""
    limit, findings = limits(overrides), []
    names = [name for name in history if name.startswith("step/") and name.endswith("_update_ratio")]
    if not names:
        return no_verdict("update_ratios", "the history has no step/..._update_ratio")
    values = {name: late(history[name], f"update_ratios: {name}") for name in names}
    for name, x in values.items():
        if x < limit["update/ratio"]:
            todo = "Give the head its own learning rate, 2 to 5 times higher, and see that it is in the optimizer."
            findings.append(("fail", f"{name} is {x:.2g}: it hardly moves", todo))
        elif x > limit["update/jump"]:
            findings.append(("warn", f"{name} is {x:.2g}: it jumps", "Lower its learning rate or clip its gradient."))
    return verdict_of(
        "update_ratios",
        findings,
        values,
        f"median of the last half at least {limit['update/ratio']:g}; above {limit['update/jump']:g} warns",
        "the heads move: " + ", ".join(f"{name} {x:.2g}" for name, x in values.items()),
        "In the diary a ratio long below 1e-5 meant a head that was not learning at all; it gave the heads 2 to 5 "
        "times the learning rate and less weight decay.",
    )


def loss_magnitudes(
    losses: Mapping[str, float | Sequence[float]],
    weights: Mapping[str, float] | None = None,
    *,
    overrides: Overrides = None,
) -> Verdict:
    """|weight * loss| of each against each other (a number, or a series, of whose last half the median).

    weights: by the same names, 1 where absent, 0 leaves a loss out; ValueError for one of no loss. ``loss/total`` is
    left out.
    """
    weights = dict(weights or {})
    if unknown := set(weights) - set(losses):
        raise ValueError(
            f"loss_magnitudes: weights of no loss: {', '.join(sorted(unknown))}; losses: {', '.join(losses)}"
        )
    limit, findings = limits(overrides), []
    size = {
        name: abs(weights.get(name, 1.0) * late(x, f"loss_magnitudes: {name}"))
        for name, x in losses.items()
        if name not in ("total", "loss/total") and weights.get(name, 1.0) != 0
    }
    if len(size) < 2 and all(map(math.isfinite, size.values())):
        return no_verdict("loss_magnitudes", "it takes two losses with a weight to compare")
    least, most = min(size, key=size.get), max(size, key=size.get)
    values = {"weighted": size}
    if size[least] > 0:
        values["ratio"] = size[most] / size[least]
    if not values.get("ratio", math.inf) <= limit["loss/ratio"]:
        times = f"{values['ratio']:.3g} times" if "ratio" in values else "infinitely many times"
        todo = f"Average both over the same elements, then raise the weight of {least} or lower that of {most}."
        findings.append(("warn", f"{most} ({size[most]:.3g}) is {times} {least} ({size[least]:.3g})", todo))
    return verdict_of(
        "loss_magnitudes",
        findings,
        values,
        f"the largest weighted loss at most {limit['loss/ratio']:g} times the smallest, all finite",
        "the weighted losses are comparable: " + ", ".join(f"{name} {x:.3g}" for name, x in size.items()),
        "The diary's rule: the flow MSE, a mean over dimensions, and the weighted KL have to be of one order of "
        "magnitude, or one drowns the other.",
    )


def overflow(
    scaler_scales: Sequence[float] | None = None,
    skipped: int | None = None,
    steps: int | None = None,
    nonfinite: int = 0,
    *,
    overrides: Overrides = None,
) -> Verdict:
    """Half-precision overflow, from ``GradScaler.get_scale()`` after each step and/or the number of skipped steps.

    A fall of the scale is a skipped step. nonfinite: losses or parameters that were not finite (gradients that the
    scaler caught are not counted). skipped needs steps, unless the scales say how many there were.
    """
    limit, findings, values = limits(overrides), [], {"nonfinite": int(nonfinite)}
    scales = None if scaler_scales is None else [float(x) for x in scaler_scales]
    if scales is not None and len(scales) < 2:
        raise ValueError(f"overflow: scaler_scales must have two values or more, got {len(scales)}")
    if scales is None and skipped is None and not nonfinite:
        return no_verdict("overflow", "no scales of a GradScaler and no number of skipped steps was given")
    if nonfinite:
        todo = "Build x_t and the loss in fp32, use a GradScaler with fp16, or train in bf16."
        findings.append(("fail", f"{nonfinite} values are not finite", todo))
    worst, fall = "fail", None
    if scales is not None:
        fall = [b < a for a, b in itertools.pairwise(scales)]
        half = fall[len(fall) // 2 :]
        steps, skipped = steps or len(fall), sum(fall) if skipped is None else skipped
        # At the beginning the scaler looks for its scale, which is no fault by itself.
        worst = "fail" if sum(half) > limit["overflow/skipped"] * len(half) else "warn"
        values |= {"scale/first": scales[0], "scale/last": scales[-1]}
        if scales[-1] < limit["overflow/scale"]:
            todo = "Some gradient is infinite at any scale: find it with torch.autograd.detect_anomaly."
            findings.append(("fail", f"the loss scale has collapsed to {scales[-1]:.3g}", todo))
    if skipped is not None:
        if not steps or steps < 1 or not 0 <= skipped <= steps:
            raise ValueError(f"overflow: skipped must be from 0 to steps, got skipped={skipped} and steps={steps}")
        values["skipped"] = skipped / steps
        if not values["skipped"] <= limit["overflow/skipped"]:
            todo = "Compute x_t, the loss and the norms in fp32, clip gradients after unscaling, or train in bf16."
            findings.append((worst, f"{values['skipped']:.1%} of the steps were skipped for overflow", todo))
    return verdict_of(
        "overflow",
        findings,
        values,
        f"at most {limit['overflow/skipped']:.0%} of the steps skipped (only warns if they are early), the scale at "
        f"least {limit['overflow/scale']:g}, nothing not finite",
        "the run stays inside its number format",
        "The diary trains in half precision with dynamic loss scaling and builds x_t in fp32, casting afterwards; a "
        "state in bf16 swallowed its integration.",
    )
