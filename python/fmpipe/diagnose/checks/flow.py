"""Checks of the velocity field at points of the path: scale, direction and size, target, condition.

Everywhere: x0, x1 are (B, ...), floating point; ``velocity(x, t)`` gets x (B, ...) and t (B,) in [0, 1] and returns a
floating point tensor of x's shape; path is a :class:`fmkernels.flow.Path`, ``PATHS["psi"]`` if None.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from fmkernels.flow import PATHS, Path, Trace, midpoint, sample, uniform
from fmkernels.ops import VelocityStats, _check, velocity_stats
from fmpipe.diagnose.verdict import Overrides, Verdict, limits, nonfinite, not_finite

Velocity = Callable[..., Tensor]
TIMES = (0.1, 0.37, 0.63, 0.9)  # the diary's
UNIT_START = 2.0  # MSE(x0, x1) of independent latents of unit variance, where nobody measured it


def check_ends(op: str, x0: Tensor, x1: Tensor, least: int = 1, letter: str = "x") -> None:
    """TypeError or ValueError, naming x0 or x1, unless both are (B, ...) of one shape with B of at least ``least``."""
    _check.batched(op, f"{letter}0", x0)
    _check.like(op, f"{letter}1", x1, f"{letter}0", x0)
    if len(x0) < least:
        raise ValueError(f"{op}: {letter}0 must have at least {least} samples, got {len(x0)}")


def check_any(op: str, name: str, values: Sequence) -> None:
    if not len(values):
        raise ValueError(f"{op}: {name} must not be empty")


def listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def times_of(x: Tensor, t: float) -> Tensor:
    """(B,) of t, in the dtype a state of x's would have."""
    return x.new_full((len(x),), t, dtype=torch.promote_types(x.dtype, torch.float32))


def predicted(op: str, velocity: Velocity, x: Tensor, t: Tensor, **options) -> Tensor:
    """velocity(x, t); ValueError unless it returns a floating point tensor of x's shape."""
    v = velocity(x, t, **options)
    if not isinstance(v, Tensor) or v.shape != x.shape or not v.is_floating_point():
        got = f"{tuple(v.shape)} {v.dtype}" if isinstance(v, Tensor) else type(v).__name__
        raise ValueError(f"{op}: velocity must return a floating point tensor of x's shape {tuple(x.shape)}, got {got}")
    return v


@torch.no_grad()
def stats_at(
    op: str, velocity: Velocity, x0: Tensor, x1: Tensor, times: Sequence[float], path: Path | None
) -> list[VelocityStats]:
    """How velocity compares with the path's at each of times."""
    check_any(op, "times", times)
    out = []
    for t in times:
        t = times_of(x0, t)
        x_t, v = (path or PATHS["psi"]).pair(t, x0, x1)
        out.append(velocity_stats(predicted(op, velocity, x_t, t), v_target=v))
    return out


def pooled_gain(stats: Sequence[VelocityStats]) -> float:
    """Median of |v*| / |v_pred| over the samples of all of stats."""
    return VelocityStats(torch.cat([s.sums for s in stats]), stats[0].n).gain.item()


def mse(a: Tensor, b: Tensor) -> float:
    """mean((a - b)^2)"""
    return velocity_stats(a, v_target=b).sums[:, 0].double().sum().item() / a.numel()


def scale(
    x0: Tensor,
    x1: Tensor,
    path: Path | None = None,
    *,
    generator: torch.Generator | None = None,
    overrides: Overrides = None,
) -> Verdict:
    """``E|z0|``, ``E|z1|``, ``E|x_t|``, ``E|v*|``: batch means of 2-norms, x_t at t drawn evenly from [0, 1]."""
    check_ends("scale", x0, x1)
    t = torch.rand(len(x0), generator=generator, device=x0.device)
    pairs = (x0, x1), (path or PATHS["psi"]).pair(t.to(times_of(x0, 0.0)), x0, x1)
    norms = [velocity_stats(a, v_target=b).sums[:, 1:3].sqrt().mean(0).tolist() for a, b in pairs]
    return judge_scale(*norms[0], *norms[1], overrides=overrides)


def judge_scale(
    z0: float, z1: float, x_t: float | None = None, v: float | None = None, *, overrides: Overrides = None
) -> Verdict:
    """Mean 2-norms of one batch; the largest may be ``scale/ratio`` times the smallest. x_t, v: None if unknown."""
    most = limits(overrides)["scale/ratio"]
    norms = {"z0": z0, "z1": z1, "x_t": x_t, "v*": v}
    norms = {name: value for name, value in norms.items() if value is not None}
    values = {f"E|{name}|": value for name, value in norms.items()}
    threshold = f"the largest of {', '.join(values)} is at most {most:g} times the smallest"
    experience = (
        "The diary had |z0| of 151 against |z1| of 896 to 1224: z1 was the VAE's raw moments instead of a sample, and "
        "rescaling by a measured ratio would only have hidden it."
    )
    if nonfinite(values):
        return not_finite("scale", values, threshold, experience)
    large, small = max(norms, key=norms.get), min(norms, key=norms.get)
    ratio = norms[large] / norms[small] if norms[small] > 0 else math.inf
    values["ratio"] = ratio
    said = f"E|{large}| = {norms[large]:.4g} is {ratio:.3g} times E|{small}| = {norms[small]:.4g}"
    if ratio <= most:
        return Verdict("scale", "pass", values, threshold, f"{said}: one scale.", "", experience)
    if max(z0, z1) > most * min(z0, z1):
        meaning = f"{said}: v* = x1 - x0 is {'z1' if z1 > z0 else 'z0'} almost alone."
        advice = (
            "Take z1 from sample() of the VAE, not from its moments, and apply its scale factor in exactly one place; "
            "then look at the text head's scale. Do not correct with a measured ratio."
        )
    elif small == "v*":
        meaning, advice = f"{said}: x0 and x1 almost coincide.", "Look whether x0 was made from x1, or is x1."
    else:
        meaning, advice = f"{said}, though the ends agree.", "Look at the path's alpha and beta: they change the scale."
    return Verdict("scale", "fail", values, threshold, meaning, advice, experience)


def one_step(
    velocity: Velocity,
    x0: Tensor,
    x1: Tensor,
    times: Sequence[float] = TIMES,
    *,
    path: Path | None = None,
    overrides: Overrides = None,
) -> Verdict:
    """``cos(v_pred, v*)`` and ``|v_pred| / |v*|`` at each of times, batch means, and the gain that would do."""
    check_ends("one_step", x0, x1)
    stats = stats_at("one_step", velocity, x0, x1, times, path)
    cos, ratio = [s.cos.item() for s in stats], [s.speed_ratio.item() for s in stats]
    return judge_one_step(times, cos, ratio, gain=pooled_gain(stats), overrides=overrides)


def judge_one_step(
    t: Sequence[float],
    cos: Sequence[float],
    ratio: Sequence[float],
    *,
    gain: float | None = None,
    overrides: Overrides = None,
) -> Verdict:
    """Direction and size at each t. gain: median |v*| / |v_pred| if measured, else 1 / median(ratio)."""
    if not len(t) == len(cos) == len(ratio) > 0:
        raise ValueError(f"judge_one_step: t, cos, ratio must be of one length, got {len(t)}, {len(cos)}, {len(ratio)}")
    limit = limits(overrides)
    least, low, high = (limit[f"one_step/{name}"] for name in ("cos", "ratio_low", "ratio_high"))
    values = {"t": list(t), "cos": list(cos), "ratio": list(ratio)}
    threshold = (
        f"at every t, cos(v_pred, v*) is at least {least:g} and |v_pred| / |v*| in {low:g} to {high:g}; "
        "a weak direction at less than half of the t only warns"
    )
    experience = (
        "The diary had cos 0.050, 0.045, 0.036, 0.015 and a ratio of 0.29 at 26,000 iterations: sampling went nowhere "
        "and drew texture. fm_gain of 3.5 was its stopgap, which a direction that weak does not reward."
    )
    if gain is None and median(ratio) > 0:
        gain = 1 / median(ratio)
    if gain is not None:
        values["fm_gain"] = gain
    if nonfinite(values):
        return not_finite("one_step", values, threshold, experience)
    right, sized = min(cos) >= least, low <= min(ratio) and max(ratio) <= high
    weak = [at for at, c in zip(t, cos, strict=True) if c < least]
    partly = not right and min(cos) > 0 and 2 * len(weak) < len(cos)
    judged = "right" if right else f"right but at t = {listed(weak)}" if partly else "weak"
    direction = f"Direction: cos {listed(cos)} at t = {listed(t)}, {judged}."
    if max(cos) <= -least:
        direction = f"Direction: cos {listed(cos)} at t = {listed(t)}, backwards."
    fault = "too small" if max(ratio) <= high else "too large" if min(ratio) >= low else "uneven in t"
    by = f" by a factor of {gain:.3g}" if fault == "too small" and gain is not None else ""
    size = f"Size: |v_pred| / |v*| {listed(ratio)}, {'right' if sized else fault + by}."
    advice = []
    if not sized and max(ratio) < 1e-4:
        advice.append("The output is about 0: is the last layer still at its initial zeros, or not trained?")
    elif not sized and fault == "uneven in t":
        advice.append("No one gain mends a size that is too small at some t and too large at others.")
    elif not sized and gain is not None:
        advice.append(f"Sample with fm_gain = {gain:.3g} as a stopgap.")
    if not sized:
        advice.append(
            "In training: raise the flow loss's weight or the flow net's learning rate, add the norm-alignment loss, "
            "and run the flow net's forward in fp32."
        )
    if partly:
        advice.append("Draw more training times there (flow.losses.t, edge_weight) if the images lack what it adds.")
    elif not right:
        advice.append("A gain cannot cure the direction: run target_definition and scale, then train longer.")
    status = "pass" if right and sized else "warn" if partly and sized else "fail"
    return Verdict("one_step", status, values, threshold, f"{direction} {size}", " ".join(advice), experience)


@torch.no_grad()
def target_definition(
    velocity: Velocity,
    x0: Tensor,
    x1: Tensor,
    noise: Tensor | None = None,
    *,
    times: Sequence[float] = TIMES,
    path: Path | None = None,
    overrides: Overrides = None,
) -> Verdict:
    """The mean cosine, over the batch and times, of v_pred with each thing a network may have been taught.

    ``velocity`` the path's; ``flipped`` its negative; ``x1``; ``x0`` (the noise of a plain diffusion); ``score``, -x0;
    ``x_t`` and ``-x_t``, the input and the score of a standard normal; with noise (like x0; what z0 was drawn with)
    also ``noise`` and ``-noise``. Over all times: at one t alone the best field there is may look like -x0 (t near 0)
    or x1 (t near 1).
    """
    check_ends("target_definition", x0, x1)
    if noise is not None:
        _check.like("target_definition", "noise", noise, "x0", x0)
    check_any("target_definition", "times", times)
    total: dict[str, float] = {}
    for t in times:
        t = times_of(x0, t)
        x_t, v = (path or PATHS["psi"]).pair(t, x0, x1)
        v_pred = predicted("target_definition", velocity, x_t, t)
        for name, opposite, target in (
            ("velocity", "flipped", v),
            ("x1", None, x1),
            ("x0", "score", x0),
            ("x_t", "-x_t", x_t),
            ("noise", "-noise", noise),
        ):
            if target is not None:
                cos = velocity_stats(v_pred, v_target=target).cos.item() / len(times)
                total[name] = total.get(name, 0.0) + cos
                if opposite:
                    total[opposite] = total.get(opposite, 0.0) - cos
    return judge_target_definition(total, overrides=overrides)


_TAUGHT = {
    "flipped": ("the velocity with its sign flipped", "Exchange x0 and x1 in the target, or time_dir when sampling."),
    "x1": ("the endpoint x1", "Train on x1 - x0, or turn the prediction into v = (x1 - x_t) / (1 - t)."),
    "x0": ("x0, the noise", "Train on x1 - x0: epsilon is the target of DDPM, not of flow matching."),
    "noise": ("the noise", "Train on x1 - x0: epsilon is the target of DDPM, not of flow matching."),
    "score": ("the score, -x0", "Train on x1 - x0: the score is the target of score matching."),
    "-noise": ("the score, -noise", "Train on x1 - x0: the score is the target of score matching."),
    "-x_t": ("-x_t, the score of a standard normal", "Train on x1 - x0: the score is the target of score matching."),
    "x_t": ("its own input x_t", "Look for a residual around the whole network, or a last layer still at zero."),
}


def judge_target_definition(cos: Mapping[str, float], *, overrides: Overrides = None) -> Verdict:
    """cos: with each candidate of :func:`target_definition`, ``velocity`` and at least one other.

    Undecided (the velocity and another within ``target/margin``) warns: where x0 is small beside x1, x1 - x0 IS about
    x1, and no correlation can tell them apart.
    """
    if "velocity" not in cos or len(cos) < 2 or not cos.keys() <= {"velocity", *_TAUGHT}:
        known = ", ".join(_TAUGHT)
        raise ValueError(f"judge_target_definition: cos must have 'velocity' and others of {known}; got {list(cos)}")
    margin = limits(overrides)["target/margin"]
    values = dict(cos)
    threshold = f"cos(v_pred, velocity) is more than {margin:g} above that with every other target"
    experience = (
        "The diary's checklist: v* = x1 - x0 is neither DDPM's noise nor a score; mixed up or sign-flipped, the loss "
        "seems to fall while the network learns something else."
    )
    if nonfinite(values):
        return not_finite("target_definition", values, threshold, experience)
    best = max((name for name in cos if name != "velocity"), key=cos.get)
    ahead = cos["velocity"] - cos[best]
    named, remedy = _TAUGHT[best]
    said = f"cos {cos['velocity']:.3f} with the velocity, {cos[best]:.3f} with {named}"
    if max(cos["velocity"], cos[best]) <= margin:
        status, meaning = "fail", f"{said}: it fits no target."
        advice = "Train longer; look at the scale of x0 and x1 and at what the loss compares."
    elif ahead > margin:
        status, meaning, advice = "pass", f"{said}: it predicts the velocity.", ""
    elif ahead < -margin:
        status, meaning, advice = "fail", f"{said}: the network seems to predict {named}.", remedy
    else:
        status, meaning = "warn", f"{said}: too near to tell."
        advice = "Run scale: where x0 is small beside x1 the two are one. Else train longer and look again."
    return Verdict("target_definition", status, values, threshold, meaning, advice, experience)


def endpoint_rmse(
    velocity: Velocity, x0: Tensor, x1: Tensor, ks: Sequence[int] = (8, 16, 32, 64), solver: str = "euler"
) -> dict[int, float]:
    """``sqrt(mean((z_K - x1)^2))`` for each K, z_K the end of K steps from x0.

    ``euler`` on the midpoint schedule, ``heun`` on the uniform one. What is not finite stays so. ValueError for
    another solver.
    """
    check_ends("endpoint_rmse", x0, x1)
    plans = {"euler": midpoint, "heun": uniform}
    if solver not in plans:
        raise ValueError(f"endpoint_rmse: unknown solver {solver!r}; choose one of {', '.join(plans)}")
    ends = {k: sample(velocity, x0, plans[solver](k), solver=solver, trace=Trace(nonfinite="continue")).x for k in ks}
    return {k: math.sqrt(mse(end, x1)) for k, end in ends.items()}


def derangement(n: int, generator: torch.Generator | None = None) -> Tensor:
    """(n,) on the CPU: a random cycle through all of 0 … n-1, so that no element stays; n of at least 2."""
    order = torch.randperm(n, generator=generator)
    out = torch.empty_like(order)
    out[order] = order.roll(1)
    return out


@torch.no_grad()
def condition_gain(
    velocity: Velocity,
    x0: Tensor,
    x1: Tensor,
    t: Tensor,
    cond: Tensor | None = None,
    generator: torch.Generator | None = None,
    *,
    path: Path | None = None,
) -> float:
    """``flow/cond_gain_cos``: how much of the cosine with the target is lost when the condition is another's.

    With cond (B, ...): ``cos(v(x_t, t, cond), v*) - cos(v(x_t, t, cond[π]), v*)``, π a random derangement drawn from
    generator (of the CPU). Without, z0 being the condition:
    ``cos(v(ψ(t, z0, z1)), z1 - z0) - cos(v(ψ(t, z0[π], z1)), z1 - z0[π])``, the differences standing for the path's
    velocity. A field that takes z1 from z0 is then led to another z1 and loses; one that has only the average picture
    loses nothing. It says nothing at t near 1, where x_t is z1, and little where x_t shows z0 and z1 apart (z0 very
    sharp, see ``leak``): whoever sees both gets the line between any two right. So without cond a gain above
    0 is evidence of use, but 0 is none of disuse before those two are ruled out. t: (B,). B of at least 2.
    """
    check_ends("condition_gain", x0, x1, least=2)
    path = path or PATHS["psi"]
    order = derangement(len(x0), generator).to(x0.device)
    x_t, v = path.pair(t, x0, x1)
    if cond is None:
        x_other, v_other = path.pair(t, x0[order], x1)
        options = other = {}
    elif isinstance(cond, Tensor) and cond.dim() and len(cond) == len(x0):
        x_other, v_other = x_t, v
        options, other = {"cond": cond}, {"cond": cond[order.to(cond.device)]}
    else:
        got = tuple(cond.shape) if isinstance(cond, Tensor) else type(cond).__name__
        raise ValueError(f"condition_gain: cond must be a tensor of {len(x0)} samples, as x0, or None, got {got}")
    own = velocity_stats(predicted("condition_gain", velocity, x_t, t, **options), v_target=v)
    shuffled = velocity_stats(predicted("condition_gain", velocity, x_other, t, **other), v_target=v_other)
    return (own.cos - shuffled.cos).item()


def condition_use(
    velocity: Velocity,
    x0: Tensor,
    x1: Tensor,
    cond: Tensor | None = None,
    *,
    times: Sequence[float] = TIMES,
    path: Path | None = None,
    generator: torch.Generator | None = None,
    overrides: Overrides = None,
) -> Verdict:
    """The mean over times of :func:`condition_gain`, which says what it means with and without cond."""
    check_ends("condition_use", x0, x1, least=2)
    check_any("condition_use", "times", times)
    gains = [condition_gain(velocity, x0, x1, times_of(x0, t), cond, generator, path=path) for t in times]
    return judge_condition_use(sum(gains) / len(gains), by_t=dict(zip(times, gains)), overrides=overrides)


def judge_condition_use(
    gain: float, *, by_t: Mapping[float, float] | None = None, overrides: Overrides = None
) -> Verdict:
    """gain: ``flow/cond_gain_cos``; above ``condition/gain`` it is used, below ``condition/weak`` hardly."""
    limit = limits(overrides)
    least, weak = limit["condition/gain"], limit["condition/weak"]
    values = {"flow/cond_gain_cos": gain} | ({f"t={t:g}": value for t, value in by_t.items()} if by_t else {})
    threshold = f"cos(own condition) - cos(another's) is above {least:g}; below {weak:g} it may be chance"
    experience = (
        "The diary asks for a gain above 0, the larger the better: without it the field is the unconditional average, "
        "whatever its loss says."
    )
    if nonfinite(values):
        return not_finite("condition_use", values, threshold, experience)
    said = f"Another sample's condition costs {gain:.4f} of the cosine"
    advice = (
        "Look whether the condition reaches the network (text check), whether captions and pictures are paired (data), "
        "and whether guidance drops it too often; without cond, look at t near 0, where z0 counts most."
    )
    if gain > max(least, weak):
        return Verdict("condition_use", "pass", values, threshold, f"{said}: it is used.", "", experience)
    status, meaning = ("warn", "hardly used, or chance") if gain > least else ("fail", "it is not used")
    return Verdict("condition_use", status, values, threshold, f"{said}: {meaning}.", advice, experience)
