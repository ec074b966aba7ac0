"""A third-party model before and after accelerate(): seeding at the sizes of the 256 px model, and training steps.

The model is also used by the tests (third_party_model.py). It does not import fmkernels.
"""

import copy

import third_party_model
import torch
from bench_tdp import MODEL_256
from harness import Bench, main
from torch import nn

import fmkernels as fk

SMALL = [
    {"kind": "transformer", "dim": 32, "hidden": 64, "blocks": 9, "grid": 4, "patch": 2},
    {"kind": "convnext", "dim": 16, "hidden": 32, "blocks": 5, "grid": 8, "patch": 1, "kernel": 3},
]
MEDIUM = [
    {"kind": "transformer", "dim": 192, "hidden": 384, "blocks": 5, "grid": 16, "patch": 2},
    {"kind": "convnext", "dim": 96, "hidden": 192, "blocks": 3, "grid": 32, "patch": 1},
]


class Norms(nn.Module):
    """All norms of the 256 px model without other modules: the minimum cost of a seeding."""

    def __init__(self):
        super().__init__()
        vectors = [third_party_model.TDRMSNorm(n) for n in MODEL_256 if n != 67584]
        self.norms = nn.ModuleList([*vectors, third_party_model.LayerNorm(67584)])

    def forward(self, log_snr):
        third_party_model.TimeDependentParameter.seed_time(self, log_snr)

    def values(self):
        return [m.curr_weight for n in self.norms for m in n.children()]


def three(model):
    """Return the model, a compiled copy and an accelerated copy."""
    fast = copy.deepcopy(model)
    fk.accelerate(fast)
    return model, torch.compile(copy.deepcopy(model), dynamic=False), fast


def seeding_cases():
    model, compiled, fast = three(third_party_model.randomized(Norms()))
    moved = 5 * sum(MODEL_256) * 4
    for name, log_snr, mode, floors in (
        ("shared t", torch.full((16,), 1.25), torch.no_grad, {"eager": 20}),
        ("shared t, training", torch.full((16,), 1.25), torch.enable_grad, {}),
        ("16 different t", torch.linspace(-4, 4, 16), torch.no_grad, {}),
    ):
        calls = {"eager": lambda t=log_snr: model(t), "compile": lambda t=log_snr: compiled(t)}
        calls["fmkernels"] = lambda t=log_snr: fast(t)
        values = {
            "eager": lambda _: model.values(),
            "compile": lambda _: compiled._orig_mod.values(),
            "fmkernels": lambda _: fast.values(),
        }
        yield Bench(f"seed_time 171 params, {name}", calls, moved, floors, mode=mode, compared_as=values)


def training_case(name, stages, size, batch, floors):
    torch.manual_seed(0)
    models = dict(
        zip(
            ("eager", "compile", "fmkernels"),
            three(third_party_model.randomized(third_party_model.DiMR(4, stages))),
            strict=True,
        )
    )
    x, log_snr = torch.randn(batch, 4, size, size), torch.linspace(-3, 3, batch)
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=1e-6) for name, model in models.items()}

    def step(name):
        optimizers[name].zero_grad()
        outs = models[name](x, log_snr)
        loss = sum(o.square().mean() for o in outs)
        loss.backward()
        optimizers[name].step()
        return loss

    calls = {name: lambda name=name: step(name) for name in models}
    bytes_of_parameters = sum(p.numel() for p in models["eager"].parameters()) * 4
    return Bench(name, calls, 3 * bytes_of_parameters, floors, tolerance=1e-3, mode=torch.enable_grad)


def cases():
    yield from seeding_cases()
    yield training_case("training step, overhead-bound", SMALL, 8, 2, {"eager": 1.3})
    yield training_case("training step, compute-bound, batch 8", MEDIUM, 32, 8, {"eager": 1})


if __name__ == "__main__":
    main([cases])
