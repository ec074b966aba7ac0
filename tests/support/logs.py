"""A healthy training log, and the findings about one."""

import numpy as np

from fmpipe.diagnose.figures import Figures, SamplingTrace, Series

N = 80
STEPS = np.arange(1, N + 1) * 20


def failed(findings):
    return [f.name for f in findings if f.status == "fail"]


def healthy():
    """Return a flow run as the trainer logs it: cos rises to 0.8, std/mean stays, every scale is right."""
    draw = np.random.default_rng(0)
    done = 1 - np.exp(-np.arange(N) / 20)

    def noisy(mean, spread=0.01):
        return mean + spread * draw.standard_normal(N)

    rows = {
        "loss/flow": noisy(2.2 - 1.4 * done), "loss/total": noisy(2.5 - 1.4 * done), "loss/kl": np.full(N, 0.45),
        "val/loss/flow": noisy(2.2 - 1.3 * done), "val/flow/cos": noisy(0.8 * done), "val/flow/nmse": 1 - 0.64 * done,
        "val/flow/speed_ratio": noisy(0.3 + 0.5 * done), "flow/cond_gain_cos": noisy(0.2 * done),
        "grad/total": noisy(3 - 2 * done), "grad/flow": noisy(3 - 2 * done), "grad/kl": np.full(N, 1e-3),
        "grad/anchor": noisy(1 - 0.5 * done), "step/z_head_update_ratio": np.full(N, 2e-3),
        "std/mean": noisy(0.5), "std/min": np.full(N, 0.4), "std/max": np.full(N, 0.6), "mu/rms": noisy(0.7),
        "logvar/mean": np.full(N, -1.4), "z_init/mean": np.zeros(N), "z_init/var": np.full(N, 0.5),
        "scale/z0": noisy(14, 0.1), "scale/z1": noisy(16, 0.1), "scale/v*": noisy(17, 0.1),
        "ent/teacher": noisy(3.0), "ent/student": noisy(4.0), "lr": np.full(N, 1e-4),
    }  # fmt: skip
    for k, rmse in zip((8, 16, 32, 64), (1.0, 0.98, 0.97, 0.97)):
        rows[f"flow/endpt_rmse@{k}"] = noisy(rmse * (1 - 0.4 * done), 1e-4)
    figures = {
        "x_0": (0, 1), "noise": (0, 0.86), "x_t": (0, 0.8), "predicted_x0": (0, 0.9), "x_0_target": (0, 1),
        "t": (0.5, 0.2887),
    }  # fmt: skip
    for name, (mean, std) in figures.items():
        rows |= {
            f"stat/{name}/mean": noisy(mean),
            f"stat/{name}/std": noisy(std),
            f"stat/{name}/nonfinite": np.zeros(N),
        }
        low, high = (0.01, 0.99) if name == "t" else (-4 * std, 4 * std)
        rows |= {f"stat/{name}/min": np.full(N, low), f"stat/{name}/max": np.full(N, high)}
    rows |= {f"flow/nmse_t{k}": noisy(0.4 + 0.02 * abs(k - 4.5)) for k in range(10)}
    constants = {
        "const/betas": [1e-4, 0.02], "const/alphas_cumprod": [0.9999, 4.04e-5],
        "const/sqrt_alphas_cumprod": [0.99995, 0.00635], "const/sqrt_one_minus_alphas_cumprod": [0.01, 0.99998],
    }  # fmt: skip
    x = np.linspace(0.7889, 0.88, 50)
    traces = [SamplingTrace(x, np.full(50, 0.46), np.full(50, 0.02))]
    return Figures({n: Series(STEPS, v) for n, v in rows.items()}, traces, constants=constants, stage="flow")
