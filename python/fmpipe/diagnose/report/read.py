"""Read a run's folder or a log of any format into a :class:`RunStats`; whatever is odd about it becomes a remark.

Formats: JSON lines, CSV and TSV (also W&B's exports and Lightning's), TensorBoard event files, HF
``trainer_state.json``, MLflow's metric files, and printed lines (:mod:`fmpipe.diagnose.read.lines`). Metrics get their
canonical names (:mod:`fmpipe.diagnose.read.names`).
"""

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from fmpipe.diagnose import diary
from fmpipe.diagnose.log import LOG_NAME
from fmpipe.diagnose.read import lines as printed
from fmpipe.diagnose.read.names import STEPS, canonical
from fmpipe.diagnose.read.prose import statements
from fmpipe.diagnose.report.compare import FACTS, facts_of
from fmpipe.diagnose.report.gather import Gathered, take
from fmpipe.diagnose.report.said import Said
from fmpipe.diagnose.report.stats import RunStats, SamplingTrace, Series
from fmpipe.diagnose.verdict import Verdict

BLOCK = 16 << 20  # bytes parsed at a time: what a log needs of memory is this, some times over, and its numbers
STAGES = ("flow", "diffusion", "head", "vae")  # the main one first
_BARE = re.compile(rb"([:\[,]\s*)(NaN|-?Infinity)(?=\s*[,\]}])")
_PROBE = re.compile(r"\[(?:fm|text|shoot|teacher-euler|vae)\]")  # lines of fmpipe.diagnose.diary
_STEP_PAIRS = re.compile(
    r"\b(?:i|k|step)\s*[=:]?\s*(\d+)\b.*?\b(?:x_abs|abs_x|mean_abs_x|x)\s*[=:]\s*([\d.eE+-]+).*?"
    r"\b(?:v_abs|abs_v|mean_abs_v|v)\s*[=:]\s*([\d.eE+-]+).*?\bdt\s*[=:]\s*([\d.eE+-]+)"
)
_STEP = re.compile(r"step\s*(\d+): \|x\|=(\S+?), \|v\|=(\S+?), dt=(\S+)")


def read(path: str | Path, aliases: Mapping[str, str] | None = None) -> RunStats:
    """Read a run's folder (its log, rotated or not; stages; config.yaml; check.json; traces), or one file.

    aliases: names of the log -> canonical names, in addition to the table. FileNotFoundError if there is no such file
    or folder, ValueError if nothing in it is recognised.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no such run or log: {path}")
    is_run_log = path.is_file() and path.name == LOG_NAME  # its rotated parts and config.yaml are beside it
    stats = _log_folder(path.parent) if is_run_log else _folder(path) if path.is_dir() else _file(path)
    for s in (stats, *stats.stages.values()):
        rename(s, aliases)
    if not (any(map(canonical, stats.metrics)) or stats.traces or stats.verdicts or stats.constants or stats.stages):
        names = f"; its names are {', '.join(stats.unknown[:8])}: map them with --alias theirs=ours" * bool(
            stats.unknown
        )
        raise ValueError(
            f"{path}: no figure found that is recognised{names}. Formats: JSON lines, CSV, TensorBoard, "
            f"trainer_state.json, MLflow, and printed lines such as 'step 100 loss_flow: 0.5' or "
            f"'step0: |x|=0.7889, |v|=0.4671, dt=0.0804'"
        )
    for s in (stats, *stats.stages.values()):
        s.facts |= {name: s.texts[f"run/{name}"] for name in FACTS if f"run/{name}" in s.texts}
    stats.source = str(path)
    return stats


def rename(stats: RunStats, aliases: Mapping[str, str] | None = None) -> None:
    """Give the metrics their canonical names; of several that have the same one, the longest series counts."""
    metrics: dict[str, Series] = {}
    for name, series in sorted(stats.metrics.items(), key=lambda item: -len(item[1].values)):
        ours = canonical(name, aliases)
        if ours == "" or ours in metrics:
            continue
        if ours is None:
            stats.unknown.append(name)
        elif ours != name:
            stats.names[name] = ours
        metrics[ours or name] = series
    stats.metrics = {name: metrics[name] for name in sorted(metrics)}
    stats.losses = max((x.count for n, x in stats.metrics.items() if n.startswith("loss")), default=0)
    stats.unknown.sort()
    if stats.names:
        stats.remarks.append(
            Said("remark/names", names=", ".join(f"{theirs} = {ours}" for theirs, ours in stats.names.items()))
        )
    if stats.unknown:
        stats.remarks.append(Said("remark/unknown", names=", ".join(stats.unknown)))


def _folder(path: Path) -> RunStats:
    found = {name: path / name for name in STAGES if _logs(path / name)}
    if not found:
        if not _logs(path) and (file := _foreign_log(path)) is not None:
            if file == path:
                return _event_folders(path)
            return _mlflow(file) if file.is_dir() else _file(file)
        return _log_folder(path)
    stages = {name: _log_folder(place) for name, place in found.items()}
    main = next(iter(stages))
    stats = stages.pop(main)
    if stages:
        stats.stages = stages
        stats.remarks.insert(0, Said("remark/stages", stages=", ".join(found), stage=main))
    stats.verdicts += _verdicts(path, stats)
    return stats


def _event_folders(path: Path) -> RunStats:
    """Event files in several folders, such as train and val, whose names go before those of the metrics."""
    stats = RunStats(source=str(path))
    for file in sorted(path.rglob("*tfevents*")):
        part = _events(file)
        stats.lines += part.lines
        stats.texts |= part.texts
        stats.metrics |= {f"{file.parent.name}/{name}": series for name, series in part.metrics.items()}
    return stats


def _foreign_log(path: Path) -> Path | None:
    """Return the log that another trainer left somewhere in a folder: the newest of the first kind that is there."""
    kinds = (
        "trainer_state.json",
        "metrics.csv",
        "*.tfevents.*",
        "*.jsonl",
        "*.csv",
        "*.tsv",
        "*.log",
        "*.out",
        "*.txt",
    )
    for kind in kinds:
        if found := sorted(path.rglob(kind), key=lambda p: p.stat().st_mtime):
            return found[-1] if "tfevents" not in kind or len(found) == 1 else path
    folders = [p for p in [path, *path.rglob("metrics")] if p.name == "metrics" and p.is_dir()]
    return next((p for p in folders if any(p.iterdir())), None)


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
    if path.suffix.lower() in (".csv", ".tsv"):
        return _csv(path)
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if path.suffix.lower() == ".json" and not head.lstrip().split(b"\n")[0].rstrip().endswith(b"}"):
        return _json(path)
    lines = [line for line in head.split(b"\n") if line.strip()]
    jsonish = sum(line.lstrip().startswith(b'{"') or line.strip() == b"{}" for line in lines)
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


def _json(path: Path) -> RunStats:
    """HF's ``trainer_state.json``, or a list of objects with metrics."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if isinstance(data, dict):
        data = next(
            (data[key] for key in ("log_history", "history", "metrics", "logs") if isinstance(data.get(key), list)),
            [data],
        )
    rows = [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []
    return _of_rows(path.name, ((_step_of(row), None, _plain(row)) for row in rows))


def _step_of(row: dict) -> int | None:
    step = next((row[name] for name in STEPS if isinstance(row.get(name), (int, float))), None)
    return None if step is None else int(step)


def _plain(row: dict) -> dict[str, float | None]:
    numbers = (int, float, type(None))
    return {k: v for k, v in row.items() if isinstance(v, numbers) and not isinstance(v, bool) and k not in STEPS}


def _mlflow(folder: Path) -> RunStats:
    """MLflow's folder ``metrics``: a file for each metric, with lines ``timestamp value step``."""
    kept = Gathered()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        rows = [line.split() for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
        rows = [row for row in rows if len(row) == 3]
        if rows:
            name, kept.lines = file.relative_to(folder).as_posix(), kept.lines + len(rows)
            kept.add(name, np.array([int(row[2]) for row in rows]), np.array([float(row[1]) for row in rows]))
    return kept.stats(folder.name)


def _of_rows(name: str, rows: Iterable[tuple[int | None, int | None, dict[str, float | None]]]) -> RunStats:
    """Gather (step, rank, metrics): a line without a step belongs to the one before it; ranks are averaged."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    ranks, step, count, numbered = set(), 0, 0, False
    for number, (at, rank, values) in enumerate(rows):
        numbered |= at is not None
        step = at if at is not None else step if numbered else number
        ranks.add(rank)
        count += 1
        for key, value in values.items():
            steps, series = found.setdefault(key, ([], []))
            steps.append(step)
            series.append(np.nan if value is None else value)
    kept = Gathered()
    kept.lines = count
    for key, (steps, values) in found.items():
        at, x = np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)
        if len(ranks) > 1:
            at, inverse = np.unique(at, return_inverse=True)
            x = np.bincount(inverse, x) / np.bincount(inverse)
        kept.add(key, at, x)
    stats = kept.stats(name)
    if len(ranks) > 1:
        stats.remarks.append(Said("remark/ranks", file=name, count=len(ranks)))
    if found and not numbered:
        stats.remarks.append(Said("remark/no_steps", file=name))
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
    """Read a table with a header: any with a column of steps, W&B's exports, TensorBoard's (Wall time, Step, Value)."""
    import polars as pl

    with path.open("rb") as file:
        head = file.readline()
    separator = max((",", "\t", ";"), key=lambda c: head.count(c.encode()))
    options = {"infer_schema_length": None, "truncate_ragged_lines": True, "ignore_errors": True}
    frame = pl.scan_csv(path, separator=separator, **options).collect()
    # W&B's charts: "run - metric", with the smallest and largest of each bin beside it
    frame = frame.select([c for c in frame.columns if not c.endswith(("__MIN", "__MAX"))])
    short = {c: c.rpartition(" - ")[2].strip() for c in frame.columns if " - " in c}
    first = {name: c for c, name in reversed(short.items())}  # of several runs, the first
    frame = frame.select([c for c in frame.columns if c not in short or first[short[c]] == c])
    frame = frame.rename({c: name for c, name in short.items() if c in frame.columns})
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
        found = _STEP.search(line) or _STEP_PAIRS.search(line)
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
    others = (x for x in lines if not _STEP.search(x) and not _PROBE.search(x) and not _STEP_PAIRS.search(x))
    others = list(others)
    metrics = _of_rows(path.name, [*printed.rows(others), *printed.tables(others)])
    stats.metrics, stats.remarks = metrics.metrics, metrics.remarks
    stated, stats.constants = statements(text, Series.of)
    stats.metrics |= {name: series for name, series in stated.items() if name not in stats.metrics}
    if (reason := printed.stop_reason(lines)) is not None:
        stats.texts["stop/reason"] = reason
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
