"""The checks of tools/gpu_check.py: their results, and how they are run so that each gets one."""

import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
for _place in ("tests", "benchmarks", "csrc"):  # the case tables and golden tests; the benchmark harness; find_cuda
    if str(ROOT / _place) not in sys.path:
        sys.path.append(str(ROOT / _place))

MARKS = {"passed": "✓", "failed": "✗", "skipped": "–"}


@dataclass
class Result:
    """verdict: passed, failed or skipped. why: the reason for a failure or skip, one line. details: for the JSON."""

    verdict: str
    why: str = ""
    details: dict = field(default_factory=dict)


def told(error: BaseException) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def found(wrong: Iterable[str], details: dict) -> Result:
    """Return a passed result if nothing is wrong, otherwise a failed one that lists the problems."""
    wrong = list(wrong)
    return Result("failed" if wrong else "passed", "; ".join(wrong), details)


def run_all(planned: Iterable[tuple[str, str, Callable[[], Result]]]) -> list[dict]:
    """Run every (check, backend, call) and print its result. A call that raises has failed; the others still run."""
    results = []
    for check, backend, call in planned:
        start = time.perf_counter()
        try:
            result = call()
        except Exception as error:
            result = Result("failed", told(error), {"traceback": traceback.format_exc()})
        row = {"check": check, "backend": backend, "verdict": result.verdict, "why": result.why}
        results.append({**row, "seconds": round(time.perf_counter() - start, 1), "details": result.details})
        why = f": {result.why}" if result.why else ""
        print(f"{MARKS[result.verdict]} {f'{check} {backend}'.strip()} {result.verdict}{why}", flush=True)
    return results
