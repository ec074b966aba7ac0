"""Time and peak memory of a report on a log of the size in the debugging notes (504,152 lines, 57,168 losses).

python benchmarks/bench_report.py                # that size; writes results/report.json
python benchmarks/bench_report.py --times 10     # ten times that size
python benchmarks/bench_report.py --log x.jsonl  # keeps the log

The log has a line for the statistics of each tensor, as in the notes, and one loss is NaN, from which the run recovers.
A child process reads it, so that the peak is that of the report alone; what it read is compared with what was written.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"
LINES, LOSSES = 504_152, 57_168
TENSORS = {
    "x_0": (0, 1),
    "noise": (0, 1),
    "x_t": (0, 1),
    "predicted_x0": (0, 0.95),
    "x_0_target": (0, 1),
    "t": (500, 289),
}
LIMITS = {1: (5.0, 1.0), 10: (45.0, None)}  # seconds, GB

CHILD = """
import json, resource, sys, time
before = time.perf_counter(), time.process_time()
from fmpipe.diagnose.engine import judge
from fmpipe.diagnose.read import read
from fmpipe.diagnose.render.html import html
from fmpipe.diagnose.render.markdown import markdown
imported = time.perf_counter(), time.process_time()
figures = read(sys.argv[1])
found = judge(figures)
page = html(figures, found), markdown(figures, found, "zh")
done = time.perf_counter(), time.process_time()
loss = figures.metrics["loss/total"]
print(json.dumps({
    "import": imported[0] - before[0], "import_cpu": imported[1] - before[1],
    "seconds": done[0] - imported[0], "cpu_seconds": done[1] - imported[1],
    "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    "lines": figures.lines, "losses": figures.losses, "sum": float(loss.finite.sum()), "bad": loss.first_nonfinite,
    "figures": len(figures.metrics), "constants": len(figures.constants), "page": len(page[0]),
    "failed": [f.name for f in found if f.status == "fail"],
    "evidence": [e.message.key for f in found for e in f.evidence],
}))
"""


def write(path: Path, times: int) -> dict[str, float]:
    """Write the log of a diffusion line by line; return what must be read from it."""
    draw = np.random.default_rng(0)
    losses, lines, bad = LOSSES * times, LINES * times, LOSSES * times // 3
    loss = 0.05 + 1.29 * np.exp(-np.arange(losses) / (losses / 20)) + 0.01 * draw.random(losses)
    more = lines - 1 - losses * (len(TENSORS) + 1)  # lines of other kinds
    constants = {"const/betas": [1e-4, 0.02], "const/alphas_cumprod": [0.9999, 4.04e-5]}
    noise = draw.normal(size=(losses, 2)) * 0.01
    with path.open("w") as file:
        file.write(json.dumps({"step": 0, "time": 1.7e9, **constants}) + "\n")
        for k in range(losses):
            head = f'{{"step": {k}, "time": {1.7e9 + 0.047 * k:.3f}, '
            a, b = noise[k]
            rows = [
                f'{head}"stat/{n}/min": {m - 1.7 * s if n == "t" else -4.5 * s + a:.6f}, "stat/{n}/max": '
                f'{m + 1.7 * s if n == "t" else 4.5 * s + b:.6f}, "stat/{n}/mean": {m + s * a:.7f}, "stat/{n}/std": '
                f'{s * (1 + b):.7f}, "stat/{n}/nonfinite": 0.0, "stat/{n}/dtype": "float32"}}'
                for n, (m, s) in TENSORS.items()
            ]
            rows.append(f'{head}"loss/total": {"NaN" if k == bad else repr(float(loss[k]))}}}')
            if k < more:
                rows.append(f'{head}"lr": 0.0001, "grad/total": {1 + a:.6f}}}')
            extra = more - losses if k == losses - 1 else 0
            rows += [f'{head}"val/loss/total": 0.06}}'] * max(0, extra)
            file.write("\n".join(rows) + "\n")
    return {"lines": lines, "losses": losses, "sum": float(loss.sum() - loss[bad]), "bad": bad}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1, help="factor by which the log is longer than that of the notes")
    parser.add_argument("--log", type=Path, help="file to write the log to; it is kept")
    parser.add_argument("--json", type=Path, default=RESULTS / "report.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.log or Path(folder) / "log.jsonl"
        started = time.perf_counter()
        due = write(path, options.times)
        took = time.perf_counter() - started
        print(f"{due['lines']:,} lines, {path.stat().st_size / 1e6:.0f} MB, written in {took:.0f} s")
        done = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True)
    got = json.loads(done.stdout)
    failed, evidence = got.pop("failed"), got.pop("evidence")
    wrong = [name for name, value in due.items() if not np.isclose(got[name], value, rtol=1e-9)]
    if failed or "loss/recovered" not in evidence:  # the NaN is seen, and nothing is wrong
        wrong.append(f"findings {failed}")
    seconds, gigabytes = LIMITS.get(options.times, (None, None))
    got |= {"times": options.times, "limit_seconds": seconds, "limit_gigabytes": gigabytes, "load": os.getloadavg()[0]}
    got["matches"] = not wrong
    print(
        f"read and judged in {got['seconds']:.2f} s ({got['cpu_seconds']:.2f} s of CPU), peak {got['gigabytes']:.2f} GB"
    )
    print(f"import {got['import']:.2f} s ({got['import_cpu']:.2f} s of CPU); load of the machine {got['load']:.1f}")
    if seconds and (got["seconds"] > seconds or got["gigabytes"] > (gigabytes or float("inf"))):
        print(f"above its limit: {seconds:g} s" + (f", {gigabytes:g} GB" if gigabytes else ""))
    print("matches ✓" if not wrong else f"DIFFERS in {', '.join(wrong)}")
    kept = json.loads(options.json.read_text()) if options.json.is_file() else {}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({**kept, str(options.times): got}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
