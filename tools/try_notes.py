"""Try every row of docs/notes.md: run its commands and settings, and look up the rules and metrics that it names.

python tools/try_notes.py OUT [TEXT]     # only the rows that contain TEXT; takes about 40 minutes without it

Settings are tried in short trainings on the autoencoder and the latents of OUT/runs/first. Prints one line per row and
exits with 1 if a command fails, a rule does not exist, or a metric was not logged.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file

from fmpipe.diagnose import checks
from fmpipe.diagnose.engine import RULES

PAGE = Path(__file__).parent.parent / "docs" / "notes.md"
PRESET = ["--config", "shapes-tiny"]
SHORT = ["flow.optim.steps=30", "diffusion.optim.steps=30", "every.log=1", "every.validate=15", "every.sample=30"]
REFUSED = {"precision=fp16": "fp16"}  # what this machine cannot run, and what the refusal must mention
NEEDS = {"diffusion.time_weight": "'stages=[diffusion]'"}  # settings that another row's settings belong to
CHANGES = ("fmpipe train", "fmpipe overfit", "fmpipe ablate", "fmpipe calibrate")  # commands that write to runs/first
NOT_LOGGED = {"scaler/scale"}  # with fp16 alone


class Row(NamedTuple):
    topic: str
    asked: str
    code: list[str]


def rows() -> list[Row]:
    """The rows of all tables, with the code of their third column."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if line.startswith("|") and len(cells) == 4 and cells[0] != "topic" and set(cells[0]) != {"-"}:
            found.append(Row(cells[0], cells[1], re.findall(r"`([^`]*)`", cells[2])))
    return found


class Trial:
    """Runs the code of a row in a folder that has the runs ``first`` and ``second``."""

    def __init__(self, folder: Path):
        self.folder, self.seen, self.settings = folder, {}, [code for row in rows() for code in row.code]
        folder.mkdir(parents=True, exist_ok=True)
        for run, more in ("first", []), ("second", ["vae.path=runs/first/vae/result", "seed=1"]):
            if not (folder / "runs" / run / "pipeline").is_dir():
                self.call(["fmpipe", "train", *PRESET, f"out=runs/{run}", *more])
        if not (folder / "latents").is_dir():
            (folder / "latents").mkdir()
            for k in range(64):
                save_file({"latents": torch.randn(4, 8, 8)}, folder / "latents" / f"{k}.safetensors")
                (folder / "latents" / f"{k}.txt").write_text(f"number {k}")

    def call(self, command: list[str]) -> str:
        """The output of a command; RuntimeError if it ends with something else than 0."""
        if (key := tuple(command)) not in self.seen:
            run = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=1800)
            self.seen[key] = run.returncode, run.stdout + run.stderr
        code, output = self.seen[key]
        if code:
            raise RuntimeError(f"exit code {code}: {shlex.join(command)}\n{output[-1500:]}")
        return output

    def train(self, code: str) -> set[str]:
        """The names that a short training with these settings logs."""
        settings = shlex.split(code)
        for name, other in NEEDS.items():
            if name in code:
                settings += shlex.split(next(c for c in self.settings if other in c))
        preset = [] if "--config" in settings else PRESET
        first = ["out=runs/try"] if "vae.path=null" in settings else ["out=runs/try", "vae.path=runs/first/vae/result"]
        short = [s for s in SHORT if s.split("=")[0] not in code]
        shutil.rmtree(self.folder / "runs" / "try", ignore_errors=True)
        command = ["fmpipe", "train", *preset, *first, *settings, *short, *(["vae.optim.steps=30"] * ("null" in code))]
        if (refusal := REFUSED.get(code)) is not None:
            run = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=600)
            if not run.returncode or refusal not in run.stderr + run.stdout:
                raise RuntimeError(f"{code} is not refused")
            return set()
        self.seen.pop(tuple(command), None)
        self.call(command)
        return logged(self.folder / "runs" / "try")

    def row(self, row: Row) -> None:
        """RuntimeError with everything that is wrong with a row."""
        names, wanted = logged(self.folder / "runs" / "first"), []
        for code in row.code:
            if code.startswith("fmpipe.diagnose.checks."):
                if not hasattr(checks, code.split(".")[3].split("(")[0]):
                    raise RuntimeError(f"there is no {code}")
            elif code.endswith("--follow"):
                with subprocess.Popen(shlex.split(code), cwd=self.folder, stdout=subprocess.DEVNULL) as process:
                    try:
                        process.wait(15)
                    except subprocess.TimeoutExpired:
                        process.terminate()
                    else:
                        raise RuntimeError(f"{code} ended")
            elif code.startswith(CHANGES):
                with kept(self.folder / "runs" / "first"):
                    self.call(shlex.split(code))
            elif code.startswith("fmpipe "):
                self.call(shlex.split(code))
            elif "=" in code:
                names |= self.train(code)
            elif code not in RULES:
                wanted.append(code)
        if any(name in code for code in row.code for name in ("dino", "ent/")) or set(wanted) - names - NOT_LOGGED:
            names |= self.train("--config shapes-queries")
        if "const/betas" in wanted:
            names |= logged(self.folder / "runs" / "try")
        if missing := set(wanted) - names - NOT_LOGGED:
            raise RuntimeError(f"neither a rule nor logged: {', '.join(sorted(missing))}")


@contextmanager
def kept(run: Path) -> Iterator[None]:
    """Put a run folder back as it was: the other rows are about this run."""
    copy = run.with_name("kept")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    try:
        yield
    finally:
        shutil.rmtree(run)
        copy.rename(run)


def logged(run: Path) -> set[str]:
    """The names in all logs of a run."""
    lines = (line for log in run.glob("*/log.jsonl") for line in log.read_text().splitlines())
    return {name for line in lines for name in json.loads(line)}


def main() -> int:
    folder, text = Path(sys.argv[1]).resolve(), " ".join(sys.argv[2:])
    trial, failed = Trial(folder), 0
    for number, row in enumerate(rows(), 1):
        if text not in f"{row.topic} {row.asked} {' '.join(row.code)}":
            continue
        try:
            trial.row(row)
            print(f"{number:3} ok      {row.topic}: {row.asked}", flush=True)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"{number:3} FAILED  {row.topic}: {row.asked}\n{error}", flush=True)
    print(f"{failed} of {len(rows())} rows failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
