"""Test and time the kernels on this machine's GPU; write one JSON file, one Markdown file and one line for an issue.

python tools/gpu_check.py                                  # everything: benchmarks/results/<device name>.json and .md
python tools/gpu_check.py --quick                          # within ten minutes: <device name>-quick.json and .md
python tools/gpu_check.py --only parity --sizes 31,1025    # some checks; writes no files
python tools/gpu_check.py --only parity,golden --device cpu    # a rehearsal without a GPU

parity*     every case of tests/support/cases.py in every dtype, outputs and gradients, against eager float64 on the CPU
golden*     the tests of the golden vectors, ops and tiny networks, with the vectors on the device
sampling    whole sampling loops under torch.cuda.set_sync_debug_mode("error")
graph*      single ops and a guided step of the tiny network in CUDA graphs: replays are bit-identical
guard       tensors on the second GPU while the first is current: bit-identical results (needs two GPUs)
timing*     a guided 256 px step at batch 1 and 16 and a training step, by device events and graph replay
sanitizer   parity under compute-sanitizer: memcheck, racecheck, initcheck (if it is installed)
benchmarks  every op: eager, torch.compile, Triton and CUDA interleaved; GB/s and the fraction of a copy's bandwidth

The checks marked * are those of --quick; parity to guard run once per backend that supports the device. They need
pytest and safetensors, the networks also diffusers: pip install '.[pipe,dev]'. CUDA_VISIBLE_DEVICES selects
the GPU.

First, the machine is examined (gpu_checks/machine.py). The exit code is 0 if there is no GPU, or if no check failed and
at least one passed. It is 1 if there is a GPU that cannot be tested (the message says what to install), if a check
failed, or if all checks were skipped. The other checks still run after a failure, and the files are written.
"""

import argparse
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from gpu_checks import ROOT, Result, machine, outside, parity, report, run_all, running, timing

from fmkernels import backend

EACH = {  # backend that supports the device
    "parity": lambda name, options: parity.tables(options.device, name, options.sizes),
    "golden": lambda name, options: parity.golden(options.device, name),
    "sampling": lambda name, options: running.sampling(options.device, name),
    "graph": lambda name, options: running.graph(options.device, name),
    "guard": lambda name, options: running.guard(name, [f"cuda:{i}" for i in range(torch.cuda.device_count())]),
}
ONCE = {
    "timing": lambda options: timing.timing(options.device, 10 * options.seconds, options.until),
    "sanitizer": lambda options: outside.sanitizer(options.device),
    "benchmarks": lambda options: outside.benchmarks(options.device, options.seconds),
}
NAMES = (*EACH, *ONCE)
QUICK = ("parity", "golden", "graph", "timing")
QUICK_SECONDS = 7 * 60  # after this, nothing new is started: the longest part, compiling one network, takes minutes
REHEARSED = ("parity", "golden")  # the CPU has neither streams nor graphs


def planned(options: argparse.Namespace) -> Iterator[tuple[str, str, Callable[[], Result]]]:
    """Yield (check, backend, call) for every requested check; for one that cannot run, the call returns the reason."""
    for check in options.only:
        if options.device == "cpu" and check not in REHEARSED:
            yield check, "", functools.partial(Result, "skipped", "needs a GPU")
        elif check in ONCE:
            yield check, "", functools.partial(in_time, functools.partial(ONCE[check], options), options)
        else:
            for name in ("cpp", "cuda", "triton"):
                if options.device not in backend.devices(name):
                    continue
                if not backend.status[name].available:
                    yield check, name, functools.partial(Result, "skipped", backend.status[name].reason)
                else:
                    yield (
                        check,
                        name,
                        functools.partial(in_time, functools.partial(EACH[check], name, options), options),
                    )


def in_time(call: Callable[[], Result], options: argparse.Namespace) -> Result:
    """Make the call, unless the time of a quick run is used up."""
    return Result("skipped", "no time left") if time.monotonic() > options.until else call()


def names(text: str) -> list[str]:
    asked = text.split(",")
    if unknown := [name for name in asked if name not in NAMES]:
        raise argparse.ArgumentTypeError(f"unknown check {unknown[0]!r}; choose from {', '.join(NAMES)}")
    return [name for name in NAMES if name in asked]


def sizes(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))


def run(options: argparse.Namespace, command: list[str], results: Path) -> int:
    """Run the checks and return the exit code; a full or quick run also writes the files and prints the line."""
    partial = options.only is not None
    options.only = options.only or list(QUICK if options.quick else NAMES)
    options.sizes = options.sizes or (parity.QUICK_SIZES if options.quick else parity.SIZES)
    options.until = time.monotonic() + QUICK_SECONDS if options.quick else math.inf
    known = report.facts(options.device, ["tools/gpu_check.py", *command])
    for name, value in known.items():
        print(f"{name}: {value}")
    found = run_all(planned(options))
    if not partial:
        document = report.document(known, found)
        stem = report.file_name(known["device"]) + ("-quick" if options.quick else "")
        for path in report.write(document, results / stem):
            print(f"written: {path}")
        print(f"\nTo paste into an issue:\n{report.one_line(document)}")
    verdicts = {row["verdict"] for row in found}
    if "passed" not in verdicts:
        print("gpu-check: no check passed, so nothing was tested: this is a failure")
    return int("failed" in verdicts or "passed" not in verdicts)


def main(argv: list[str] | None = None, results: Path = ROOT / "benchmarks" / "results") -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run only the checks marked *, in ten minutes")
    parser.add_argument("--only", type=names, metavar="NAME[,NAME]", help="run only these checks and write no files")
    parser.add_argument(
        "--device", default="cuda", choices=["cuda", "cpu"], help="device of the tensors (default cuda)"
    )
    parser.add_argument("--sizes", type=sizes, metavar="N[,N]", help="sizes for the parity check")
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time per benchmark (default 1)")
    options = parser.parse_args(argv)
    if options.device == "cuda":
        verdict = machine.verdict(machine.inspect(machine.Probes()))
        print(f"gpu-check: {verdict.text}")
        if verdict.kind != "ready":
            return int(verdict.kind == "error")
    return run(options, sys.argv[1:] if argv is None else argv, results)


if __name__ == "__main__":
    sys.exit(main())
