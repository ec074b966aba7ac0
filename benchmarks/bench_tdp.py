"""tdp and tdp_group at the sizes of the 256 px model: 171 parameters, 289,280 elements."""

import torch
from harness import Bench, compiled, main

import fmkernels as fk

MODEL_256 = [1024] * 132 + [512] * 37 + [67584] * 2


def eager_tdp(p0, p1, w, b, times):
    return p1 + torch.sigmoid(times[:, None] * (w + 1.0) + b) * (p0 - p1)


def group_cases():
    params = [tuple(torch.randn(4, n)) for n in MODEL_256]
    group, one, schedule = fk.TdpGroup(params), torch.randn(1), torch.randn(50)
    total = group.total * 4

    def loop(times):
        return [eager_tdp(*four, times) for four in params]

    compiled_loop = compiled(loop)
    yield Bench(
        "tdp_group 171 params, T=1, reused",
        {
            "eager": lambda: loop(one),
            "compile": lambda: compiled_loop(one),
            "fmkernels": lambda: fk.tdp_group(group, one, out=group.buffer(1)),
        },
        moved=5 * total,
        floors={"eager": 20, "compile": 5},
    )
    yield Bench(
        "tdp_group 171 params, T=1, fresh",
        {
            "eager": lambda: loop(one),
            "compile": lambda: compiled_loop(one),
            "fmkernels": lambda: fk.tdp_group(group, one),
        },
        moved=5 * total,
    )
    evict = torch.randn(32 << 20)
    yield Bench(
        "tdp_group 171 params, T=1, reused, cold caches",
        {
            "eager": lambda: loop(one),
            "compile": lambda: compiled_loop(one),
            "fmkernels": lambda: fk.tdp_group(group, one, out=group.buffer(1)),
        },
        moved=5 * total,
        before=lambda: evict.add_(1.0),
    )
    columns = schedule.split(1)

    def joined(steps):
        return [torch.cat(rows) for rows in zip(*steps, strict=True)]

    yield Bench(
        "tdp_group 171 params, T=50, reused",
        {
            "eager": lambda: [loop(t) for t in columns],
            "compile": lambda: [compiled_loop(t) for t in columns],
            "fmkernels": lambda: fk.tdp_group(group, schedule, out=group.buffer(50)),
        },
        moved=54 * total,
        floors={"eager": 40},
        compared_as={"eager": joined, "compile": joined},
    )
    leaves = [tuple(x.clone().requires_grad_() for x in four) for four in params]
    training = fk.TdpGroup(leaves)
    flat = [x for four in leaves for x in four]

    seeds, both = [torch.randn(2, n) for n in MODEL_256], torch.ones(2)

    def backward(outputs):
        return torch.autograd.grad(outputs, flat, seeds)

    yield Bench(
        "tdp_group 171 params, T=2, forward + backward",
        {
            "eager": lambda: backward([eager_tdp(*four, both) for four in leaves]),
            "fmkernels": lambda: backward(fk.tdp_group(training, both)),
        },
        moved=17 * total,
        mode=torch.enable_grad,
    )


def single(name, n, steps, mode, floors):
    four, times = list(torch.randn(4, n)), torch.randn(steps)
    fast = compiled(eager_tdp)
    x, out = torch.randn(steps, n), torch.empty(steps, n)
    return Bench(
        name,
        {
            "eager": lambda: eager_tdp(*four, times),
            "compile": lambda: fast(*four, times),
            "fmkernels": lambda: fk.tdp(*four, times, weight_offset=1.0),
        },
        moved=(4 + steps) * n * 4,
        floors=floors,
        mode=mode,
        bound=("torch.sigmoid alone", lambda: torch.sigmoid(x, out=out)) if n > 1024 else None,
    )


def cases():
    yield from group_cases()
    yield single("tdp D=1024 T=1, inference_mode", 1024, 1, torch.inference_mode, {"eager": 3, "compile": 1})
    yield single("tdp D=1024 T=1, no_grad", 1024, 1, torch.no_grad, {"eager": 2, "compile": 1})
    yield single("tdp D=67584 T=16", 67584, 16, torch.inference_mode, {"eager": 8, "compile": 1})
    four, times = list(torch.randn(4, 1 << 21)), torch.randn(64)
    fast = compiled(eager_tdp)
    out = torch.empty(64, 1 << 21)
    yield Bench(
        "tdp 570 MB, reused",
        {
            "eager": lambda: eager_tdp(*four, times),
            "compile": lambda: fast(*four, times),
            "fmkernels": lambda: fk.tdp(*four, times, weight_offset=1.0, out=out),
        },
        moved=68 * (1 << 21) * 4,
        share=0.8,
    )


if __name__ == "__main__":
    main([cases])
