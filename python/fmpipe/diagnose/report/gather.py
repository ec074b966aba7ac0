"""Series from tables of lines, block by block: what is a number, a text, a list; which steps figures share."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fmpipe.diagnose.read.names import STEPS
from fmpipe.diagnose.report.said import Said
from fmpipe.diagnose.report.stats import RunStats, SamplingTrace, Series

if TYPE_CHECKING:
    import polars as pl

_WORDS = ("NaN", "Infinity", "-Infinity", "nan", "inf", "-inf")
_TRACE = ("mean_abs_x", "mean_abs_v", "dt")  # of fmkernels.flow.Trace, and what stands beside them
_BESIDE = ("sample", "t", "rms_dx", "nonfinite")


class Gathered:
    """Parts of series; steps that figures of one line share are kept once."""

    def __init__(self):
        self.parts: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
        self.texts: dict[str, str] = {}
        self.constants: dict[str, list[float]] = {}
        self.lines = self.words = 0
        self.times: list[float] = []

    def add(self, name: str, steps: np.ndarray, values: np.ndarray) -> None:
        if len(values):
            kept = self.parts.setdefault(name, ([], []))
            kept[0].append(steps)
            kept[1].append(values)

    def stats(self, name: str) -> RunStats:
        """In the order of steps; where steps go back, as in a resumed run, the last value of a step counts."""
        out, shared = RunStats(lines=self.lines, texts=self.texts, constants=self.constants), {}
        if self.parts.keys() >= set(_TRACE):
            out.traces.append(self._trace(name))
        for key, (steps, values) in self.parts.items():
            ids = tuple(map(id, steps))
            if ids not in shared:
                shared[ids] = _ordered(np.concatenate(steps))
            at, order = shared[ids][:2]
            x = np.concatenate(values)
            out.metrics[key] = Series(at, x if order is None else x[order])
        out.losses = max((x.count for n, x in out.metrics.items() if n.startswith("loss")), default=0)
        out.seconds = max(self.times) - min(self.times) if self.times else None
        back, twice = (max((s[k] for s in shared.values()), default=0) for k in (2, 3))
        if back:
            out.remarks.append(Said("remark/order", file=name, count=back))
        if twice:
            out.remarks.append(Said("remark/twice", count=twice))
        if self.words:
            out.remarks.append(Said("remark/words", file=name, count=self.words))
        if typed := sorted(self.texts.keys() & self.parts.keys()):
            out.remarks.append(Said("remark/typed", names=", ".join(typed)))
        if len(shared) > 1:
            out.remarks.append(Said("remark/mixed", file=name, count=len(shared)))
        return out

    def _trace(self, name: str) -> SamplingTrace:
        """What Trace.to_jsonl and to_csv write, a mean over its samples."""
        taken = {key: [np.concatenate(p) for p in self.parts.pop(key)] for key in _TRACE}
        for key in _BESIDE:
            self.parts.pop(key, None)
        steps = np.unique(taken["dt"][0])
        means = ([values[at == k].mean() for k in steps] for at, values in taken.values())
        return SamplingTrace(*means, label=name, dtype=self.texts.pop("dtype", ""))


def _ordered(steps: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, int, int]:
    """Steps in order, the index that puts them there (None: as they are), how often they go back, how many fall out."""
    back = int((np.diff(steps) < 0).sum())
    if not back:
        return steps, None, 0, 0
    order = np.argsort(steps, kind="stable")
    last = np.append(np.diff(steps[order]) != 0, True)
    return steps[order[last]], order[last], back, int((~last).sum())


def take(frame: "pl.DataFrame", kept: Gathered) -> bool:
    """A frame's columns into series; whether it had steps."""
    import polars as pl

    columns = [part for whole in frame for part in _flat(whole)]
    named = standard_names([column.name for column in columns])
    columns = [column.alias(named.get(column.name, column.name)) for column in columns]
    counted = next((column for column in columns if column.name == "step"), None)
    numbered = counted is not None
    if numbered:
        steps = counted.cast(pl.Float64, strict=False).fill_null(strategy="forward").fill_null(0)
        steps = steps.to_numpy().astype(np.int64)
    else:
        steps = np.arange(kept.lines, kept.lines + len(frame))
    kept.lines += len(frame)
    shared: dict[bytes, np.ndarray] = {}
    for column in columns:
        numbers = _numbers(column, kept) if column.name != "step" else None
        if numbers is None:
            continue
        mask = numbers.is_not_null().to_numpy()
        values = numbers.drop_nulls().to_numpy()
        if column.name in ("time", "wall_time"):
            kept.times += [float(values.min()), float(values.max())] if len(values) else []
            continue
        kept.add(column.name, shared.setdefault(mask.tobytes(), steps[mask]), values)
    return numbered


def standard_names(names: list[str]) -> dict[str, str]:
    """Return which of the names is the steps' (``step``) and which the times' (``time``), where they differ."""
    plain = {name.strip().lower().replace(" ", "_"): name for name in reversed(names)}
    changes = {}
    for new, known in (("step", STEPS), ("time", ("time", "wall_time", "_timestamp", "timestamp"))):
        found = next((plain[name] for name in known if name in plain), None)
        if found is not None and found != new and new not in names:
            changes[found] = new
    return changes


def _flat(column: "pl.Series") -> Iterator["pl.Series"]:
    """A column, or those of an object's fields: ``{"loss": {"flow": 1}}`` is loss/flow."""
    import polars as pl

    if not isinstance(column.dtype, pl.Struct):
        yield column
        return
    names = set(column.struct.fields)
    if names >= {"mean", "std"} and names <= {"num", "mean", "std", "min", "max", "count"}:  # of many samples
        yield column.struct.field("mean").alias(column.name)
        return
    for field in column.struct.fields:
        yield from _flat(column.struct.field(field).alias(f"{column.name}/{field}"))


def _numbers(column: "pl.Series", kept: Gathered) -> "pl.Series | None":
    """A column's numbers, null where there is none; its texts and lists go to ``kept``. None if it has no number."""
    import polars as pl

    if isinstance(column.dtype, pl.List):
        _constant(kept, column.name, column.drop_nulls()[0])
        return None
    numbers = column.cast(pl.Float64, strict=False)
    if column.dtype == pl.String:
        words = column.filter(numbers.is_null() & column.is_not_null())
        if len(words) and words[0].startswith("["):
            _constant(kept, column.name, json.loads(words[0]))
        elif len(words):
            kept.texts[column.name] = words[-1]
        kept.words += int(column.is_in(_WORDS).sum())
    return numbers if numbers.count() else None


def _constant(kept: Gathered, name: str, values: object) -> None:
    """The first list of a name, if it is of numbers."""
    values = list(values) if hasattr(values, "__iter__") and not isinstance(values, (dict, str)) else []
    if values and all(isinstance(x, (int, float)) for x in values):
        kept.constants.setdefault(name, [float(x) for x in values])
