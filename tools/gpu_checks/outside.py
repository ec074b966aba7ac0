"""The checks that run in a separate process: the kernels under compute-sanitizer, and the benchmarks."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from find_cuda import cuda_home

from gpu_checks import ROOT, Result, found

TOOLS = ("memcheck", "racecheck", "initcheck")
FOUND = 3  # compute-sanitizer's exit code if it finds an error; that of a failed parity check is 1
TAIL = 4000  # characters kept of an output


def find_sanitizer() -> str | None:
    """Return the path of compute-sanitizer, from PATH or from the folder of nvcc."""
    home = cuda_home()
    places = [os.environ.get("PATH", "")] + ([str(home / "bin")] if home else [])
    return shutil.which("compute-sanitizer", path=os.pathsep.join(places))


def output_of(command: Sequence[str], seconds: float, **environment: str) -> tuple[int | None, str]:
    """Return (exit code, end of the output); after ``seconds``, kill the process with its children and return None."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=seconds)
        return process.returncode, text[-TAIL:]
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def sanitizer(device: str, seconds: float = 900, tools: Sequence[str] = TOOLS) -> Result:
    """Run parity at two sizes under each tool, without torch's caching allocator: one allocation per tensor."""
    program = find_sanitizer()
    if program is None:
        return Result("skipped", "compute-sanitizer was found neither on PATH nor in CUDA_HOME/bin")
    script = [str(ROOT / "tools" / "gpu_check.py"), "--only", "parity", "--sizes", "31,1025", "--device", device]
    details, wrong = {}, []
    for tool in tools:
        command = [program, "--tool", tool, "--target-processes", "application-only", "--error-exitcode", str(FOUND)]
        code, tail = output_of([*command, sys.executable, *script], seconds, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        said = {0: "passed", FOUND: "errors found", None: f"not finished in {seconds:g} s"}.get(
            code, f"exit code {code}"
        )
        details[tool] = {"said": said, "tail": tail}
        if code not in (0, None):
            wrong.append(f"{tool}: {said}")
        print(f"{tool}: {said}", flush=True)
    unfinished = [f"{tool} {run['said']}" for tool, run in details.items() if run["said"].startswith("not finished")]
    if len(unfinished) == len(details):
        return Result("skipped", f"no tool finished in {seconds:g} s", details)
    result = found(wrong, details)
    result.why = "; ".join(filter(None, [result.why, *unfinished]))
    return result


def benchmarks(device: str, seconds: float, script: Path = ROOT / "benchmarks" / "run.py") -> Result:
    """Run benchmarks/run.py on the device. details: the JSON that it wrote, even if it failed."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "result.json"
        command = [sys.executable, str(script), "--device", device, "--seconds", str(seconds), "--json", str(path)]
        run = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
        sys.stderr.write(run.stderr)
        details = json.loads(path.read_text()) if path.exists() else {}
    last = (run.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
    return found([f"exit code {run.returncode}: {last}"] if run.returncode else [], details)
