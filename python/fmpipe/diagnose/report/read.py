"""A run's folder or a log of any kind, read into a :class:`RunStats`; what was odd about it becomes a remark."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fmpipe.diagnose import diary
from fmpipe.diagnose.log import LOG_NAME
from fmpipe.diagnose.report.compare import FACTS, facts_of
from fmpipe.diagnose.report.gather import Gathered, take
from fmpipe.diagnose.report.said import Said
from fmpipe.diagnose.report.stats import RunStats, SamplingTrace
from fmpipe.diagnose.verdict import Verdict

BLOCK = 16 << 20  # bytes parsed at a time: what a log needs of memory is this, some times over, and its numbers
STAGES = ("flow", "diffusion", "head", "vae")  # the main one first
_BARE = re.compile(rb"([:\[,]\s*)(NaN|-?Infinity)(?=\s*[,\]}])")
_STEP = re.compile(r"step\s*(\d+): \|x\|=(\S+?), \|v\|=(\S+?), dt=(\S+)")


def read(path: str | Path) -> RunStats:
    """A run's folder (its log, rotated or not; stages; config.yaml; check.json; traces), or one file.

    A file: JSON lines, CSV, a TensorBoard event file, or a text with the diary's lines. FileNotFoundError without one;
    ValueError for a file that has no figure at all.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no such run or log: {path}")
    is_run_log = path.is_file() and path.name == LOG_NAME  # its rotated parts and config.yaml are beside it
    stats = _log_folder(path.parent) if is_run_log else _folder(path) if path.is_dir() else _file(path)
    if not (stats.metrics or stats.traces or stats.verdicts or stats.constants or stats.stages):
        raise ValueError(
            f"{path}: no figure found. It takes JSON lines with a step, CSV with a header, TensorBoard event files, or "
            f"a text with lines such as 'step0: |x|=0.7889, |v|=0.4671, dt=0.0804' or '[fm] t=0.10 …'"
        )
    for s in (stats, *stats.stages.values()):
        s.facts |= {name: s.texts[f"run/{name}"] for name in FACTS if f"run/{name}" in s.texts}
    stats.source = str(path)
    return stats


def _folder(path: Path) -> RunStats:
    found = {name: path / name for name in STAGES if _logs(path / name)}
    if not found:
        return _log_folder(path)
    stages = {name: _log_folder(place) for name, place in found.items()}
    main = next(iter(stages))
    stats = stages.pop(main)
    if stages:
        stats.stages = stages
        stats.remarks.insert(0, Said("remark/stages", stages=", ".join(found), stage=main))
    stats.verdicts += _verdicts(path, stats)
    return stats


def _logs(path: Path) -> list[Path]:
    """The parts of a folder's log, oldest first (log.jsonl.2, log.jsonl.1, log.jsonl); else its event files, or CSV."""
    rotated = [p for p in path.glob(f"{LOG_NAME}.*") if p.suffix[1:].isdigit()]
    logs = sorted(rotated, key=lambda p: -int(p.suffix[1:])) + [p for p in [path / LOG_NAME] if p.is_file()]
    others = (sorted(path.glob("events.out.tfevents.*")), sorted(path.glob("*.jsonl")), sorted(path.glob("*.csv")))
    return logs or next((files for files in others if files), [])


def _log_folder(path: Path) -> RunStats:
    """A folder with a log; a stage's belongs to the run above it."""
    files = _logs(path)
    stats = _merged([_file(p) for p in files], files) if files else RunStats()
    if len(files) > 1 and files[-1].name == LOG_NAME:
        stats.remarks.insert(0, Said("remark/rotated", files=", ".join(p.name for p in files)))
    stats.stage = path.name if path.name in STAGES else ""
    run = path.parent if stats.stage else path
    if (run / "config.yaml").is_file():
        import yaml

        try:
            stats.config = dict(yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8")))
            stats.facts = facts_of(run, stats.config)
        except (yaml.YAMLError, TypeError, ValueError) as error:
            stats.remarks.append(Said("remark/skipped", file="config.yaml", why=" ".join(str(error).split())))
    for p in sorted(path.glob("trace*")):
        if p not in files and p.suffix in (".jsonl", ".csv", ".txt"):
            stats.traces += _file(p).traces
    stats.verdicts += _verdicts(path, stats)
    return stats


def _verdicts(path: Path, stats: RunStats) -> list[Verdict]:
    """What ``fmpipe check`` wrote into a run's folder, or into its folder ``check``."""
    for place in (path / "check.json", path / "check" / "check.json"):
        if place.is_file():
            try:
                return [Verdict(**_floats(v)) for v in json.loads(place.read_text(encoding="utf-8"))]
            except (TypeError, ValueError) as error:
                stats.remarks.append(Said("remark/skipped", file=place.name, why=str(error)))
    return []


def _floats(value: object) -> object:
    """Numbers for the words that JSON writes in the place of what is not finite."""
    if isinstance(value, dict):
        return {name: _floats(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_floats(part) for part in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def _file(path: Path) -> RunStats:
    if "tfevents" in path.name:
        return _events(path)
    if path.suffix.lower() == ".csv":
        return _csv(path)
    with path.open("rb") as file:
        head = file.read(1 << 16)
    lines = [line for line in head.split(b"\n") if line.strip()]
    jsonish = sum(line.lstrip().startswith(b"{") for line in lines)
    if path.suffix == ".jsonl" or ".jsonl." in path.name or jsonish * 2 > len(lines) > 0:
        return _json_lines(path)
    return _text(path)


def _json_lines(path: Path) -> RunStats:
    import polars as pl

    kept, torn, last_torn, numbered = Gathered(), 0, False, True
    for block, is_last in _blocks(path):
        if b"NaN" in block or b"Infinity" in block:  # bare, as json.dumps writes them, they are no JSON
            block = _BARE.sub(rb'\1"\2"', block)
        try:
            frame = pl.scan_ndjson(io.BytesIO(block), infer_schema_length=None).collect()
        except pl.exceptions.PolarsError:
            block, bad, at_end = _mended(block)
            torn, last_torn = torn + bad, is_last and at_end
            if not block:
                continue
            frame = pl.scan_ndjson(io.BytesIO(block), infer_schema_length=None).collect()
        numbered &= take(frame, kept)
    stats = kept.stats(path.name)
    if torn:
        said = Said("remark/torn_last") if last_torn else ""
        stats.remarks.append(Said("remark/torn", count=torn, file=path.name, last=said))
    if not numbered:
        stats.remarks.append(Said("remark/no_steps", file=path.name))
    return stats


def _blocks(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Whole lines, some megabytes at a time, and whether they are the last."""
    with path.open("rb") as file:
        rest = b""
        while True:
            data = file.read(BLOCK)
            rest, is_last = rest + data, len(data) < BLOCK
            cut = len(rest) if is_last else rest.rfind(b"\n") + 1
            if rest[:cut].strip():
                yield rest[:cut], is_last
            if is_last:
                return
            rest = rest[cut:]


def _mended(block: bytes) -> tuple[bytes, int, bool]:
    """A block's JSON objects, how many other lines it had, and whether its last line was one."""
    good, bad, at_end = [], 0, False
    for line in block.split(b"\n"):
        if not line.strip():
            continue
        try:
            at_end = not isinstance(json.loads(line), dict)
        except ValueError:
            at_end = True
        bad += at_end
        if not at_end:
            good.append(line)
    return b"\n".join(good), bad, at_end


def _csv(path: Path) -> RunStats:
    """A header, ``step`` among it if there are steps; or TensorBoard's export: Wall time, Step, Value."""
    import polars as pl

    frame = pl.scan_csv(path, infer_schema_length=None, truncate_ragged_lines=True, ignore_errors=True).collect()
    named = {c: c.strip().lower().replace(" ", "_") for c in frame.columns}
    frame = frame.rename({c: n for c, n in named.items() if n in ("step", "time", "wall_time", "iteration", "epoch")})
    if "step" not in frame.columns and "iteration" in frame.columns:
        frame = frame.rename({"iteration": "step"})
    if "Value" in frame.columns:
        frame = frame.rename({"Value": path.stem})
    kept = Gathered()
    numbered = take(frame, kept)
    stats = kept.stats(path.name)
    if not numbered:
        stats.remarks.append(Said("remark/no_steps", file=path.name))
    return stats


def _events(path: Path) -> RunStats:
    """Scalars and texts of a TensorBoard event file. ImportError, with the command, without tensorboard."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise ImportError(f"{path.name} is TensorBoard's: pip install tensorboard ({error})") from None
    kept, rows = Gathered(), {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            kept.lines += 1
            kept.times.append(event.wall_time)
            array = tensor_util.make_ndarray(value.tensor)
            if array.dtype.kind in "fiu" and array.size == 1:
                rows.setdefault(value.tag, ([], []))
                rows[value.tag][0].append(event.step)
                rows[value.tag][1].append(float(array.reshape(-1)[0]))
            elif array.dtype == object and array.size:
                kept.texts[value.tag.removesuffix("/text_summary")] = array.reshape(-1)[0].decode("utf-8", "replace")
    for name, (steps, values) in rows.items():
        kept.add(name, np.array(steps, dtype=np.int64), np.array(values))
    for name in [n for n in kept.parts if n.startswith("const/") and n.rpartition("/")[2].isdigit()]:
        kept.constants.setdefault(name.rpartition("/")[0], []).append(float(kept.parts.pop(name)[1][0][-1]))
    return kept.stats(path.name)


def _text(path: Path) -> RunStats:
    """The diary's lines in any text: traces, each under the last heading before it, and the figures of its checks."""
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    stats, heading, torn = RunStats(lines=len(lines)), "", 0
    runs: list[tuple[str, list[tuple[float, ...]]]] = []
    for line in lines:
        found = _STEP.search(line)
        if not found:
            words = line.strip(" `#*")
            heading = words.rstrip(":：") if words and (line.startswith("#") or words[-1] in ":：") else heading
            continue
        try:
            row = tuple(float(x) for x in found.groups()[1:])
        except ValueError:
            torn += "{" not in line  # the code that prints such lines is no line
            continue
        if not runs or int(found[1]) < len(runs[-1][1]):
            runs.append((heading, []))
        runs[-1][1].append(row)
    stats.traces = [SamplingTrace(*zip(*rows), label=label) for label, rows in runs]
    stats.verdicts = diary.verdicts(text) if _judged(text) else []
    if torn:
        stats.remarks.append(Said("remark/torn", count=torn, file=path.name, last=""))
    return stats


def _judged(text: str) -> bool:
    found = diary.figures(text)
    return bool(found.keys() & {"psnr", "text", "fm", "shoot"}) or len(found.get("teacher", ())) > 1


def _merged(parts: list[RunStats], files: list[Path]) -> RunStats:
    """Parts of one log, oldest first."""
    if len(parts) == 1:
        return parts[0]
    out = Gathered()
    for part in parts:
        out.lines += part.lines
        out.texts |= part.texts
        out.constants = part.constants | out.constants
        for name, x in part.metrics.items():
            out.add(name, x.steps, x.values)
    stats = out.stats(files[-1].name)
    stats.traces = [trace for part in parts for trace in part.traces]
    stats.seconds = sum(part.seconds or 0.0 for part in parts) or None
    stats.remarks = [r for part in parts for r in part.remarks] + stats.remarks
    return stats
