"""make fault-matrix: plant every fault and judge the evidence by all rules; write the tables of docs/diagnosis.md.

The exit code is 1 if a row is wrong. The faults, the thresholds and the causes were settled on seeds 0 to 2, then
looked at on 100 and 101.
"""

import sys
import tempfile
import time
from pathlib import Path

import torch
from faults import FAULTS, HEALTHY, Fault, suspects

from fmpipe.diagnose.engine import RULES, judged
from fmpipe.diagnose.rule import Finding

SEEDS = (110, 111)
DOCS = Path(__file__).parent.parent / "docs" / "diagnosis.md"


def found(fault: Fault, seed: int) -> list[Finding]:
    """Return what fails or warns in a run with the fault."""
    with tempfile.TemporaryDirectory() as folder:
        return suspects(fault.plant(Path(folder) / "run", seed))


def right(fault: Fault, ranked: list[Finding]) -> bool:
    """Tell whether a rule of the fault fails and ranks first; for a healthy run, whether nothing fails or warns."""
    if not fault.own:
        return not ranked
    return bool(ranked) and ranked[0].status == "fail" and ranked[0].name in fault.own


def row(fault: Fault, runs: list[list[Finding]]) -> str:
    """Return the row of the first run that is wrong, otherwise of the first: the first finding, then the others."""
    shown = next((ranked for ranked in runs if not right(fault, ranked)), runs[0])
    name, why = (shown[0].name, evidence(shown[0])) if shown else ("nothing", "")
    others = " ".join(f.name if f.status == "fail" else f"({f.name})" for f in shown[1:])
    count = f"{sum(right(fault, ranked) for ranked in runs)}/{len(runs)}"
    return f"| {fault.name} | {fault.what} | **{name}** | {phrase(why)} | {others} | {count} |"


def evidence(finding: Finding) -> str:
    """Return the sentences that decide, the largest effect first."""
    return " ".join(dict.fromkeys(e.into() for e in finding.bad))


def phrase(text: str, most: int = 120) -> str:
    """Return as many of the first sentences of a text as fit; if none fits, its beginning, cut at a word."""
    if len(text) > most:
        end = text.rfind(". ", 0, most)
        text = text[: end + 1] if end > 0 else text[:most].rsplit(" ", 1)[0] + " …"
    return text.replace("|", "\\|")


def rules() -> str:
    """Return the table of all rules, in the order in which root causes are named."""
    rows = []
    for name, rule in RULES.items():
        finding = judged(name)
        title, threshold = (phrase(text, len(text)) for text in (finding.title, finding.threshold))
        rows.append(f"| `{name}` | {rule.letter} | {title} | {threshold} |")
    return "\n".join(["| rule | letter | what is wrong if it fails | passes if |", "|---|---|---|---|", *rows])


def write(name: str, body: str) -> None:
    """Replace the part of the docs between the marks of that name. ValueError without the marks."""
    text, begin, end = DOCS.read_text(encoding="utf-8"), f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{DOCS.name} has no {begin.strip()} … {end.strip()}")
    DOCS.write_text(before + begin + body + end + after, encoding="utf-8")


def main(*names: str) -> int:
    """Run all faults and write both tables; with names of faults, run only these; with --rules, write only it."""
    if names == ("--rules",):
        write("rules", rules())
        return 0
    torch.set_num_threads(1)  # with tensors this small, a second thread only costs time
    begun, rows, wrong = time.monotonic(), [], 0
    for fault in (f for f in (*HEALTHY, *FAULTS) if not names or f.name in names):
        runs = []
        for seed in SEEDS:
            ranked = found(fault, seed)
            runs.append(ranked)
            word = "right" if right(fault, ranked) else f"WRONG, expected {' or '.join(fault.own) or 'nothing'}"
            fired = ", ".join(f.name if f.status == "fail" else f"({f.name})" for f in ranked) or "nothing"
            print(f"{time.monotonic() - begun:5.0f} s  {fault.name}, seed {seed}: {word}: {fired}", flush=True)
        rows.append(row(fault, runs))
        wrong += not all(right(fault, ranked) for ranked in runs)
    if names:
        return int(wrong > 0)
    head = [
        "| fault | what it does | ranked first | its evidence | others that fired | right |",
        "|---|---|---|---|---|---|",
    ]
    write("matrix", "\n".join([*head, *rows]))
    write("rules", rules())
    print(f"{len(rows) - wrong} of {len(rows)} rows right; {DOCS.name} is written")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
