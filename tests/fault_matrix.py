"""make fault-matrix: every fault against all checks and hypotheses; writes docs/diagnosis.md, exit code 1 if a row is
wrong.

The faults, the thresholds and the causes were settled on seeds 0 to 2, then looked at on 100 and 101.
"""

import sys
import tempfile
import time
from pathlib import Path

import torch

from fmpipe.diagnose.faults import FAULTS, HEALTHY, Fault, Suspect, suspects
from fmpipe.diagnose.report import RunStats, judge

SEEDS = (102, 103)
DOCS = Path(__file__).parent.parent / "docs" / "diagnosis.md"


def found(fault: Fault, seed: int) -> list[Suspect]:
    with tempfile.TemporaryDirectory() as folder:
        return suspects(fault.plant(Path(folder) / "run", seed))


def right(fault: Fault, ranked: list[Suspect]) -> bool:
    """Its own ranks first; of a healthy run nothing fired, not even a warning."""
    return bool(ranked) and ranked[0].name in fault.own if fault.own else not ranked


def row(fault: Fault, runs: list[list[Suspect]]) -> str:
    """Of the first run that is wrong, else of the first: what ranks first, its evidence, the others in their order."""
    shown = next((ranked for ranked in runs if not right(fault, ranked)), runs[0])
    first, *others = shown or [Suspect("nothing", True, "")]
    count = f"{sum(right(fault, ranked) for ranked in runs)}/{len(runs)}"
    names = " ".join(s.name if s.sure else f"({s.name})" for s in others)
    return f"| {fault.name} | {fault.what} | **{first.name}** | {phrase(first.said)} | {names} | {count} |"


def phrase(said: str, most: int = 120) -> str:
    """The first sentences of a text, as many as fit; if none does, its beginning, cut at a word."""
    if len(said) > most:
        end = said.rfind(". ", 0, most)
        said = said[: end + 1] if end > 0 else said[:most].rsplit(" ", 1)[0] + " …"
    return said.replace("|", "\\|")


def hypotheses() -> str:
    """Letter, what is supposed, the rule with its thresholds: of a run without a figure."""
    rows = [f"| {h.letter} | {h.title} | {phrase(h.rule, len(h.rule))} |" for h in judge(RunStats())]
    return "\n".join(["| | supposes that | rejected where |", "|---|---|---|", *sorted(rows)])


def written(text: str, name: str, body: str) -> str:
    """The text with what stands between the marks of that name replaced. ValueError without the marks."""
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{DOCS.name} has no {begin.strip()} … {end.strip()}")
    return before + begin + body + end + after


def main(*names: str) -> int:
    """names: of faults, to see those rows only; the table is then left as it is."""
    torch.set_num_threads(1)  # tensors this small only wait for a second one
    begun, rows, wrong = time.monotonic(), [], 0
    for fault in (f for f in (*HEALTHY, *FAULTS) if not names or f.name in names):
        runs = []
        for seed in SEEDS:
            ranked = found(fault, seed)
            runs.append(ranked)
            word = "right" if right(fault, ranked) else f"WRONG, expected {' or '.join(fault.own) or 'nothing'}"
            fired = ", ".join(s.name for s in ranked) or "nothing"
            print(f"{time.monotonic() - begun:5.0f} s  {fault.name}, seed {seed}: {word}: {fired}", flush=True)
        rows.append(row(fault, runs))
        wrong += not all(right(fault, ranked) for ranked in runs)
    if names:
        return int(wrong > 0)
    head = [
        "| fault | what it does | ranked first | its evidence | others that fired | right |",
        "|---|---|---|---|---|---|",
    ]
    text = written(DOCS.read_text(encoding="utf-8"), "matrix", "\n".join([*head, *rows]))
    DOCS.write_text(written(text, "hypotheses", hypotheses()), encoding="utf-8")
    print(f"{len(rows) - wrong} of {len(rows)} rows right; {DOCS.name} is written")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
