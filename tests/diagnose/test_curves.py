"""Curves that look like a fault and are none, each beside the same curve with the fault."""

import numpy as np
import pytest

from fmpipe.diagnose.engine import judge
from fmpipe.diagnose.figures import Figures, SamplingTrace, Series

N = 400
STEPS = np.arange(1, N + 1) * 50
FALL = 0.5 + np.exp(-STEPS / 3000)
PHASE = (STEPS % 4000) / 4000  # 80 values


def noise(seed=0, scale=0.02):
    return np.exp(scale * np.random.default_rng(seed).standard_normal(N))


def failed(unknown=(), texts=(), **metrics):
    """Return the rules that fail on these series."""
    figures = Figures({name: Series(STEPS, np.broadcast_to(x, N)) for name, x in metrics.items()})
    figures.unknown, figures.texts = list(unknown), dict.fromkeys(texts, "on")
    return {finding.name for finding in judge(figures) if finding.status == "fail"}


def jump(at=250, by=1.5):
    return np.where(np.arange(N) < at, 1.0, by)


SAWTOOTH = FALL * (1.25 - 0.3 * PHASE) * noise()
STAGES = np.where(np.arange(N) < 250, 256.0, 512.0)
CURVES = {  # rule: what is healthy, what is not
    "memorization": [
        ({"loss/total": SAWTOOTH, "beta": 1 - PHASE, "unknown": ["beta"], "epoch": STEPS / 4000}, "so has a weight"),
        ({"loss/total": SAWTOOTH, "lr": 1e-4 * (1 - PHASE), "epoch": STEPS / 4000}, "warm restarts"),
        ({"loss/total": SAWTOOTH}, "no epoch is known"),
        ({"loss/total": SAWTOOTH, "epoch": STEPS / 5300}, "an epoch is longer"),
        ({"loss/total": SAWTOOTH, "epoch": STEPS / 4000}, None),
    ],
    "loss_trend": [
        ({"loss/total": FALL * jump() * noise(), "size": STAGES, "unknown": ["size"]}, "its size changes"),
        ({"loss/total": FALL * jump() * noise(), "tokens": STEPS * 512.0, "unknown": ["tokens"]}, None),
        ({"loss/total": FALL * jump() * noise()}, None),
        ({"loss/total": 1.2 * noise(), "lr": 1e-4, "quality/fid": 40 - STEPS / 1000}, "FID falls"),
        ({"loss/total": 1.2 * noise(), "lr": 1e-4, "texts": ["recipe/finetune"]}, "a fine-tune"),
        ({"loss/total": 1.2 * noise(), "lr": 1e-9 * STEPS}, "the LR is still warming up"),
        ({"loss/total": 1.2 * noise(scale=0.5), "lr": 1e-4}, "so much noise shows no trend"),
        ({"loss/total": 1.2 * noise(), "reward": STEPS * 1.0, "unknown": ["reward"], "lr": 1e-4}, "a reward rises"),
        ({"loss/total": 1 + STEPS / 2e4, "logits_real": STEPS, "unknown": ["logits_real"]}, "a discriminator learns"),
        ({"loss/total": 1 + STEPS / 2e4, "val/loss/total": FALL}, "the held-out loss falls"),
        ({"loss/total": 1 + STEPS / 2e4, "val/loss/total": 1 + STEPS / 2e4}, None),
        ({"loss/sds": 900 * noise(), "lr": 1e-4}, "score distillation"),
        ({"loss/total": 1.2 * noise(), "lr": 1e-4}, None),
    ],
    "time_slices": [
        ({f"flow/nmse_t{k}": 0.9 * 0.6**k for k in range(10)}, "easier with t at every t"),
        ({f"flow/nmse_t{k}": 0.2 + 0.9 * (k == 9) for k in range(10)}, None),
    ],
    "metrics_lost": [
        ({"loss/total": FALL * noise(), "quality/fid": np.where(STEPS < 9000, 30.0, np.nan)}, None),
    ],
    "gradients": [
        ({"loss/total": FALL, "grad/total": jump(130, 4) * jump(260, 3) * noise()}, "two steps, as layers unfreeze"),
        ({"loss/total": FALL, "grad/total": noise() * np.exp(STEPS / 7000)}, None),
        ({"loss/total": np.exp(-STEPS / 1000), "grad/total": np.exp(-STEPS / 1000)}, "nothing is left to learn"),
        ({"loss/total": FALL, "grad/total": np.exp(-STEPS / 1000)}, None),
    ],
    "update_ratios": [
        ({"step/z_head_update_ratio": 3e-6 * noise(), "lr": 5e-7}, "as the LR says"),
        ({"step/z_head_update_ratio": 3e-6 * noise(), "lr": 1e-4}, None),
    ],
    "kl": [
        ({"mu/abs_mean": 0.02 + STEPS / 5e4, "std/mean": 1.0, "loss/kl": 0.1}, "mu stays below the prior's size"),
        ({"std/mean": 1 - 0.5 * (1 - FALL), "loss/kl": FALL}, "the KL falls"),
        ({"mu/abs_mean": 0.5 + STEPS / 5e3, "std/mean": 1.0, "loss/kl": STEPS / 1e3}, None),
    ],
    "condition_use": [
        ({"flow/cond_gain_cos": 0.012 * noise()}, "small, but always there"),
        ({"flow/cond_gain_cos": 0.002 * np.sin(STEPS)}, None),
    ],
    "time_sampling": [
        ({"stat/t/mean": 500 * noise(), "stat/t/std": 208.0 * noise(1)}, "logit-normal in steps"),
        ({"stat/t/mean": 0.68 * noise(), "stat/t/std": 0.17 * noise(1)}, "shifted"),
        ({"stat/t/mean": 0.62 * noise(), "stat/t/std": 0.07 * noise(1)}, None),
    ],
    "generalization": [
        ({"val/loss/total": FALL * 900, "loss/total": FALL * noise()}, "another unit from the beginning"),
        ({"val/loss/total": FALL[::-1] * 9, "loss/total": FALL * noise()}, None),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "metrics", "why"),
    [(rule, *row) for rule, rows in CURVES.items() for row in rows],
    ids=[f"{rule}: {why or f'a fault ({k})'}" for rule, rows in CURVES.items() for k, (_, why) in enumerate(rows)],
)
def test_a_rule_fails_on_the_fault_and_not_on_what_looks_like_it(rule, metrics, why):
    assert (rule in failed(**metrics)) == (why is None)


@pytest.mark.parametrize(("top", "expected"), [(80.0, set()), (14.6, set()), (None, {"scale", "step_sizes"})])
def test_a_sampler_may_start_from_noise_as_large_as_its_largest_sigma(top, expected):
    sigma = (np.linspace((top or 80.0) ** (1 / 7), 0, 19)) ** 7
    x = 0.8 * np.hypot(sigma[:-1], 0.5) if top else np.full(18, 6.2)
    figures = Figures(traces=[SamplingTrace(x, np.full(18, 0.8), np.diff(sigma))])
    assert {f.name for f in judge(figures) if f.status == "fail"} & {"scale", "step_sizes"} == expected
