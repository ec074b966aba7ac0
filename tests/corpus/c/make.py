#!/usr/bin/env python3
"""Writes the corpus: python make.py [OUT]   (default: ./out next to this file)"""
import json, shutil, sys
from pathlib import Path
HERE = Path(__file__).resolve().parent
import numpy as np
from lib import CASES, rng_of
import a_fault, a_ok, b_fault, b_ok  # noqa: F401


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "out"
    for half in "ab":
        root = out / half
        if root.exists():
            shutil.rmtree(root)
        cases = sorted(CASES[half], key=lambda c: c["name"])
        order = np.random.default_rng(20250 + ord(half)).permutation(len(cases))
        man = []
        for k, j in enumerate(order):
            c = cases[j]
            cid = f"{half}{k + 1:02d}"
            d = root / cid
            d.mkdir(parents=True)
            rel = c["fn"](d, rng_of(c["name"]))
            man.append({"id": cid, "path": f"{cid}/{rel}" if rel else cid, "format": c["fmt"],
                        "expected": c["expected"], "acceptable": c["acceptable"],
                        "healthy": c["healthy"], "story": c["story"]})
        (root / "manifest.json").write_text(json.dumps(man, indent=1, ensure_ascii=False), encoding="utf-8")
        print(half, len(man), "logs,", sum(m["healthy"] for m in man), "healthy")


if __name__ == "__main__":
    main()
