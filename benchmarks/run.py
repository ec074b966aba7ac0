"""Runs every op benchmark, prints the table, writes results/cpu.json and a picture of it.

python benchmarks/run.py                 # every op: results/cpu.json and results/cpu.png
python benchmarks/run.py --only tdp      # a part: printed only
python benchmarks/run.py --models        # whole models and sampling runs: results/models.json and .png
"""

import sys
from pathlib import Path

import bench_flow
import bench_gate
import bench_head
import bench_int8
import bench_norm
import bench_patch
import bench_path
import bench_rope
import bench_step
import bench_tdp
import harness

FAMILIES = [
    module.cases
    for module in (bench_tdp, bench_norm, bench_gate, bench_rope, bench_path, bench_step, bench_head, bench_int8)
]
MODELS = [module.cases for module in (bench_patch, bench_flow)]


def picture(result: dict, path: Path) -> None:
    """Bars of the speed-up over eager and over torch.compile, on a logarithmic axis, 1 marked."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    rows = result["rows"][::-1]
    fig, ax = plt.subplots(figsize=(10, 0.42 * len(rows) + 1.6), layout="constrained")
    for offset, contestant, colour in ((0.2, "eager", "#3b6fb6"), (-0.2, "compile", "#e08e45")):
        places = [i for i, row in enumerate(rows) if contestant in row["speedup"]]
        values = [rows[i]["speedup"][contestant] for i in places]
        label = "over eager PyTorch" if contestant == "eager" else "over torch.compile"
        bars = ax.barh([i + offset for i in places], values, height=0.38, color=colour, label=label)
        ax.bar_label(bars, [f"{v:.1f}×" for v in values], padding=3, fontsize=8)
    ax.axvline(1.0, color="#444", linewidth=1)
    ax.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=8)
    ax.set_xscale("log")
    ax.set_xlim(0.5, 2 * max(max(row["speedup"].values()) for row in rows))
    ticks = [1, 2, 5, 10, 20, 50, 100]
    ax.set_xticks(ticks, [f"{t}×" for t in ticks])
    ax.margins(y=0.01)
    ax.grid(axis="x", alpha=0.3)
    ax.set_axisbelow(True)
    facts = result["header"]
    ax.set_title(
        f"fmkernels on the CPU: speed-up, medians of one interleaved run\n"
        f"{facts['cpu']}, {facts['kernels run with']}, torch {facts['torch'].split()[0]}, {facts['date']}",
        fontsize=9,
    )
    ax.legend(loc="lower right", fontsize=8)
    fig.savefig(path, dpi=110)
    print(f"written: {path}")


if __name__ == "__main__":
    argv = [argument for argument in sys.argv[1:] if argument != "--models"]
    stem, families = ("models", MODELS) if "--models" in sys.argv else ("cpu", FAMILIES)
    whole = "--only" not in " ".join(argv) and "--json" not in " ".join(argv)
    result = harness.main(families, argv + (["--json", str(harness.RESULTS / f"{stem}.json")] if whole else []))
    if whole:
        picture(result, harness.RESULTS / f"{stem}.png")
