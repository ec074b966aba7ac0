"""Compare a run with healthy runs of its preset: a band for every metric, and where the run leaves it."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from fmpipe.diagnose.figures import Figures, Series
from fmpipe.diagnose.read import read
from fmpipe.diagnose.rules.curves import running_median
from fmpipe.diagnose.texts import Message
from fmpipe.diagnose.thresholds import Overrides, limits
from fmpipe.run_log import read_log

FOLDER = Path(__file__).parents[1] / "assets" / "reference"
HEADER = "reference"  # key of the first line of a shipped log
STAGES = {  # in the order of training -> path of the setting with its number of steps
    "vae": "vae/optim/steps",
    "head": "flow/head_optim/steps",
    "flow": "flow/optim/steps",
    "diffusion": "diffusion/optim/steps",
    "": "",
}
JUDGED = re.compile(
    r"(?:val/)?(?:loss/\w+|flow/(?:cos|nmse|speed_ratio)|vae/psnr)|grad/(?!kl)\w+|flow/endpt_rmse@\d+"
    r"|scale/.+|mu/rms|std/mean|logvar/mean|z_init/var"
)
MAIN = re.compile(r"(?:val/)?(?:loss/\w+|flow/(?:cos|nmse)|vae/psnr)|grad/total")  # what the terminal lists
FREE = re.compile(  # settings in which runs of one preset differ
    r"base|out|seed|keep|report_to|compile|parallel|checkpointing|every\b.*|data/cache|start|flow/losses/alarm"
)
FEW = 6  # points below which two outside the band count
NEIGHBOURS = 2  # points to either side whose spread counts


class UnknownReferenceError(ValueError):
    """No reference run was found."""


@dataclass(frozen=True)
class Reference:
    """Healthy runs to compare with. name: of their preset, or of the user's own files."""

    name: str
    runs: list[Figures]


@dataclass(frozen=True)
class Place:
    """Where one metric of a run lies in the band of the reference runs.

    Args:
        steps: (N,) of the run. values, low, high: (N,), the smoothed metric and the ends of the band.
        left: index of the first point from which the metric is outside the band for long enough; None if there is none.
        excess: the largest distance from the band after that, in widths of the band at each point.
    """

    stage: str
    name: str
    steps: np.ndarray
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    left: int | None
    excess: float = 0.0

    @property
    def status(self) -> str:
        """Return where the metric ends.

        ``normal``; ``above``, ``below`` or ``nonfinite``; ``just_above`` or ``just_below`` if too few points are
        outside to count; ``returned`` if it left the band and is inside again.
        """
        side = _side(self.values[-1], self.low[-1], self.high[-1])
        if side in ("normal", "nonfinite"):
            return "returned" if side == "normal" and self.left is not None else side
        return side if self.left is not None else f"just_{side}"

    @property
    def label(self) -> str:
        """Return the name of the metric after that of its stage."""
        return f"{self.stage} {self.name}".strip()

    @property
    def end(self) -> Message:
        """Return a sentence with the last value, the band there, and the status."""
        left = None if self.left is None else int(self.steps[self.left])
        return Message(f"reference/{self.status}", **(self.at(-1) | {"name": self.label, "left": left}))

    def at(self, k: int) -> dict[str, object]:
        """Return one point as plain types."""
        step, value, low, high = self.steps[k], self.values[k], self.low[k], self.high[k]
        point = {"step": int(step), "value": float(value), "low": float(low), "high": float(high)}
        return {"stage": self.stage, "name": self.name, **point}


@dataclass(frozen=True)
class Placement:
    """Where a run lies in the bands. lines: the comparison in sentences. places: one per metric, in order."""

    reference: Reference
    places: list[Place]
    lines: list[Message]
    differing: dict[str, tuple[object, object]]

    @property
    def first(self) -> Place | None:
        """Return the metric that leaves its band first; of several at the same step, the one farthest outside."""
        return min((p for p in self.places if p.left is not None), key=_order, default=None)

    def ends(self) -> list[Message]:
        """Return where each metric ends in its band."""
        return [p.end for p in self.places]

    def told(self) -> list[Message]:
        """Return the lines for the terminal: the comparison, and the ends of the main metrics."""
        return [*self.lines, *(p.end for p in self.places if MAIN.fullmatch(p.name))]

    def as_dict(self) -> dict[str, object]:
        """Return plain types for ``report.json``."""
        first = self.first
        metrics = [
            p.at(-1) | {"status": p.status, "left": None if p.left is None else int(p.steps[p.left])}
            for p in self.places
        ]
        return {
            "name": self.reference.name,
            "runs": [run.source for run in self.reference.runs],
            "differing": {key: list(values) for key, values in self.differing.items()},
            "first": None if first is None else first.at(first.left),
            "metrics": metrics,
            "lines": [str(line) for line in self.lines],
        }


def names() -> list[str]:
    """Return the presets whose reference runs are shipped."""
    return sorted({_preset(path) for path in FOLDER.glob("*.jsonl")})


def load(figures: Figures, given: Sequence[str] = ()) -> Reference:
    """Return the reference runs of a run's preset, or those of ``given``: names of presets, logs or folders of runs.

    UnknownReferenceError, with the choices, if there are none.
    """
    choices = f"choose one of {', '.join(names())}, or give the logs or folders of healthy runs of your own"
    if not given:
        base = figures.setting("base")
        if not base:
            raise UnknownReferenceError(f"{figures.source}: no config.yaml names the preset of this run; {choices}")
        if base not in names():
            raise UnknownReferenceError(f"the preset {base} of {figures.source} has no reference runs; {choices}")
        given = [base]
    runs: list[Figures] = []
    for name in given:
        if name in names():
            runs += [shipped(path) for path in sorted(FOLDER.glob("*.jsonl")) if _preset(path) == name]
        elif Path(name).exists():
            runs.append(shipped(Path(name)) if _is_shipped(Path(name)) else read(name))
        else:
            raise UnknownReferenceError(f"there are no reference runs {name!r}, and no such file or folder; {choices}")
    return Reference(", ".join(given), runs)


def of_preset(figures: Figures) -> Reference | None:
    """Return the reference runs of a run's preset; None if it names none or none are shipped."""
    return load(figures) if figures.setting("base") in names() else None


def shipped(path: Path) -> Figures:
    """Return the figures of a log as ``tools/reference_log.py`` writes it: a header, and lines with their stage."""
    header, *lines = read_log(path)
    parts = {}
    for stage, rows in groupby(lines, key=lambda line: line["stage"]):
        kept: dict[str, tuple[list, list]] = {}
        for row in rows:
            for name, value in row.items():
                if name not in ("stage", "step"):
                    steps, values = kept.setdefault(name, ([], []))
                    steps.append(row["step"])
                    values.append(value)
        metrics = {name: Series(*pair) for name, pair in kept.items()}
        parts[stage] = Figures(metrics, stage=stage, config=header["config"], source=path.name)
    main = next(stage for stage in ("flow", "diffusion", "head", "vae", *parts) if stage in parts)
    out = parts.pop(main)
    out.stages = parts
    return out


def place(figures: Figures, reference: Reference, overrides: Overrides = None) -> Placement:
    """Return where a run lies in the bands of the reference runs.

    Curves are compared at the same share of their stage's steps, as the configs state them, and at the same step if one
    of the two is unknown. Both are smoothed by the same running median over three points of the run; a run that is
    logged more often than the reference is compared at the points next to those of the reference.

    The band reaches from the lowest to the highest reference run, widened by ``reference/widen * (1 + 2 / (runs - 1))``
    standard deviations of the runs around their median (at this and the neighbouring points), at least by
    ``reference/least`` of the value for positive metrics, and of the range of the curve for the others, such as
    cosines. The band of a single run is its curve divided and multiplied by ``reference/single``, or its curve ±
    ``reference/single_range`` of its range.

    A metric leaves the band when ``reference/points`` consecutive points (two if there are fewer than six points) are
    outside on the same side, or when it is not finite.
    """
    limit, places = limits(overrides), []
    stages = sorted(figures.all_stages, key=list(STAGES).index)
    for stage in stages:
        part = figures.all_stages[stage]
        others = [found for run in reference.runs if (found := _same_stage(run, stage, figures))]
        for name in sorted(filter(JUDGED.fullmatch, part.metrics), key=_rank):
            series = [(other.metrics[name], _total(other)) for other in others if name in other.metrics]
            found = _placed(stage, name, part.metrics[name], _total(part), series, limit)
            places += [] if found is None else [found]
    differing = dict(_differing(reference.runs[0].config, figures.config)) if figures.config else {}
    found = Placement(reference, places, [], differing)
    found.lines.extend(_lines(found, figures, limit))
    return found


def _preset(path: Path) -> str:
    return re.sub(r"-seed\d+$", "", path.stem)


def _is_shipped(path: Path) -> bool:
    if not path.is_file() or path.suffix != ".jsonl":
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(64).startswith(f'{{"{HEADER}"')


def _same_stage(run: Figures, stage: str, figures: Figures) -> Figures | None:
    """Return the stage of a reference run; logs without stages are compared if both have only one."""
    if stage in run.all_stages:
        return run.all_stages[stage]
    return run if not run.stages and not figures.stages and "" in (stage, run.stage) else None


def _total(part: Figures) -> int | None:
    """Return the number of steps of a stage, None if its config does not state it."""
    steps = part.setting(STAGES.get(part.stage, ""))
    return steps if isinstance(steps, int) and steps > 0 else None


def _aligned(
    own: Series, total: int | None, series: Sequence[tuple[Series, int | None]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return steps and values of the run, and the reference curves there, (runs, N); None without a common step."""
    finite = [(x.steps[np.isfinite(x.values)], x.finite, whole) for x, whole in series if len(x.finite)]
    if not finite or not len(own.steps):
        return None
    by_share = total is not None and all(whole for *_, whole in finite)
    unit = total if by_share else 1
    curves = [(steps / (whole if by_share else 1), values) for steps, values, whole in finite]
    grid = max((x for x, _ in curves), key=_spacing)
    steps, values = _sampled(own.steps, own.values, grid * unit)
    at = steps / unit
    common = (at >= max(x[0] for x, _ in curves)) & (at <= min(x[-1] for x, _ in curves) + 0.5 * _spacing(grid))
    steps, values, at = steps[common], values[common], at[common]
    return (steps, values, np.array([np.interp(at, x, v) for x, v in curves])) if len(steps) else None


def _placed(
    stage: str,
    name: str,
    own: Series,
    total: int | None,
    series: Sequence[tuple[Series, int | None]],
    limit: Mapping[str, float],
) -> Place | None:
    """Return where a metric lies in its band; None if the curves have no step in common."""
    if (aligned := _aligned(own, total, series)) is None:
        return None
    steps, values, rows = aligned
    positive = "cos" not in name and bool((rows > 0).mean() > 0.9)  # a loss with weight 0 begins at 0
    least = rows[rows > 0].min() if positive else 0.0
    values, rows = (np.log(np.maximum(x, 1e-6 * least)) if positive else x for x in (values, rows))
    window, good = 3 if len(steps) > 4 else 1, np.isfinite(values)
    smooth = np.full(len(values), np.nan)
    smooth[good] = running_median(values[good], window)
    low, high = _band(np.array([running_median(row, window) for row in rows]), positive, limit)
    out = np.where(smooth > high, 1, np.where(smooth < low, -1, 0))
    out[~good] = 2
    left = _first(out, 2 if len(out) < FEW else int(limit["reference/points"]))
    if left is not None:  # the running median reaches a point too far back
        left += int(((values > high) | (values < low) | ~good)[left:].argmax())
    apart = np.maximum(smooth - high, low - smooth) / np.maximum(high - low, 1e-12)
    excess = 0.0 if left is None else float(np.nanmax(np.append(apart[left : left + 3], 0.0)))
    back = np.exp if positive else np.array
    return Place(stage, name, steps, back(smooth), back(low), back(high), left, excess)


def _band(rows: np.ndarray, positive: bool, limit: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the band. rows: (runs, points), logarithms if positive."""
    middle = np.median(rows, axis=0)
    unit = 1.0 if positive else max(float(np.ptp(middle)), 0.1 * float(np.abs(middle).max()), 1e-12)
    if len(rows) == 1:
        margin = math.log(limit["reference/single"]) if positive else limit["reference/single_range"] * unit
        return middle - margin, middle + margin
    square = np.square(rows - middle).sum(axis=0) / (len(rows) - 1)
    padded = np.pad(square, NEIGHBOURS, mode="edge")
    spread = np.sqrt(np.lib.stride_tricks.sliding_window_view(padded, 2 * NEIGHBOURS + 1).mean(axis=1))
    few = 1 + 2 / (len(rows) - 1)  # the spread of a few runs is known poorly
    margin = np.maximum(limit["reference/widen"] * few * spread, limit["reference/least"] * unit)
    return rows.min(axis=0) - margin, rows.max(axis=0) + margin


def _first(out: np.ndarray, count: int) -> int | None:
    """Return the index from which ``count`` points are outside on the same side, or at which one is not finite."""
    for k in range(len(out)):
        if out[k] == 2 or (out[k] and len(out) - k >= count and (out[k : k + count] == out[k]).all()):
            return k
    return None


def _spacing(steps: np.ndarray) -> float:
    return float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0


def _sampled(steps: np.ndarray, values: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the points next to those of a coarser grid; one that follows a value that is not finite is not either."""
    if _spacing(steps) > 0.75 * _spacing(grid):
        return steps, values
    kept = np.unique([int(np.abs(steps - at).argmin()) for at in grid if at <= steps[-1] + 0.5 * _spacing(steps)])
    out, bad = values[kept], np.flatnonzero(~np.isfinite(values))
    after = np.searchsorted(kept, bad)
    out[after[after < len(kept)]] = np.nan
    return steps[kept], out


def _side(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "nonfinite"
    return "above" if value > high else "below" if value < low else "normal"


def _rank(name: str) -> tuple:
    """Sort the main metrics first, training before held-out."""
    return not MAIN.fullmatch(name), name.startswith("val/"), name


def _order(found: Place) -> tuple:
    return list(STAGES).index(found.stage), found.steps[found.left], -found.excess


def _differing(theirs: object, ours: object, path: str = "") -> Iterator[tuple[str, tuple[object, object]]]:
    """Yield dotted settings that differ from those of the reference, as (theirs, ours)."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in theirs:
            if key in ours:
                yield from _differing(theirs[key], ours[key], f"{path}/{key}".strip("/"))
    elif theirs != ours and not FREE.fullmatch(path):
        yield path.replace("/", "."), (theirs, ours)


def _lines(found: Placement, figures: Figures, limit: Mapping[str, float]) -> Iterator[Message]:
    runs = found.reference.runs
    if not found.places:
        theirs = sorted({n for run in runs for part in run.all_stages.values() for n in part.metrics})
        ours = sorted({n for part in figures.all_stages.values() for n in part.metrics})
        yield Message("reference/nothing", name=found.reference.name, theirs=theirs[:8], ours=ours[:8] or "-")
        return
    if len(runs) == 1:
        yield Message(
            "reference/single",
            name=found.reference.name,
            factor=limit["reference/single"],
            range=limit["reference/single_range"],
        )
    else:
        yield Message("reference/band", name=found.reference.name, count=len(runs))
    if found.differing:
        shown = [f"{key} = {ours} ({theirs})" for key, (theirs, ours) in found.differing.items()][:8]
        more = ["…"] * (len(found.differing) > len(shown))
        yield Message("reference/differing", settings=[*shown, *more])
    last = max(int(p.steps[-1]) for p in found.places)
    if (first := found.first) is None:
        yield Message("reference/inside", count=len(found.places), step=last)
    else:
        point = first.at(first.left)
        side = _side(point["value"], point["low"], point["high"])
        yield Message(f"reference/first_{side}", **(point | {"name": first.label}))
        later = sorted((p for p in found.places if p.left is not None and p is not first), key=_order)
        if later:
            shown = [f"{p.label} ({int(p.steps[p.left])})" for p in later]
            yield Message("reference/later", names=[*shown[:8], *["…"] * (len(shown) > 8)])
