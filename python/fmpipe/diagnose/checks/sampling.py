"""Checks of carrying x0 to x1: shooting, the exact field, the endpoint's trend, a leak, the pipeline's probes.

x0, x1, velocity and path are those of :mod:`fmpipe.diagnose.checks.flow`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fmkernels.flow import PATHS, Path, Trace, midpoint, sample, uniform
from fmkernels.ops import _check
from fmpipe.diagnose.checks.flow import (
    TIMES,
    UNIT_START,
    Velocity,
    check_any,
    check_ends,
    endpoint_rmse,
    listed,
    mse,
    pooled_gain,
    stats_at,
    times_of,
)
from fmpipe.diagnose.verdict import Overrides, Verdict, limits, nonfinite, not_finite, skipped


def shooting(
    velocity: Velocity,
    x0: Tensor,
    x1: Tensor,
    steps: Sequence[int] = (5, 20, 50),
    dt_scales: Sequence[float] = (1.0, 2.0, 3.0),
    gain: float | None = None,
    *,
    path: Path | None = None,
    overrides: Overrides = None,
) -> Verdict:
    """``MSE(z_end, x1) / MSE(x0, x1)``, z_end carried from x0 by the field on the midpoint schedule.

    At each of steps; at the most steps also with each dt_scale (which multiplies the step as a gain does) and with the
    gain (None: measured on these pairs, the median of |v*| / |v_pred|). For pairs where x0 decides x1, as a text and
    its picture: from mere noise the right end is another picture, and the figure about 1 by nature. Give it x0 drawn
    anew, not those the network was trained on.
    """
    check_ends("shooting", x0, x1)
    check_any("shooting", "steps", steps)
    if gain is None:
        gain = pooled_gain(stats_at("shooting", velocity, x0, x1, TIMES, path))

    def error(n, **options):
        return mse(sample(velocity, x0, midpoint(n), trace=Trace(nonfinite="continue"), **options).x, x1)

    most = max(steps)
    return judge_shooting(
        {n: error(n) for n in steps},
        mse(x0, x1),
        by_dt_scale={scale: error(most, dt_scale=scale) for scale in dt_scales},
        gain=gain,
        with_gain=error(most, gain=gain) if math.isfinite(gain) else math.nan,
        overrides=overrides,
    )


def judge_shooting(
    error: float | Mapping[int, float],
    start: float | None = None,
    *,
    by_dt_scale: Mapping[float, float] | None = None,
    gain: float | None = None,
    with_gain: float | None = None,
    overrides: Overrides = None,
) -> Verdict:
    """error: MSE(z_end, x1), one or ``{steps: MSE}``, of which the one at the most steps is judged.

    start: MSE(x0, x1); if nobody measured it, 2, that of independent latents of unit variance. with_gain: the MSE at
    the most steps with the calibrated gain. Passes below ``shooting/relative``; fails where the gain does not bring it
    to ``shooting/fall`` of itself, or the end is no nearer than the start either way; warns in between.
    """
    limit = limits(overrides)
    below, fall = limit["shooting/relative"], limit["shooting/fall"]
    threshold = (
        f"MSE(z_end, x1) / MSE(x0, x1) is below {below:g}; above it, it must fall to {fall:g} of itself and below 1 "
        f"with the calibrated gain"
    )
    experience = (
        "The diary shot at its own pictures and ended at an MSE of 4.53, farther than it started, with a field of 0.29 "
        "of the right size and a cosine of 0.05: that is the field, not the schedule."
    )
    assumed = "" if start is not None else f" (MSE(x0, x1) was not given: {UNIT_START:g} taken, as of unit variance)"
    start = UNIT_START if start is None else start
    if start <= 0:
        raise ValueError(f"judge_shooting: start, the MSE(x0, x1), must be positive, got {start}")
    if isinstance(error, Mapping):
        check_any("judge_shooting", "error", error)
    by_steps = dict(sorted(error.items())) if isinstance(error, Mapping) else {}
    relative = [value / start for value in (by_steps.values() if by_steps else [error])]
    values = {"start": start, "relative": relative}
    if by_steps:
        values["steps"] = list(by_steps)
    if by_dt_scale:
        values |= {"dt_scale": list(by_dt_scale), "relative_dt_scale": [e / start for e in by_dt_scale.values()]}
    if gain is not None:
        values["fm_gain"] = gain
    if with_gain is not None:
        values["relative_gain"] = with_gain / start
    if nonfinite(values):
        return not_finite("shooting", values, threshold, experience)
    end = relative[-1]
    said = f"Of MSE(x0, x1), {listed(relative)} is left" + (
        f" after {listed(list(by_steps))} steps" if by_steps else ""
    )
    if with_gain is not None:
        said += f", {with_gain / start:.3g} with the gain" + (f" {gain:.3g}" if gain is not None else "")
    if by_dt_scale:
        said += f", {listed(values['relative_dt_scale'])} with dt_scale {listed(list(by_dt_scale))}"
    said += assumed
    helped = with_gain is not None and with_gain <= fall * start * end and with_gain < start
    if end < below:
        return Verdict("shooting", "pass", values, threshold, f"{said}: the field carries x0 to x1.", "", experience)
    if helped:
        meaning = "the field is too slow or too fast, and a gain helps."
        advice = (
            f"Sample with fm_gain{'' if gain is None else f' = {gain:.3g}'} meanwhile; train the size right: flow "
            f"loss's weight or learning rate up, norm-alignment loss, fp32 forward."
        )
        return Verdict("shooting", "warn", values, threshold, f"{said}: {meaning}", advice, experience)
    advice = "Run one_step and target_definition: no gain mends a wrong direction. Then leak, if one_step reads well."
    if end > relative[0]:
        advice += " More steps make it worse: run endpoint and teacher_euler too."
    if with_gain is None and end < 1:
        return Verdict("shooting", "warn", values, threshold, f"{said}: nearer, but not there.", advice, experience)
    meaning = "the calibrated gain does not mend it." if with_gain is not None else "no nearer than the start."
    return Verdict("shooting", "fail", values, threshold, f"{said}: {meaning}", advice, experience)


@torch.no_grad()
def latent_scale(
    velocity: Velocity, x0: Tensor, x1: Tensor, steps: int = 20, *, overrides: Overrides = None
) -> Verdict:
    """``E|x1| / E|z_end|`` and the mean ``cos(z_end, x1)``, z_end carried from x0 by the field: of pairs."""
    check_ends("latent_scale", x0, x1)
    end = sample(velocity, x0, midpoint(steps), trace=Trace(nonfinite="continue")).x
    start, wanted, got = (x.flatten(1).double() for x in (x0, x1, end))
    cos = torch.cosine_similarity(got, wanted, dim=1).mean().item()
    left = math.nan
    if got.isfinite().all() and wanted.isfinite().all():  # z_end = a x1 + b x0 as nearly as can be: b
        left = torch.linalg.lstsq(torch.stack([wanted, start], -1).flatten(0, 1), got.reshape(-1, 1)).solution[1].item()
    norms = (x.norm(dim=1).mean().item() for x in (wanted, got))
    return judge_latent_scale(*norms, cos, left, overrides=overrides)


def judge_latent_scale(x1: float, end: float, cos: float, left: float = 0.0, *, overrides: Overrides = None) -> Verdict:
    """x1: mean 2-norm of the autoencoder's latents; end: of where the flow ends; cos: of the two.

    left: how much of x0 is left in the end, or taken away too much. Fails where they point alike, nothing is left, and
    one is ``latent/apart`` times the other. Else nothing can be told.
    """
    limit = limits(overrides)
    most, alike, much = limit["latent/apart"], limit["latent/alike"], limit["latent/left"]
    values = {"E|x1|": x1, "E|z_end|": end, "cos": cos, "x0 left": left}
    threshold = (
        f"where cos(z_end, x1) is at least {alike:g} and at most {much:g} of x0 is left, neither of E|x1|, E|z_end| is "
        f"{most:g} times the other"
    )
    experience = (
        "A flow learns the latents it is given. Doubling the scale factor of a finished model's autoencoder leaves its "
        "round trip perfect, and every picture pale: decode divides what the flow made by twice too much."
    )
    if nonfinite(values):
        return not_finite("latent_scale", values, threshold, experience)
    said = f"E|x1| = {x1:.4g}, the flow's own ends have {end:.4g}, cos {cos:.3g}"
    if cos < alike or abs(left) > much:
        return skipped("latent_scale", f"{said}, {left:.2g} of x0 left: it does not end at x1, and lengths say nothing")
    ratio = values["ratio"] = x1 / end if end > 0 else math.inf
    if 1 / most <= ratio <= most:
        return Verdict("latent_scale", "pass", values, threshold, f"{said}: one scale.", "", experience)
    meaning = (
        f"{said}: right but for their length. The autoencoder's latents are {ratio:.3g} times those of the training."
    )
    advice = (
        f"The autoencoder is not scaled as in training: divide its scaling_factor by {ratio:.3g} (or multiply "
        f"latents_std), or take the one of the training. Until then the other checks of the field mislead."
    )
    return Verdict("latent_scale", "fail", values, threshold, meaning, advice, experience)


@torch.no_grad()
def teacher_euler(
    x0: Tensor,
    x1: Tensor,
    steps: Sequence[int] = (5, 10, 20, 50, 100),
    dtype: torch.dtype = torch.float32,
    integrate: Callable[[Velocity, Tensor, int], Tensor] | None = None,
    *,
    path: Path | None = None,
    overrides: Overrides = None,
) -> Verdict:
    """``MSE(z_N, x1)`` of the exact field, integrated from x0 in N even Euler steps, for each N of steps.

    x0, x1 and v are rounded to dtype first, and ``x = x + v * dt`` after every step, as in a plain loop in dtype: what
    is left is the loop's own error. integrate: somebody's own loop instead, ``integrate(velocity, x0, n) -> z_N``, of
    which x0 and v have that dtype.
    """
    check_ends("teacher_euler", x0, x1)
    _check.floating("teacher_euler", "dtype", torch.empty(0, dtype=dtype))
    path, x0, x1 = path or PATHS["psi"], x0.to(dtype), x1.to(dtype)

    def velocity(x, t, **_):
        return path.velocity(t, x0, x1).to(dtype)

    def loop(velocity, x, n):
        for t, dt in uniform(n):
            x = x + velocity(x, times_of(x, t)) * dt
        return x

    ends = {n: (integrate or loop)(velocity, x0.clone(), n) for n in steps}
    for n, end in ends.items():
        _check.like("teacher_euler", f"what integrate returns for {n} steps", end, "x0", x0)
    errors = [mse(end, x1) for end in ends.values()]
    return judge_teacher_euler(list(ends), errors, mse(x0, x1), overrides=overrides)


def judge_teacher_euler(
    steps: Sequence[int], error: Sequence[float], start: float = UNIT_START, *, overrides: Overrides = None
) -> Verdict:
    """error: MSE(z_N, x1) at each N of steps. start: MSE(x0, x1), that of unit-variance latents unless given.

    Growth from the least N to the most is rounding of the state, once a step: no schedule does that. A large error
    that does not grow is a wrong schedule or path; one that is large at the least N only is a grid that misses a part
    of the path, or a path too curved for so few steps (warns). Below ``teacher/floor`` of start all errors are one.
    """
    if len(steps) != len(error) or len(set(steps)) < 2:
        raise ValueError(f"judge_teacher_euler: steps and error need two or more N each, got {steps!r} and {error!r}")
    if start <= 0:
        raise ValueError(f"judge_teacher_euler: start, the MSE(x0, x1), must be positive, got {start}")
    limit = limits(overrides)
    most, large, floor = (limit[f"teacher/{name}"] for name in ("growth", "relative", "floor"))
    steps, error = map(list, zip(*sorted(zip(steps, error, strict=True)), strict=True))
    values = {"steps": steps, "error": error, "start": start}
    threshold = (
        f"MSE at N = {steps[-1]} is at most {most:g} times that at N = {steps[0]} (below {floor * start:.2g} they "
        f"count as equal), and at most {large:g} of MSE(x0, x1)"
    )
    experience = (
        "The diary got 5.4e-5, 1.5e-4, 5.8e-4, 3.4e-3, 1.5e-2 for N = 5, 10, 20, 50, 100 and called its schedule "
        "right. So it was; but an error growing with N is a bf16 state rounding at every step, and is flat in fp32."
    )
    if nonfinite(values):
        return not_finite("teacher_euler", values, threshold, experience)
    first, last = (max(e, floor * start) for e in (error[0], error[-1]))
    values["growth"] = last / first
    said = f"MSE(z_N, x1) {listed(error)} at N = {', '.join(map(str, steps))}"
    status, advice = "fail", ""
    if last / first > most:
        meaning = f"{last / first:.3g} times as large with more steps: rounding of the state, not the schedule."
        advice = (
            "Keep the state in float32 (the velocity may stay bf16), as fmkernels.flow.sample and euler_step_ do; "
            "fewer steps only hide it."
        )
    elif last > large * start:
        meaning = f"{last / start:.3g} of MSE(x0, x1) is left at any N: a wrong schedule or path, not rounding."
        advice = "Look at the sum of dt (1?), the sign of dt and v, and alpha', beta' of the path."
    elif first > large * start:
        status, meaning = "warn", f"{first / start:.3g} of MSE(x0, x1) is left at N = {steps[0]}, though it falls."
        advice = "On a straight path look for a step too many or too few; on a curved one take more steps."
    else:
        status, meaning = "pass", "small and flat."
    return Verdict("teacher_euler", status, values, threshold, f"{said}: {meaning}", advice, experience)


def endpoint(
    velocity: Velocity,
    x0: Tensor,
    x1: Tensor,
    ks: Sequence[int] = (8, 16, 32, 64),
    solvers: Sequence[str] = ("euler", "heun"),
    *,
    overrides: Overrides = None,
) -> Verdict:
    """:func:`endpoint_rmse` of each solver at each K: whether it falls or settles."""
    rmse = {solver: endpoint_rmse(velocity, x0, x1, ks, solver) for solver in solvers}
    return judge_endpoint(rmse, math.sqrt(mse(x0, x1)), overrides=overrides)


def judge_endpoint(
    rmse: Mapping[str, Mapping[int, float]], start: float = math.sqrt(UNIT_START), *, overrides: Overrides = None
) -> Verdict:
    """rmse: ``{"euler": {8: 0.31, 16: 0.3}}``. start: RMSE(x0, x1); that of unit-variance latents unless given.

    An RMSE may be ``endpoint/rise`` times that at the K before and ``endpoint/creep`` times the least before: where a
    text has several pictures a finer step ends nearer to one of them, and not to their mean, so it may rise a little.
    Below ``endpoint/floor`` of start it is rounding.
    """
    if not rmse or any(len(by_k) < 2 for by_k in rmse.values()):
        raise ValueError(f"judge_endpoint: rmse must have at least two K for each solver, got {rmse!r}")
    limit = limits(overrides)
    rise, creep, floor = limit["endpoint/rise"], limit["endpoint/creep"], limit["endpoint/floor"] * start
    values = {
        f"flow/endpt_rmse@{k}" + ("" if solver == "euler" else f" {solver}"): by_k[k]
        for solver, by_k in rmse.items()
        for k in sorted(by_k)
    }
    threshold = (
        f"RMSE at each K is at most {rise:g} times that at the K before and {creep:g} times the least before (below "
        f"{floor:.2g} it may do anything)"
    )
    experience = (
        "The diary: if the endpoint error does not fall with K, training target and sampling formula mostly disagree, "
        "as a target with alpha'(t), beta'(t) sampled by z += v dt."
    )
    if nonfinite(values):
        return not_finite("endpoint", values, threshold, experience)
    rises, said = [], []
    for solver, by_k in rmse.items():
        ks = sorted(by_k)
        said.append(f"{solver} {listed([by_k[k] for k in ks])} at K = {', '.join(map(str, ks))}")
        least = by_k[ks[0]]
        for before, k in pairwise(ks):
            if by_k[k] > max(min(rise * by_k[before], creep * least), floor):
                rises.append(f"{solver} at K = {k} is {by_k[k] / max(least, floor):.3g} times the least before")
            least = min(least, by_k[k])
    meaning = f"RMSE {'; '.join(said)}: " + ("; ".join(rises) if rises else "it falls or settles") + "."
    advice = (
        "Take x_t and v* in training and the step in sampling from one Path object, and look at t near 0 and 1, where "
        "a factor such as 1 / (1 - t) runs away."
    )
    status = "fail" if rises else "pass"
    return Verdict("endpoint", status, values, threshold, meaning, advice if rises else "", experience)


def leak(
    cos: float,
    relative_shooting: float | None = None,
    std_mean: float | None = None,
    *,
    overrides: Overrides = None,
) -> Verdict:
    """cos: one-step, mean over t. relative_shooting: of :func:`shooting`, on x0 drawn anew. std_mean: ``std/mean``.

    A cosine of ``leak/cos`` or more fails with a shooting error above ``leak/relative`` or a std below ``leak/std``.
    """
    given = {"cos": cos, "relative_shooting": relative_shooting, "std/mean": std_mean}
    values = {name: value for name, value in given.items() if value is not None}
    if len(values) < 2:
        return skipped("leak", "It needs the relative shooting error or std/mean beside the cosine.")
    limit = limits(overrides)
    high, far, sharp = (limit[f"leak/{name}"] for name in ("cos", "relative", "std"))
    threshold = (
        f"a one-step cos of {high:g} or more comes with a relative shooting error of at most {far:g} and std/mean of "
        f"at least {sharp:g}"
    )
    experience = (
        "A run whose z0 had become so sharp that x_t gave z1 away read well in every one-step figure and drew nothing: "
        "it is generation that counts."
    )
    if nonfinite(values):
        return not_finite("leak", values, threshold, experience)
    said = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
    signs = []
    if relative_shooting is not None and relative_shooting > far:
        signs.append("shooting does not arrive")
    if std_mean is not None and std_mean < sharp:
        signs.append("z0 has hardly any spread")
    if cos < high:
        meaning = f"{said}: the cosine is not so high that it could mislead."
    elif not signs:
        meaning = f"{said}: the cosine is high and the rest bears it out."
    else:
        advice = (
            "Judge by generation. Raise the KL weight (or its warm-up's end) so that std/mean goes back toward 1, and "
            "look at cos and shooting on x0 drawn anew for held-out pairs."
        )
        meaning = f"{said}: the cosine is high though {' and '.join(signs)}; x_t gives z1 away."
        return Verdict("leak", "fail", values, threshold, meaning, advice, experience)
    return Verdict("leak", "pass", values, threshold, meaning, "", experience)


@torch.no_grad()
def probes(
    z0: Tensor,
    z1: Tensor,
    decode: Callable[[Tensor], Tensor],
    first_step_rms: float,
    *,
    overrides: Overrides = None,
) -> Verdict:
    """[A] decode(z0), [B] the rms of the first step's change, [C] decode(z1), the latents before and after the flow.

    decode: pixels, in [-1, 1] or about. The same numbers as the pipeline's ``probes``.
    """
    check_ends("probes", z0, z1, letter="z")
    return judge_probes(probe(decode(z0), z0), first_step_rms, probe(decode(z1), z1), overrides=overrides)


def probe(image: Tensor, z: Tensor) -> dict[str, float]:
    """Return ``low high contrast rms``: the range and std of the decoded pixels, and the rms of the latent z."""
    if not isinstance(image, Tensor) or not image.is_floating_point() or image.numel() < 2:
        raise ValueError(f"probes: decode must return a floating point tensor of pixels, got {type(image).__name__}")
    image, rms = image.float(), z.float().square().mean().sqrt()
    numbers = (image.min(), image.max(), image.std(), rms)
    return {name: x.item() for name, x in zip(("low", "high", "contrast", "rms"), numbers, strict=True)}


def judge_probes(a: object, b: float, c: object, *, overrides: Overrides = None) -> Verdict:
    """a, c: ``low high contrast rms`` of decode(z0), decode(z1), as a mapping or as attributes; b: the first change.

    Fails where nothing moves: b of at most ``probes/first_step`` of z0's rms. Warns where the end has a contrast of at
    most ``probes/contrast``, or pixels beyond ``probes/range``.
    """
    limit = limits(overrides)
    moves, contrast, reach = (limit[f"probes/{name}"] for name in ("first_step", "contrast", "range"))
    names = ("low", "high", "contrast", "rms")
    a, c = ({name: x[name] if isinstance(x, Mapping) else getattr(x, name) for name in names} for x in (a, c))
    values = {"A": a, "B": b, "C": c}
    threshold = f"B is above {moves:g} of z0's rms; C has a contrast above {contrast:g} and |pixels| up to {reach:g}"
    experience = (
        "The diary's readings: [A] in range but of low contrast, [B] 2.6e-3 to 7.8e-3, so the field moved, [C] in "
        "range and still only texture. The probes clear the VAE and the loop, not the field."
    )
    if nonfinite(values):
        return not_finite("probes", values, threshold, experience)
    said = (
        f"[A] {a['low']:.3g} to {a['high']:.3g}, contrast {a['contrast']:.3g}; [B] {b:.3g}; "
        f"[C] {c['low']:.3g} to {c['high']:.3g}, contrast {c['contrast']:.3g}"
    )
    status, meaning, advice = "pass", "the field moves, and its end decodes to a picture's range and contrast.", ""
    if b <= moves * a["rms"]:
        status, meaning = "fail", "nothing moves."
        advice = "Look at dt, fm_gain and the last layer of the velocity network (still at zero?), then at one_step."
    elif c["contrast"] <= contrast:
        status, meaning = "warn", "the end is nearly one colour."
        advice = "Run shooting, and the VAE's round trip: a latent divided by its scale factor twice decodes flat."
    elif max(-c["low"], c["high"]) > reach:
        status, meaning = "warn", "the end decodes far outside the pixels' range."
        advice = "Run scale, and look at fm_gain and at the VAE's scale factor: the latent is too large."
    return Verdict("probes", status, values, threshold, f"{said}: {meaning}", advice, experience)
