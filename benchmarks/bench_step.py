"""One guided step of the sampler with its statistics and the low-precision copy for the next forward."""

import torch
from harness import Bench, compiled, main

import fmkernels as fk

DT, GUIDANCE = 0.02, 3.0


def eager_step(x, vc, vu, low):
    """What a careful loop writes: fp32 state in place, the copy, and the five numbers it prints."""
    v = vu.float() + GUIDANCE * (vc.float() - vu.float())
    delta = DT * v
    columns = [x.abs().flatten(1).mean(1), v.abs().flatten(1).mean(1), delta.square().flatten(1).mean(1).sqrt()]
    x.add_(delta)
    low.copy_(x)
    columns += [(~torch.isfinite(x)).flatten(1).sum(1).float(), x.new_full((x.shape[0],), DT)]
    return x, low, torch.stack(columns, dim=1)


def guided(name, shape, floors, share=0.0):
    start, (vc, vu) = torch.randn(shape), torch.randn(2, *shape).bfloat16()
    low, stats = torch.empty(shape, dtype=torch.bfloat16), torch.empty(shape[0], 5)
    states = {name: start.clone() for name in ("eager", "compile")}
    fast = compiled(eager_step)

    # Every contestant's state starts equal and takes the same number of equal steps between checks, so
    # only the first call of each is compared; the numbers of later calls drift alike.
    def ours():
        x = start.clone()
        return lambda: (fk.euler_step_(x, vc, DT, v_uncond=vu, guidance=GUIDANCE, low=low, stats=stats), low, stats)

    calls = {
        "eager": lambda: eager_step(states["eager"], vc, vu, low),
        "compile": lambda: fast(states["compile"], vc, vu, low),
        "fmkernels": ours(),
    }
    moved = start.numel() * (4 + 4 + 2 + 2 + 2)
    return Bench(name, calls, moved, floors, tolerance=1e-3, share=share, another=ours)


def cases():
    floors = {"eager": 8, "compile": 1}
    yield guided("euler_step_ guided, bf16 v, stats (16,4,32,32)", (16, 4, 32, 32), floors)
    yield guided("euler_step_ guided 587 MB", (40, 4, 512, 512), {}, share=0.8)


if __name__ == "__main__":
    main([cases])
