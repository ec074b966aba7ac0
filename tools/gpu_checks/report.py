"""One JSON file and one Markdown table of a run, whole or not at all."""

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


def file_name(device_name: str) -> str:
    """ "NVIDIA H100 80GB HBM3" -> "nvidia-h100-80gb-hbm3" """
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


def driver() -> str:
    """The version of NVIDIA's driver, as nvidia-smi has it."""
    if shutil.which("nvidia-smi") is None:
        return "unknown: no nvidia-smi"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    run = subprocess.run(command, capture_output=True, text=True)
    return run.stdout.split("\n")[0].strip() or "unknown: nvidia-smi does not say"


def facts(device: str, command: Sequence[str]) -> dict[str, str]:
    """The header: where and by what this was run."""
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
        "calls are served by": f"{served} ({why})",
        "commit": harness.git_commit(),
        "run as": " ".join(command),
    }


def document(known: dict[str, str], results: list[dict]) -> dict:
    """What goes into the JSON file: facts, checks, and at the top what benchmarks/compare.py reads."""
    checks, measured = [], {}
    for row in results:
        if row["check"] == "benchmarks":
            measured = row["details"] if "rows" in row["details"] else {}
            row = {**row, "details": {k: v for k, v in row["details"].items() if k not in measured}}
        checks.append(row)
    return {"device": known["device"], "facts": known, "checks": checks, **measured}


def finite(value: object) -> object:
    """The same with what JSON has no number for as a string."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table; cells lose their line ends and keep their bars."""
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

    note = "The largest error of outputs and gradients, over all dtypes and sizes, in units of the tolerance."
    return [
        "## Parity",
        "",
        note,
        "",
        *table(["op", *by], ([op, *(cell(by[n].get(op)) for n in by)] for op in ops)),
        "",
    ]


def benchmark_row(row: dict, memcpy: dict[str, float]) -> list[str]:
    """Medians, ratios; GB/s and its share of a copy's, of ours and of Triton beside it."""
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
    memcpy, served = result["memcpy"], result["facts"]["calls are served by"].split()[0]
    ours = f"ours ({served})"
    columns = ["case", "eager", "torch.compile", "Triton", ours]
    columns += ["× eager", "× torch.compile", "× Triton", "GB/s Triton", f"GB/s {ours}", "same"]
    note = (
        f"Medians of one interleaved run; × is their time over ours. A copy on the device in the same run made "
        f"{memcpy['reused']:.0f} GB/s into a standing buffer, {memcpy['fresh']:.0f} into a fresh one: shares are of it."
    )
    lines = ["## Benchmarks", "", note, "", *table(columns, (benchmark_row(r, memcpy) for r in result["rows"])), ""]
    failures = [f"- {e['name']}: {' '.join(e['error'].split())}" for e in result.get("errors", [])]
    return lines + (["Not measured:", "", *failures, ""] if failures else [])


def markdown(result: dict) -> str:
    """Header, checks with verdicts, parity, benchmarks: those of them that there are."""
    checks = result["checks"]
    counts = {v: sum(c["verdict"] == v for c in checks) for v in ("passed", "failed", "skipped")}
    lines = [f"# fmkernels on {result['device']}", "", *table(["", ""], result["facts"].items()), "", "## Checks", ""]
    lines += [", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + ".", ""]
    rows = ([c["check"], c["backend"], c["verdict"], c["why"], f"{c['seconds']:.1f}"] for c in checks)
    lines += [*table(["check", "backend", "verdict", "why", "seconds"], rows), ""]
    return "\n".join([*lines, *parity_table(checks), *benchmark_table(result)]).rstrip() + "\n"


def write(result: dict, stem: Path) -> list[Path]:
    """stem.json and stem.md: written under other names first, so that neither is ever half there."""
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
