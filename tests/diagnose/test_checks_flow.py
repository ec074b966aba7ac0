"""The checks of the velocity field and of carrying x0 to x1, on tiny trained systems: healthy, and broken one way each.

The thresholds and the systems were chosen with other seeds than these.
"""

import json
import math
from dataclasses import asdict
from functools import cache, partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fmkernels.flow import PATHS, Trace, midpoint, sample, uniform
from fmpipe.diagnose.checks import field, sampling
from fmpipe.diagnose.engine import judged
from fmpipe.diagnose.thresholds import THRESHOLDS
from fmpipe.field import condition_gain, derangement, endpoint_rmse

pytestmark = pytest.mark.slow

SEEDS = (101, 102)
PAIRS, SHAPE = 8, (4, 2, 2)  # as many prompts with a picture each; of a latent
PIXELS = math.prod(SHAPE)
NAN, INF = math.nan, math.inf


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def draw(seed, n, generator, spread=0.3, paired=True):
    """(x0, x1, which): x0 around the prompt's latent, x1 around its picture's; not paired: around anyone's."""
    prompts, pictures = torch.randn(2, PAIRS, *SHAPE, generator=seeded(seed))
    which = torch.randint(PAIRS, (n,), generator=generator)
    start = which if paired else torch.randint(PAIRS, (n,), generator=generator)
    x0 = prompts[start] + spread * torch.randn(n, *SHAPE, generator=generator)
    return x0, pictures[which] + 0.1 * torch.randn(n, *SHAPE, generator=generator), which


def sharp(seed, n, generator):
    """z0 with no spread left and the same for every prompt: x_t alone gives z1 away."""
    _, x1, which = draw(seed, n, generator)
    return 0.3 + 0.03 * torch.randn(n, *SHAPE, generator=generator), x1, which


def noise(seed, n, generator):
    """z0 that says nothing: what to draw is in which."""
    _, x1, which = draw(seed, n, generator)
    return torch.randn(n, *SHAPE, generator=generator), x1, which


class Net(nn.Module):
    def __init__(self, conditions=0):
        super().__init__()
        self.conditions = conditions
        widths = (PIXELS + 1 + conditions, 96, 96, PIXELS)
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.SiLU())]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x, t, cond=None):
        features = [x.flatten(1).float(), t.float()[:, None]]
        if self.conditions:
            features.append(nn.functional.one_hot(cond, self.conditions).float())
        return self.layers(torch.cat(features, 1)).view(x.shape)


TARGETS = {
    "velocity": lambda x0, x1, v: v,
    "noise": lambda x0, x1, v: x0,
    "endpoint": lambda x0, x1, v: x1,
}


@cache
def trained(seed, target="velocity", pairs=draw, conditions=0):
    """The velocity net after 250 steps on fresh pairs, and 256 pairs it has not seen."""
    torch.manual_seed(seed)
    net, generator, steps, batch = Net(conditions), seeded(seed + 1000), 250, 128
    x0, x1, which = pairs(seed, steps * batch, generator)
    t = torch.rand(len(x0), generator=generator)
    x_t, v = PATHS["psi"].pair(t, x0, x1)
    data = (x.split(batch) for x in (x_t, t, which, TARGETS[target](x0, x1, v)))
    optimizer = torch.optim.Adam(net.parameters(), 4e-3, fused=True)
    for *inputs, wanted in zip(*data):
        loss = (net(*inputs) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x0, x1, which = pairs(seed, 256, generator)
    return SimpleNamespace(velocity=net.eval().requires_grad_(False), x0=x0, x1=x1, which=which)


shuffled = partial(draw, paired=False)


def of(check, spoil=lambda v: v, **system):
    """Return a check of a trained system, to be called with a seed; ``spoil`` may change the velocity."""

    def run(seed, **options):
        s = trained(seed, **system)
        return check(spoil(s.velocity), s.x0, s.x1, **options)

    return run


def ends(check, x1=lambda x1: x1, **options):
    """A check of x0 and x1 alone."""

    def run(seed, **more):
        x0, x, _ = draw(seed, 256, seeded(seed))
        return check(x0, x1(x), **options, **more)

    return run


def latents(factor=1.0):
    """latent_scale on a trained system whose autoencoder's factor was changed since."""

    def run(seed, **options):
        s = trained(seed)
        return sampling.latent_scale(s.velocity, s.x0, factor * s.x1, **options)

    return run


def slow(v, gain=0.2):
    return lambda x, t: gain * v(x, t)


def lost(v):
    """As large as v, in a direction that has nothing to do with it."""
    return lambda x, t: v(x, t).flatten(1).roll(1, 0).view(x.shape)


def flipped(v):
    return lambda x, t: -v(x, t)


def overshooting(v):
    """alpha' / alpha multiplied in once more when sampling."""
    return lambda x, t: v(x, t) / (1 - t + 1e-3)[:, None, None, None]


def nan_at_the_end(v):
    return lambda x, t: v(x, t) * (0.85 - t).sqrt()[:, None, None, None]


def conditioned(seed, blind=False, **options):
    s = trained(seed, pairs=noise, conditions=PAIRS)
    velocity = (lambda x, t, cond: s.velocity(x, t, torch.zeros_like(cond))) if blind else s.velocity
    return field.condition_use(velocity, s.x0, s.x1, s.which, generator=seeded(seed), **options)


def leaking(seed, **system):
    """Cosine and shooting error as measured, and the spread of z0 about its prompt's."""
    s = trained(seed, **system)
    cos = field.one_step(s.velocity, s.x0, s.x1).values["cos"]
    relative = sampling.shooting(s.velocity, s.x0, s.x1).values["relative"][-1]
    spread = torch.stack([s.x0[s.which == k].std(0).mean() for k in range(PAIRS)]).mean().item()
    return sampling.leak(sum(cos) / len(cos), relative, None if system else spread + 0.1)


def drift(velocity, x, n, total=1.0, sign=1, extra=0):
    """An Euler loop whose steps add up to ``total``, with ``extra`` steps too many."""
    for k in range(n + extra):
        x = x + sign * velocity(x, torch.full((len(x),), min(k / n, 1.0))) * total / n
    return x


def fp32_state(velocity, x, n):
    """The same loop with the state in fp32, whatever the velocity's dtype."""
    return drift(lambda x, t: velocity(x, t).float(), x.float(), n)


def decoder(gain=1.0, bound=torch.tanh):
    return lambda z: bound(gain * nn.functional.interpolate(z[:, :3], scale_factor=8.0, mode="bilinear"))


def probed(spoil=lambda v: v, decode=None):
    def run(seed, **options):
        s = trained(seed)
        end = sample(spoil(s.velocity), s.x0, midpoint(20), trace=Trace(nonfinite="continue"))
        return sampling.probes(s.x0, end.x, decode or decoder(), end.trace.values[0, :, 2].mean().item(), **options)

    return run


BF16 = torch.bfloat16
one_step, target = partial(of, field.one_step), partial(of, field.target_definition)
shooting, endpoint = partial(of, sampling.shooting), partial(of, sampling.endpoint)
teacher = partial(ends, sampling.teacher_euler)

HEALTHY = {
    "scale": ends(field.scale),
    "latent_scale": latents(),
    "one_step": one_step(),
    "target_definition": target(),
    "condition_use": of(field.condition_use),
    "condition_use, cond": conditioned,
    "shooting": shooting(),
    "teacher_euler": teacher(),
    "teacher_euler, fp64": teacher(dtype=torch.float64),
    "teacher_euler, bf16 v": teacher(dtype=BF16, integrate=fp32_state),
    "teacher_euler, curved": teacher(path=PATHS["cosine"], steps=(20, 50, 100)),
    "endpoint": endpoint(),
    "leak": leaking,
    "probes": probed(),
}

# check, and how it is broken: what runs it, the status, words of its evidence or advice
BROKEN = {
    "scale, raw moments": (ends(field.scale, lambda x1: x1 / 0.18215), "fail", "z1 almost alone"),
    "scale, scaled twice": (ends(field.scale, lambda x1: x1 * 0.18215), "fail", "z0 almost alone"),
    "scale, nan": (ends(field.scale, lambda x1: x1 / 0), "fail", "Not finite"),
    "latent_scale, doubled": (latents(2.0), "fail", "right but for their length"),
    "latent_scale, missing": (latents(1 / 0.18215), "fail", "scaling_factor"),
    "latent_scale, nan": (latents(NAN), "fail", "Not finite"),
    "one_step, slow": (one_step(spoil=slow), "fail", "right. Size"),
    "one_step, size of the notes": (one_step(spoil=partial(slow, gain=0.29)), "fail", "too small"),
    "one_step, fast": (one_step(spoil=partial(slow, gain=4)), "fail", "too large"),
    "one_step, lost": (one_step(spoil=lost), "fail", "A gain cannot cure"),
    "one_step, flipped": (one_step(spoil=flipped), "fail", "backwards"),
    "one_step, nan": (one_step(spoil=nan_at_the_end), "fail", "Not finite: cos, ratio"),
    "target, noise": (target(target="noise"), "fail", "to predict x0, the noise"),
    "target, endpoint": (target(target="endpoint"), "fail", "to predict the endpoint x1"),
    "target, flipped": (target(spoil=flipped), "fail", "sign flipped"),
    "target, score": (target(target="noise", spoil=flipped), "fail", "to predict the score, -x0"),
    "target, input": (target(spoil=lambda v: lambda x, t: 2 * x), "fail", "to predict its own input"),
    "target, lost": (target(spoil=lambda v: lambda x, t: torch.randn_like(x)), "fail", "fits no target"),
    "condition_use, blind": (partial(conditioned, blind=True), "fail", "it is not used"),
    "shooting, slow": (shooting(spoil=slow), "warn", "a gain helps"),
    "shooting, lost": (shooting(spoil=lost), "fail", "does not cure"),
    "shooting, slow and lost": (shooting(spoil=lambda v: slow(lost(v))), "fail", "does not cure"),
    "shooting, flipped": (shooting(spoil=flipped), "fail", "does not cure"),
    "shooting, nan": (shooting(spoil=nan_at_the_end), "fail", "Not finite"),
    "teacher, bf16": (teacher(dtype=BF16), "fail", "rounding of the state, not the schedule"),
    "teacher, fp16": (teacher(dtype=torch.float16), "fail", "rounding of the state, not the schedule"),
    "teacher, short": (teacher(integrate=partial(drift, total=0.8)), "fail", "schedule or path, not rounding"),
    "teacher, sign": (teacher(integrate=partial(drift, sign=-1)), "fail", "schedule or path, not rounding"),
    "teacher, step too many": (teacher(integrate=partial(drift, extra=1)), "warn", "though it falls"),
    "teacher, nan": (teacher(integrate=partial(drift, total=NAN)), "fail", "Not finite"),
    "endpoint, overshooting": (endpoint(spoil=overshooting), "fail", "compared with the least before"),
    "endpoint, nan": (endpoint(spoil=nan_at_the_end), "fail", "Not finite"),
    "leak, sharp z0": (partial(leaking, pairs=sharp), "fail", "x_t gives z1 away"),
    "probes, still": (probed(spoil=partial(slow, gain=1e-4)), "fail", "nothing moves"),
    "probes, flat": (probed(decode=decoder(0.02)), "warn", "one color"),
    "probes, loud": (probed(decode=decoder(9.0, lambda x: x)), "warn", "outside the range of pixels"),
    "probes, nan": (probed(spoil=nan_at_the_end), "fail", "Not finite"),
}


def told(finding):
    """Return all that a finding says: every piece of evidence, not only what decides, and the advice."""
    return " ".join([*(evidence.into() for evidence in finding.evidence), finding.advice])


def keys(finding):
    return [evidence.message.key for evidence in finding.evidence]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_passes(name, seed):
    finding = HEALTHY[name](seed)
    assert finding.status == "pass", finding
    assert finding
    assert finding.name == name.split(",")[0]
    assert not finding.advice
    assert finding.threshold
    assert finding.meaning
    assert finding.experience
    assert json.loads(json.dumps(finding.as_dict())) == finding.as_dict()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", BROKEN)
def test_broken_is_found(name, seed):
    run, status, words = BROKEN[name]
    finding = run(seed)
    assert finding.status == status, finding
    assert bool(finding) == (status != "fail")
    assert words in told(finding), finding
    assert finding.advice
    json.dumps(finding.as_dict())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_field_of_unpaired_z0_does_not_use_it(seed):
    s, (x0, x1, _) = trained(seed, pairs=shuffled), draw(seed, 2048, seeded(seed))
    finding = field.condition_use(s.velocity, x0, x1, generator=seeded(seed))
    assert finding.status in ("warn", "fail"), finding
    assert abs(finding.values["flow/cond_gain_cos"]) < THRESHOLDS["condition/weak"]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_measured_gain_undoes_a_slow_field(seed):
    s = trained(seed)
    gain = field.one_step(slow(s.velocity, 0.29), s.x0, s.x1).values["fm_gain"]
    assert gain == pytest.approx(1 / 0.29, rel=0.1)
    own = sampling.shooting(s.velocity, s.x0, s.x1, gain=1.0).values["relative"][-1]
    helped = sampling.shooting(slow(s.velocity, 0.29), s.x0, s.x1).values["relative_gain"]
    assert helped == pytest.approx(own, rel=0.25)


@pytest.mark.parametrize("seed", SEEDS)
def test_shooting_judges_the_most_steps(seed):
    """The order of steps does not count."""
    s = trained(seed)
    up, down = (sampling.shooting(s.velocity, s.x0, s.x1, steps, ()).values for steps in ((1, 20), (20, 1)))
    assert up == down
    assert up["steps"] == [1, 20]
    assert up["relative"][1] < up["relative"][0]


# the measured numbers of a rule, in the order of the tables below
MEASURED = {
    "scale": ("z0", "z1", "x_t", "v*"),
    "latent_scale": ("x1", "end", "cos", "left"),
    "one_step": ("t", "cos", "ratio"),
    "target_definition": ("velocity", "x1"),
    "condition_use": ("flow/cond_gain_cos",),
    "shooting": ("error", "start", "steps"),
    "teacher_euler": ("steps", "error"),
    "endpoint": ("rmse", "start"),
    "probes": ("A", "B", "C"),
}


def judge(name, *numbers, overrides=None):
    """Return the finding of a rule on bare numbers; leak is a public check of bare numbers."""
    if name == "leak":
        return sampling.leak(*numbers, overrides=overrides)
    return judged(name, overrides, **dict(zip(MEASURED[name], numbers, strict=False)))


def test_the_numbers_of_the_debugging_notes():
    t = [0.10, 0.37, 0.63, 0.90]
    step = judge("one_step", t, [0.050, 0.045, 0.036, 0.015], [0.287, 0.296, 0.286, 0.282])
    assert step.status == "fail"
    assert step.values["fm_gain"] == pytest.approx(3.5, abs=0.02)
    assert "fm_gain = 3.49" in step.advice
    assert "cannot cure" in step.advice
    scale = judge("scale", 151, 896)
    assert (scale.status, round(scale.values["ratio"], 1)) == ("fail", 5.9)
    assert "moments" in scale.advice
    shot = judge("shooting", [4.531314])
    assert shot.status == "fail"
    assert shot.values["relative"] == [pytest.approx(2.2657, abs=1e-4)]
    assert "shoot/assumed" in keys(shot)
    assert "was not given; 2 is assumed" in told(shot)
    teacher = judge("teacher_euler", [100, 50, 20, 10, 5], [1.51e-2, 3.41e-3, 5.84e-4, 1.54e-4, 5.42e-5])
    assert teacher.status == "fail"
    assert teacher.values["growth"] == pytest.approx(1.51e-2 / 5.42e-5)
    assert "rounding of the state, not the schedule" in teacher.meaning
    look = {"low": 0.0, "high": 1.0, "contrast": 0.1, "rms": 1.0}
    assert judge("probes", look, 2.6e-3, look).status == "pass"


LOOK = {"low": -1.0, "high": 1.0, "contrast": 0.3, "rms": 1.0}
UNIT = math.sqrt(2.0)  # RMSE(x0, x1) of independent latents of unit variance

# findings of bare numbers, at the limits and next to them
NUMBERS = [
    ("scale", (1, 3), "pass"),
    ("scale", (1, 3.01), "fail"),
    ("scale", (1, 1, 1, 0), "fail"),
    ("scale", (1, 1, 0.1, 1), "fail"),
    ("scale", (0, 0), "fail"),
    ("scale", (NAN, 1), "fail"),
    ("latent_scale", (1.4, 1.0, 0.9, 0.0), "pass"),
    ("latent_scale", (1.41, 1.0, 0.9, 0.0), "fail"),
    ("latent_scale", (1.53, 1.0, 0.75, 0.0), "pass"),
    ("latent_scale", (1.54, 1.0, 0.75, 0.0), "fail"),
    ("latent_scale", (1.0, 1.41, 0.75, 0.0), "fail"),
    ("latent_scale", (1.0, 0.0, 0.75, 0.0), "fail"),
    ("latent_scale", (9.0, 1.0, 0.64, 0.0), "skipped"),
    ("latent_scale", (1.8, 1.0, 0.9, -0.31), "skipped"),
    ("one_step", ([0.5], [0.5], [0.5]), "pass"),
    ("one_step", ([0.5], [0.49], [1]), "fail"),
    ("one_step", ([0.5], [0.9], [0.49]), "fail"),
    ("one_step", ([0.5], [0.9], [2.01]), "fail"),
    ("one_step", ([0.1, 0.9], [0.9, 0.9], [0.1, 9]), "fail"),
    ("one_step", ([0.5], [0.0], [0.0]), "fail"),
    ("one_step", ([0.5], [NAN], [1]), "fail"),
    ("one_step", ([0.5], [0.9], [INF]), "fail"),
    ("target_definition", (0.6, 0.4), "pass"),
    ("target_definition", (0.6, 0.55), "warn"),
    ("target_definition", (0.55, 0.6), "warn"),
    ("target_definition", (0.4, 0.6), "fail"),
    ("target_definition", (0.05, -0.6), "fail"),
    ("target_definition", (NAN, 0.0), "fail"),
    ("condition_use", (0.03,), "pass"),
    ("condition_use", (0.01,), "warn"),
    ("condition_use", (0.0,), "fail"),
    ("condition_use", (NAN,), "fail"),
    ("shooting", ([0.9],), "pass"),
    ("shooting", ([1.2],), "warn"),
    ("shooting", ([2.0],), "fail"),
    ("shooting", ([0.9, 0.4], 1.0, [5, 50]), "pass"),
    ("shooting", ([NAN],), "fail"),
    ("teacher_euler", ((5, 100), (1e-4, 2e-4)), "pass"),
    ("teacher_euler", ((100, 5), (3.1e-4, 1e-4)), "fail"),
    ("teacher_euler", ((5, 100), (1e-13, 1e-8)), "pass"),
    ("teacher_euler", ((5, 100), (0.1, 0.1)), "fail"),
    ("teacher_euler", ((5, 100), (0.1, 0.001)), "warn"),
    ("teacher_euler", ((5, 100), (NAN, 1e-4)), "fail"),
    ("endpoint", ({"euler": {8: 0.3, 16: 0.31}}, UNIT), "pass"),
    ("endpoint", ({"euler": {8: 0.3, 16: 0.32}}, UNIT), "fail"),
    ("endpoint", ({"euler": {16: 0.32, 8: 0.3}}, UNIT), "fail"),
    ("endpoint", ({"euler": {"16": 0.32, "8": 0.3}}, UNIT), "fail"),
    ("endpoint", ({"euler": {8: 0.3, 16: 0.2, 32: 0.25}}, UNIT), "fail"),
    ("endpoint", ({"euler": {8: 0.3, 16: 0.31, 32: 0.32}}, UNIT), "pass"),
    ("endpoint", ({"euler": {8: 0.3, 16: 0.314, 32: 0.329, 64: 0.346}}, UNIT), "fail"),
    ("endpoint", ({"euler": {8: 0.3, 16: 0.2}, "heun": {8: 0.2, 16: 0.3}}, UNIT), "fail"),
    ("endpoint", ({"euler": {8: 1e-7, 16: 1e-5}}, UNIT), "pass"),
    ("endpoint", ({"euler": {8: 0.3, 16: NAN}}, UNIT), "fail"),
    ("leak", (0.95, 0.4, 0.9), "pass"),
    ("leak", (0.95, 0.6), "fail"),
    ("leak", (0.95, 0.4, 0.2), "fail"),
    ("leak", (0.95, None, 0.2), "fail"),
    ("leak", (0.6, 0.9, 0.2), "pass"),
    ("leak", (NAN, 0.1), "fail"),
    ("leak", (0.95, NAN, 0.9), "fail"),
    ("leak", (0.95,), "skipped"),
    ("probes", (LOOK, 0.01, LOOK), "pass"),
    ("probes", (LOOK, 1e-4, LOOK), "fail"),
    ("probes", (LOOK, 0.01, LOOK | {"contrast": 0.05}), "warn"),
    ("probes", (LOOK, 0.01, LOOK | {"low": -1.6}), "warn"),
    ("probes", (LOOK, NAN, LOOK), "fail"),
    ("probes", (LOOK | {"high": INF}, 0.01, LOOK), "fail"),
]


@pytest.mark.parametrize(("name", "numbers", "status"), NUMBERS)
def test_judged_numbers(name, numbers, status):
    finding = judge(name, *numbers)
    assert finding.status == status, finding
    assert finding.name == name
    assert bool(finding.advice) == (status in ("warn", "fail"))


@pytest.mark.parametrize(
    ("with_gain", "status"),
    [(0.3, "warn"), (0.75, "warn"), (0.79, "fail"), (0.8, "fail"), (1.5, "fail"), (NAN, "fail")],
)
def test_shooting_must_fall_with_the_gain(with_gain, status):
    numbers = {"relative": [0.9, 0.8], "steps": [5, 50], "start": 1.0, "fm_gain": 2.0, "relative_gain": with_gain}
    finding = judged("shooting", **numbers)
    assert finding.status == status, finding


def test_falling_with_the_gain_but_not_below_the_start_fails():
    assert judged("shooting", relative=[4.0], start=1.0, relative_gain=2.0).status == "fail"


@pytest.mark.parametrize(
    ("name", "numbers", "overrides"),
    [
        ("scale", (1, 5), {"scale/ratio": 6}),
        ("one_step", ([0.5], [0.4], [0.3]), {"one_step/cos": 0.35, "one_step/ratio_low": 0.2}),
        ("one_step", ([0.5], [0.9], [3]), {"one_step/ratio_high": 4}),
        ("target_definition", (0.6, 0.55), {"target/margin": 0.01}),
        ("condition_use", (0.01,), {"condition/weak": 0.005}),
        ("condition_use", (-0.01,), {"condition/gain": -0.1, "condition/weak": -0.1}),
        ("shooting", ([1.2],), {"shooting/relative": 0.7}),
        ("teacher_euler", ((5, 100), (1e-5, 1e-4)), {"teacher/growth": 11}),
        ("teacher_euler", ((5, 100), (1e-5, 1e-4)), {"teacher/floor": 1e-4}),
        ("teacher_euler", ((5, 100), (0.1, 0.1)), {"teacher/relative": 0.1}),
        ("endpoint", ({"euler": {8: 0.3, 16: 0.4}}, UNIT), {"endpoint/rise": 1.5, "endpoint/creep": 1.5}),
        ("endpoint", ({"euler": {8: 0.3, 16: 0.4}}, UNIT), {"endpoint/floor": 0.5}),
        ("leak", (0.95, 0.6), {"leak/relative": 0.7}),
        ("leak", (0.95, 0.4, 0.2), {"leak/std": 0.1}),
        ("leak", (0.95, 0.6), {"leak/cos": 0.99}),
        ("probes", (LOOK, 1e-5, LOOK), {"probes/first_step": 1e-6}),
        ("probes", (LOOK, 1, LOOK | {"contrast": 0.01, "high": 3}), {"probes/contrast": 0, "probes/range": 4}),
    ],
)
def test_thresholds_may_be_overridden(name, numbers, overrides):
    assert judge(name, *numbers).status in ("warn", "fail")
    finding = judge(name, *numbers, overrides=overrides)
    assert finding.status == "pass", finding


def test_measuring_checks_pass_overrides_on():
    never = {"scale/ratio": 1.0, "one_step/cos": 2, "target/margin": 9, "condition/gain": 9, "shooting/relative": 0}
    never |= {"teacher/growth": 0, "endpoint/rise": 0, "endpoint/floor": 0, "probes/first_step": 1e9}
    names = "scale", "one_step", "target_definition", "condition_use", "shooting", "teacher_euler", "endpoint", "probes"
    for name in names:
        assert HEALTHY[name](SEEDS[0], overrides=never).status != "pass", name


def test_an_ideal_field_of_noise_is_told_from_noise_and_endpoint():
    """If x0 is noise and x1 nearly so, E[v | x_t] is -x0 at t near 0 and x1 near 1: the hardest case."""

    def ideal(x, t):
        t = t.view(-1, 1, 1, 1)
        return (2 * t - 1) / (t.square() + (1 - t).square()) * x

    x0, x1 = torch.randn(2, 2048, 4, 8, 8, generator=seeded(SEEDS[0]))
    finding = field.target_definition(ideal, x0, x1)
    assert finding.status == "pass", finding
    assert field.target_definition(ideal, x0, x1, times=(0.1,)).status == "fail"


def test_given_noise_is_a_candidate():
    s = trained(SEEDS[0])
    noise = torch.randn(s.x0.shape, generator=seeded(SEEDS[0]))
    finding = field.target_definition(lambda x, t: noise, s.x0, s.x1, noise)
    assert finding.status == "fail"
    assert "predict the noise" in finding.meaning
    assert "predict the score, -noise" in field.target_definition(lambda x, t: -noise, s.x0, s.x1, noise).meaning


# The two metrics that are also logged


def test_endpoint_rmse_is_the_plain_loop():
    s = trained(SEEDS[0])
    for solver in ("euler", "heun"):
        got = endpoint_rmse(s.velocity, s.x0, s.x1, ks=(3, 7), solver=solver)
        for k in (3, 7):
            x, ones = s.x0, torch.ones(len(s.x0))
            for i in range(k):
                if solver == "euler":
                    x = x + s.velocity(x, (i + 0.5) / k * ones) / k
                else:
                    v = s.velocity(x, i / k * ones)
                    x = x + (v + s.velocity(x + v / k, (i + 1) / k * ones)) / (2 * k)
            assert got[k] == pytest.approx((x - s.x1).square().mean().sqrt().item(), rel=1e-4)
    values = sampling.endpoint(s.velocity, s.x0, s.x1, ks=(3, 7)).values
    assert values["rmse"]["heun"]["7"] == got[7]
    assert {solver: list(by_k) for solver, by_k in values["rmse"].items()} == {"euler": ["3", "7"], "heun": ["3", "7"]}
    assert values["start"] == pytest.approx((s.x0 - s.x1).square().mean().sqrt().item(), rel=1e-4)


def test_condition_gain_is_its_formula():
    cos = partial(nn.functional.cosine_similarity, dim=1)
    s, t = trained(SEEDS[0]), torch.rand(256, generator=seeded(1))
    order = derangement(256, seeded(2))
    line, at = PATHS["linear"], t.view(-1, 1, 1, 1)
    own = cos(s.velocity((1 - at) * s.x0 + at * s.x1, t).flatten(1), (s.x1 - s.x0).flatten(1))
    other = s.velocity((1 - at) * s.x0[order] + at * s.x1, t)
    expected = (own - cos(other.flatten(1), (s.x1 - s.x0[order]).flatten(1))).mean().item()
    got = condition_gain(s.velocity, s.x0, s.x1, t, generator=seeded(2), path=line)
    assert got == pytest.approx(expected, abs=1e-5)

    s = trained(SEEDS[0], pairs=noise, conditions=PAIRS)
    x_t, v = line.pair(t, s.x0, s.x1)
    own, other = (cos(s.velocity(x_t, t, c).flatten(1), v.flatten(1)).mean().item() for c in (s.which, s.which[order]))
    got = condition_gain(s.velocity, s.x0, s.x1, t, s.which, seeded(2), path=line)
    assert got == pytest.approx(own - other, abs=1e-5)


@pytest.mark.parametrize("n", [2, 3, 7, 64])
def test_derangement_is_one_cycle(n):
    for seed in SEEDS:
        order, k, seen = derangement(n, seeded(seed)), 0, set()
        for _ in range(n):
            k = order[k].item()
            seen.add(k)
        assert seen == set(range(n))
        assert (order != torch.arange(n)).all()


def test_low_precision_and_foreign_paths():
    s = trained(SEEDS[0])
    x0, x1 = s.x0.bfloat16(), s.x1.bfloat16()

    def velocity(x, t):
        return s.velocity(x, t).to(x.dtype)

    for check in (field.one_step, field.target_definition, field.condition_use, sampling.shooting, sampling.endpoint):
        finding = check(velocity, x0, x1)
        assert finding.status == "pass", finding
    ideal = PATHS["cosine"]
    finding = field.one_step(lambda x, t: ideal.velocity(t, s.x0, s.x1), s.x0, s.x1, path=ideal)
    assert finding.values["cos"] == pytest.approx([1.0] * 4)
    assert finding.values["fm_gain"] == pytest.approx(1.0)


def test_no_gradients_are_made():
    net, x = Net(), torch.randn(4, *SHAPE)
    seen = []

    def velocity(x, t):
        seen.append(net(x, t))
        return seen[-1]

    for check in (field.one_step, field.target_definition, field.condition_use, sampling.shooting, sampling.endpoint):
        check(velocity, x, x.flip(0))
    assert seen
    assert not any(v.requires_grad for v in seen)


@pytest.mark.slow
def test_the_pipelines_probes_are_taken():
    """The check measures the numbers of the pipeline's probes, and its rule judges these."""
    from fmpipe.pipeline import Probe  # here, as diffusers takes seconds to import

    latents = torch.randn(2, 2, *SHAPE)
    a, c = (asdict(probe) for probe in Probe.of(*((decoder()(z), z) for z in latents)))
    finding = judge("probes", a, 0.05, c)
    assert finding.status == "pass", finding
    assert finding.values["C"]["contrast"] == c["contrast"]
    values = sampling.probes(*latents, decoder(), 0.05).values
    assert values["A"] == pytest.approx(a)
    assert values["B"] == 0.05
    assert values["C"] == pytest.approx(c)


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: field.scale(X, X[:, :2]), ValueError, "scale: x1"),
        (lambda: field.scale([1.0], X), TypeError, "scale: x0"),
        (lambda: field.scale(X[:0], X[:0]), ValueError, "scale: x0 must have at least 1"),
        (lambda: field.one_step(lambda x, t: x[:1], X, X), ValueError, "one_step: velocity must return"),
        (lambda: field.one_step(lambda x, t: None, X, X), ValueError, "got NoneType"),
        (lambda: field.one_step(lambda x, t: x, X, X, ()), ValueError, "one_step: times"),
        (lambda: field.one_step(lambda x, t: x, X.long(), X), TypeError, "one_step: x0"),
        (lambda: field.target_definition(lambda x, t: x, X, X, X[:1]), ValueError, "target_definition: noise"),
        (lambda: field.target_definition(lambda x, t: x, X, X, times=()), ValueError, "target_definition: times"),
        (lambda: field.condition_use(lambda x, t: x, X[:1], X[:1]), ValueError, "at least 2 samples"),
        (lambda: field.condition_use(lambda x, t: x, X, X, X[:1]), ValueError, "cond must be a tensor of 2"),
        (lambda: field.condition_use(lambda x, t: x, X, X, "a cat"), ValueError, "got str"),
        (lambda: field.condition_use(lambda x, t: x, X, X, times=()), ValueError, "condition_use: times"),
        (lambda: endpoint_rmse(lambda x, t: x, X, X, solver="rk4"), ValueError, "euler, heun"),
        (lambda: sampling.shooting(lambda x, t: x, X, X + 1, ()), ValueError, "shooting: steps"),
        (lambda: sampling.shooting(lambda x, t: x, X, X), ValueError, "shooting: x0 and x1 are equal"),
        (lambda: sampling.teacher_euler(X, X + 1, dtype=torch.int64), TypeError, "dtype"),
        (lambda: sampling.teacher_euler(X, X + 1, integrate=lambda v, x, n: x[:1]), ValueError, "integrate returns"),
        (lambda: sampling.teacher_euler(X, X + 1, steps=()), ValueError, "teacher_euler: steps .*two or more"),
        (lambda: sampling.teacher_euler(X, X + 1, steps=(5,)), ValueError, "teacher_euler: steps .*two or more"),
        (lambda: sampling.teacher_euler(X, X + 1, steps=(5, 5)), ValueError, "teacher_euler: steps .*two or more"),
        (lambda: sampling.teacher_euler(X, X), ValueError, "teacher_euler: x0 and x1 are equal"),
        (lambda: sampling.endpoint(lambda x, t: x, X, X + 1, ks=()), ValueError, "endpoint: ks .*two or more"),
        (lambda: sampling.endpoint(lambda x, t: x, X, X + 1, ks=(8, 8)), ValueError, "endpoint: ks .*two or more"),
        (lambda: sampling.endpoint(lambda x, t: x, X, X + 1, solvers=()), ValueError, "endpoint: solvers"),
        (lambda: sampling.probes(X, X, lambda z: None, 0.1), ValueError, "probes: decode"),
        (lambda: sampling.probes(X, X[:1], lambda z: z, 0.1), ValueError, "z1"),
        (lambda: field.scale(X, X, overrides={"scale/rato": 2}), KeyError, "scale/ratio"),
        (lambda: judged("scale", {"scale/rato": 2}, z0=1, z1=1), KeyError, "scale/ratio"),
    ],
)
def test_wrong_calls(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_uniform_grid_is_what_the_teacher_takes():
    """Seen from a curved path, whose Euler error tells the grid: left ends of even steps."""
    x0, x1, _ = draw(SEEDS[0], 16, seeded(0))
    path = PATHS["cosine"]
    values = sampling.teacher_euler(x0, x1, steps=(5, 10), path=path).values
    for n, got in zip((5, 10), values["error"], strict=True):
        end = sample(lambda x, t: path.velocity(t, x0, x1), x0, uniform(n)).x
        assert got == pytest.approx((end - x1).square().mean().item(), rel=1e-4)
