"""Two result files side by side: ``python benchmarks/compare.py old.json new.json``.

Ratios of our own medians, old over new (above 1 is faster now), beside the change of the speed-up over eager,
which a slower or busier machine moves less. Changes inside both spreads (p20 to p80) are marked ~.
"""

import json
import sys
from pathlib import Path

OURS = "fmkernels"


def load(path: str) -> dict:
    try:
        return json.loads(Path(path).read_text())
    except (OSError, json.JSONDecodeError) as error:
        sys.exit(f"{path} is not a result of benchmarks/run.py: {error}")


def main(old_path: str, new_path: str) -> None:
    old, new = load(old_path), load(new_path)
    for name, result in (("old", old), ("new", new)):
        facts = result["header"]
        print(f"{name}: {facts['commit']}, {facts['date']}, {facts['cpu']}, torch {facts['torch'].split()[0]}")
    if old["header"]["cpu"] != new["header"]["cpu"]:
        print("NOTE: other CPUs: only the speed-ups can be compared, not the times")
    before = {row["name"]: row for row in old["rows"]}
    after = {row["name"]: row for row in new["rows"]}
    print(f"\n{'case':<48}{'old':>12}{'new':>12}{'old/new':>9}   {'× eager':>16}")
    for name in (n for n in before if n in after):
        a, b = before[name]["times"][OURS], after[name]["times"][OURS]
        noise = "~" if a["p20"] <= b["p80"] and b["p20"] <= a["p80"] else " "
        speedups = [row["speedup"].get("eager", float("nan")) for row in (before[name], after[name])]
        print(
            f"{name:<48}{a['median'] * 1e6:>10.1f}µs{b['median'] * 1e6:>10.1f}µs"
            f"{a['median'] / b['median']:>8.2f}{noise}"
            f"   {speedups[0]:>6.1f} → {speedups[1]:<6.1f}"
        )
    for label, names in (("gone", before.keys() - after.keys()), ("added", after.keys() - before.keys())):
        if names:
            print(f"{label}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
