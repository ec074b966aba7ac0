"""Interleaved timing of contestants that must agree: eager PyTorch, torch.compile, fmkernels, and Triton beside CUDA.

A benchmark is a :class:`Bench`: the same work written several ways, a rule for what counts as the same
result, and the bytes the work must move. ``measure`` checks the results first, then times the contestants
in turn, in one process, and reports medians. Nothing here asserts a time.
"""

import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

import fmkernels
from fmkernels import backend, env_report

RESULTS = Path(__file__).parent / "results"
OURS, TRITON = "fmkernels", "triton"


@dataclass
class Bench:
    """One row of the table.

    contestants: name -> a call without arguments that does the work and returns what to compare.
    moved: bytes read and written at the least. floors: contestant -> the speed-up the project promises.
    fresh: an output too large for malloc to recycle, so that every page of it is new.
    share: the share of memcpy's bandwidth the project promises.
    before: done before every single call, outside the time.
    bound: a name and a call that does only what cannot be left out (the same bytes, or the arithmetic alone);
    timed with the others, it says what there is to gain.
    compared_as: contestant -> what brings its result into the others' shape, outside the time.
    another: makes a call like ours with a separate state, for work in place: two contestants must not share one.
    flops: operations of a product, whose GFLOP/s are printed.
    """

    name: str
    contestants: dict[str, Callable[[], object]]
    moved: int
    floors: dict[str, float] = field(default_factory=dict)
    tolerance: float = 1e-4
    fresh: bool = False
    share: float = 0.0
    mode: Callable = torch.inference_mode
    before: Callable[[], object] | None = None
    bound: tuple[str, Callable[[], object]] | None = None
    compared_as: dict[str, Callable[[object], object]] = field(default_factory=dict)
    another: Callable[[], Callable] | None = None
    flops: int = 0


@contextlib.contextmanager
def serving(contestant: str) -> Iterator[None]:
    """Around a contestant's calls, outside the time: for "triton" its kernels serve in the place of the compiled ones.

    As they would without these: what use_backend adds to a call (checks; with gradients 60 µs) is no part of them.
    """
    with backend.triton_as_auto() if contestant == TRITON else contextlib.nullcontext():
        yield


def with_triton(bench: Bench) -> Bench:
    """The benchmark with our call a second time, served by Triton."""
    bench.contestants[TRITON] = bench.another() if bench.another else bench.contestants[OURS]
    if OURS in bench.compared_as:
        bench.compared_as[TRITON] = bench.compared_as[OURS]
    return bench


def both_serve(device: str) -> bool:
    """Whether the device's tensors can go to compiled kernels as well as to Triton's."""
    return device == "cuda" and backend.status["cuda"].available and backend.status["triton"].available


def compiled(fn: Callable) -> Callable:
    """torch.compile as a user would call it, for exactly these shapes."""
    return torch.compile(fn, fullgraph=True, dynamic=False)


def tensors(result: object) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        return [torch.tensor([float(v) for _, v in sorted(result.items())])]
    return [t for part in result for t in tensors(part)]


def close(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Equal to within the tolerance of the largest element; of each column, in a block of statistics."""
    if got.shape != expected.shape:
        return False
    half = 2 in (got.element_size(), expected.element_size())
    tolerance = max(tolerance, 2e-2 if half else 0.0)
    got, expected = got.double(), expected.double()
    block = expected.dim() == 2 and expected.shape[1] <= 16
    scale = expected.abs().amax(0) if block else expected.abs().max()
    return bool(((got - expected).abs() <= tolerance * scale.clamp_min(1e-6)).all())


def matches(bench: Bench) -> bool:
    """Every contestant gives the first one's result; scratch copies, because some work in place."""
    results = []
    for name, call in bench.contestants.items():
        shaped = bench.compared_as.get(name, lambda result: result)
        with serving(name):
            results.append([t.detach().clone() for t in tensors(shaped(call()))])
    expected, *others = results
    return all(
        len(other) == len(expected) and all(close(a, b, bench.tolerance) for a, b in zip(other, expected, strict=True))
        for other in others
    )


def finished() -> None:
    """Waits for the GPU, if there is one and it is in use."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def timed(call: Callable, loops: int, before: Callable | None = None) -> float:
    if before:
        before()
    finished()
    start = time.perf_counter()
    for _ in range(loops):
        call()
    finished()
    return (time.perf_counter() - start) / loops


def measure(bench: Bench, seconds: float) -> dict:
    """Checks, calibrates, then interleaves samples of about 5 ms (or one call) until the time is up."""
    with bench.mode():
        ok = matches(bench)
        calls = dict(bench.contestants) | ({"bound": bench.bound[1]} if bench.bound else {})
        loops, least = {}, 9
        for name, call in calls.items():
            with serving(name):
                once = timed(call, 1)
                if once < 1:
                    once = min(once, *(timed(call, 1) for _ in range(4)))
            least = min(least, 9 if once < 1 else 5)
            loops[name] = 1 if bench.before else max(1, min(500, round(5e-3 / max(once, 1e-7))))
        samples = {name: [] for name in calls}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(samples[OURS]) < least:
            for name, call in calls.items():
                with serving(name):
                    samples[name].append(timed(call, loops[name], bench.before))
    times = {}
    for name, values in samples.items():
        deciles = statistics.quantiles(values, n=10)
        times[name] = {
            "median": statistics.median(values),
            "p20": deciles[1],
            "p80": deciles[7],
            "samples": len(values),
        }
    ours = times[OURS]["median"]
    ratios = {name: times[name]["median"] / ours for name in bench.contestants if name != OURS}
    return {
        "name": bench.name,
        "matched": ok,
        "fresh": bench.fresh,
        "times": times,
        "speedup": ratios,
        "floors": bench.floors,
        "share_floor": bench.share,
        "bound": bench.bound and bench.bound[0],
        "gb_per_s": bench.moved / ours / 1e9,
        "gflop_per_s": bench.flops / ours / 1e9,
    }


def memcpy_bandwidth(megabytes: int = 256, seconds: float = 1.0) -> dict[str, float]:
    """GB/s of torch's parallel copy, bytes read plus written: into a standing buffer, and into a fresh one."""
    source = torch.ones(megabytes << 18)
    target = torch.zeros_like(source)
    out = {}
    for name, call in (("reused", lambda: target.copy_(source)), ("fresh", source.clone)):
        call()
        values, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end or len(values) < 5:
            values.append(timed(call, 1))
        out[name] = 2 * source.numel() * 4 / statistics.median(values) / 1e9
    return out


def git_commit() -> str:
    here = Path(__file__).parent
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
    dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True)
    return (head.stdout.strip() or "unknown") + ("+changes" if dirty.stdout.strip() else "")


def header() -> dict[str, object]:
    facts = env_report.report()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": git_commit(),
        "cpu": facts["cpu"],
        "gpu": facts["gpu"],
        "kernels run with": facts.get("kernels run with", "eager"),
        "torch": facts["torch"],
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "busy elsewhere": f"{busy():.0%}",
        "import fmkernels adds": f"{import_milliseconds():.0f} ms",
    }


def busy(seconds: float = 0.5) -> float:
    """The share of all cores' time that others use while this process sleeps, steal included."""

    def jiffies():
        values = [int(x) for x in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        return sum(values[:8]), values[3] + values[4]

    if not Path("/proc/stat").exists():
        return 0.0
    total, idle = jiffies()
    time.sleep(seconds)
    total_after, idle_after = jiffies()
    return 1 - (idle_after - idle) / max(total_after - total, 1)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _ratio(row: dict, name: str) -> str:
    if name not in row["speedup"]:
        return "–"
    floor = row["floors"].get(name)
    mark = "" if floor is None else (" ✓" if row["speedup"][name] >= floor else f" (<{floor:g})")
    return f"{row['speedup'][name]:.1f}×{mark}"


def share_of(row: dict, memcpy: dict[str, float]) -> float:
    """Of memcpy's bandwidth: into a fresh buffer where the op has to fill one too."""
    return row["gb_per_s"] / memcpy["fresh" if row["fresh"] else "reused"]


def import_milliseconds() -> float:
    """What ``import fmkernels`` adds to ``import torch``: the median of five processes."""
    code = "import time, torch; t = time.perf_counter(); import fmkernels; print((time.perf_counter() - t) * 1e3)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return statistics.median(float(run.stdout) for run in runs)


def print_row(row: dict, memcpy: dict[str, float]) -> None:
    ours = row["times"][OURS]
    others = [n for n in row["speedup"] if n not in ("eager", "compile")]
    share = share_of(row, memcpy)
    extra = f"  {row['gflop_per_s']:.0f} GFLOP/s" if row["gflop_per_s"] else ""
    extra += "".join(f"  {n} {_ratio(row, n)}" for n in others)
    if row["bound"]:
        bound = row["times"]["bound"]["median"]
        extra += f"  ({row['bound']}: {_time(bound)}, {row['times']['eager']['median'] / bound:.1f}×)"
    print(
        f"{row['name']:<44} {_time(ours['median']):>10}  {_time(ours['p20']):>10} – {_time(ours['p80']):<10}"
        f"{_ratio(row, 'eager'):>14} {_ratio(row, 'compile'):>12} {row['gb_per_s']:>7.1f} {share:>6.0%}"
        f"   {'✓' if row['matched'] else '✗ MISMATCH'}{extra}",
        flush=True,
    )


def made_on(device: str, benches: Iterator[Bench]) -> Iterator[Bench]:
    """The benchmarks with their tensors made on the device, but measured without torch's mode that does so."""
    while True:
        with torch.device(device):
            bench = next(benches, None)
        if bench is None:
            return
        yield bench


def run(families: Iterable[Callable[[], Iterator[Bench]]], seconds: float, only: str = "", device: str = "cpu") -> dict:
    """Measures every benchmark of the families, printing as it goes; returns what goes into the JSON.

    On a GPU, where a user runs this once, one that raises is noted under ``errors`` and the others go on.
    """
    facts = header()
    for name, value in facts.items():
        print(f"{name}: {value}")
    with torch.device(device):
        memcpy = memcpy_bandwidth()
    print(f"memcpy: {memcpy['reused']:.1f} GB/s into a standing buffer, {memcpy['fresh']:.1f} GB/s into a fresh one")
    if float(facts["busy elsewhere"].rstrip("%")) > 10:
        print("NOTE: the machine is busy with something else: ratios are rough, times more so")
    print(
        f"\n{'case':<44} {'median':>10}  {'p20':>10} – {'p80':<10}"
        f"{'× eager':>14} {'× compile':>12} {'GB/s':>7} {'memcpy':>6}   same"
    )
    rows, errors = [], []
    for family in families:
        torch._dynamo.reset()
        for bench in made_on(device, family()):
            if only and only not in bench.name:
                continue
            try:
                rows.append(measure(with_triton(bench) if both_serve(device) else bench, seconds))
            except Exception as error:
                if device == "cpu":
                    raise
                errors.append({"name": bench.name, "error": f"{type(error).__name__}: {error}"})
                print(f"{bench.name:<44} ✗ {type(error).__name__}: {error}", flush=True)
                continue
            print_row(rows[-1], memcpy)
    facts["busy elsewhere, after"] = f"{busy():.0%}"
    return {"header": facts, "memcpy": memcpy, "rows": rows} | ({"errors": errors} if errors else {})


def report_floors(result: dict) -> None:
    """Says which promises hold and where we are slower than eager: information, never a failure."""
    for row in result["rows"]:
        for name, floor in row["floors"].items():
            if row["speedup"][name] < floor:
                print(f"below its floor: {row['name']} is {row['speedup'][name]:.2f}× {name}, promised {floor:g}×")
        if row["speedup"].get("eager", 1.0) < 1.0:
            print(f"slower than eager: {row['name']}")
        if share_of(row, result["memcpy"]) < row["share_floor"]:
            print(
                f"below its floor: {row['name']} has {share_of(row, result['memcpy']):.2f} of memcpy's bandwidth, "
                f"promised {row['share_floor']:g}"
            )


def main(families: Iterable[Callable[[], Iterator[Bench]]], argv: list[str] | None = None) -> dict:
    """The command line every bench file shares. Exits 1 if a result did not match."""
    import argparse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each case (default 2)")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default 2)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where tensors are made (default cpu)")
    parser.add_argument("--json", type=Path, help="where to write the results")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    served, why = fmkernels.backend.served_by("tdp", args.device)
    assert served != "eager", f"no kernels are in force, nothing to measure: {why}"
    result = run(families, args.seconds, args.only, args.device)
    if args.device == "cpu":  # whose floors they are
        report_floors(result)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written: {args.json}")
    if not all(row["matched"] for row in result["rows"]):
        sys.exit("a contestant's result did not match: see MISMATCH above")
    if "errors" in result:
        sys.exit(f"{len(result['errors'])} benchmarks raised: see ✗ above")
    return result
