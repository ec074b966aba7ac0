"""Logs with a structure: JSON lines, JSON documents, CSV, TensorBoard event files, MLflow's metric files."""

import io
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fmpipe.bounded_yaml import load_documents
from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.read.content import LINE, check_lines, open_lines, text_of
from fmpipe.diagnose.read.names import EPOCHS, STEPS, canonical
from fmpipe.diagnose.read.series import Row, SeriesBuilder, figures_of, flat_numbers, is_plain, number, whole
from fmpipe.diagnose.read.text import read_text
from fmpipe.diagnose.texts import Message
from fmpipe.untrusted import check_depth

BLOCK = 16 << 20  # bytes parsed at a time: what a log needs of memory is this, some times over, and its numbers
ELEMENTS = 1 << 16  # of a tensor in an event file; only scalars and texts are read
_BARE = re.compile(rb"([:\[,]\s*)(NaN|-?Infinity)(?=\s*[,\]}])")
_LONG = {  # columns of a table with one metric per row
    "name": ("metricname", "metric_name", "metric", "name", "tag", "key", "series", "variant", "quantity", "variable"),
    "value": ("metricvalue", "metric_value", "value", "y", "val"),
}
MLFLOW = re.compile(rb"\d{12,14} (?:[-+]?[\d.]+(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?))(?: -?\d+)?(?:\s|$)", re.I)
_POINTS = (("x", "y"), ("steps", "values"), ("step", "value"), ("iterations", "values"), ("epochs", "values"))


def json_lines(path: Path) -> Figures:
    import polars as pl

    kept, torn, last_torn, numbered = SeriesBuilder(), 0, False, True
    for block, is_last in _blocks(path):
        check_lines(block)
        if b"NaN" in block or b"Infinity" in block:  # bare, as json.dumps writes them, they are not JSON
            block = _BARE.sub(rb'\1"\2"', block)
        if b"null" in block:
            kept.nulls += block.count(b": null") + block.count(b":null")
        try:
            frame = pl.scan_ndjson(io.BytesIO(block), infer_schema_length=None).collect()
        except pl.exceptions.PolarsError:
            block, bad, at_end = _whole_lines(block)
            torn, last_torn = torn + bad, is_last and at_end
            if not block:
                continue
            try:
                frame = pl.scan_ndjson(io.BytesIO(block), infer_schema_length=None).collect()
            except pl.exceptions.PolarsError:  # one name with values of several types
                _mixed(block, kept)
                continue
        numbered &= kept.add_frame(frame)
    out = kept.figures(path.name)
    if torn:
        last = Message("remark/torn_last") if last_torn else ""
        out.remarks.append(Message("remark/torn", count=torn, file=path.name, last=last))
    if not numbered:
        out.remarks.append(Message("remark/no_steps", file=path.name))
    return out


def _mixed(block: bytes, kept: SeriesBuilder) -> None:
    """Add the lines of a block in which a name has values of several types."""
    for line in block.split(b"\n"):
        if line.strip():
            found = json.loads(line)
            row = flat_numbers(found)
            step = _step_of(row)
            at = kept.counter(np.array([kept.lines if step is None else step]))
            kept.lines += 1
            _texts(found, "", kept.texts)
            for name, x in row.items():
                if x is not None:
                    kept.add(name, at, [x])


def _blocks(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Yield whole lines, some megabytes at a time, and whether they are the last."""
    with open_lines(path) as file:
        rest = b""
        while True:
            data = file.read(BLOCK)
            rest, is_last = rest + data if rest else data, len(data) < BLOCK
            cut = len(rest) if is_last else rest.rfind(b"\n") + 1
            block, rest = rest[:cut], rest[cut:]
            if len(rest) > LINE:
                raise ValueError(f"{path} has a line of more than {LINE:,} bytes, so these are not JSON lines")
            if block and not block.isspace():
                yield block, is_last
            if is_last:
                return


def _whole_lines(block: bytes) -> tuple[bytes, int, bool]:
    """Return the JSON objects of a block, how many other lines it had, and whether its last line was one of these."""
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


def json_document(path: Path) -> Figures:
    """Read HF's ``trainer_state.json``, a list of objects, columns, or a tree of series (``x`` and ``y``)."""
    try:
        check_depth(text := text_of(path))
        data = _documents(text)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if isinstance(data, dict) and "cells" in data and "nbformat" in data:  # a notebook
        cells = (out for cell in data["cells"] for out in cell.get("outputs", ()))
        return read_text("\n".join("".join(out.get("text", ())) for out in cells), path.name)
    rows, texts = list(_walk(data, _metric_of(path) if isinstance(data, list) else "")), {}
    _texts(data, "", texts)
    out = figures_of(
        path.name, sorted(rows, key=lambda row: row.step or 0) if all(len(r.values) < 2 for r in rows) else rows
    )
    out.texts |= texts
    return out


def _documents(text: str) -> object:
    """Return the JSON document of a text, or the list of several that follow each other."""
    decoder, space = json.JSONDecoder(), re.compile(r"[\s,\ufeff]*")
    found, at = [], space.match(text).end()
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        found.append(value)
        at = space.match(text, at).end()
    if not found:
        raise ValueError("it is empty")
    return found[0] if len(found) == 1 else found


def _metric_of(path: Path) -> str:
    """Return the metric in the name of a file that TensorBoard downloads: ``run-NAME-tag-train_loss.json``."""
    return re.split(r"[-_]tag[-_]", path.stem)[-1].removeprefix("run-")


def yaml_stream(text: str, name: str) -> Figures | None:
    """Read YAML documents, one per step; None if it is not YAML."""
    import yaml

    try:
        loaded = [x for x in load_documents(text) if isinstance(x, dict)]
    except yaml.YAMLError:
        return None
    rows = [flat_numbers(x) for x in loaded]
    return figures_of(name, [Row(_step_of(row), None, row) for row in rows]) if len(rows) > 1 else None


def _walk(node: object, path: str) -> Iterator[Row]:
    """Yield the rows of a JSON tree."""
    if isinstance(node, dict):
        for x, y in _POINTS:
            if isinstance(node.get(x), list) and isinstance(node.get(y), list) and len(node[x]) == len(node[y]):
                for at, value in zip(node[x], node[y]):
                    yield Row(whole(number(at)), None, {path.strip("/"): number(value)})
                return
        columns = {k: v for k, v in node.items() if isinstance(v, list) and v and all(is_plain(x) for x in v)}
        sizes = {len(v) for v in columns.values()}
        if len(columns) > 1 and len(sizes) == 1 and sizes.pop() > 3:
            for row in zip(*columns.values()):
                row = flat_numbers(dict(zip(columns, row)))
                yield Row(_step_of(row), None, row)
            return
        if any(isinstance(v, (dict, list)) for v in node.values()):
            for key, value in node.items():
                if isinstance(value, (dict, list)):
                    yield from _walk(value, f"{path}/{key}" if not isinstance(value, list) or path else key)
            return
        row = flat_numbers(node)
        if row:
            yield Row(_step_of(row), None, row)
    elif isinstance(node, list):
        if node and all(isinstance(x, list) and len(x) in (2, 3) and all(is_plain(y) for y in x) for x in node):
            for *_, at, value in node:  # [step, value], or TensorBoard's [wall time, step, value]
                yield Row(whole(number(at)), None, {path.strip("/"): number(value)})
            return
        for item in node:
            if isinstance(item, dict) and (pair := _named(item)):
                yield Row(_step_of(flat_numbers(item)), None, pair)
            elif isinstance(item, dict):
                row = flat_numbers(item)
                if row:
                    yield Row(_step_of(row), None, row)


def _named(item: dict) -> dict[str, float] | None:
    """Return the metric of an object that has its name and its value, as Comet exports them."""
    lower = {key.lower(): value for key, value in item.items()}
    name, value = (next((lower[n] for n in _LONG[k] if n in lower), None) for k in ("name", "value"))
    try:
        return {name: float(value)} if isinstance(name, str) and value is not None else None
    except (TypeError, ValueError):
        return None


def _texts(node: object, path: str, out: dict[str, str]) -> None:
    for key, value in node.items() if isinstance(node, dict) else ():
        if isinstance(value, str):
            out[f"{path}{key}"] = value
        else:
            _texts(value, f"{path}{key}/", out)


def _step_of(row: dict) -> int | None:
    """Take the step out of a row."""
    found = next((k for name in (*STEPS, *EPOCHS) for k in row if k.lower() in (name, f"progress/{name}")), None)
    step = row.pop(found) if found is not None else None
    return whole(step)


def csv(path: Path) -> Figures:
    """Read a table with a header: any with a column of steps, W&B's exports, TensorBoard's, one metric per row."""
    import polars as pl

    lines = text_of(path).splitlines()
    kept = [k for k, line in enumerate(lines[:50]) if line.strip() and not line.startswith("#")]
    commented = any(line.startswith("#") for line in lines[:200])
    head = lines[kept[0]] if kept else ""
    separator = max((",", "\t", ";"), key=head.count)
    text = "\n".join(line for line in lines if not line.startswith("#")) if commented else "\n".join(lines)
    if separator != "," and re.search(r"\d,\d", lines[kept[1]] if len(kept) > 1 else ""):
        text = re.sub(r"(?<=\d),(?=\d)", ".", text)  # decimal commas
    if len(kept) > 2 and _is_units(lines[kept[1]].split(separator)):
        text = text.replace(lines[kept[1]] + "\n", "", 1)
    options = {"infer_schema_length": None, "truncate_ragged_lines": True, "ignore_errors": True}
    try:
        frame = pl.read_csv(io.BytesIO(text.encode()), separator=separator, **options)
    except pl.exceptions.PolarsError:  # not a table after all
        return read_text(text, path.name)
    frame = _renamed(frame, {c: c.strip().lstrip("#\ufeff").strip() or c for c in frame.columns})
    # W&B's charts: "run - metric", with columns for the smallest and largest value of each bin
    frame = frame.select([c for c in frame.columns if not c.endswith(("__MIN", "__MAX"))])
    short = {c: c.rpartition(" - ")[2].strip() for c in frame.columns if " - " in c}
    first = {name: c for c, name in reversed(short.items())}  # of several runs, the first
    frame = frame.select([c for c in frame.columns if c not in short or first[short[c]] == c])
    frame = _renamed(frame, {c: name for c, name in short.items() if c in frame.columns})
    lower = {c.lower(): c for c in frame.columns}
    name, value = (next((lower[n] for n in _LONG[k] if n in lower), None) for k in ("name", "value"))
    if (
        name
        and value
        and frame[name].dtype == pl.String
        and (step := next((lower[s] for s in STEPS if s in lower), None))
    ):
        return _long(path.name, frame, name, value, step)
    if "Value" in frame.columns:
        frame = frame.rename({"Value": _metric_of(path)})
    if (
        not any(s in lower for s in (*STEPS, *EPOCHS) if s not in ("steps", "i")) and len(frame) < 4000
    ):  # a study, not a run
        rows = ("\t".join("-" if x is None else str(x) for x in row) for row in (frame.columns, *frame.rows()))
        comments = (line.strip("# ") for line in lines[:200] if line.startswith("#"))
        study = read_text("\n".join((f"# {path.stem}:", *comments, *rows)), path.name)
        known = {canonical(c) for c in frame.columns} - {None, ""}
        if not known and not (study.measured or study.traces):
            study = read_text("\n".join(lines), path.name)  # not a table, or one with a title
        if study.measured or study.traces or {canonical(n) for n in study.metrics} - {None, ""} - known:
            return study
    kept = SeriesBuilder()
    numbered = kept.add_frame(frame)
    out = kept.figures(path.name)
    if not numbered:
        out.remarks.append(Message("remark/no_steps", file=path.name))
    return out


def _renamed(frame, names: dict[str, str]):
    """Rename columns; of several that get the same name, the first is kept."""
    new = {c: names.get(c, c) for c in frame.columns}
    first = {name: c for c, name in reversed(new.items())}
    kept = [c for c in frame.columns if first[new[c]] == c]
    return frame.select(kept).rename({c: new[c] for c in kept})


def _is_units(cells: list[str]) -> bool:
    """Tell whether a row below a header has units instead of numbers."""
    return bool(cells) and not any(
        re.fullmatch(r"\s*[-+]?[\d.]+(?:[eE][-+]?\d+)?\s*|\s*nan\s*", c, re.I) for c in cells
    )


def _long(file: str, frame, name: str, value: str, step: str) -> Figures:
    """Read a table with one metric per row."""
    import polars as pl

    kept, numbers = SeriesBuilder(), pl.col(step, value).cast(pl.Float64, strict=False)
    kept.lines = len(frame)
    rows = frame.select(pl.col(name), numbers).drop_nulls([name, step])
    for (key,), part in rows.group_by(name, maintain_order=True):
        kept.add(key, part[step].cast(pl.Int64, strict=False).fill_null(0), part[value].fill_null(np.nan))
    return kept.figures(file)


def events(path: Path) -> Figures:
    """Read scalars and texts of a TensorBoard event file. ImportError, with the command, without tensorboard."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise ImportError(f"{path.name} is a TensorBoard file: pip install tensorboard ({error})") from None
    kept, points = SeriesBuilder(), defaultdict(list)
    try:
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if math.prod(side.size for side in value.tensor.tensor_shape.dim) > ELEMENTS:
                    continue
                kept.lines += 1
                kept.times.append(event.wall_time)
                array = tensor_util.make_ndarray(value.tensor)
                if array.dtype.kind in "fiu" and array.size == 1:
                    points[value.tag].append((event.step, float(array.reshape(-1)[0])))
                elif array.dtype == object and array.size:
                    text = array.reshape(-1)[0].decode("utf-8", "replace")
                    kept.texts[value.tag.removesuffix("/text_summary")] = text
    except Exception as error:  # tensorboard and protobuf raise many types for damaged files
        raise ValueError(f"{path} cannot be read as an event file: {error or type(error).__name__}") from error
    for name, found in points.items():
        stem, _, index = name.rpartition("/")
        if name.startswith("const/") and index.isdigit():
            kept.constants.setdefault(stem, []).append(found[-1][1])
        else:
            kept.add(name, *zip(*found))
    return kept.figures(path.name)


def event_folders(path: Path) -> Figures:
    """Read event files in several folders, such as train and val, whose names become prefixes of the metrics."""
    kept = SeriesBuilder()
    for file in sorted(path.rglob("*tfevents*")):
        kept.join(events(file), f"{file.parent.name}/")
    return kept.figures(path.name)


def is_mlflow(folder: Path) -> bool:
    """Tell whether a folder has MLflow's metric files and nothing else."""
    files = [p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")]
    return bool(files) and all(MLFLOW.match(p.read_bytes()[:200]) for p in files[:20])


def mlflow(path: Path) -> Figures:
    """Read MLflow's folder ``metrics``: a file for each metric, with lines ``timestamp value step``; or one file."""
    kept = SeriesBuilder()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        rows = [line.split() for line in text_of(file).splitlines()]
        rows = [(at, row) for at, row in enumerate(rows) if len(row) in (2, 3) and MLFLOW.match(" ".join(row).encode())]
        if rows:
            name = file.relative_to(path).as_posix() if file != path else file.name
            kept.lines += len(rows)
            steps = [int(row[2]) if len(row) == 3 else at for at, row in rows]  # old versions write no step
            kept.add(name, steps, [float(row[1]) for _, row in rows])
    return kept.figures(path.name)
