"""How often do the rules fail on random healthy curves, and miss random faults?

python tests/corpus/random_curves.py [COUNT [FIRST_SEED]]     # 200 runs of each kind, figures only, nothing is read
"""

import sys
import warnings
from collections import Counter

import numpy as np

from l.core import ar1, ema, fall, gn, sig_up, wconst, wcos, wlin

from fmpipe.diagnose.engine import judge
from fmpipe.diagnose.figures import Figures, Series

FAULTS = {  # and the rule that must fail
    "rise": "loss_trend", "jump": "loss_trend", "flat": "loss_trend", "overfit": "generalization",
    "from scratch": "resumed", "gradients": "gradients", "period": "memorization",
}  # fmt: skip


def failed(metrics):
    return {finding.name for finding in judge(Figures(metrics)) if finding.status == "fail"}


def healthy(seed):
    """A loss that falls by 10 to 90 %, with noise that may be correlated in time, averaged, or have one spike."""
    r = np.random.default_rng(seed)
    n = int(np.exp(r.uniform(np.log(24), np.log(1500))))
    s = int(r.choice([1, 10, 50, 100, 500])) * np.arange(1, n + 1)
    end, first, drop = s[-1], np.exp(r.uniform(np.log(0.01), np.log(30))), r.choice([0.1, 0.3, 0.6, 0.9])
    tau = end * np.exp(r.uniform(np.log(0.01), np.log(0.4)))
    noise, rho = np.exp(r.uniform(np.log(0.003), np.log(0.3))), r.choice([0, 0.3, 0.7])
    y = fall(s, first, first * (1 - drop), tau, p=r.uniform(0.3, 0.9))
    y = y * np.exp(noise * (r.standard_normal(n) if rho == 0 else ar1(r, n, rho)))
    y = ema(y, r.choice([0.5, 0.9])) if r.random() < 0.3 else y
    if r.random() < 0.15:
        at = r.integers(n)
        y[at : at + 2] *= 1 + r.exponential(2)
    rates = (wcos(s, 2e-4, end * 0.05, end * 1.0001), wconst(s, 1e-4, end * 0.03), wlin(s, 3e-4, end * 0.05, end * 1.01))
    norms = gn(r, 0.3 + r.uniform(0, 4) * np.exp(-s / tau), r.uniform(0.05, 0.4))
    metrics = {"loss/total": Series(s, y), "lr": Series(s, rates[r.integers(3)]), "grad/total": Series(s, norms)}
    if r.random() < 0.6:
        k = int(r.integers(4, 41))
        e = np.linspace(end / k, end, k).astype(int)
        held = fall(e, first, first * (1 - drop * 0.97), tau) * np.exp(r.choice([0.002, 0.01, 0.03]) * r.standard_normal(k))
        metrics["val/loss/total"] = Series(e, held)
        fid = r.uniform(2, 60) + r.uniform(0, 200) * np.exp(-e / tau)
        metrics["quality/fid"] = Series(e, fid * np.exp(r.choice([0.01, 0.03]) * r.standard_normal(k)))
    if r.random() < 0.5:
        metrics["epoch"] = Series(s, s / end * r.choice([1, 3, 10, 50]))
    return metrics


def faulty(seed, kind):
    r = np.random.default_rng(seed)
    n = int(np.exp(r.uniform(np.log(120 if kind == "period" else 40), np.log(1200))))
    s = int(r.choice([1, 10, 50, 100])) * np.arange(1, n + 1)
    end, first, drop = s[-1], np.exp(r.uniform(np.log(0.7), np.log(10))), r.choice([0.3, 0.6, 0.9])
    tau, least = end * np.exp(r.uniform(np.log(0.01), np.log(0.15))), first * (1 - drop)
    noise, k = np.exp(r.uniform(np.log(0.004), np.log(0.08))), int(r.integers(8, 31))
    e = np.linspace(end / k, end, k).astype(int)
    y, held, norms, metrics = fall(s, first, least, tau), fall(e, first, least * 1.02, tau), np.full(n, 0.5), {}
    if kind == "rise":
        up = least * r.uniform(0.35, 2) * sig_up(s, end * r.uniform(0.55, 0.8), end * 0.06)
        y, held = y + up, held + np.interp(e, s, up)
    elif kind == "jump":
        at, by = int(n * r.uniform(0.4, 0.8)), r.uniform(1.3, 2.5)
        y[at:] *= by
        held = np.where(e > s[at], held * by, held)
    elif kind == "flat":
        y, held = np.full(n, first), np.full(k, first)
    elif kind == "overfit":
        held = held + held.min() * r.uniform(0.15, 0.8) * np.clip((e - end * 0.4) / (end * 0.6), 0, 1)
        y = fall(s, first, least * 0.5, tau)
    elif kind == "from scratch":
        at = int(n * r.uniform(0.35, 0.6))
        y[at:] = fall(s[: n - at], first, least, tau)
        held = np.interp(e, s, y)
    elif kind == "gradients":
        norms = 0.3 * 10 ** (r.uniform(2, 4) * s / end)
    else:
        length = max(8, n // int(r.integers(5, 12)))
        y = y * (1.2 - 0.4 * (np.arange(n) % length) / length)
        metrics["epoch"] = Series(s, np.arange(n) // length * 1.0)
    metrics |= {"loss/total": Series(s, y * np.exp(noise * r.standard_normal(n))), "grad/total": Series(s, gn(r, norms, 0.15))}
    metrics["lr"] = Series(s, wcos(s, 2e-4, end * 0.05, end * 1.0001))
    if kind == "overfit" or r.random() < 0.7:
        metrics["val/loss/total"] = Series(e, held * np.exp(r.choice([0.002, 0.01]) * r.standard_normal(k)))
    return metrics


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    count, first = (int(x) for x in [*sys.argv[1:], *["200", "0"][len(sys.argv) - 1 :]])
    wrong = [failed(healthy(seed)) for seed in range(first, first + count)]
    print(f"healthy: {sum(map(bool, wrong))} of {count} have a finding: {dict(Counter(x for one in wrong for x in one))}")
    for kind, rule in FAULTS.items():
        right = sum(rule in failed(faulty(seed, kind)) for seed in range(first, first + count))
        print(f"{kind}: {right} of {count} found")
