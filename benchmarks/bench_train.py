"""Training throughput: the flow stage of a preset with our kernels against the same on the eager backend.

python benchmarks/bench_train.py          # 4 minutes; writes results/train.json
python benchmarks/bench_train.py --only shapes --seconds 10 --json /tmp/train.json

Both are whole training steps of fmpipe's own loop (batch, forward, losses, backward, clipping, AdamW, average), on the
networks and batches of the presets, in turn in one process, a few steps at a time, each with its own parameters.
Before they are timed they train three steps from the same start and must agree. What they train on is small and made
here: an autoencoder and a text head of one step and drawn shapes, in latents of the preset's size.
"""

import argparse
import contextlib
import copy
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import harness
import torch
from accelerate import Accelerator

import fmkernels
from fmpipe.train import settings
from fmpipe.train.config import Config
from fmpipe.train.inputs import StageInputs
from fmpipe.train.loop import Trainer
from fmpipe.train.presets import PRESETS
from fmpipe.train.run import run
from fmpipe.train.stages import STAGES, Stage

OURS, EAGER = "fmkernels", "eager"
CASES = ("shapes-tiny", "emoji-64")
FLOOR, LOADING = 1.15, 0.05  # the least speed-up; the largest share of a step that its batch may take
COMPARED, WARM, BLOCK = 3, 2, 5  # steps
TOLERANCE = 1e-3  # of losses; sums in another order, through three steps of Adam


def served(name: str) -> contextlib.AbstractContextManager:
    return fmkernels.use_backend("eager") if name == EAGER else contextlib.nullcontext()


def stage_of(preset: str, folder: Path) -> tuple[Stage, Config]:
    """The flow stage of a preset, on a hundred drawn shapes of its size."""
    small = [f"out={folder / preset}", f"data.cache={folder / 'cache'}", "data.source=shapes", "data.count=96"]
    small += ["vae.optim.steps=1", "vae.optim.batch=2", "flow.head_optim.steps=1"]
    small += ["every.log=0", "every.validate=0", "every.sample=0"]
    config = settings.with_overrides(PRESETS[preset](), small)
    before = [stage for stage in config.stages if stage != "flow"]
    run(settings.with_overrides(config, [f"stages=[{', '.join(before)}]"]))
    torch.manual_seed(0)
    stage = STAGES["flow"](config, StageInputs(config))
    return stage, config


def trainers(stage: Stage, config: Config, folder: Path) -> dict[str, Trainer]:
    accelerator, out = Accelerator(cpu=True), {}
    for name in (OURS, EAGER):
        own = copy.copy(stage)
        own.objective, own.weights = copy.deepcopy(stage.objective), copy.deepcopy(stage.weights)
        out[name] = Trainer(own, config, folder / name, accelerator)
    return out


def step(trainer: Trainer) -> float:
    """Seconds of the next step."""
    start = time.perf_counter()
    trainer.train_step()
    return time.perf_counter() - start


def disagreement(contestants: dict[str, Trainer]) -> list[str]:
    """Losses and parameters of the first steps that differ by more than the tolerance; dropout is drawn alike."""
    wrong = []
    for k in range(COMPARED):
        losses = {}
        for name, trainer in contestants.items():
            torch.manual_seed(k)
            with served(name), torch.no_grad():
                losses[name] = trainer.model(**trainer._batches()[0]).losses
            torch.manual_seed(k)
            with served(name):
                trainer.train_step()
        for part, ours in losses[OURS].items():
            eager = losses[EAGER][part]
            if not abs(ours - eager) <= TOLERANCE * abs(eager) + 1e-6:
                wrong.append(f"step {k}: loss {part} is {ours:.6g}, eager {eager:.6g}")
    ours, eager = (torch.cat([p.detach().flatten() for p in contestants[name].parameters]) for name in (OURS, EAGER))
    if not (apart := ((ours - eager).norm() / eager.norm()).item()) <= TOLERANCE:
        wrong.append(f"parameters after {COMPARED} steps: {apart:.2g} apart")
    return wrong


def measure(preset: str, seconds: float, folder: Path) -> dict:
    stage, config = stage_of(preset, folder)
    contestants = trainers(stage, config, folder)
    wrong = disagreement(contestants)
    samples, loading = {name: [] for name in contestants}, []
    end, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turn < 3:
        for name, trainer in list(contestants.items())[:: 1 if turn % 2 else -1]:  # neither always comes second
            with served(name):
                for _ in range(WARM if turn == 0 else 0):
                    trainer.train_step()
                samples[name] += [step(trainer) for _ in range(BLOCK)]
        for k in range(BLOCK):
            start = time.perf_counter()
            stage.batches(contestants[OURS].step + k)
            loading.append(time.perf_counter() - start)
        turn += 1
    medians = {name: statistics.median(times) for name, times in samples.items()}
    batch = stage.optim.batch
    return {
        "name": preset,
        "model": f"{sum(p.numel() for p in contestants[OURS].parameters) / 1e6:.2f} M parameters, batch {batch}",
        "matched": not wrong,
        "mismatches": wrong,
        "step": medians,
        "samples": {name: len(times) for name, times in samples.items()},
        "pictures a second": {name: batch / median for name, median in medians.items()},
        "speedup": medians[EAGER] / medians[OURS],
        "floor": FLOOR,
        "loading": statistics.median(loading) / medians[OURS],
        "loading at most": LOADING,
    }


def told(row: dict) -> str:
    slow = "" if row["speedup"] >= FLOOR else f" (below its floor of {FLOOR}×)"
    long = "" if row["loading"] <= LOADING else f" (above {LOADING:.0%})"
    ours, eager = (row["step"][name] * 1e3 for name in (OURS, EAGER))
    return (
        f"{row['name']} ({row['model']}): {ours:.1f} ms a step, eager {eager:.1f}: {row['speedup']:.2f}×{slow}; "
        f"its batch takes {row['loading']:.1%}{long}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=100.0, help="time for each case (default 100)")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default 2)")
    parser.add_argument("--json", type=Path, default=harness.RESULTS / "train.json", help="where to write the result")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = {"header": harness.header(), "rows": []}
    for name, value in result["header"].items():
        print(f"{name}: {value}")
    with tempfile.TemporaryDirectory() as folder:
        for preset in CASES:
            if args.only not in preset:
                continue
            row = measure(preset, args.seconds, Path(folder))
            result["rows"].append(row)
            print("\n".join(row["mismatches"]) or f"{preset}: {COMPARED} steps agree")
            print(told(row), flush=True)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {args.json}")
    if not all(row["matched"] for row in result["rows"]):
        sys.exit("the backends did not agree: see above")


if __name__ == "__main__":
    main()
