"""Rules about what goes in: pixels, latents, captions, texts, times, and the schedule of a diffusion."""

import math
from collections.abc import Iterator

import numpy as np

from fmpipe.diagnose.figures import Figures, Series
from fmpipe.diagnose.rule import Evidence, measured_rule, rule, say
from fmpipe.diagnose.thresholds import Limits

# mean and standard deviation of t in [0, 1], see fmpipe.train.times.sample_t
TIMES = {
    "uniform": (0.5, 0.2887),
    "logit_normal": (0.5, 0.2083),
    "edge": (0.5, math.sqrt(7 / 60)),
    "mixed": (0.5, 0.2517),
    "early": (1 / 3, 0.2357),
}
STEPS = 1000
_ABAR = np.cos((np.arange(STEPS + 1) / STEPS + 0.008) / 1.008 * math.pi / 2) ** 2
COSINE = np.minimum(1 - _ABAR[1:] / _ABAR[:-1], 0.999)  # the betas of improved DDPM
BETAS = {  # DDPM's, Stable Diffusion's, improved DDPM's
    "linear": (1e-4, 0.02),
    "scaled_linear": (0.00085, 0.012),
    "cosine": (float(COSINE[0]), float(COSINE[-1])),
}
LOSSES = ("loss/flow", "loss/diffusion", "loss/mse", "loss/total")
NONFINITE = {  # which rule is to blame for the first tensor that is not finite, in the order they are computed
    "input_range": ("stat/x_0/nonfinite",),
    "forward_process": ("stat/noise/nonfinite", "stat/x_t/nonfinite"),
    "model_output": ("stat/predicted_x0/nonfinite", "stat/v_pred/nonfinite"),
}


def is_pixels(f: Figures) -> bool:
    """Tell whether x_0 are images and not latents: an autoencoder's stage, or all of it in [-1, 1] or from 0 on."""
    bounded = False
    if ends := f.range_of("x_0"):
        low, high = ends[0].min, ends[1].max
        bounded = low >= 0 or (-1.01 <= low <= -0.95 and 0.95 <= high <= 1.01)
    trained = "vae/psnr" in f.metrics and "loss/flow" not in f.metrics and "stat/noise/std" not in f.metrics
    return f.stage == "vae" or (trained and len(f.metrics["vae/psnr"].values) > 50) or bounded


def bad_elements(f: Figures, *names: str) -> tuple[int, float]:
    """Return how many elements of these tensors were NaN or infinite, and the first step at which, infinity if none."""
    found = [f.metrics[name] for name in names if name in f.metrics]
    steps = [x.first_above for x in found if x.first_above is not None]
    return sum(int(np.nan_to_num(x.values, posinf=1, neginf=0).sum()) for x in found), min(steps, default=math.inf)


def finite_tensors(f: Figures, owner: str) -> Iterator[Evidence]:
    """Judge whether the tensors of a rule are finite. Tensors or losses that were not finite before are the cause."""
    names = [name for name in NONFINITE[owner] if name in f.metrics]
    if not names:
        return
    tensors, (count, step) = [name.split("/")[1] for name in names], bad_elements(f, *names)
    if not count:
        yield say("pass", "finite", names=tensors)
        return
    causes = broken_before(f, step, list(NONFINITE)[: list(NONFINITE).index(owner)])
    causes += ["loss_numerics"] * (first_bad_loss(f) < step)
    yield say("fail", "tensor/nonfinite", causes, count=count, names=tensors, step=step)


def broken_before(f: Figures, step: float, owners=NONFINITE) -> list[str]:
    """Return those of the rules whose tensors were not finite at this step or earlier."""
    return [name for name in owners if bad_elements(f, *NONFINITE[name])[1] <= step]


def first_bad_loss(f: Figures) -> float:
    """Return the step of the first loss that is not finite, infinity if all are."""
    steps = (x.first_nonfinite for n, x in f.metrics.items() if n.startswith(("loss/", "val/loss/")))
    return min((step for step in steps if step is not None), default=math.inf)


@rule("stat/x_0/mean", "stat/x_0/std", "stat/x_0/min", "stat/x_0/max", letter="A")
def input_range(f: Figures, limit: Limits) -> Iterator[Evidence]:
    yield from finite_tensors(f, "input_range")
    if is_pixels(f):
        return
    if (mean := f.first_of("stat/x_0/mean")) is not None:
        values = {"median": mean.median, "low": mean.min, "high": mean.max}
        yield say(abs(mean.median) <= limit["input/mean"], "input/mean", **values)
    if (std := f.first_of("stat/x_0/std")) is not None:
        ok = limit["input/std_low"] <= std.median <= limit["input/std_high"]
        yield say(ok, "input/std", median=std.median, low=std.min, high=std.max)
    if ends := f.range_of("x_0"):
        yield say("pass", "input/range", low=ends[0].min, high=ends[1].max)


@rule("stat/pixels/min", "stat/pixels/max")
def image_range(f: Figures, limit: Limits) -> Iterator[Evidence]:
    if m := f.measured.get("image_range"):
        yield _range(m["low"], m["high"], m["nonfinite"], limit)
    elif is_pixels(f) and (ends := f.range_of("x_0")):
        yield _range(ends[0].min, ends[1].max, 0, limit)
    elif ends := f.range_of("pixels"):
        low, high = (x.median for x in ends)
        # another normalization than [-1, 1] is possible here, unlike 0 to 255 or 0 to 1
        wrong = high > 2.7 or (low > -0.05 and high > 0.5)
        yield _range(low, high, 0, limit) if wrong else say("pass", "pixels/range", low=low, high=high)
    elif (mean := f.first_of("stat/pixels/mean")) and (std := f.first_of("stat/pixels/std")):
        wrong = std.median > 3 or (mean.median > 0.25 and std.median < 0.45)
        yield say(not wrong, "pixels/stats", ["scale_factor"], mean=mean.median, std=std.median)


def _range(low: float, high: float, bad: int, limit: Limits) -> Evidence:
    slack, values = limit["data/range"], {"low": low, "high": high}
    if bad:
        return say("fail", "pixels/nonfinite", count=bad)
    if low >= -slack and high > 2:
        return say("fail", "pixels/bytes", **values)
    if low < -1 - slack or high > 1 + slack:
        return say("fail", "pixels/beyond", **values)
    if low == high:
        return say("warn", "pixels/flat", low=low)
    if low >= 0:
        return say("fail", "pixels/unit", **values)
    return say("fail", "pixels/half", **values) if high <= 0 else say("pass", "pixels/range", **values)


@measured_rule
def same_augmentation(m: dict, limit: Limits) -> Iterator[Evidence]:
    if m["difference"] <= limit["data/same"]:
        yield say("pass", "augmentation/same", difference=m["difference"])
    for kind, count in m["kinds"].items() if m["difference"] > limit["data/same"] else ():
        if kind != "same":
            values = {"difference": m["difference"], "count": count, "of": sum(m["kinds"].values())}
            yield say("fail", f"augmentation/{kind}", **values)


@measured_rule
def pairing(m: dict, limit: Limits) -> Iterator[Evidence]:
    gain, error, least = m["true"] - m["shuffled"], m["error"], limit["data/pairing"]
    values = {"true": m["true"], "shuffled": m["shuffled"], "gain": gain, "error": error}
    if not gain > least + limit["data/pairing_fail"] * error:
        yield say("fail", "pairing/chance", **values)
    elif not gain > least + limit["data/pairing_warn"] * error:
        yield say("warn", "pairing/weak", **values)
    else:
        yield say("pass", "pairing/good", **values)


@rule("text/cos", "text/same")
def text_path(f: Figures, limit: Limits) -> Iterator[Evidence]:
    m, most = f.measured.get("text_path"), limit["text/cos"]
    logged, control = f.late("text/cos"), f.late("text/same")
    if m is None and logged is not None:
        m = {"cosines": {"": logged}, "same": control}
    if not m:
        return
    cosines, same = m["cosines"], m.get("same")
    mean, nearest = sum(cosines.values()) / len(cosines), max(cosines, key=cosines.get)
    values = {"mean": mean, "nearest": nearest, "max": cosines[nearest], "same": same}
    if same is not None and same < most:
        if same - mean <= max((1 - most) * same, 4 * m.get("noise", 0.0)):
            yield say("skipped", "text/samples", **values)
            return
        most *= min(same, 1.0)
    elif same is None and m.get("sampled") and mean < most:
        yield say("skipped", "text/control", **values)
        return
    if not mean < most:
        yield say("fail", "text/ignored", **values)
    elif cosines[nearest] >= most:
        yield say("warn", "text/near", **values)
    else:
        yield say("pass", "text/apart", **values)


@measured_rule
def time_embedding(m: dict, limit: Limits) -> Iterator[Evidence]:
    ratio = m["embedding_rms"] / m["features_rms"] if m["features_rms"] else math.inf
    if not math.isfinite(ratio):
        yield say("fail", "not_finite", names=["ratio"])
    else:
        yield say("pass" if ratio <= limit["time/rms"] else "warn", "time/embedding", **m, ratio=ratio)


def pooled(mean: Series, std: Series) -> tuple[float, float, float]:
    """Return mean and standard deviation of all samples from those of each batch, and the mean's standard error."""
    a, b = mean.finite, std.finite
    between, within = float(np.std(a)), float(np.square(b).mean())
    # a few batches do not show how much their means differ: those of four samples each would by this
    between = max(between, math.sqrt(within) / 2) if len(a) < 8 and not mean.stated else between
    return float(a.mean()), math.sqrt(within + float(np.var(a))), between / math.sqrt(len(a))


@rule("stat/t/mean", "stat/t/std", letter="B")
def time_sampling(f: Figures, limit: Limits) -> Iterator[Evidence]:
    mean, std = f.first_of("stat/t/mean"), f.first_of("stat/t/std")
    low, high = f.first_of("stat/t/min"), f.first_of("stat/t/max")
    if mean is None and (low is None or high is None):
        return
    whole = STEPS if (high or mean).max > 1.5 else 1  # steps 0 to 999, or times in [0, 1]
    if low is not None and high is not None:
        yield say(low.min >= 0 and high.max <= whole, "time/range", low=low.min, high=high.max, top=whole)
        if mean is None:
            return
    kind = None if whole > 1 else f.setting("flow/losses/t")
    kinds = [kind] if kind in TIMES else ["uniform", "logit_normal"]
    if std is None:
        m, error = float(mean.finite.mean()) / whole, float(np.std(mean.finite)) / math.sqrt(len(mean.finite)) / whole
        due = TIMES[kinds[0]][0]
        ok = abs(m - due) <= limit["time/mean"] + 4 * error
        yield say(ok, "time/mean", kind=kinds[0], mean=m * whole, due=due * whole)
        return
    m, sd, error = (x / whole for x in pooled(mean, std))
    nearest = min(kinds, key=lambda k: abs(sd - TIMES[k][1]))
    due, spread = TIMES[nearest]
    chance = 4 * error  # what so few batches leave to chance
    fits = abs(m - due) <= limit["time/mean"] + chance
    shifted = kind not in TIMES and 0.12 < sd < 0.26 and 0.5 < m < 0.85  # as SD3 and FLUX draw them
    status = "pass" if fits else "warn" if shifted else "fail"
    yield say(status, "time/mean", kind=nearest, mean=m * whole, due=due * whole)
    ok = abs(sd - spread) <= limit["time/std"] + chance
    status = "pass" if ok else "warn" if shifted else "fail"
    yield say(status, "time/std", kind=nearest, std=sd * whole, spread=spread * whole)


@rule("stat/x_t/std", "stat/noise/std", "stat/x_0/std", letter="C")
def forward_process(f: Figures, limit: Limits) -> Iterator[Evidence]:
    names = ("noise", "x_t", "x_0")
    ends = {n: f.range_of(n) for n in names}
    spread = {n: f.first_of(f"stat/{n}/std") for n in names}
    if spread["x_t"] is None and f.first_of("stat/x_t/min") is None:
        return
    yield from finite_tensors(f, "forward_process")
    is_flow = "std/mean" in f.metrics or "mu/rms" in f.metrics  # its noise is z0, which other rules judge
    mean = f.first_of("stat/noise/mean")
    if not is_flow and mean is not None and spread["noise"] is not None:
        m, sd = mean.median, spread["noise"].median
        ok = abs(m) <= limit["forward/mean"] and abs(sd - 1) <= limit["forward/std"]
        yield say(ok, "forward/noise", mean=m, std=sd)
    if all(ends.values()):
        size = {n: max(-low.min, high.max) for n, (low, high) in ends.items()}
        most = max(size["noise"], size["x_0"])
        yield say(size["x_t"] <= limit["forward/reach"] * most, "forward/reach", x_t=size["x_t"], ends=most)
    if all(x is not None for x in spread.values()):
        a, b, x_t = (spread[n].median for n in ("noise", "x_0", "x_t"))
        low, high = _allowed(f, a, b) if is_flow else (min(a, b), max(a, b))
        slack = limit["forward/misfit"] * high
        yield say(low - slack <= x_t <= high + slack, "forward/std", std=x_t, low=low, high=high)


def _allowed(f: Figures, a: float, b: float) -> tuple[float, float]:
    """Return bounds of std(x_t), x_t = (1 - t) z0 + t z1 with stds a, b: uncorrelated, or on one line."""
    mean, std = f.first_of("stat/t/mean"), f.first_of("stat/t/std")
    m, sd, _ = pooled(mean, std) if mean is not None and std is not None else (*TIMES["uniform"], 0.0)
    apart = ((1 - m) ** 2 + sd**2) * a**2 + (m**2 + sd**2) * b**2
    return math.sqrt(apart), math.sqrt(apart + 2 * max(m - m**2 - sd**2, 0) * a * b)


@rule(letter="F")
def schedule_constants(f: Figures, limit: Limits) -> Iterator[Evidence]:
    ends = {n.removeprefix("const/"): (float(x[0]), float(x[-1])) for n, x in f.constants.items() if len(x) > 1}
    betas, kept = ends.get("betas"), ends.get("alphas_cumprod")
    if betas is not None:
        kind = min(BETAS, key=lambda k: sum(abs(math.log(max(x, 1e-12) / y)) for x, y in zip(betas, BETAS[k])))
        ok = all(abs(x / y - 1) <= limit["schedule/relative"] for x, y in zip(betas, BETAS[kind]))
        values = {"kind": kind, "due_first": BETAS[kind][0], "due_last": BETAS[kind][1]}
        yield say(ok, "schedule/betas", first=betas[0], last=betas[1], **values)
    if kept is not None:
        ok = kept[0] >= 1 - limit["schedule/end"] and 0 < kept[1] <= limit["schedule/end"]
        yield say(ok, "schedule/end", first=kept[0], last=kept[1])
    wrong = [name for name, ok in _agree(betas, kept, ends, limit["schedule/relative"]) if not ok]
    if kept is not None and (betas or len(ends) > 1):
        yield say("fail", "schedule/disagree", names=wrong) if wrong else say("pass", "schedule/agree")


def _agree(betas, kept, ends, slack) -> Iterator[tuple[str, bool]]:
    """Yield whether each constant is what the others make of it, within four printed digits."""
    if kept is None:
        return

    def near(x: float, y: float) -> bool:
        return abs(x - y) <= slack * abs(y) + 6e-5

    if betas is not None:
        yield "alphas_cumprod[0]", near(1 - kept[0], betas[0])
        grids = {
            "linear": np.linspace(*betas, STEPS),
            "scaled": np.linspace(*np.sqrt(np.maximum(betas, 0)), STEPS) ** 2,
            "cosine": COSINE,
        }
        last = [float(np.prod(1 - grid)) for grid in grids.values()]
        yield (
            "alphas_cumprod[-1]",
            any(abs(math.log(max(kept[1], 1e-30) / max(x, 1e-30))) < 0.1 for x in last if x == x),
        )
    if (root := ends.get("sqrt_alphas_cumprod")) is not None:
        yield "sqrt_alphas_cumprod", all(near(r, math.sqrt(max(k, 0))) for r, k in zip(root, kept))
    if (rest := ends.get("sqrt_one_minus_alphas_cumprod")) is not None:
        yield "sqrt_one_minus_alphas_cumprod", all(near(r, math.sqrt(max(1 - k, 0))) for r, k in zip(rest, kept))
