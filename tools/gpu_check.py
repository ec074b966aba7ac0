"""What a person with a GPU runs once: every check of the kernels there, the benchmarks, one JSON and one Markdown file.

python tools/gpu_check.py                                  # all: benchmarks/results/<device name>.json and .md
python tools/gpu_check.py --only parity --sizes 31,1025    # a part: printed only
python tools/gpu_check.py --only parity,golden --device cpu    # rehearsed where there is no GPU

parity      every row of tests/cases.py in every dtype, outputs and gradients, against eager float64 on the CPU
golden      the tests of the golden vectors, ops and tiny networks, with the vectors on the device
sampling    whole sampling loops under torch.cuda.set_sync_debug_mode("error")
graph       a guided step, a tdp_group and a norm captured in CUDA graphs: replayed, the same bits
guard       tensors on the second GPU while the first is current: the same bits (two GPUs)
sanitizer   parity under compute-sanitizer: memcheck, racecheck, initcheck (if it is installed)
benchmarks  eager, torch.compile, Triton and CUDA interleaved; GB/s and its share of a copy's on the device

The first five run once for each backend that serves the device. Wants pytest and safetensors, the networks also
diffusers: pip install -r requirements-dev.txt. CUDA_VISIBLE_DEVICES chooses the GPU. A check that fails is named, the
others go on, the files are written, and the exit code is 1. Without a GPU it says so and exits 0.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from gpu_checks import ROOT, Result, outside, parity, report, run_all, running

from fmkernels import backend

EACH = {  # backend that serves the device
    "parity": lambda name, options: parity.tables(options.device, name, options.sizes),
    "golden": lambda name, options: parity.golden(options.device, name),
    "sampling": lambda name, options: running.sampling(options.device, name),
    "graph": lambda name, options: running.graph(options.device, name),
    "guard": lambda name, options: running.guard(name, [f"cuda:{i}" for i in range(torch.cuda.device_count())]),
}
ONCE = {
    "sanitizer": lambda options: outside.sanitizer(options.device),
    "benchmarks": lambda options: outside.benchmarks(options.device, options.seconds),
}
NAMES = (*EACH, *ONCE)
REHEARSED = ("parity", "golden")  # on the CPU, which has neither streams nor graphs


def planned(options: argparse.Namespace) -> Iterator[tuple[str, str, Callable[[], Result]]]:
    """(check, backend, call) of all that was asked for, what cannot run here as a call that says why."""
    for check in options.only:
        if options.device == "cpu" and check not in REHEARSED:
            yield check, "", functools.partial(Result, "skipped", "needs a GPU")
        elif check in ONCE:
            yield check, "", functools.partial(ONCE[check], options)
        else:
            for name in ("cpp", "cuda", "triton"):
                if options.device not in backend._serves(name):
                    continue
                if backend._loaded[name]:
                    yield check, name, functools.partial(Result, "skipped", backend._loaded[name])
                else:
                    yield check, name, functools.partial(EACH[check], name, options)


def names(text: str) -> list[str]:
    asked = text.split(",")
    if unknown := [name for name in asked if name not in NAMES]:
        raise argparse.ArgumentTypeError(f"unknown check {unknown[0]!r}; choose from {', '.join(NAMES)}")
    return [name for name in NAMES if name in asked]


def sizes(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))


def main(argv: list[str] | None = None, results: Path = ROOT / "benchmarks" / "results") -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names, metavar="NAME[,NAME]", help="only these checks; no file is written")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="where tensors live (default cuda)")
    parser.add_argument("--sizes", type=sizes, default=parity.SIZES, metavar="N[,N]", help="of the parity tables")
    parser.add_argument("--seconds", type=float, default=1.0, help="benchmark time for each case (default 1)")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        why = "sees no GPU here"
        if not (torch.version.cuda or torch.version.hip):
            why = "has no GPU support; with a GPU, run tools/gpu_check.py under a CUDA or ROCm build of torch"
        print(f"gpu-check: torch {torch.__version__} {why}: nothing was run")
        return 0
    whole = options.only is None
    options.only = options.only or list(NAMES)
    known = report.facts(options.device, ["tools/gpu_check.py", *(sys.argv[1:] if argv is None else argv)])
    for name, value in known.items():
        print(f"{name}: {value}")
    found = run_all(planned(options))
    if whole:
        for path in report.write(report.document(known, found), results / report.file_name(known["device"])):
            print(f"written: {path}")
    return int(any(row["verdict"] == "failed" for row in found))


if __name__ == "__main__":
    sys.exit(main())
