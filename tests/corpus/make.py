"""python make.py OUT: write every log into OUT/<half>/<id>/ and OUT/<half>/manifest.json, and those of other authors."""

import collections
import json
import os
import re
import shutil
import subprocess
import sys

import lib
import tune  # noqa: F401
import held  # noqa: F401

HERE = os.path.dirname(os.path.abspath(__file__))


def causes():
    text = open(os.path.join(HERE, "causes.md"), encoding="utf-8").read()
    return dict(re.findall(r"^## ([a-z0-9_]+): (.+)$", text, re.M))


def main(out):
    known = causes()
    table = collections.defaultdict(list)
    man = collections.defaultdict(list)
    for k in lib.CASES:
        assert k["expected"] == "none" or k["expected"] in known, k["expected"]
        assert all(a in known for a in k["acceptable"]), (k["id"], k["acceptable"])
        d = os.path.join(out, k["half"], k["id"])
        shutil.rmtree(d, ignore_errors=True)
        path = k["func"](lib.Ctx(k["id"], d))
        healthy = k["expected"] == "none"
        man[k["half"]].append(
            {
                "id": k["id"],
                "path": f"{k['id']}/{path}",
                "format": k["format"],
                "expected": k["expected"],
                "phrase": "nothing is wrong" if healthy else (k["phrase"] or known[k["expected"]]),
                "acceptable": k["acceptable"],
                "healthy": healthy,
                "story": k["story"],
            }
        )
        table[k["half"], healthy].append(k["format"])
    for half, m in man.items():
        with open(os.path.join(out, half, "manifest.json"), "w", encoding="utf-8") as f:
            json.dump(m, f, indent=1, ensure_ascii=False)
            f.write("\n")
    bad = []
    for half, m in man.items():
        for e in m:
            p = os.path.join(out, half, e["path"])
            files = [p] if os.path.isfile(p) else [os.path.join(a, f) for a, _, fs in os.walk(p) for f in fs]
            if not files or any(os.path.getsize(f) == 0 for f in files):
                bad.append(e["id"])
            if os.path.isfile(p) and not p.endswith(".0"):
                n = len(re.split(r"[\r\n]+", open(p, encoding="utf-8", newline="").read().strip()))
                if not 18 <= n <= 5000 and not p.endswith(".json"):
                    print("lines", e["id"], n)
    print("missing or empty:", bad or "none")
    print(f"{'half':6} {'healthy':8} {'count':>5}  formats")
    for (half, h), f in sorted(table.items()):
        c = collections.Counter(f)
        print(
            f"{half:6} {str(h):8} {len(f):5}  {len(c)} formats: "
            + "; ".join(f"{a} x{n}" if n > 1 else a for a, n in sorted(c.items()))
        )
    unused = set(known) - {k["expected"] for k in lib.CASES}
    for half in man:
        print(half, "faults not in this half:", sorted(set(known) - {e["expected"] for e in man[half]}))
    print(len(known), "slugs; unused:", sorted(unused) or "none")


if __name__ == "__main__":
    main(sys.argv[1])
    shared = os.pathsep.join([HERE, os.path.join(HERE, "l"), os.environ.get("PYTHONPATH", "")])  # lib.py, l/core.py
    for author in ("second", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m"):
        make = os.path.join(HERE, author, "make.py")
        subprocess.run([sys.executable, make, os.path.join(sys.argv[1], author)], check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": shared})
