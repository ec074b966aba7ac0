"""The report of a run: one JSON file, one Markdown file, and one line to paste into an issue."""

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import harness
import torch

from fmkernels import backend, env_report
from gpu_checks import timing


def file_name(device_name: str) -> str:
    """ "NVIDIA H100 80GB HBM3" -> "nvidia-h100-80gb-hbm3" """
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


def driver() -> str:
    """Return the version of the NVIDIA driver as reported by nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return "unknown: no nvidia-smi"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    run = subprocess.run(command, capture_output=True, text=True)
    return run.stdout.split("\n")[0].strip() or "unknown: nvidia-smi does not report it"


def facts(device: str, command: Sequence[str]) -> dict[str, str]:
    """Return the header: device, versions, commit and command."""
    known = env_report.report()
    gpus = torch.cuda.device_count() if device == "cuda" else 0
    served, why = backend.served_by("tdp", device)
    return {
        "device": torch.cuda.get_device_name() if gpus else known["cpu"],
        "devices": str(gpus or 1),
        "driver": driver(),
        "torch": known["torch"],
        "triton": known["triton"],
        "backend cuda": known["backend cuda"],
        "backend triton": known["backend triton"],
        "backend in use": f"{served} ({why})",
        "commit": harness.git_commit(),
        "run as": " ".join(command),
    }


def document(known: dict[str, str], results: list[dict]) -> dict:
    """Return the content of the JSON file: facts, checks and, at the top level, what benchmarks/compare.py reads."""
    checks, measured = [], {}
    for row in results:
        if row["check"] == "benchmarks":
            measured = row["details"] if "rows" in row["details"] else {}
            row = {**row, "details": {k: v for k, v in row["details"].items() if k not in measured}}
        checks.append(row)
    return {"device": known["device"], "facts": known, "checks": checks, **measured}


def finite(value: object) -> object:
    """Return the value with non-finite numbers, which JSON does not have, as strings."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a Markdown table; line breaks in cells become spaces, and bars are escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(" ".join(str(c).split()).replace("|", "\\|") for c in row) + " |" for row in lines]


def parity_table(checks: list[dict]) -> list[str]:
    by = {c["backend"]: c["details"] for c in checks if c["check"] == "parity" and "traceback" not in c["details"]}
    by = {name: errors for name, errors in by.items() if errors}
    if not by:
        return []
    ops = list(dict.fromkeys(op for errors in by.values() for op in errors))

    def cell(error):
        return "–" if error is None else f"{error:.2f} {'✓' if error <= 1 else '✗'}"

    note = "The largest error of outputs and gradients over all dtypes and sizes, in units of the tolerance."
    return [
        "## Parity",
        "",
        note,
        "",
        *table(["op", *by], ([op, *(cell(by[n].get(op)) for n in by)] for op in ops)),
        "",
    ]


def benchmark_row(row: dict, memcpy: dict[str, float]) -> list[str]:
    """Medians, ratios, and GB/s of Triton and ours with the fraction of a copy's bandwidth."""
    times = {name: t["median"] for name, t in row["times"].items()}
    moved = row["gb_per_s"] * times[harness.OURS]
    medians = [
        harness._time(times[n]) if n in times else "–" for n in ("eager", "compile", harness.TRITON, harness.OURS)
    ]
    ratios = [f"{row['speedup'][n]:.2f}×" if n in row["speedup"] else "–" for n in ("eager", "compile", harness.TRITON)]
    bandwidth = []
    for name in (harness.TRITON, harness.OURS):
        speed = {**row, "gb_per_s": moved / times[name]} if name in times else None
        bandwidth.append(f"{speed['gb_per_s']:.0f} ({harness.share_of(speed, memcpy):.0%})" if speed else "–")
    return [row["name"], *medians, *ratios, *bandwidth, "✓" if row["matched"] else "✗ MISMATCH"]


def benchmark_table(result: dict) -> list[str]:
    if "rows" not in result:
        return []
    memcpy, served = result["memcpy"], result["facts"]["backend in use"].split()[0]
    ours = f"ours ({served})"
    columns = ["case", "eager", "torch.compile", "Triton", ours]
    columns += ["× eager", "× torch.compile", "× Triton", "GB/s Triton", f"GB/s {ours}", "same"]
    note = (
        f"Medians of one interleaved run; × is the other's time divided by ours. In the same run, a copy on the device "
        f"reached {memcpy['reused']:.0f} GB/s into an existing buffer and {memcpy['fresh']:.0f} GB/s into a new one."
    )
    lines = ["## Benchmarks", "", note, "", *table(columns, (benchmark_row(r, memcpy) for r in result["rows"])), ""]
    failures = [f"- {e['name']}: {' '.join(e['error'].split())}" for e in result.get("errors", [])]
    return lines + (["Not measured:", "", *failures, ""] if failures else [])


def timing_rows(checks: list[dict]) -> list[dict]:
    return [row for check in checks if check["check"] == "timing" for row in check["details"].get("rows", [])]


def timing_table(checks: list[dict]) -> list[str]:
    rows = timing_rows(checks)
    if not rows:
        return []
    note = (
        "Medians. host: until the call returns. device: between two events around the call. replay: the same call as a "
        "CUDA graph. A call is launch-bound if its host time is longer than its device time. × is the other's device "
        "time divided by ours."
    )

    def cells(row, name):
        times, ratio = row["times"][name], row["speedup"].get(name)
        bound = "launch-bound" if times["launch bound"] else "device-bound"
        yield from (row["name"], name, *(timing.ms(times[kind]) for kind in ("host", "call", "replay")), bound)
        yield f"{ratio:.2f}×" if ratio else "–"
        yield ("✓" if row["matched"] else "✗ MISMATCH") + (
            f" {times['why no replay']}" if times["why no replay"] else ""
        )

    columns = ["case", "contestant", "host", "device", "replay", "bound", "× ours", "same"]
    return ["## Steps", "", note, "", *table(columns, (cells(r, n) for r in rows for n in r["times"])), ""]


def one_line(result: dict) -> str:
    """Return the result as one line to paste into an issue."""
    facts, checks = result["facts"], result["checks"]
    bad, skipped = (
        [f"{c['check']} {c['backend']}".strip() for c in checks if c["verdict"] == verdict]
        for verdict in ("failed", "skipped")
    )
    passed = sum(c["verdict"] == "passed" for c in checks)
    verdict = f"FAILED ({', '.join(bad)})" if bad else "passed" if passed else "FAILED (no check ran)"
    left_out = f", skipped: {', '.join(skipped)}" if skipped else ""
    parts = [f"{passed} of {len(checks)} checks passed{left_out}", *map(timing.told_row, timing_rows(checks))]
    where = ", ".join(f"{k} {facts[k]}" for k in ("driver", "torch", "triton", "commit") if k in facts)
    return " ".join(f"gpu-check {verdict} on {result['device']} ({where}): {'; '.join(parts)}".split())


def markdown(result: dict) -> str:
    """Return the report: header, line to paste, checks, and those tables that there are results for."""
    checks = result["checks"]
    counts = {v: sum(c["verdict"] == v for c in checks) for v in ("passed", "failed", "skipped")}
    lines = [f"# fmkernels on {result['device']}", "", *table(["", ""], result["facts"].items()), ""]
    lines += ["To paste into an issue:", "", f"    {one_line(result)}", "", "## Checks", ""]
    lines += [", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + ".", ""]
    rows = ([c["check"], c["backend"], c["verdict"], c["why"], f"{c['seconds']:.1f}"] for c in checks)
    lines += [*table(["check", "backend", "verdict", "why", "seconds"], rows), ""]
    return "\n".join([*lines, *parity_table(checks), *timing_table(checks), *benchmark_table(result)]).rstrip() + "\n"


def write(result: dict, stem: Path) -> list[Path]:
    """Write stem.json and stem.md, each under a temporary name first: an interrupted run leaves no partial file."""
    texts = {
        stem.with_name(stem.name + ".json"): json.dumps(finite(result), indent=1, allow_nan=False) + "\n",
        stem.with_name(stem.name + ".md"): markdown(result),
    }
    stem.parent.mkdir(parents=True, exist_ok=True)
    parts = {path: path.with_name(path.name + f".{os.getpid()}.part") for path in texts}
    try:
        for path, text in texts.items():
            parts[path].write_text(text)
        for path, part in parts.items():
            part.replace(path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    return list(texts)
