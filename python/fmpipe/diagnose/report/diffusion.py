"""Seed 002's hypotheses, A to F: what goes in, when, how it is noised, what comes out, the loss, the schedule."""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from fmpipe.diagnose.checks.data import judge_image_range
from fmpipe.diagnose.report.finding import Finding, Limits, checked, find, of_checks
from fmpipe.diagnose.report.stats import RunStats, Series

# mean and standard deviation of t in [0, 1], see fmpipe.train.times.sample_t
TIMES = {
    "uniform": (0.5, 0.2887),
    "logit_normal": (0.5, 0.2083),
    "edge": (0.5, math.sqrt(7 / 60)),
    "mixed": (0.5, 0.2517),
    "early": (1 / 3, 0.2357),
}
BETAS = {"linear": (1e-4, 0.02), "scaled_linear": (0.00085, 0.012)}  # DDPM's, Stable Diffusion's
STEPS = 1000
LOSSES = ("loss/flow", "loss/diffusion", "loss/mse", "loss/total", "loss", "train/loss", "train_loss")
NONFINITE = {  # who is to blame for the first tensor that is not finite, in the order they are made
    "input_range": ("stat/x_0/nonfinite",),
    "forward_process": ("stat/noise/nonfinite", "stat/x_t/nonfinite"),
    "model_output": ("stat/predicted_x0/nonfinite", "stat/v_pred/nonfinite"),
}


def is_pixels(s: RunStats) -> bool:
    """Whether x_0 are pictures and not latents: an autoencoder's stage, or all of it in [-1, 1] or from 0 on."""
    low, high = s.first_of("stat/x_0/min"), s.first_of("stat/x_0/max")
    bounded = low is not None and high is not None and (low.min >= 0 or (low.min >= -1.01 and high.max <= 1.01))
    trained = "vae/psnr" in s.metrics and "loss/flow" not in s.metrics and "stat/noise/std" not in s.metrics
    return s.stage == "vae" or (trained and len(s.metrics["vae/psnr"].values) > 50) or bounded


def bad_elements(s: RunStats, *names: str) -> tuple[int, float]:
    """How many elements of these tensors were NaN or infinite, and at which step first, infinity if none."""
    found = [s.metrics[name] for name in names if name in s.metrics]
    steps = [x.first_above for x in found if x.first_above is not None]
    return sum(int(np.nansum(x.values)) for x in found), min(steps, default=math.inf)


def _nonfinite(s: RunStats, key: str, owner: str, *names: str) -> Iterator[Finding]:
    """Nothing NaN or infinite in these tensors; if there is, whoever had it before, or a step earlier, is the cause."""
    if not any(name in s.metrics for name in names):
        return
    count, step = bad_elements(s, *names)
    if not count:
        yield find(True, "finite", names=", ".join(name.split("/")[1] for name in names))
        return
    causes = _before(s, step, list(NONFINITE)[: list(NONFINITE).index(owner)])
    if first_bad_loss(s) < step:
        causes.append("loss_numerics")
    yield find(False, key, causes, count=count, step=step)


def _before(s: RunStats, step: float, owners: Iterable[str] = NONFINITE) -> list[str]:
    """Of these, those with a tensor that was not finite at this step or earlier."""
    return [name for name in owners if bad_elements(s, *NONFINITE[name])[1] <= step]


def first_bad_loss(s: RunStats) -> float:
    """The step of the first loss that is not finite, infinity if all are."""
    steps = (x.first_nonfinite for n, x in s.metrics.items() if n in LOSSES or n.startswith(("loss/", "val/loss/")))
    return min((step for step in steps if step is not None), default=math.inf)


def input_range(s: RunStats, limit: Limits) -> Iterator[Finding]:
    low, high = s.first_of("stat/x_0/min"), s.first_of("stat/x_0/max")
    yield from _nonfinite(s, "input/nonfinite", "input_range", *NONFINITE["input_range"])
    if low is not None and high is not None and is_pixels(s):
        judged = judge_image_range(low.min, high.max, overrides=of_checks(limit))
        yield find(judged.status != "fail", "input/pixels", low=low.min, high=high.max)
        return
    pixels = [s.first_of(f"stat/pixels/{name}") for name in ("min", "max")]
    if None not in pixels:
        low_, high_ = pixels[0].median, pixels[1].median
        wrong = high_ > 1.5 or (low_ > -0.05 and high_ > 0.5)
        yield find(not wrong, "input/pixels", low=low_, high=high_)
    if (mean := s.first_of("stat/x_0/mean")) is not None:
        said = {"median": mean.median, "low": mean.min, "high": mean.max}
        yield find(abs(mean.median) <= limit["input/mean"], "input/mean", ["scale_mismatch"], **said)
    if (std := s.first_of("stat/x_0/std")) is not None:
        ok = limit["input/std_low"] <= std.median <= limit["input/std_high"]
        yield find(ok, "input/std", ["scale_mismatch"], median=std.median, low=std.min, high=std.max)
    if low is not None and high is not None:
        yield find(True, "input/range", low=low.min, high=high.max)
    yield from checked(s, "image_range")


def _pooled(mean: Series, std: Series) -> tuple[float, float, float]:
    """Of all samples, from those of each batch: mean, standard deviation, and the mean's standard error."""
    a, b = mean.finite, std.finite
    between = float(np.std(a))
    return float(a.mean()), math.sqrt(float(np.square(b).mean()) + between**2), between / math.sqrt(len(a))


def time_sampling(s: RunStats, limit: Limits) -> Iterator[Finding]:
    mean, std = s.first_of("stat/t/mean"), s.first_of("stat/t/std")
    if mean is None or std is None:
        return
    low, high = s.first_of("stat/t/min"), s.first_of("stat/t/max")
    whole = STEPS if (high or mean).max > 1.5 else 1  # steps 0 to 999, or times in [0, 1]
    m, sd, error = (x / whole for x in _pooled(mean, std))
    if low is not None and high is not None:
        yield find(low.min >= 0 and high.max <= whole, "time/range", low=low.min, high=high.max, top=whole)
    kind = None if whole > 1 else s.setting("flow/losses/t")
    kinds = [kind] if kind in TIMES else ["uniform"] if whole > 1 else ["uniform", "logit_normal"]
    nearest = min(kinds, key=lambda k: abs(sd - TIMES[k][1]))
    due, spread = TIMES[nearest]
    few = 4 * error  # what so few batches leave to chance
    said = {"kind": nearest, "mean": m * whole, "due": due * whole, "std": sd * whole, "spread": spread * whole}
    yield find(abs(m - due) <= limit["time/mean"] + few, "time/mean", **said)
    yield find(abs(sd - spread) <= limit["time/std"] + few, "time/std", **said)


def forward_process(s: RunStats, limit: Limits) -> Iterator[Finding]:
    names = ("noise", "x_t", "x_0")
    ends = {n: (s.first_of(f"stat/{n}/min"), s.first_of(f"stat/{n}/max")) for n in names}
    spread = {n: s.first_of(f"stat/{n}/std") for n in names}
    if spread["x_t"] is None and ends["x_t"][0] is None:
        return
    upstream = ["scale_mismatch", "input_range", "time_sampling", "schedule_constants"]
    yield from _nonfinite(s, "forward/nonfinite", "forward_process", *NONFINITE["forward_process"])
    is_flow = "std/mean" in s.metrics or "mu/rms" in s.metrics  # its noise is z0, which is judged elsewhere
    mean = s.first_of("stat/noise/mean")
    if not is_flow and mean is not None and spread["noise"] is not None:
        m, sd = mean.median, spread["noise"].median
        ok = abs(m) <= limit["forward/mean"] and abs(sd - 1) <= limit["forward/std"]
        yield find(ok, "forward/noise", mean=m, std=sd)
    if all(low is not None and high is not None for low, high in ends.values()):
        size = {n: max(-low.min, high.max) for n, (low, high) in ends.items()}
        most = max(size["noise"], size["x_0"])
        yield find(size["x_t"] <= limit["forward/reach"] * most, "forward/reach", upstream, x_t=size["x_t"], ends=most)
    if all(x is not None for x in spread.values()):
        a, b, x_t = (spread[n].median for n in ("noise", "x_0", "x_t"))
        low, high = _allowed(s, a, b) if is_flow else (min(a, b), max(a, b))
        slack = limit["forward/misfit"] * high
        yield find(low - slack <= x_t <= high + slack, "forward/std", upstream, std=x_t, low=low, high=high)


def _allowed(s: RunStats, a: float, b: float) -> tuple[float, float]:
    """Of std(x_t), x_t = (1 - t) z0 + t z1 with stds a, b: uncorrelated at the least, one line at the most."""
    mean, std = s.first_of("stat/t/mean"), s.first_of("stat/t/std")
    m, sd, _ = _pooled(mean, std) if mean is not None and std is not None else (*TIMES["uniform"], 0.0)
    apart = ((1 - m) ** 2 + sd**2) * a**2 + (m**2 + sd**2) * b**2
    return math.sqrt(apart), math.sqrt(apart + 2 * max(m - m**2 - sd**2, 0) * a * b)


def model_output(s: RunStats, limit: Limits) -> Iterator[Finding]:
    yield from _nonfinite(s, "output/nonfinite", "model_output", *NONFINITE["model_output"])
    target, std = s.first_of("stat/x_0_target/std", "stat/x_0/std"), s.first_of("stat/predicted_x0/std")
    if std is not None and target is not None and target.late > 0:
        first, last, due = std.early, std.late, target.late
        ok = limit["output/low"] <= last / due <= limit["output/high"] or abs(last - due) < 0.7 * abs(first - due)
        upstream = ["gradients", "loss_numerics", "scale_mismatch", "schedule_constants", "forward_process"]
        upstream += ["kl", "train_inference", "time_sampling", "input_range"]
        yield find(ok, "output/std", upstream, first=first, last=last, due=due)
    low, high = s.first_of("stat/predicted_x0/min"), s.first_of("stat/predicted_x0/max")
    if low is not None and high is not None:
        yield find(True, "output/range", first=high.early - low.early, last=high.late - low.late)


def loss_numerics(s: RunStats, limit: Limits) -> Iterator[Finding]:
    losses = {n: x for n, x in s.metrics.items() if n in LOSSES or n.startswith(("loss/", "val/loss/"))}
    loss = s.first_of(*LOSSES)
    if (why := s.texts.get("stop/reason")) and "not finite" in why:
        yield find(False, "loss/stopped", ["kl", "scale_mismatch"], why=why)
    if not losses:
        return
    count = sum(x.nonfinite for x in losses.values())
    if count:
        first, grads = first_bad_loss(s), s.metrics.get("grad/total")
        before = _before(s, first)
        if grads is not None and _explodes(grads, first, limit):
            before.append("gradients")
        yield find(False, "loss/nonfinite", before, count=count, step=first)
    else:
        yield find(True, "finite", names=", ".join(losses))
    if loss is None:
        return
    name = next(n for n, x in s.metrics.items() if x is loss)
    start, end = loss.first10, loss.last10
    upstream = ["gradients", "scale_mismatch", "input_range", "schedule_constants", "kl", "time_sampling"]
    drop = 100 * (1 - end / start) if start else 0.0
    said = {"name": name, "first": start, "last": end, "drop": drop, "low": loss.min, "high": loss.max}
    yield find(not end > limit["loss/rise"] * start, "loss/drop", upstream, **said)
    half = loss.finite[len(loss.finite) // 2 :]
    if len(half) >= 20:
        far = int((half > limit["loss/outlier"] * np.median(half)).sum())
        ok = far <= max(1, limit["loss/outliers"] * len(half))
        yield find(ok, "loss/outliers", upstream, name=name, count=far, of=len(half), times=limit["loss/outlier"])


def _explodes(grads: Series, until: float, limit: Limits) -> bool:
    """Whether the gradients had run away before a step."""
    before = grads.finite[: int((grads.steps < until).sum())]
    return len(before) > 2 and before[-1] > limit["gradient/exploding"] * np.median(before)


def contradictions(s: RunStats) -> Iterator[tuple[str, Series]]:
    """Losses whose first or last ten are outside of the range stated for all of them."""
    for name, x in s.metrics.items():
        slack = 1e-3 * max(abs(x.min), abs(x.max))
        if "loss" in name and not all(x.min - slack <= y <= x.max + slack for y in (x.first10, x.last10) if y == y):
            yield name, x


def schedule_constants(s: RunStats, limit: Limits) -> Iterator[Finding]:
    ends = {n.removeprefix("const/"): (float(x[0]), float(x[-1])) for n, x in s.constants.items() if len(x) > 1}
    betas, kept = ends.get("betas"), ends.get("alphas_cumprod")
    if betas is not None:
        kind = min(BETAS, key=lambda k: sum(abs(math.log(max(x, 1e-12) / y)) for x, y in zip(betas, BETAS[k])))
        ok = all(abs(x / y - 1) <= limit["schedule/relative"] for x, y in zip(betas, BETAS[kind]))
        said = {"kind": kind, "due_first": BETAS[kind][0], "due_last": BETAS[kind][1]}
        yield find(ok, "schedule/betas", first=betas[0], last=betas[1], **said)
    if kept is not None:
        ok = kept[0] >= 1 - limit["schedule/end"] and 0 < kept[1] <= limit["schedule/end"]
        yield find(ok, "schedule/end", first=kept[0], last=kept[1])
    wrong = [name for name, ok in _agree(betas, kept, ends, limit["schedule/relative"]) if not ok]
    if kept is not None and (betas or len(ends) > 1):
        yield find(not wrong, "schedule/agree", names=", ".join(wrong) or "-")


def _agree(betas, kept, ends, slack) -> Iterator[tuple[str, bool]]:
    """Whether each constant is what the others make of it, within four printed digits."""
    if kept is None:
        return

    def near(x: float, y: float) -> bool:
        return abs(x - y) <= slack * abs(y) + 6e-5

    if betas is not None:
        yield "alphas_cumprod[0]", near(1 - kept[0], betas[0])
        grids = {"linear": np.linspace(*betas, STEPS), "scaled": np.linspace(*np.sqrt(betas), STEPS) ** 2}
        last = [float(np.prod(1 - grid)) for grid in grids.values()]
        yield "alphas_cumprod[-1]", any(abs(math.log(max(kept[1], 1e-30) / max(x, 1e-30))) < 0.1 for x in last)
    if (root := ends.get("sqrt_alphas_cumprod")) is not None:
        yield "sqrt_alphas_cumprod", all(near(r, math.sqrt(max(k, 0))) for r, k in zip(root, kept))
    if (rest := ends.get("sqrt_one_minus_alphas_cumprod")) is not None:
        yield "sqrt_one_minus_alphas_cumprod", all(near(r, math.sqrt(max(1 - k, 0))) for r, k in zip(rest, kept))
