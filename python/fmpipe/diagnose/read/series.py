"""Builds series from rows, tables and other series: numbers, texts and lists; shared steps; restarted counters."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fmpipe.diagnose.figures import Figures, SamplingTrace, Series
from fmpipe.diagnose.read.content import COLUMNS
from fmpipe.diagnose.read.names import EPOCHS, STEPS
from fmpipe.diagnose.texts import Message

if TYPE_CHECKING:
    import polars as pl

WORDS = ("NaN", "Infinity", "-Infinity", "nan", "inf", "-inf")
TIMES = ("time", "wall_time", "_timestamp", "timestamp", "_wall_time", "walltime")
_TRACE = ("mean_abs_x", "mean_abs_v", "dt")  # columns of fmkernels.flow.Trace
_BESIDE = ("sample", "t", "rms_dx", "nonfinite")
_RESTART = 0.02  # of the steps so far: a counter that goes back to within this of its beginning has started again
_RUN = 10  # rows that a counter must have run before
STOPPED = re.compile(
    r"\balarm|\babort|stopp(?:ed|ing)\b|terminat|halt(?:ed|ing)\b|giving up|watchdog|assertionerror|runtimeerror"
    r"|^\s*\w*(?:error|exception)\b:|\bkilled\b|exiting run|diverg\w+ threshold|紧急|停止|中止|终止",
    re.IGNORECASE,
)


CONSTANTS = re.compile(r"const/|betas|alphas|sigmas|config|range|shape|bins|edges", re.IGNORECASE)
SLICES = 10  # of t


def sliced(name: str) -> str:
    """Return the name of a metric without the words that mark a list over slices of t."""
    return re.sub(r"(?i)[_/]?(?:by|per)[_/]?(?:t|bin|slice|bucket)s?$|[_/](?:t|s|t_bins|bins|slices)$", "", name)


def whole(x: float | None) -> int | None:
    """Return a step as an integer; None if it is not a number that can be one."""
    return int(x) if x is not None and abs(x) < 1e15 else None


LIMIT = re.compile(
    r"wall.?time|time limit|max_?(?:steps|epochs|iter)|(?<!threshold )reached|completed|finished|preempt"
    r"|keyboardinterrupt|by (?:the )?user|as requested|sig(?:term|int)|scancel|requeue|no improvement|early stopp"
    r"|tensorboard|writer|profiler|logger|wandb|已完成|用户|达到|早停",
    re.IGNORECASE,
)


class Row(NamedTuple):
    """The metrics of one line. step: None if the line has none. rank: of the process, None if the line does not say."""

    step: int | None
    rank: int | None
    values: dict[str, float | None]


class Counter:
    """Joins the parts of a step counter that starts again, end to end."""

    def __init__(self):
        self.first, self.top, self.count, self.offset, self.restarts, self.last = None, None, 0, 0, 0, None

    def __call__(self, steps: np.ndarray) -> np.ndarray:
        if not len(steps):
            return steps
        before = steps[0] if self.last is None else self.last
        back = np.flatnonzero(np.diff(steps, prepend=before) < 0)
        out, begin = steps.copy(), 0
        for at in [*back.tolist(), len(steps)]:
            part = steps[begin:at]
            if len(part):
                self.first = part[0] if self.first is None else self.first
                self.top = max(part.max(), part.max() if self.top is None else self.top)
                self.count += len(part)
                out[begin:at] += self.offset
            if at < len(steps):
                reach = self.top - self.first
                if self.count >= _RUN and reach > 0 and abs(steps[at] - self.first) <= _RESTART * reach:
                    self.offset += int(self.top - steps[at]) + max(1, int(reach // self.count))
                    self.restarts += 1
                    self.count, self.top = 0, steps[at]
            begin = at
        self.last = steps[-1]
        return out


class SeriesBuilder:
    """Parts of series; steps that the metrics of one line share are kept once."""

    def __init__(self):
        self.parts: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
        self.texts: dict[str, str] = {}
        self.constants: dict[str, list[float]] = {}
        self.lines = self.words = self.nulls = 0
        self.times: list[float] = []
        self.counter = Counter()

    def add(self, name: str, steps: Sequence[int], values: Sequence[float]) -> None:
        """Append a part of a series."""
        if len(values):
            if len(self.parts) >= COLUMNS and name not in self.parts:
                raise ValueError(f"there are more than {COLUMNS:,} metrics; this is not the log of one run")
            kept = self.parts.setdefault(name, ([], []))
            kept[0].append(np.asarray(steps, dtype=np.int64))
            kept[1].append(np.asarray(values, dtype=np.float64))

    def join(self, part: Figures, prefix: str = "") -> None:
        """Append what was read from another file, with a prefix for the names of its metrics."""
        self.lines += part.lines
        self.texts |= part.texts
        self.constants = part.constants | self.constants
        for name, series in part.metrics.items():
            self.add(f"{prefix}{name}", series.steps, series.values)

    def add_frame(self, frame: "pl.DataFrame") -> bool:
        """Append the columns of a frame; return whether it has steps."""
        import polars as pl

        columns = sorted((part for column in frame for part in _flat(column)), key=lambda c: c.name)  # polars' varies
        named = standard_names([column.name for column in columns])
        columns = [column.alias(named.get(column.name, column.name)) for column in columns]
        counted = next((column for column in columns if column.name == "step"), None)
        if counted is None:
            steps = np.arange(self.lines, self.lines + len(frame))
        else:
            steps = counted.cast(pl.Float64, strict=False).fill_nan(None).fill_null(strategy="forward").fill_null(0)
            steps = self.counter(steps.to_numpy().astype(np.int64))
        self.lines += len(frame)
        shared: dict[bytes, np.ndarray] = {}
        for column in columns:
            numbers = self._numbers(column) if column.name != "step" else None
            if numbers is None:
                continue
            mask, values = numbers.is_not_null().to_numpy(), numbers.drop_nulls().to_numpy()
            if column.name in TIMES:
                self.times += [float(values.min()), float(values.max())] if len(values) else []
            else:
                self.add(column.name, shared.setdefault(mask.tobytes(), steps[mask]), values)
        return counted is not None

    def _numbers(self, column: "pl.Series") -> "pl.Series | None":
        """Return the numbers of a column, null where there is none; keep its texts and lists. None if it has none."""
        import polars as pl

        if isinstance(column.dtype, pl.List):
            lists = column.drop_nulls()
            if len(lists) > 1 and column.dtype.inner.is_numeric() and not CONSTANTS.search(column.name):
                return column.list.mean()  # one list per step: its slices are columns already, see _flat
            self._constant(column.name, lists[0])
            return None
        numbers = column.cast(pl.Float64, strict=False)
        if column.dtype == pl.String:
            words = column.filter(numbers.is_null() & column.is_not_null())
            if len(words) and words[0].startswith("["):
                try:
                    self._constant(column.name, json.loads(words[0]))
                except ValueError:
                    self.texts[column.name] = words[-1]
            elif len(words):
                alarms = words.filter(words.str.contains(f"(?i){STOPPED.pattern}"))
                self.texts[column.name] = alarms[-1] if len(alarms) else words[-1]
            self.words += int(column.is_in(WORDS).sum())
        return numbers if numbers.count() else None

    def _constant(self, name: str, values: object) -> None:
        """Keep the first list of a name, if it is one of numbers."""
        values = list(values) if hasattr(values, "__iter__") and not isinstance(values, (dict, str)) else []
        if values and all(isinstance(x, (int, float)) for x in values):
            self.constants.setdefault(name, [float(x) for x in values])
        elif values:
            self.texts.setdefault(name, ", ".join(map(str, values)))

    def figures(self, name: str) -> Figures:
        """Return the series in the order of steps; where steps go back, the last value of a step counts."""
        out, shared = Figures(lines=self.lines, texts=self.texts, constants=self.constants), {}
        written = {"sample", "nonfinite"} if "dt" in self.parts else set(_TRACE)
        if self.parts.keys() >= written or self.parts.keys() >= set(_TRACE):
            out.traces.append(self._trace(name))
        for key, (steps, values) in self.parts.items():
            ids = tuple(map(id, steps))
            if ids not in shared:
                shared[ids] = _ordered(np.concatenate(steps))
            at, order = shared[ids][:2]
            x = np.concatenate(values)
            out.metrics[key] = Series(at, x if order is None else x[order])
        out.seconds = max(self.times) - min(self.times) if self.times else None
        back, twice = (max((s[k] for s in shared.values()), default=0) for k in (2, 3))
        typed = sorted(self.texts.keys() & self.parts.keys())
        missing, every = _missing(max((s[0] for s in shared.values()), key=len, default=np.arange(0)))
        for key, wanted, values in (
            ("remark/restarted", self.counter.restarts, {"file": name, "count": self.counter.restarts}),
            ("remark/order", back, {"file": name, "count": back}),
            ("remark/twice", twice, {"count": twice}),
            ("remark/words", self.words, {"file": name, "count": self.words}),
            ("remark/nulls", self.nulls, {"file": name, "count": self.nulls}),
            ("remark/typed", typed, {"names": typed}),
            ("remark/missing", missing, {"count": missing, "of": every}),
            ("remark/mixed", len(shared) > 1, {"file": name, "count": len(shared)}),
        ):
            if wanted:
                out.remarks.append(Message(key, **values))
        for key, text in self.texts.items():
            named = re.search(r"msg|message|event|reason|error|alarm|status|note|log|info|level|warn", key, re.I)
            if named and STOPPED.search(text) and not LIMIT.search(text) and "stop/reason" not in self.texts:
                self.texts["stop/reason"] = text[:300]
                break
        return out

    def _trace(self, name: str) -> SamplingTrace:
        """Return what Trace.to_jsonl and to_csv write, the mean over its samples; they leave out what is not finite."""
        nothing = [np.empty(0)], [np.empty(0)]  # not one finite value
        taken = {key: [np.concatenate(p) for p in self.parts.pop(key, nothing)] for key in _TRACE}
        for key in _BESIDE:
            self.parts.pop(key, None)
        steps, samples = np.unique(taken["dt"][0], return_counts=True)

        def mean(values: np.ndarray, count: int) -> float:
            return values.mean() if len(values) == count else np.nan

        means = ([mean(x[at == k], n) for k, n in zip(steps, samples)] for at, x in taken.values())
        return SamplingTrace(*means, label=name, dtype=self.texts.pop("dtype", ""))


def _ordered(steps: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, int, int]:
    """Return sorted steps, the index that sorts them (None: as they are), how often they go back, how many fall out."""
    back = int((np.diff(steps) < 0).sum())
    if not back:
        return steps, None, 0, 0
    order = np.argsort(steps, kind="stable")
    last = np.append(np.diff(steps[order]) != 0, True)
    return steps[order[last]], order[last], back, int((~last).sum())


def _missing(steps: np.ndarray) -> tuple[int, int]:
    """Return how many steps a regular series lacks, and how many it would have."""
    apart = np.diff(np.unique(steps)) if len(steps) > 20 else np.arange(0)
    if not len(apart) or (apart == np.median(apart)).mean() < 0.9:
        return 0, 0
    every = int(np.round(apart / np.median(apart)).sum()) + 1
    return every - len(apart) - 1, every


def figures_of(name: str, rows: Iterable[Row]) -> Figures:
    """Return the series of rows: a row without a step belongs to the one before it; ranks are averaged."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    rows = [row if row.step is None or abs(row.step) < 1e15 else row._replace(step=None) for row in rows]
    kept, ranks, places, values = SeriesBuilder(), set(), [], []
    if len(rows) > 10 and (rows[0].step or 0) > max(row.step or 0 for row in rows[1:]):
        rows = rows[1:]  # a sentence in front that begins with a number
    numbered = any(row.step is not None for row in rows)
    if not numbered:  # count epochs, if that is what the rows have
        epochs = [next((x for k, x in row.values.items() if k.lower() in EPOCHS), None) for row in rows]
        counts = [x for x in epochs if x is not None and x == whole(x)]
        if len(set(counts)) > max(3, len(rows) // 3) and len(counts) == sum(x is not None for x in epochs):
            rows = [row._replace(step=whole(x)) for row, x in zip(rows, epochs, strict=True)]
            numbered = True
    step = 0
    for number, (at, rank, row) in enumerate(rows):
        step = at if at is not None else step if numbered else number
        ranks |= {rank} - {None}
        places.append(step)
        values.append(row)
        kept.nulls += sum(value is None for value in row.values())
    kept.lines, places = len(values), np.array(places, dtype=np.int64)
    places = kept.counter(places) if len(ranks) < 2 else places
    for at, row in zip(places.tolist(), values, strict=True):
        for key, value in row.items():
            steps, series = found.setdefault(key, ([], []))
            steps.append(at)
            series.append(np.nan if value is None else value)
    for key, (steps, series) in found.items():
        at, x = np.array(steps, dtype=np.int64), np.array(series, dtype=np.float64)
        if len(ranks) > 1:
            at, inverse = np.unique(at, return_inverse=True)
            x = np.bincount(inverse, x) / np.bincount(inverse)
        kept.add(key, at, x)
    out = kept.figures(name)
    if len(ranks) > 1:
        out.remarks.append(Message("remark/ranks", file=name, count=len(ranks)))
    if found and not numbered:
        out.remarks.append(Message("remark/no_steps", file=name))
        out.numbered = False
    return out


def standard_names(names: list[str]) -> dict[str, str]:
    """Return which of the names is that of the steps (``step``) and which that of the times (``time``), if other."""
    plain = {name.strip().lower().replace(" ", "_"): name for name in reversed(names)}
    last = {key.rpartition("/")[2]: name for key, name in reversed(plain.items())}  # progress/step
    changes = {}
    for new, known in (("step", (*STEPS, *EPOCHS)), ("time", TIMES)):
        found = next((where[name] for where in (plain, last) for name in known if name in where), None)
        if found is not None and found != new and new not in names:
            changes[found] = new
    return changes


def _flat(column: "pl.Series") -> Iterator["pl.Series"]:
    """Yield a column, or those of an object's fields: ``{"loss": {"flow": 1}}`` is loss/flow."""
    import polars as pl

    if not isinstance(column.dtype, pl.Struct):
        yield column
        if (
            isinstance(column.dtype, pl.List)
            and column.dtype.inner.is_numeric()
            and (column.list.len() == SLICES).all()
        ):
            stem = sliced(column.name)
            yield from (column.list.get(k).alias(f"{stem}_t{k}") for k in range(SLICES))
        return
    names = set(column.struct.fields)
    if names >= {"mean", "std"} and names & {"num", "count"}:
        yield column.struct.field("mean").alias(column.name)  # of many samples, as EDM writes them
        return
    for field in column.struct.fields:
        yield from _flat(column.struct.field(field).alias(f"{column.name}/{field}"))


def is_plain(x: object) -> bool:
    """Tell whether a value of JSON is a number, null, or a word for what is not finite."""
    return (
        x is None or (isinstance(x, (int, float)) and not isinstance(x, bool)) or x in ("NaN", "Infinity", "-Infinity")
    )


def number(x: object) -> float | None:
    """Return a value of JSON as a number, infinity for an integer too large for one."""
    try:
        return None if x is None else float(x)
    except OverflowError:  # an integer with hundreds of digits
        return math.inf


def flat_numbers(row: dict, path: str = "") -> dict[str, float | None]:
    """Return the numbers of an object, those of objects in it under ``outer/inner``."""
    out = {}
    for key, value in row.items():
        if isinstance(value, dict):
            out |= flat_numbers(value, f"{path}{key}/")
        elif is_plain(value):
            out[f"{path}{key}"] = number(value)
        elif isinstance(value, list) and value and all(is_plain(x) for x in value):
            out |= _listed(f"{path}{key}", value)
    return out


def _listed(name: str, values: list) -> dict[str, float | None]:
    """Return ten values as those of the slices of t, the mean of others."""
    if len(values) == SLICES:
        return {f"{sliced(name)}_t{k}": number(x) for k, x in enumerate(values)}
    numbers = [x for x in map(number, values) if x is not None]
    return {name: sum(numbers) / len(numbers)} if numbers and len(numbers) < 200 else {}
