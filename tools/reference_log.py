"""Write the log of a healthy run as a reference of ``fmpipe report --reference``: judged metrics, few and short values.

    python tools/reference_log.py RUN python/fmpipe/assets/reference/PRESET.jsonl

Several runs of a preset are named PRESET-seed0.jsonl, PRESET-seed1.jsonl, and so on.
"""

import argparse
import json
import re
from pathlib import Path

import yaml

from fmpipe.diagnose.reference import HEADER, JUDGED, STAGES
from fmpipe.run_log import read_log

CONFIG = ("base", "seed", "stages", "precision", "data", "vae", "flow")  # settings that change a curve
VALIDATED = re.compile(r"val/|flow/(?:cond_gain_cos|endpt_rmse@)")  # measured by validations only
POINTS = 60  # of a metric in a stage, about


def thinned(run: Path, points: int = POINTS) -> list[dict]:
    """Return the header and the lines: in each stage every k-th logged step, and every validation."""
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    out = [{HEADER: 1, "config": {key: config[key] for key in CONFIG if key in config}}]
    for stage in STAGES:
        if not stage or not (run / stage).is_dir():
            continue
        judged = [
            {name: x for name, x in line.items() if name == "step" or JUDGED.fullmatch(name)}
            for line in read_log(run / stage)
        ]
        logged = [line["step"] for line in judged if any(n != "step" and not VALIDATED.match(n) for n in line)]
        kept = {*logged[:: max(1, round(len(logged) / points))], *logged[-1:]}
        for line in judged:
            names = [n for n in line if n != "step" and (line["step"] in kept or VALIDATED.match(n))]
            if names:
                out.append({"stage": stage, "step": line["step"], **{n: float(f"{line[n]:.4g}") for n in names}})
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--points", type=int, default=POINTS, help="points of a metric in a stage, about")
    given = parser.parse_args()
    lines = [json.dumps(line, separators=(",", ":"), allow_nan=False) for line in thinned(given.run, given.points)]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{given.out}: {len(lines)} lines, {given.out.stat().st_size / 1024:.0f} KB")
