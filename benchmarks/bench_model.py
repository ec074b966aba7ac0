"""Whole velocity networks: ours against the plain structure, eager and compiled; where the time goes; peak memory.

python benchmarks/bench_model.py          # 15 minutes; writes results/model.json
python benchmarks/bench_model.py --only small
"""

import copy
import json
import subprocess
import sys
from pathlib import Path

import harness
import torch
import torch.nn.functional as F
from harness import Bench
from models import pair, plain_step, step

LARGE, SMALL = "t2i_256px_clip_dimr", "small_dimr"
PRODUCTS = ("aten::linear", "fmkernels::linear")
ATTENTION = ("aten::scaled_dot_product_attention",)


def compiled_blocks(plain):
    """torch.compile of every block; blocks of one kind share what is compiled."""
    for stage in plain.stages:
        for block in stage.blocks:
            block.compile(dynamic=False)
    return plain


def inputs(size):
    torch.manual_seed(0)
    return torch.randn(1, 4, size, size), torch.full((2,), 0.3), torch.tensor([False, True])


def twin(plain):
    """A second module on the same tensors."""
    memo = {id(p): p for p in plain.parameters()}
    return copy.deepcopy(plain, memo)


def guided(preset, size, floors, whole):
    torch._dynamo.reset()  # what was compiled for another size would count against the limit of recompilations
    ours, plain = pair(preset)
    x, t, null = inputs(size)
    blocks, stats = compiled_blocks(twin(plain)), torch.empty(1, 5)
    calls = {
        "eager": lambda: plain_step(plain, x, t, null),
        "compile": lambda: plain_step(blocks, x, t, null),
        "fmkernels": lambda: step(ours, x, t, null, stats),
    }
    if whole:
        graph, ours_too = torch.compile(twin(plain), dynamic=False), torch.compile(ours.velocity, dynamic=False)
        calls["compile whole"] = lambda: plain_step(graph, x, t, null)
        calls["ours compiled"] = lambda: step(ours, x, t, null, stats, velocity=ours_too)
    moved = 4 * sum(p.numel() for p in ours.parameters())
    return Bench(f"guided step, {preset}", calls, moved, floors, tolerance=1e-3)


class NoNorm(torch.nn.Module):
    """Its input, and the sum it was to make left out."""

    def forward(self, x, residual=None):
        return x if residual is None else (residual, x)


def without_norms(model):
    """The network with its norms and their parameters gone, but for those of upsampling: products, attention,
    convolutions, activations, and torch's own work for them: what a training step takes if norms cost nothing."""
    model = copy.deepcopy(model)
    for stage in model.stages:
        stage.output_layer[0] = NoNorm()
        for part in (part for block in stage.blocks for part in block.children() if hasattr(part, "norm")):
            part.norm = NoNorm()
    return model


def training(preset, size, floors):
    torch._dynamo.reset()
    ours, plain = pair(preset)
    models = {"eager": plain, "compile": compiled_blocks(copy.deepcopy(plain)), "fmkernels": ours}
    models["compile whole"] = torch.compile(copy.deepcopy(plain), dynamic=False)
    models["ours compiled"] = torch.compile(copy.deepcopy(ours), dynamic=False)
    models["eager"], models["bound"] = copy.deepcopy(plain), without_norms(ours)
    optimizers = {k: torch.optim.AdamW(m.parameters(), lr=1e-6, fused=True) for k, m in models.items()}
    x, t, null = torch.randn(2, 4, size, size), torch.linspace(-3, 3, 2), torch.tensor([False, True])

    def call(name):
        optimizers[name].zero_grad()
        loss = sum(out.square().mean() for out in models[name](x, t, null))
        loss.backward()
        optimizers[name].step()
        return loss

    calls = {name: lambda name=name: call(name) for name in models}
    bound = "ours without norms and their parameters", calls.pop("bound")
    moved = 12 * sum(p.numel() for p in ours.parameters())
    return Bench(f"training step, {preset}", calls, moved, floors, tolerance=1e-2, bound=bound, mode=torch.enable_grad)


def gate_and_up(rows, dim, hidden):
    """Why w0 and w1 stay two products: one, on a buffer that held both, would gain this."""
    x, both, bias = torch.randn(rows, dim), torch.randn(2 * hidden, dim) / dim**0.5, torch.randn(2 * hidden)
    (w0, w1), (b0, b1) = both.chunk(2), bias.chunk(2)
    calls = {
        "eager": lambda: torch.cat([F.linear(x, w0, b0), F.linear(x, w1, b1)], -1),
        "two": lambda: (F.linear(x, w0, b0), F.linear(x, w1, b1)),
        "fmkernels": lambda: F.linear(x, both, bias),
    }
    joined = {"two": lambda two: torch.cat(two, -1)}
    moved = 4 * (both.numel() + x.numel() + rows * 2 * hidden)
    return Bench(f"gate and up in one product, {rows}x{dim}x{hidden}", calls, moved, compared_as=joined)


def cases():
    yield gate_and_up(514, 1024, 2048)
    yield gate_and_up(34, 32, 64)
    yield guided(SMALL, 8, {"eager": 2.5, "compile": 1}, whole=True)
    yield training(SMALL, 8, {"eager": 1.5})
    yield guided(LARGE, 32, {"eager": 1.25, "compile": 1}, whole=False)


def resident(line):
    """Bytes of memory by /proc: VmRSS now, VmHWM at most."""
    rows = Path("/proc/self/status").read_text().split("\n")
    return 1024 * int(next(row for row in rows if row.startswith(line)).split()[1])


def alone(which, preset=LARGE, size=32, runs=5):
    """One contestant in a separate process: the memory sampling takes beyond the weights, at most; and by torch's
    profiler the seconds of a guided step in products (with what they do to their operands), in attention, outside both.
    """
    ours, plain = pair(preset)
    x, t, null = inputs(size)
    call = (lambda: plain_step(plain, x, t, null)) if which == "plain" else (lambda: step(ours, x, t, null))
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    before, found = resident("VmRSS"), []
    with torch.inference_mode():
        for _ in range(3):
            call()
        peak = resident("VmHWM") - before
        for _ in range(runs):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                call()
            events = {e.key: e for e in profile.key_averages()}
            total = sum(e.self_cpu_time_total for e in events.values()) / 1e6
            products, attention = (
                sum(events[key].cpu_time_total for key in keys if key in events) / 1e6 for keys in (PRODUCTS, ATTENTION)
            )
            found.append((total - products - attention, products, attention))
    middle = dict(zip(("outside", "products", "attention"), sorted(found)[runs // 2], strict=True))
    return {"peak memory": peak, **middle}


def main():
    if "--alone" in sys.argv:
        torch.set_num_threads(2)
        print(json.dumps(alone(sys.argv[-1])))
        return
    whole = len(sys.argv) == 1
    result = harness.main([cases])
    if whole:
        result["alone"] = {}
        for which in ("plain", "fmkernels"):
            run = subprocess.run(
                [sys.executable, __file__, "--alone", which], capture_output=True, text=True, check=True
            )
            result["alone"][which] = facts = json.loads(run.stdout.split("\n")[-2])
            seconds = ", ".join(f"{part} {facts[part]:.2f} s" for part in ("products", "attention", "outside"))
            print(f"{which}: {seconds}; at most {facts['peak memory'] / 1e6:.0f} MB beyond the weights", flush=True)
        path = harness.RESULTS / "model.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written: {path}")


if __name__ == "__main__":
    main()
