"""Read a run's folder or a log of any format into :class:`~fmpipe.diagnose.figures.Figures`.

Metrics get their canonical names (:mod:`.names`); whatever is odd about the log becomes a remark.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fmpipe.bounded_yaml import BYTES, BoundedLoader
from fmpipe.diagnose.figures import Figures, Series
from fmpipe.diagnose.read import tables
from fmpipe.diagnose.read.content import head_of, text_of
from fmpipe.diagnose.read.facts import FACTS, facts_of
from fmpipe.diagnose.read.lines import SIDES
from fmpipe.diagnose.read.names import canonical
from fmpipe.diagnose.read.series import SeriesBuilder
from fmpipe.diagnose.read.text import read_text
from fmpipe.diagnose.texts import Message
from fmpipe.run_log import LOG_NAME
from fmpipe.untrusted import read_bytes, read_json

STAGES = ("flow", "diffusion", "head", "vae")  # the main one first
_POSTERIOR = {"stat/x_0/std": "std/mean", "stat/z/mean": "z_init/mean", "stat/z/var": "z_init/var"}
KINDS = ("trainer_state.json", "metrics.csv", "progress.csv", "*.tfevents.*", "*.jsonl", "*.csv", "*.tsv")
KINDS += ("scalars.json", "*.log", "*.out", "*.txt", "*.json", "*.md", "*")


class UnknownLogError(ValueError):
    """A log in which nothing is recognized."""


def read(path: str | Path, aliases: Mapping[str, str] | None = None) -> Figures:
    """Read a run's folder (its log, rotated or not; stages; config.yaml; check.json; traces), or one file.

    aliases: names of the log -> canonical names, in addition to the table. FileNotFoundError if there is no such file
    or folder, UnknownLogError if nothing in it is recognized.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no such run or log: {path}")
    is_run_log = path.is_file() and path.name == LOG_NAME  # the folder also has its rotated parts and config.yaml
    if path.is_file() and not is_run_log:
        out = _file(path, aliases)
    else:
        out = _log_folder(path.parent) if is_run_log else _folder(path)
    for part in out.all_stages.values():
        rename(part, aliases)
    if path.is_file() and len(out.unknown) == len(out.metrics) == 1 and not out.traces and _is_curve(path):
        (name,) = out.unknown
        out.metrics, out.unknown = {"loss/total": out.metrics[name]}, []
        out.remarks = [r for r in out.remarks if r.key != "remark/unknown"] + [Message("remark/loss", name=name)]
    known = any(canonical(name) and not name.startswith(("w/", "epoch", "run/")) for name in out.metrics)
    known = known or out.traces or out.measured or out.stages
    if not (known or any(name.startswith("const/") for name in out.constants)):
        names = f"; its names are {', '.join(out.unknown[:8])}: map them with --alias theirs=ours" * bool(out.unknown)
        raise UnknownLogError(
            f"{path}: no metric found that is recognized{names}. Formats: JSON lines, CSV, TensorBoard, "
            f"trainer_state.json, MLflow, and printed lines such as 'step 100 loss_flow: 0.5' or "
            f"'step0: |x|=0.7889, |v|=0.4671, dt=0.0804'"
        )
    for part in out.all_stages.values():
        part.facts |= {name: part.texts[f"run/{name}"] for name in FACTS if f"run/{name}" in part.texts}
    out.source = str(path)
    return out


def rename(figures: Figures, aliases: Mapping[str, str] | None = None) -> None:
    """Give the metrics their canonical names; of several that have the same one, the longest series counts."""
    metrics: dict[str, Series] = {}
    known = [canonical(name) or "" for name in figures.metrics]
    sides = {name: match for name in figures.metrics if (match := SIDES.fullmatch(name))}
    sides = sides if len({bool(match[1]) for match in sides.values()}) > 1 else {}  # train and val: losses
    heads = {
        name.rpartition("/")[0] for name in figures.metrics if (canonical(name) or "").startswith(("mu/", "logvar/"))
    }
    posterior = any(name.startswith(("mu/", "logvar/", "z_init/", "loss/kl")) for name in known)
    for name, series in sorted(figures.metrics.items(), key=lambda item: -len(item[1].finite)):
        ours = canonical(f"{name}_loss" if name in sides and name not in (aliases or ()) else name, aliases)
        if name.lower().startswith("sigma") and not posterior and not aliases:  # that of a noise schedule
            ours = None
        if name.rpartition("/")[0] in heads - {""}:  # beside latent/mu_rms, latent/std is that of the posterior
            ours = _POSTERIOR.get(ours, ours)
        if ours == "" or ours in metrics:
            continue
        if ours is None:
            figures.unknown.append(name)
        elif ours != name:
            figures.names[name] = ours
        if "@" in (ours or "") and re.search(r"(?<!r)mse", name.lower()):  # an MSE where an RMSE is meant
            series = Series(series.steps, abs(series.values) ** 0.5)
        if "lg_loss_scale" in name:  # a logarithm
            series = Series(series.steps, 2.0**series.values)
        metrics[ours or name] = series
    _one_axis(metrics)
    for name in [n for n in metrics if n.endswith("/var") and n.startswith("stat/")]:
        std = metrics[name]
        metrics.setdefault(f"{name[:-3]}std", Series(std.steps, abs(std.values) ** 0.5))
    figures.metrics = {name: metrics[name] for name in sorted(metrics)}
    constants = {
        n if n.startswith("const/") else f"const/{n.rpartition('/')[2]}": x for n, x in figures.constants.items()
    }
    figures.constants = {**figures.constants, **constants}
    figures.unknown.sort()
    if figures.names:
        names = ", ".join(f"{theirs} = {ours}" for theirs, ours in figures.names.items())
        figures.remarks.append(Message("remark/names", names=names))
    if figures.unknown:
        figures.remarks.append(Message("remark/unknown", names=figures.unknown))


def _one_axis(metrics: dict[str, Series]) -> None:
    """Stretch held-out series that count epochs or evaluations to the steps of the training."""
    final = max((x.steps[-1] for n, x in metrics.items() if n.startswith(("loss/", "lr")) and len(x.steps)), default=0)
    for name, x in metrics.items():
        counted = len(x.steps) > 3 and (np.diff(x.steps) == 1).mean() > 0.9 and x.steps[-1] < 0.1 * final
        if counted and name.startswith(("val/", "quality/")):
            metrics[name] = Series((x.steps * (final / max(1, x.steps[-1]))).astype(np.int64), x.values)


def _folder(path: Path) -> Figures:
    found = {name: path / name for name in STAGES if _logs(path / name)}
    if not found:
        if files := _downloads(path):
            return _merged([_file(p) for p in files], files)
        if not _logs(path) and (file := _foreign_log(path)) is not None:
            if not file.is_dir():
                return _file(file)
            return tables.mlflow(file) if tables.is_mlflow(file) else tables.event_folders(file)
        return _log_folder(path)
    stages = {name: _log_folder(place) for name, place in found.items()}
    main = next(iter(stages))
    out = stages.pop(main)
    if stages:
        out.stages = stages
        out.remarks.insert(0, Message("remark/stages", stages=list(found), stage=main))
    out.measured |= _measured(path, out)
    return out


def _foreign_log(path: Path) -> Path | None:
    """Return the log that another trainer left somewhere in a folder: the newest of the first kind that is there."""
    folders = [] if path.name == "metrics" else [p for p in path.rglob("metrics") if p.is_dir()]
    if folders := [p for p in folders or [path] if tables.is_mlflow(p)]:  # of many runs, the newest
        outer = [p for p in folders if not any(q in p.parents for q in folders)]
        return max(outer, key=lambda p: max(q.stat().st_mtime for q in p.rglob("*")))
    for kind in KINDS:
        files = (p for p in path.rglob(kind) if p.is_file() and p.stem not in ("check", "report"))
        if found := sorted(files, key=lambda p: p.stat().st_mtime):
            return found[-1] if "tfevents" not in kind or len(found) == 1 else path
    return None


def _is_curve(path: Path) -> bool:
    """Tell whether a file is a TensorBoard download whose name contains neither a tag nor the name of a quality."""
    if re.search(r"[-_]tag[-_]|acc|reward|score|recall|precision|ssim|iou|\br2\b", path.stem, re.IGNORECASE):
        return False
    return _is_single(path.read_bytes()[:200])


def _is_single(head: bytes) -> bool:
    return head.lower().startswith(b"wall time,step,value") or head[:2] == b"[["


def _downloads(path: Path) -> list[Path]:
    """Return the files of a folder that have one metric each, as downloaded from TensorBoard or a chart."""
    files = [p for p in sorted(path.rglob("*")) if p.suffix.lower() in (".csv", ".json") and p.is_file()]
    heads = {p: p.read_bytes()[:200] for p in files if p.stat().st_size < 1 << 24}
    single = [p for p, head in heads.items() if _is_single(head)]
    return single if len(single) > 1 else []


def _logs(path: Path) -> list[Path]:
    """Return the parts of a folder's log, oldest first (log.jsonl.1, log.jsonl); else its event files, or CSV files."""
    rotated = [p for p in path.glob(f"{LOG_NAME}.*") if p.suffix[1:].isdigit()]
    logs = sorted(rotated, key=lambda p: -int(p.suffix[1:])) + [p for p in [path / LOG_NAME] if p.is_file()]
    others = (sorted(path.glob("events.out.tfevents.*")), sorted(path.glob("*.jsonl")), sorted(path.glob("*.csv")))
    return logs or next((files for files in others if files), [])


def _log_folder(path: Path) -> Figures:
    """Read a folder with a log; that of a stage belongs to the run above it."""
    files = _logs(path)
    parts = [_file(p) for p in files]
    if len(files) > 1 and files[-1].suffix in (".csv", ".jsonl") and files[-1].name != LOG_NAME:
        names = [name for part in parts for name in part.metrics]
        for p, part in zip(files, parts, strict=True):  # train.csv and val.csv with the same names
            part.metrics = {
                f"{p.stem}/{name}" if names.count(name) > 1 else name: x for name, x in part.metrics.items()
            }
    out = _merged(parts, files) if files else Figures()
    if len(files) > 1 and files[-1].name == LOG_NAME:
        out.remarks.insert(0, Message("remark/rotated", files=[p.name for p in files]))
    out.stage = path.name if path.name in STAGES else ""
    run = path.parent if out.stage else path
    if (run / "config.yaml").is_file():
        import yaml

        try:
            out.config = dict(yaml.load(read_bytes(run / "config.yaml", BYTES), BoundedLoader))
            out.facts = facts_of(run, out.config)
        except (yaml.YAMLError, OSError, TypeError, ValueError, AttributeError, OverflowError) as error:
            out.remarks.append(Message("remark/skipped", file="config.yaml", why=" ".join(str(error).split())))
    for p in sorted(path.glob("trace*")):
        if p not in files and p.suffix in (".jsonl", ".csv", ".txt"):
            out.traces += _file(p).traces
    out.measured |= _measured(path, out)
    return out


def _measured(path: Path, figures: Figures) -> dict[str, dict]:
    """Return what ``fmpipe check`` measured and wrote into a run's folder, or into its folder ``check``."""
    for place in (path / "check.json", path / "check" / "check.json"):
        if place.is_file():
            try:
                measured = dict(_floats(read_json(place)["measured"]))
                return {name: dict(x) for name, x in measured.items() if "not_measured" not in x}
            except (OSError, TypeError, ValueError, KeyError) as error:
                figures.remarks.append(
                    Message("remark/skipped", file=place.name, why=str(error) or type(error).__name__)
                )
    return {}


def _floats(value: object) -> object:
    """Return numbers for the words that JSON writes in the place of what is not finite."""
    if isinstance(value, dict):
        return {name: _floats(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_floats(part) for part in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def _file(path: Path, aliases: Mapping[str, str] | None = None) -> Figures:
    head = head_of(path)
    if "tfevents" in path.name:
        return tables.events(path)
    if path.suffix.lower() in (".csv", ".tsv"):
        return tables.csv(path)
    if tables.MLFLOW.match(head):
        return tables.mlflow(path)
    lines = [line for line in head.split(b"\n") if line.strip()]
    jsonish = sum(line.lstrip().startswith((b'{"', b"{'")) or line.strip() == b"{}" for line in lines)
    if b"\0" in head.rstrip(b"\0")[:1024] or (head and not head.strip(b"\0")):
        raise UnknownLogError(f"{path} is not a text file")
    if path.suffix.lower() != ".jsonl" and head.lstrip()[:1] in (b"{", b"[") and (len(lines) == 1 or jsonish < 2):
        try:
            return tables.json_document(path)
        except ValueError:
            if path.suffix.lower() == ".json":
                raise
    if (
        path.suffix == ".jsonl"
        or ".jsonl." in path.name
        or (jsonish * 2 > len(lines) and lines[0].lstrip()[:2] == b'{"')
    ):
        return tables.json_lines(path)
    text = text_of(path)
    if text.startswith("---\n") or path.suffix.lower() in (".yaml", ".yml"):
        found = tables.yaml_stream(text, path.name)
        if found is not None:
            return found
    return read_text(text, path.name, aliases)


def _merged(parts: list[Figures], files: list[Path]) -> Figures:
    """Join the parts of one log, oldest first."""
    if len(parts) == 1:
        return parts[0]
    joined = SeriesBuilder()
    for part in parts:
        joined.join(part)
    out = joined.figures(files[-1].name)
    out.traces = [trace for part in parts for trace in part.traces]
    out.seconds = sum(part.seconds or 0.0 for part in parts) or None
    out.remarks = [r for part in parts for r in part.remarks] + out.remarks
    return out
