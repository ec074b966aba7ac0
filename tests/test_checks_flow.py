"""The checks of the velocity field and of carrying x0 to x1, on tiny trained systems: healthy, and broken one way each.

The thresholds and the systems were chosen on other seeds than these.
"""

import json
import math
from functools import cache, partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fmkernels.flow import PATHS, Trace, midpoint, sample, uniform
from fmpipe.diagnose.checks import flow, sampling
from fmpipe.diagnose.verdict import THRESHOLDS

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


def of(check, field=lambda v: v, **system):
    """A check on a trained system, of which ``field`` may spoil the velocity: called with a seed."""

    def run(seed, **options):
        s = trained(seed, **system)
        return check(field(s.velocity), s.x0, s.x1, **options)

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
    field = (lambda x, t, cond: s.velocity(x, t, torch.zeros_like(cond))) if blind else s.velocity
    return flow.condition_use(field, s.x0, s.x1, s.which, generator=seeded(seed), **options)


def leaking(seed, **system):
    """Cosine and shooting error as measured, and the spread of z0 about its prompt's."""
    s = trained(seed, **system)
    cos = flow.one_step(s.velocity, s.x0, s.x1).values["cos"]
    relative = sampling.shooting(s.velocity, s.x0, s.x1).values["relative"][-1]
    spread = torch.stack([s.x0[s.which == k].std(0).mean() for k in range(PAIRS)]).mean().item()
    return sampling.leak(sum(cos) / len(cos), relative, None if system else spread + 0.1)


def drift(velocity, x, n, total=1.0, sign=1, extra=0):
    """Somebody's Euler loop: its steps add up to ``total``, or it takes some more."""
    for k in range(n + extra):
        x = x + sign * velocity(x, torch.full((len(x),), min(k / n, 1.0))) * total / n
    return x


def fp32_state(velocity, x, n):
    """The same loop with the state in fp32, whatever the velocity's dtype."""
    return drift(lambda x, t: velocity(x, t).float(), x.float(), n)


def decoder(gain=1.0, bound=torch.tanh):
    return lambda z: bound(gain * nn.functional.interpolate(z[:, :3], scale_factor=8.0, mode="bilinear"))


def probed(field=lambda v: v, decode=None):
    def run(seed, **options):
        s = trained(seed)
        end = sample(field(s.velocity), s.x0, midpoint(20), trace=Trace(nonfinite="continue"))
        return sampling.probes(s.x0, end.x, decode or decoder(), end.trace.values[0, :, 2].mean().item(), **options)

    return run


BF16 = torch.bfloat16
one_step, target = partial(of, flow.one_step), partial(of, flow.target_definition)
shooting, endpoint = partial(of, sampling.shooting), partial(of, sampling.endpoint)
teacher = partial(ends, sampling.teacher_euler)

HEALTHY = {
    "scale": ends(flow.scale),
    "latent_scale": latents(),
    "one_step": one_step(),
    "target_definition": target(),
    "condition_use": of(flow.condition_use),
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

# check, and how it is broken: what runs it, the status, words of what it says
BROKEN = {
    "scale, raw moments": (ends(flow.scale, lambda x1: x1 / 0.18215), "fail", "z1 almost alone"),
    "scale, scaled twice": (ends(flow.scale, lambda x1: x1 * 0.18215), "fail", "z0 almost alone"),
    "scale, nan": (ends(flow.scale, lambda x1: x1 / 0), "fail", "Not finite"),
    "latent_scale, doubled": (latents(2.0), "fail", "right but for their length"),
    "latent_scale, missing": (latents(1 / 0.18215), "fail", "scaling_factor"),
    "latent_scale, nan": (latents(NAN), "fail", "Not finite"),
    "one_step, slow": (one_step(field=slow), "fail", "right. Size"),
    "one_step, diary's size": (one_step(field=partial(slow, gain=0.29)), "fail", "too small"),
    "one_step, fast": (one_step(field=partial(slow, gain=4)), "fail", "too large"),
    "one_step, lost": (one_step(field=lost), "fail", "A gain cannot cure"),
    "one_step, flipped": (one_step(field=flipped), "fail", "backwards"),
    "one_step, nan": (one_step(field=nan_at_the_end), "fail", "Not finite: cos, ratio"),
    "target, noise": (target(target="noise"), "fail", "to predict x0, the noise"),
    "target, endpoint": (target(target="endpoint"), "fail", "to predict the endpoint x1"),
    "target, flipped": (target(field=flipped), "fail", "sign flipped"),
    "target, score": (target(target="noise", field=flipped), "fail", "to predict the score, -x0"),
    "target, input": (target(field=lambda v: lambda x, t: 2 * x), "fail", "to predict its own input"),
    "target, lost": (target(field=lambda v: lambda x, t: torch.randn_like(x)), "fail", "fits no target"),
    "condition_use, blind": (partial(conditioned, blind=True), "fail", "it is not used"),
    "shooting, slow": (shooting(field=slow), "warn", "a gain helps"),
    "shooting, lost": (shooting(field=lost), "fail", "does not mend"),
    "shooting, slow and lost": (shooting(field=lambda v: slow(lost(v))), "fail", "does not mend"),
    "shooting, flipped": (shooting(field=flipped), "fail", "does not mend"),
    "shooting, nan": (shooting(field=nan_at_the_end), "fail", "Not finite"),
    "teacher, bf16": (teacher(dtype=BF16), "fail", "rounding of the state, not the schedule"),
    "teacher, fp16": (teacher(dtype=torch.float16), "fail", "rounding of the state, not the schedule"),
    "teacher, short": (teacher(integrate=partial(drift, total=0.8)), "fail", "schedule or path, not rounding"),
    "teacher, sign": (teacher(integrate=partial(drift, sign=-1)), "fail", "schedule or path, not rounding"),
    "teacher, step too many": (teacher(integrate=partial(drift, extra=1)), "warn", "though it falls"),
    "teacher, nan": (teacher(integrate=partial(drift, total=NAN)), "fail", "Not finite"),
    "endpoint, overshooting": (endpoint(field=overshooting), "fail", "times the least before"),
    "endpoint, nan": (endpoint(field=nan_at_the_end), "fail", "Not finite"),
    "leak, sharp z0": (partial(leaking, pairs=sharp), "fail", "x_t gives z1 away"),
    "probes, still": (probed(field=partial(slow, gain=1e-4)), "fail", "nothing moves"),
    "probes, flat": (probed(decode=decoder(0.02)), "warn", "one colour"),
    "probes, loud": (probed(decode=decoder(9.0, lambda x: x)), "warn", "outside the pixels' range"),
    "probes, nan": (probed(field=nan_at_the_end), "fail", "Not finite"),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_passes(name, seed):
    verdict = HEALTHY[name](seed)
    assert verdict.status == "pass", verdict
    assert verdict.name == name.split(",")[0]
    assert not verdict.advice
    assert verdict.threshold
    assert verdict.meaning
    assert verdict.experience
    assert json.loads(json.dumps(verdict.as_dict())) == verdict.as_dict()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", BROKEN)
def test_broken_is_found(name, seed):
    run, status, words = BROKEN[name]
    verdict = run(seed)
    assert verdict.status == status, verdict
    assert words in str(verdict)
    assert verdict.advice
    json.dumps(verdict.as_dict())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_field_of_unpaired_z0_does_not_use_it(seed):
    s, (x0, x1, _) = trained(seed, pairs=shuffled), draw(seed, 2048, seeded(seed))
    verdict = flow.condition_use(s.velocity, x0, x1, generator=seeded(seed))
    assert verdict.status in ("warn", "fail"), verdict
    assert abs(verdict.values["flow/cond_gain_cos"]) < THRESHOLDS["condition/weak"]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_measured_gain_undoes_a_slow_field(seed):
    s = trained(seed)
    gain = flow.one_step(slow(s.velocity, 0.29), s.x0, s.x1).values["fm_gain"]
    assert gain == pytest.approx(1 / 0.29, rel=0.1)
    own = sampling.shooting(s.velocity, s.x0, s.x1, gain=1.0).values["relative"][-1]
    helped = sampling.shooting(slow(s.velocity, 0.29), s.x0, s.x1).values["relative_gain"]
    assert helped == pytest.approx(own, rel=0.25)


# The diary's own figures


def test_diary():
    t = (0.10, 0.37, 0.63, 0.90)
    step = flow.judge_one_step(t, (0.050, 0.045, 0.036, 0.015), (0.287, 0.296, 0.286, 0.282))
    assert step.status == "fail"
    assert step.values["fm_gain"] == pytest.approx(3.5, abs=0.02)
    assert "fm_gain = 3.49" in step.advice
    assert "cannot cure" in step.advice
    scale = flow.judge_scale(151, 896)
    assert (scale.status, round(scale.values["ratio"], 1)) == ("fail", 5.9)
    assert "moments" in scale.advice
    shot = sampling.judge_shooting(4.531314)
    assert shot.status == "fail"
    assert shot.values["relative"] == [pytest.approx(2.2657, abs=1e-4)]
    assert "was not given: 2 taken" in shot.meaning
    teacher = sampling.judge_teacher_euler((100, 50, 20, 10, 5), (1.51e-2, 3.41e-3, 5.84e-4, 1.54e-4, 5.42e-5))
    assert teacher.status == "fail"
    assert teacher.values["growth"] == pytest.approx(1.51e-2 / 5.42e-5)
    assert "rounding of the state, not the schedule" in teacher.meaning
    look = {"low": 0.0, "high": 1.0, "contrast": 0.1, "rms": 1.0}
    assert sampling.judge_probes(look, 2.6e-3, look).status == "pass"


LOOK = {"low": -1.0, "high": 1.0, "contrast": 0.3, "rms": 1.0}

# verdicts of bare numbers, at and beside the limits
NUMBERS = [
    (flow.judge_scale, (1, 3), "pass"),
    (flow.judge_scale, (1, 3.01), "fail"),
    (flow.judge_scale, (1, 1, 1, 0), "fail"),
    (flow.judge_scale, (1, 1, 0.1, 1), "fail"),
    (flow.judge_scale, (0, 0), "fail"),
    (flow.judge_scale, (NAN, 1), "fail"),
    (sampling.judge_latent_scale, (1.4, 1.0, 0.75), "pass"),
    (sampling.judge_latent_scale, (1.41, 1.0, 0.75), "fail"),
    (sampling.judge_latent_scale, (1.0, 1.41, 0.75), "fail"),
    (sampling.judge_latent_scale, (1.0, 0.0, 0.75), "fail"),
    (sampling.judge_latent_scale, (9.0, 1.0, 0.74), "skipped"),
    (sampling.judge_latent_scale, (1.8, 1.0, 0.9, -0.31), "skipped"),
    (flow.judge_one_step, ([0.5], [0.5], [0.5]), "pass"),
    (flow.judge_one_step, ([0.5], [0.49], [1]), "fail"),
    (flow.judge_one_step, ([0.5], [0.9], [0.49]), "fail"),
    (flow.judge_one_step, ([0.5], [0.9], [2.01]), "fail"),
    (flow.judge_one_step, ([0.1, 0.9], [0.9, 0.9], [0.1, 9]), "fail"),
    (flow.judge_one_step, ([0.5], [0.0], [0.0]), "fail"),
    (flow.judge_one_step, ([0.5], [NAN], [1]), "fail"),
    (flow.judge_one_step, ([0.5], [0.9], [INF]), "fail"),
    (flow.judge_target_definition, ({"velocity": 0.6, "x1": 0.4},), "pass"),
    (flow.judge_target_definition, ({"velocity": 0.6, "x1": 0.55},), "warn"),
    (flow.judge_target_definition, ({"velocity": 0.55, "x1": 0.6},), "warn"),
    (flow.judge_target_definition, ({"velocity": 0.4, "x1": 0.6},), "fail"),
    (flow.judge_target_definition, ({"velocity": 0.05, "x1": -0.6},), "fail"),
    (flow.judge_target_definition, ({"velocity": NAN, "x1": 0.0},), "fail"),
    (flow.judge_condition_use, (0.03,), "pass"),
    (flow.judge_condition_use, (0.01,), "warn"),
    (flow.judge_condition_use, (0.0,), "fail"),
    (flow.judge_condition_use, (NAN,), "fail"),
    (sampling.judge_shooting, (0.9,), "pass"),
    (sampling.judge_shooting, (1.2,), "warn"),
    (sampling.judge_shooting, (2.0,), "fail"),
    (sampling.judge_shooting, ({50: 0.4, 5: 0.9}, 1.0), "pass"),
    (sampling.judge_shooting, (NAN,), "fail"),
    (sampling.judge_teacher_euler, ((5, 100), (1e-4, 2e-4)), "pass"),
    (sampling.judge_teacher_euler, ((100, 5), (3.1e-4, 1e-4)), "fail"),
    (sampling.judge_teacher_euler, ((5, 100), (1e-13, 1e-8)), "pass"),
    (sampling.judge_teacher_euler, ((5, 100), (0.1, 0.1)), "fail"),
    (sampling.judge_teacher_euler, ((5, 100), (0.1, 0.001)), "warn"),
    (sampling.judge_teacher_euler, ((5, 100), (NAN, 1e-4)), "fail"),
    (sampling.judge_endpoint, ({"euler": {8: 0.3, 16: 0.31}},), "pass"),
    (sampling.judge_endpoint, ({"euler": {8: 0.3, 16: 0.32}},), "fail"),
    (sampling.judge_endpoint, ({"euler": {16: 0.32, 8: 0.3}},), "fail"),
    (sampling.judge_endpoint, ({"euler": {8: 0.3, 16: 0.2, 32: 0.25}},), "fail"),
    (sampling.judge_endpoint, ({"euler": {8: 0.3, 16: 0.31, 32: 0.32}},), "pass"),
    (sampling.judge_endpoint, ({"euler": {8: 0.3, 16: 0.314, 32: 0.329, 64: 0.346}},), "fail"),
    (sampling.judge_endpoint, ({"euler": {8: 0.3, 16: 0.2}, "heun": {8: 0.2, 16: 0.3}},), "fail"),
    (sampling.judge_endpoint, ({"euler": {8: 1e-7, 16: 1e-5}},), "pass"),
    (sampling.judge_endpoint, ({"euler": {8: 0.3, 16: NAN}},), "fail"),
    (sampling.leak, (0.95, 0.4, 0.9), "pass"),
    (sampling.leak, (0.95, 0.6), "fail"),
    (sampling.leak, (0.95, 0.4, 0.2), "fail"),
    (sampling.leak, (0.95, None, 0.2), "fail"),
    (sampling.leak, (0.6, 0.9, 0.2), "pass"),
    (sampling.leak, (NAN, 0.1), "fail"),
    (sampling.leak, (0.95, NAN, 0.9), "fail"),
    (sampling.leak, (0.95,), "skipped"),
    (sampling.judge_probes, (LOOK, 0.01, LOOK), "pass"),
    (sampling.judge_probes, (LOOK, 1e-4, LOOK), "fail"),
    (sampling.judge_probes, (LOOK, 0.01, LOOK | {"contrast": 0.05}), "warn"),
    (sampling.judge_probes, (LOOK, 0.01, LOOK | {"low": -1.6}), "warn"),
    (sampling.judge_probes, (LOOK, NAN, LOOK), "fail"),
    (sampling.judge_probes, (LOOK | {"high": INF}, 0.01, LOOK), "fail"),
]


@pytest.mark.parametrize(("judge", "numbers", "status"), NUMBERS)
def test_judged_numbers(judge, numbers, status):
    verdict = judge(*numbers)
    assert verdict.status == status, verdict
    assert verdict.name == judge.__name__.removeprefix("judge_")
    assert bool(verdict.advice) == (status in ("warn", "fail"))


@pytest.mark.parametrize(
    ("with_gain", "status"),
    [(0.3, "warn"), (0.75, "warn"), (0.79, "fail"), (0.8, "fail"), (1.5, "fail"), (NAN, "fail")],
)
def test_shooting_must_fall_with_the_gain(with_gain, status):
    verdict = sampling.judge_shooting({5: 0.9, 50: 0.8}, 1.0, gain=2.0, with_gain=with_gain)
    assert verdict.status == status, verdict


def test_falling_with_the_gain_but_not_below_the_start_fails():
    assert sampling.judge_shooting(4.0, 1.0, with_gain=2.0).status == "fail"


@pytest.mark.parametrize(
    ("judge", "numbers", "overrides"),
    [
        (flow.judge_scale, (1, 5), {"scale/ratio": 6}),
        (flow.judge_one_step, ([0.5], [0.4], [0.3]), {"one_step/cos": 0.35, "one_step/ratio_low": 0.2}),
        (flow.judge_one_step, ([0.5], [0.9], [3]), {"one_step/ratio_high": 4}),
        (flow.judge_target_definition, ({"velocity": 0.6, "x1": 0.55},), {"target/margin": 0.01}),
        (flow.judge_condition_use, (0.01,), {"condition/weak": 0.005}),
        (flow.judge_condition_use, (-0.01,), {"condition/gain": -0.1, "condition/weak": -0.1}),
        (sampling.judge_shooting, (1.2,), {"shooting/relative": 0.7}),
        (sampling.judge_teacher_euler, ((5, 100), (1e-5, 1e-4)), {"teacher/growth": 11}),
        (sampling.judge_teacher_euler, ((5, 100), (1e-5, 1e-4)), {"teacher/floor": 1e-4}),
        (sampling.judge_teacher_euler, ((5, 100), (0.1, 0.1)), {"teacher/relative": 0.1}),
        (sampling.judge_endpoint, ({"euler": {8: 0.3, 16: 0.4}},), {"endpoint/rise": 1.5, "endpoint/creep": 1.5}),
        (sampling.judge_endpoint, ({"euler": {8: 0.3, 16: 0.4}},), {"endpoint/floor": 0.5}),
        (sampling.leak, (0.95, 0.6), {"leak/relative": 0.7}),
        (sampling.leak, (0.95, 0.4, 0.2), {"leak/std": 0.1}),
        (sampling.leak, (0.95, 0.6), {"leak/cos": 0.99}),
        (sampling.judge_probes, (LOOK, 1e-5, LOOK), {"probes/first_step": 1e-6}),
        (
            sampling.judge_probes,
            (LOOK, 1, LOOK | {"contrast": 0.01, "high": 3}),
            {"probes/contrast": 0, "probes/range": 4},
        ),
    ],
)
def test_thresholds_may_be_overridden(judge, numbers, overrides):
    assert judge(*numbers).status in ("warn", "fail")
    verdict = judge(*numbers, overrides=overrides)
    assert verdict.status == "pass", verdict


def test_measuring_checks_pass_overrides_on():
    never = {"scale/ratio": 1.0, "one_step/cos": 2, "target/margin": 9, "condition/gain": 9, "shooting/relative": 0}
    never |= {"teacher/growth": 0, "endpoint/rise": 0, "endpoint/floor": 0, "probes/first_step": 1e9}
    names = "scale", "one_step", "target_definition", "condition_use", "shooting", "teacher_euler", "endpoint", "probes"
    for name in names:
        assert HEALTHY[name](SEEDS[0], overrides=never).status != "pass", name


def test_an_ideal_field_of_noise_is_told_from_noise_and_endpoint():
    """Where x0 is noise and x1 as good as noise, E[v | x_t] is -x0 at t near 0 and x1 near 1: hardest to tell."""

    def ideal(x, t):
        t = t.view(-1, 1, 1, 1)
        return (2 * t - 1) / (t.square() + (1 - t).square()) * x

    x0, x1 = torch.randn(2, 2048, 4, 8, 8, generator=seeded(SEEDS[0]))
    verdict = flow.target_definition(ideal, x0, x1)
    assert verdict.status == "pass", verdict
    assert flow.target_definition(ideal, x0, x1, times=(0.1,)).status == "fail"


def test_given_noise_is_a_candidate():
    s = trained(SEEDS[0])
    noise = torch.randn(s.x0.shape, generator=seeded(SEEDS[0]))
    verdict = flow.target_definition(lambda x, t: noise, s.x0, s.x1, noise)
    assert verdict.status == "fail"
    assert "predict the noise" in verdict.meaning
    assert "predict the score, -noise" in flow.target_definition(lambda x, t: -noise, s.x0, s.x1, noise).meaning


# The two figures others use too


def test_endpoint_rmse_is_the_plain_loop():
    s = trained(SEEDS[0])
    for solver in ("euler", "heun"):
        got = flow.endpoint_rmse(s.velocity, s.x0, s.x1, ks=(3, 7), solver=solver)
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
    assert values["flow/endpt_rmse@7 heun"] == got[7]
    assert set(values) == {"flow/endpt_rmse@3", "flow/endpt_rmse@7", "flow/endpt_rmse@3 heun", "flow/endpt_rmse@7 heun"}


def test_condition_gain_is_its_formula():
    cos = partial(nn.functional.cosine_similarity, dim=1)
    s, t = trained(SEEDS[0]), torch.rand(256, generator=seeded(1))
    order = flow.derangement(256, seeded(2))
    line, at = PATHS["linear"], t.view(-1, 1, 1, 1)
    own = cos(s.velocity((1 - at) * s.x0 + at * s.x1, t).flatten(1), (s.x1 - s.x0).flatten(1))
    other = s.velocity((1 - at) * s.x0[order] + at * s.x1, t)
    expected = (own - cos(other.flatten(1), (s.x1 - s.x0[order]).flatten(1))).mean().item()
    got = flow.condition_gain(s.velocity, s.x0, s.x1, t, generator=seeded(2), path=line)
    assert got == pytest.approx(expected, abs=1e-5)

    s = trained(SEEDS[0], pairs=noise, conditions=PAIRS)
    x_t, v = line.pair(t, s.x0, s.x1)
    own, other = (cos(s.velocity(x_t, t, c).flatten(1), v.flatten(1)).mean().item() for c in (s.which, s.which[order]))
    got = flow.condition_gain(s.velocity, s.x0, s.x1, t, s.which, seeded(2), path=line)
    assert got == pytest.approx(own - other, abs=1e-5)


@pytest.mark.parametrize("n", [2, 3, 7, 64])
def test_derangement_is_one_cycle(n):
    for seed in SEEDS:
        order, k, seen = flow.derangement(n, seeded(seed)), 0, set()
        for _ in range(n):
            k = order[k].item()
            seen.add(k)
        assert seen == set(range(n))
        assert (order != torch.arange(n)).all()


def test_low_precision_and_foreign_paths():
    s = trained(SEEDS[0])
    x0, x1 = s.x0.bfloat16(), s.x1.bfloat16()

    def field(x, t):
        return s.velocity(x, t).to(x.dtype)

    for check in (flow.one_step, flow.target_definition, flow.condition_use, sampling.shooting, sampling.endpoint):
        verdict = check(field, x0, x1)
        assert verdict.status == "pass", verdict
    ideal = PATHS["cosine"]
    verdict = flow.one_step(lambda x, t: ideal.velocity(t, s.x0, s.x1), s.x0, s.x1, path=ideal)
    assert verdict.values["cos"] == pytest.approx([1.0] * 4)
    assert verdict.values["fm_gain"] == pytest.approx(1.0)


def test_no_gradients_are_made():
    net, x = Net(), torch.randn(4, *SHAPE)
    seen = []

    def field(x, t):
        seen.append(net(x, t))
        return seen[-1]

    for check in (flow.one_step, flow.target_definition, flow.condition_use, sampling.shooting, sampling.endpoint):
        check(field, x, x.flip(0))
    assert seen
    assert not any(v.requires_grad for v in seen)


@pytest.mark.slow
def test_the_pipelines_probes_are_taken():
    from fmpipe.pipeline import Probe  # here, as diffusers takes seconds to import

    a, c = (Probe.of(decoder()(z), z) for z in torch.randn(2, 2, *SHAPE))
    verdict = sampling.judge_probes(a, 0.05, c)
    assert verdict.status == "pass", verdict
    assert verdict.values["C"]["contrast"] == c.contrast


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: flow.scale(X, X[:, :2]), ValueError, "scale: x1"),
        (lambda: flow.scale([1.0], X), TypeError, "scale: x0"),
        (lambda: flow.scale(X[:0], X[:0]), ValueError, "scale: x0 must have at least 1"),
        (lambda: flow.one_step(lambda x, t: x[:1], X, X), ValueError, "one_step: velocity must return"),
        (lambda: flow.one_step(lambda x, t: None, X, X), ValueError, "got NoneType"),
        (lambda: flow.one_step(lambda x, t: x, X, X, ()), ValueError, "one_step: times"),
        (lambda: flow.one_step(lambda x, t: x, X.long(), X), TypeError, "one_step: x0"),
        (lambda: flow.judge_one_step([0.1], [0.5], []), ValueError, "one length"),
        (lambda: flow.judge_one_step([], [], []), ValueError, "one length"),
        (lambda: flow.target_definition(lambda x, t: x, X, X, X[:1]), ValueError, "target_definition: noise"),
        (lambda: flow.target_definition(lambda x, t: x, X, X, times=()), ValueError, "target_definition: times"),
        (lambda: flow.judge_target_definition({"x1": 0.4}), ValueError, "'velocity'"),
        (lambda: flow.judge_target_definition({"velocity": 1, "image": 0.4}), ValueError, "image"),
        (lambda: flow.condition_use(lambda x, t: x, X[:1], X[:1]), ValueError, "at least 2 samples"),
        (lambda: flow.condition_use(lambda x, t: x, X, X, X[:1]), ValueError, "cond must be a tensor of 2"),
        (lambda: flow.condition_use(lambda x, t: x, X, X, "a cat"), ValueError, "got str"),
        (lambda: flow.condition_use(lambda x, t: x, X, X, times=()), ValueError, "condition_use: times"),
        (lambda: flow.endpoint_rmse(lambda x, t: x, X, X, solver="rk4"), ValueError, "euler, heun"),
        (lambda: sampling.shooting(lambda x, t: x, X, X + 1, ()), ValueError, "shooting: steps"),
        (lambda: sampling.shooting(lambda x, t: x, X, X), ValueError, "start, the MSE"),
        (lambda: sampling.judge_shooting({}), ValueError, "error"),
        (lambda: sampling.teacher_euler(X, X + 1, dtype=torch.int64), TypeError, "dtype"),
        (lambda: sampling.teacher_euler(X, X + 1, integrate=lambda v, x, n: x[:1]), ValueError, "integrate returns"),
        (lambda: sampling.judge_teacher_euler([5], [0.1]), ValueError, "two or more"),
        (lambda: sampling.judge_teacher_euler([5, 10], [0.1]), ValueError, "two or more"),
        (lambda: sampling.judge_teacher_euler([5, 10], [0.1, 0.1], 0.0), ValueError, "start"),
        (lambda: sampling.judge_endpoint({"euler": {8: 0.1}}), ValueError, "two K"),
        (lambda: sampling.probes(X, X, lambda z: None, 0.1), ValueError, "probes: decode"),
        (lambda: sampling.probes(X, X[:1], lambda z: z, 0.1), ValueError, "z1"),
        (lambda: flow.judge_scale(1, 1, overrides={"scale/rato": 2}), KeyError, "scale/ratio"),
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
