"""A whole sampling run: a loop as people write it, with its printed numbers, and sample() with its trace."""

import torch
from bench_patch import MEDIUM, SMALL, third_party_model, three
from harness import Bench, main

from fmkernels.flow import crossflow, sample

STEPS, GUIDANCE = 20, 3.0


def loop(model, z0, null):
    """fp32 state, guidance by two forwards, a line printed (here: formatted) at every step."""
    z, grid, lines = z0.clone(), torch.linspace(1e-5, 1, STEPS + 1), []
    for k, t in enumerate(torch.linspace(0, 1 - 1e-5, STEPS)):
        log_snr = (4 - 8 * t).repeat(len(z))
        cond, uncond = model(z, log_snr, ~null)[-1], model(z, log_snr, null)[-1]
        v = uncond + GUIDANCE * (cond - uncond)
        dt = grid[k + 1] - grid[k]
        z = z + dt * v
        lines.append(f"step{k}: |x|={z.abs().mean():.4f}, |v|={v.abs().mean():.4f}, dt={float(dt):.4f}")
    return z


def run(name, stages, size, batch, floors):
    torch.manual_seed(0)
    model, compiled, fast = three(third_party_model.randomized(third_party_model.DiMR(4, stages)))
    with torch.no_grad():
        for p in (p for m in (model, compiled, fast) for p in m.parameters() if p.dim() > 1):
            p.mul_(0.2)
    z0, null = torch.randn(batch, 4, size, size), torch.ones(batch, dtype=torch.bool)

    def ours():
        x, trace = sample(lambda x, t, null: fast(x, 4 - 8 * t, null)[-1], z0, crossflow(STEPS), guidance=GUIDANCE)
        trace.lines()
        return x

    calls = {"eager": lambda: loop(model, z0, null), "compile": lambda: loop(compiled, z0, null), "fmkernels": ours}
    return Bench(name, calls, STEPS * 5 * z0.numel() * 4, floors, tolerance=1e-3, mode=torch.no_grad)


def cases():
    yield run("sampling, 20 guided steps, overhead-bound", SMALL, 8, 1, {"eager": 1.3})
    yield run("sampling, 20 guided steps, compute-bound", MEDIUM, 32, 2, {"eager": 1})


if __name__ == "__main__":
    main([cases])
