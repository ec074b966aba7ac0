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
PRODUCTS = ("aten::addmm", "aten::addmm_", "aten::mm", "aten::bmm")
STATUS = Path("/proc/self/status")


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


def training(preset, size, floors):
    ours, plain = pair(preset)
    models = {"eager": plain, "compile": compiled_blocks(copy.deepcopy(plain)), "fmkernels": ours}
    models["compile whole"] = torch.compile(copy.deepcopy(plain), dynamic=False)
    models["ours compiled"] = torch.compile(copy.deepcopy(ours), dynamic=False)
    models["eager"] = copy.deepcopy(plain)
    optimizers = {k: torch.optim.AdamW(m.parameters(), lr=1e-6, fused=True) for k, m in models.items()}
    x, t, null = torch.randn(2, 4, size, size), torch.linspace(-3, 3, 2), torch.tensor([False, True])

    def call(name):
        optimizers[name].zero_grad()
        loss = sum(out.square().mean() for out in models[name](x, t, null))
        loss.backward()
        optimizers[name].step()
        return loss

    calls = {name: lambda name=name: call(name) for name in models}
    moved = 12 * sum(p.numel() for p in ours.parameters())
    return Bench(f"training step, {preset}", calls, moved, floors, tolerance=1e-2, mode=torch.enable_grad)


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


def outside(preset=LARGE, size=32, runs=3):
    """Seconds of a guided step in products, in attention and outside both, by torch's profiler: medians."""
    ours, plain = pair(preset)
    x, t, null = inputs(size)
    calls = {"plain": lambda: plain_step(plain, x, t, null), "fmkernels": lambda: step(ours, x, t, null)}
    found = {name: [] for name in calls}
    with torch.inference_mode():
        for call in calls.values():
            call()
        for _ in range(runs):
            for name, call in calls.items():
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                    call()
                spent = {e.key: e.self_cpu_time_total / 1e6 for e in profile.key_averages()}
                products = sum(s for key, s in spent.items() if key in PRODUCTS)
                attention = sum(s for key, s in spent.items() if "attention" in key)
                found[name].append((products, attention, sum(spent.values()) - products - attention))
    middle = {name: sorted(parts, key=lambda p: p[2])[runs // 2] for name, parts in found.items()}
    return {n: dict(zip(("products", "attention", "outside"), p, strict=True)) for n, p in middle.items()}


def peak(which, preset=LARGE, size=32):
    """Bytes of resident memory that sampling takes beyond the weights, at most, in a process of its own."""
    ours, plain = pair(preset)
    x, t, null = inputs(size)

    def resident(line):
        return 1024 * int(next(row for row in STATUS.read_text().split("\n") if row.startswith(line)).split()[1])

    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    before = resident("VmRSS")
    with torch.inference_mode():
        for _ in range(3):
            plain_step(plain, x, t, null) if which == "plain" else step(ours, x, t, null)
    return resident("VmHWM") - before


def peaks():
    run = [sys.executable, __file__, "--peak"]
    return {
        w: int(subprocess.run([*run, w], capture_output=True, text=True, check=True).stdout) for w in ("plain", "ours")
    }


def main():
    if "--peak" in sys.argv:
        torch.set_num_threads(2)
        print(peak(sys.argv[-1]))
        return
    whole = len(sys.argv) == 1
    result = harness.main([cases])
    if whole:
        result["where a guided step's time goes"] = parts = outside()
        for name, seconds in parts.items():
            print(f"{name}: " + ", ".join(f"{part} {s:.2f} s" for part, s in seconds.items()))
        print(f"outside products and attention: {parts['plain']['outside'] / parts['fmkernels']['outside']:.1f}x less")
        result["peak memory of sampling beyond the weights"] = memory = peaks()
        print(", ".join(f"{name}: {size / 1e6:.0f} MB" for name, size in memory.items()))
        path = harness.RESULTS / "model.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written: {path}")


if __name__ == "__main__":
    main()
