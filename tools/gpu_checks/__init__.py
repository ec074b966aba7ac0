"""The checks of tools/gpu_check.py: what a verdict is, and how several checks run so that each gets one."""

import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
for _place in ("tests", "benchmarks", "csrc"):  # the tables and the golden tests; the harness; find_cuda
    if str(ROOT / _place) not in sys.path:
        sys.path.append(str(ROOT / _place))

MARKS = {"passed": "✓", "failed": "✗", "skipped": "–"}


@dataclass
class Result:
    """verdict: passed, failed or skipped. why: one line, of the last two. details: for the JSON file."""

    verdict: str
    why: str = ""
    details: dict = field(default_factory=dict)


def told(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def found(wrong: Iterable[str], details: dict) -> Result:
    """Passed if nothing is wrong; else failed, naming it."""
    wrong = list(wrong)
    return Result("failed" if wrong else "passed", "; ".join(wrong), details)


def run_all(planned: Iterable[tuple[str, str, Callable[[], Result]]]) -> list[dict]:
    """Every (check, backend, call) in turn, printed as it ends. One that raises has failed, and the others go on."""
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
