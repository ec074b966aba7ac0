"""Checks of what a run's numbers do over time: the KL's trend, the overfit of a small set, the ablations."""

from collections.abc import Mapping, Sequence

from fmpipe.diagnose.checks.training import Finding, History, ends, late, verdict_of
from fmpipe.diagnose.verdict import Overrides, Verdict, limits, skipped

# The prior's value of each statistic that the KL pulls there.
PRIOR = {"mu/abs_mean": 0.0, "std/mean": 1.0, "logvar/mean": 0.0}


def distances(history: History) -> dict[str, tuple[float, float]]:
    """How far each of :data:`PRIOR` that is in the history is from the prior, at its beginning and its end."""
    out = {}
    for name, goal in PRIOR.items():
        if name in history:
            first, last = ends(history[name], name)
            out[name] = abs(first - goal), abs(last - goal)
    return out


def kl_trends(on: History, off: History, limit: Mapping[str, float]) -> tuple[list[Finding], dict[str, object]]:
    """Does what the KL moves stay where it is at w_kl = 0? The findings, and how far each came nearer the prior."""
    with_kl, without = distances(on), distances(off)
    moved = {name: (with_kl[name], without[name]) for name in with_kl if name in without}
    moved = {name: (a[0] - a[1], b[0] - b[1]) for name, (a, b) in moved.items()}
    values = {f"nearer/{name}": {"with_kl": a, "without": b} for name, (a, b) in moved.items()}
    if not moved:
        return [("warn", "the run without KL has none of its statistics", f"Log {', '.join(with_kl)} in it.")], {}
    step, left = limit["ablation/drop"], limit["ablation/left"]
    # A statistic that was at the prior from the beginning shows the KL by drifting away without it.
    gone = {name: b <= left * a if a > step else b < a - step for name, (a, b) in moved.items()}
    same = [name for name in gone if not gone[name]]
    if not same:
        return [], values
    what = ", ".join(
        f"{name} comes {moved[name][1]:.3g} nearer without it, {moved[name][0]:.3g} with it" for name in same
    )
    todo = "Look whether the KL reaches mu and logvar (no detach, w_kl after warm-up above 0) and raise w_kl."
    return [("warn" if len(same) < len(gone) else "fail", f"the KL is not what moves the head: {what}", todo)], values


def kl(
    history: History,
    off: History | None = None,
    *,
    clamped: float | None = None,
    clamp: tuple[float, float] = (-6.0, 6.0),
    overrides: Overrides = None,
) -> Verdict:
    """mu/abs_mean falls, std/mean -> 1, logvar/mean -> 0 (or is there already); z_init/mean ~ 0, z_init/var ~ 1.

    Ends are means of the first and last tenth. std/mean too small, or logvar/mean at its clamp, is a collapse. off: the
    history of a run with w_kl = 0, in which the trend has to vanish. clamped: share of logvar outside its clamp.
    """
    limit, findings, values = limits(overrides), [], {}
    trend = distances(history)
    if not trend:
        return skipped("kl", f"the history has none of {', '.join(PRIOR)}")
    for name, (first, last) in trend.items():
        values[name] = dict(zip(("first", "last"), ends(history[name], name), strict=True))
        if not (last <= limit["kl/there"] or last <= first * (1 - limit["ablation/drop"])):
            what = f"{name} goes from {values[name]['first']:.3g} to {values[name]['last']:.3g}, not to {PRIOR[name]:g}"
            todo = (
                "Raise w_kl (by gradient share, see gradient_shares) and take the KL from mu and logvar, never from z."
            )
            findings.append(("fail", what, todo))
    for name, low, high in (
        ("z_init/mean", -limit["kl/z_mean"], limit["kl/z_mean"]),
        ("z_init/var", limit["kl/z_var_low"], limit["kl/z_var_high"]),
    ):
        if name in history:
            values[name] = ends(history[name], name)[1]
            if not low <= values[name] <= high:
                what = f"{name} ends at {values[name]:.3g}, outside {low:g} to {high:g}"
                findings.append(("warn", what, "Train on, or raise w_kl; the KL belongs on unscaled latents."))
    todo = "Start logvar near 0 and bring the KL in by a warm-up over the first 10 % of the run or a beta schedule."
    if "std/mean" in values and values["std/mean"]["last"] < limit["kl/collapse_std"]:
        findings.append(("fail", f"posterior collapse: std/mean is {values['std/mean']['last']:.3g}", todo))
    if "logvar/mean" in values and not 0.99 * clamp[0] < values["logvar/mean"]["last"] < 0.99 * clamp[1]:
        findings.append(("fail", f"logvar/mean is at its clamp: {values['logvar/mean']['last']:.3g}", todo))
    if clamped is not None:
        values["logvar/clamped"] = float(clamped)
        if not clamped <= limit["kl/clamped"]:
            findings.append(("fail", f"{clamped:.0%} of logvar is outside its clamp", todo))
    if off is not None:
        more, nearer = kl_trends(history, off, limit)
        findings, values = findings + more, {**values, **nearer}
    return verdict_of(
        "kl",
        findings,
        values,
        f"each of {', '.join(trend)} nearer the prior by {limit['ablation/drop']:.0%} or within {limit['kl/there']:g}; "
        f"|z_init/mean| at most {limit['kl/z_mean']:g}, z_init/var from {limit['kl/z_var_low']:g} to "
        f"{limit['kl/z_var_high']:g}; "
        f"std/mean at least {limit['kl/collapse_std']:g}, logvar/mean inside {clamp[0]:g} to {clamp[1]:g}",
        "the posterior goes to N(0, I): " + ", ".join(f"{n} ends at {values[n]['last']:.3g}" for n in trend),
        "The diary's plateau came from a logvar that began too small, sigma near 0, so that a strong KL crushed the "
        "head; a KL taken from z instead of mu and logvar was the other cause.",
    )


def overfit(history: History, *, overrides: Overrides = None) -> Verdict:
    """On a small fixed set flow/nmse (or loss/flow) falls, flow/cos rises, and loss/kl is steady in the last half.

    Ends are means of the first and last tenth. flow/cos and loss/kl may be absent.
    """
    limit, findings, values = limits(overrides), [], {}
    error = next((name for name in ("flow/nmse", "loss/flow") if name in history), None)
    if error is None:
        return skipped("overfit", "the history has neither flow/nmse nor loss/flow")
    todo = "Do not scale up: check scale, target, gradient path and learning rate first, on these few samples."
    first, last = ends(history[error], error)
    values[error] = {"first": first, "last": last}
    if not last <= limit["overfit/loss"] * first:
        findings.append(("fail", f"{error} goes from {first:.3g} to {last:.3g}", todo))
    if "flow/cos" in history:
        first, last = ends(history["flow/cos"], "flow/cos")
        values["flow/cos"] = {"first": first, "last": last}
        if not (last > first and last >= limit["overfit/cos"]):
            findings.append(("fail", f"flow/cos goes from {first:.3g} to {last:.3g}", todo))
    if "loss/kl" in history:
        half = history["loss/kl"][(len(history["loss/kl"]) - 1) // 2 :]
        first, last = (max(x, 1e-3) for x in ends(half, "loss/kl"))  # a KL that trembles at 0 is steady
        values["loss/kl"] = {"half": first, "last": last}
        if not last <= limit["overfit/kl"] * first:
            findings.append(("fail", f"the KL grows from {first:.3g} to {last:.3g} in the last half", "Raise w_kl."))
        elif not first <= limit["overfit/kl"] * last:
            what = f"the KL still falls, from {first:.3g} to {last:.3g} in the last half"
            findings.append(("warn", what, "Train on until it is steady, or lower w_kl."))
    ended = ", ".join(f"{name} ends at {x['last']:.3g}" for name, x in values.items())
    return verdict_of(
        "overfit",
        findings,
        values,
        f"{error} at most {limit['overfit/loss']:g} of its beginning, flow/cos rising to {limit['overfit/cos']:g} or "
        f"more, the KL within a factor of {limit['overfit/kl']:g} in the last half",
        f"the small set is learnt: {ended}",
        "The diary fixes some 128 samples: if the flow MSE does not fall, the cosine not rise and the KL not settle "
        "there, it goes back to scale, target, gradient and structure before anything larger.",
    )


def ablation_only_flow(history: History, *, overrides: Overrides = None) -> Verdict:
    """With the flow loss alone, some 200 steps: flow/cos up, flow/nmse and flow/endpt_rmse@K (each K there is) down."""
    limit, findings, values = limits(overrides), [], {}
    step = limit["ablation/drop"]
    names = [name for name in history if name in ("flow/cos", "flow/nmse") or name.startswith("flow/endpt_rmse@")]
    if not names:
        return skipped("ablation_only_flow", "the history has no flow/cos, flow/nmse or flow/endpt_rmse@K")
    for name in names:
        first, last = ends(history[name], name)
        values[name] = {"first": first, "last": last}
        if not (last >= first + step if name == "flow/cos" else last <= first * (1 - step)):
            todo = "The flow does not learn by itself: check target, path, scale and learning rate."
            if name.startswith("flow/endpt"):
                todo = "Make training and integration use one path object, and the same scale and sign."
            findings.append(("fail", f"{name} goes from {first:.3g} to {last:.3g}", todo))
    return verdict_of(
        "ablation_only_flow",
        findings,
        values,
        f"flow/cos up by {step:g}, flow/nmse and flow/endpt_rmse@K down by {step:.0%}",
        "the flow learns alone: " + ", ".join(f"{name} ends at {x['last']:.3g}" for name, x in values.items()),
        "The diary runs 200 steps with w_dino = w_kl = 0: cos up, nmse down and endpoint error down should be plain to "
        "see; an endpoint that stays means that training and integration disagree.",
    )


def ablation_kl_off(with_kl: History, without: History, *, overrides: Overrides = None) -> Verdict:
    """At w_kl = 0 mu no longer shrinks to 0 nor sigma go to 1: two histories from the same start, compared."""
    limit = limits(overrides)
    findings, values = kl_trends(with_kl, without, limit)
    if not values:
        return skipped("ablation_kl_off", f"the histories share none of {', '.join(PRIOR)}")
    return verdict_of(
        "ablation_kl_off",
        findings,
        values,
        f"without the KL at most {limit['ablation/left']:.0%} of each trend to the prior is left, or, where there is "
        f"none, a drift away of more than {limit['ablation/drop']:g}",
        "without the KL the trend to the prior is gone",
        "The diary: with w_kl = 0 the trends of mu and sigma should vanish or turn around; the difference is the "
        "proof that the KL works.",
    )


def ablation_condition_shuffled(
    cos: float | Sequence[float], cos_shuffled: float | Sequence[float], *, overrides: Overrides = None
) -> Verdict:
    """flow/cos with the right condition less that with shuffled ones (numbers, or medians of a series' last half)."""
    limit, findings = limits(overrides), []
    right = late(cos, "ablation_condition_shuffled: cos")
    shuffled = late(cos_shuffled, "ablation_condition_shuffled: cos_shuffled")
    values, step = {"cos": right, "cos_shuffled": shuffled, "gain": right - shuffled}, limit["ablation/drop"]
    if not values["gain"] >= step:
        status = "warn" if values["gain"] > limit["ablation/gain"] else "fail"
        todo = (
            "The field averages over conditions: check the pairing, the text path and that the condition is wired in."
        )
        findings.append((status, f"shuffling the condition costs {values['gain']:.3g} of the cosine", todo))
    return verdict_of(
        "ablation_condition_shuffled",
        findings,
        values,
        f"cos - cos(shuffled) at least {step:g}; fails at {limit['ablation/gain']:g} or below",
        f"the condition is used: shuffling it costs {values['gain']:.3g} of the cosine",
        "The diary asks for a clear drop when conditions are shuffled; without one the model has learnt an average "
        "field.",
    )
