"""What a person with a GPU runs once: parity of every op there, then the benchmarks, and one JSON file out.

python tools/gpu_check.py [--seconds 1]      # benchmarks/results/<device name>.json

Without a GPU it says so and exits 0. Parity: every row of tests/cases.py in every dtype, outputs and gradients, against
eager float64 on the CPU. A mismatch is named and the exit code is 1.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import cases  # noqa: E402

import fmkernels as fk  # noqa: E402
from fmkernels import backend  # noqa: E402


def file_name(device_name: str) -> str:
    """ "NVIDIA H100 80GB HBM3" -> "nvidia-h100-80gb-hbm3.json\""""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-") + ".json"


def worst(got: list[torch.Tensor], expected: list[torch.Tensor], dtype: torch.dtype, loose: float) -> float:
    """The largest error of the lists, in units of what the dtype allows: at most 1 is agreement."""
    absolute, relative = (loose * tolerance for tolerance in cases.TOLERANCE[dtype])
    largest = 0.0
    for a, b in zip(got, expected, strict=True):
        a, b = a.detach().cpu().double(), b.detach().double()
        if not torch.equal(a.isnan(), b.isnan()):
            return float("inf")
        scale = max(1.0, b.nan_to_num().abs().max().item()) if b.numel() and loose > 1 else 1.0
        error = (a - b).nan_to_num().abs() / (absolute * scale + relative * b.nan_to_num().abs())
        largest = max(largest, error.max().item() if error.numel() else 0.0)
    return largest


def parity(device: str, name: str, sizes=(1, 31, 1025, 4099), dtypes=cases.DTYPES) -> Iterator[tuple[str, float]]:
    """(op, its largest error) on the device by that backend, outputs and gradients (these with ten times the room)."""
    fixed = cases._T
    for case in cases.CASES:
        largest = 0.0
        for dtype in dtypes:
            for n in sizes:
                inputs = case.inputs(n, dtype)
                oracle = [x.double() for x in inputs]
                with fk.use_backend("eager"):
                    outputs = case.outputs(oracle)
                    gradients = case.gradients(oracle) if case.grads else []
                there = [x.to(device) for x in inputs]
                cases._T = fixed.to(device)
                try:
                    with torch.device(device), fk.use_backend(name):
                        error = worst(case.outputs(there), outputs, dtype, 1)
                        if case.grads:
                            error = max(error, worst(case.gradients(there), gradients, dtype, 10))
                finally:
                    cases._T = fixed
                largest = max(largest, error)
        yield case.name, largest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="benchmark time for each case (default 1)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        why = "sees no GPU here"
        if not (torch.version.cuda or torch.version.hip):
            why = "has no GPU support; with a GPU, run tools/gpu_check.py under a CUDA or ROCm build of torch"
        print(f"gpu-check: torch {torch.__version__} {why}: nothing was run")
        return 0
    device = torch.cuda.get_device_name()
    path, failed = ROOT / "benchmarks" / "results" / file_name(device), False
    found: dict[str, dict[str, float]] = {}
    for name in ("cuda", "triton"):
        if backend._loaded[name]:
            print(f"{name}: {backend._loaded[name]}")
            continue
        found[name] = {}
        for op, error in parity("cuda", name):
            found[name][op] = error
            failed |= not error <= 1
            print(f"{name:8}{op:28}{error:8.2f} of the tolerance {'✓' if error <= 1 else '✗ MISMATCH'}", flush=True)
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--device", "cuda", "--json", str(path)]
    path.unlink(missing_ok=True)
    failed |= subprocess.run([*command, "--seconds", str(options.seconds)]).returncode != 0
    benchmarks = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({"device": device, "parity": found, **benchmarks}, indent=1) + "\n")
    print(f"written: {path}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
