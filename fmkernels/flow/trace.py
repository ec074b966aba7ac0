"""The statistics of every step of a sampling loop: kept on the device, read once, printed as in the debugging notes."""

import csv
import io
import json
import math
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fmkernels import checks
from fmkernels.ops import velocity_stats

COLUMNS = ("mean_abs_x", "mean_abs_v", "rms_dx", "nonfinite", "dt")  # csrc/shared/columns.h, step_
DIVERGES = 10.0  # times as far as the first velocity would lead if it were constant
LOST = 0.1  # fraction of a step's change that rounding may lose


class Anomaly(NamedTuple):
    """The first anomaly of a trace; ``str()`` describes it in a sentence."""

    step: int
    sample: int
    quantity: str  # "x" or "v"
    value: float
    reason: str

    def __str__(self) -> str:
        return f"step {self.step}, sample {self.sample}: {self.quantity} {self.reason}"


class NonFiniteError(FloatingPointError):
    """Infinite or NaN values in a sampling loop. ``anomaly``: where they appear first; ``trace``: all steps."""

    def __init__(self, anomaly: Anomaly, trace: "Trace"):
        super().__init__(f"{anomaly}. The trace is this error's .trace; Trace(nonfinite='continue') goes on")
        self.anomaly, self.trace = anomaly, trace

    def __reduce__(self):
        return NonFiniteError, (self.anomaly, self.trace)


class Trace:
    """Per step and sample: mean |x|, mean |v|, rms of the change, number of non-finite elements, dt.

    ``fmkernels.flow.sample`` fills one. In another loop, call it once per step, before or after the update::

        trace = Trace()                       with Trace() as trace:
        for k in range(steps):                    for t, dt in schedule:
            trace.record(k, x, v, dt)                 v = model(x, t)
                                                      trace.step(x, v, dt)
                                                      x = x + v * dt

    Nothing is copied to the host until a value is read. Non-finite values raise :class:`NonFiniteError` at the end of
    the ``with`` block or of ``sample``, or every ``every`` steps; with ``nonfinite="continue"`` they are only recorded.
    """

    def __init__(self, *, every: int = 0, nonfinite: str = "raise"):
        if not isinstance(every, int) or every < 0:
            raise ValueError(f"Trace: every must be a number of steps (0: only at the end), got {every!r}")
        if nonfinite not in ("raise", "continue"):
            raise ValueError(f"Trace: nonfinite must be 'raise' or 'continue', got {nonfinite!r}")
        self.every, self.nonfinite = every, nonfinite
        self.steps: list[int] = []
        self._times: list[float | Tensor | None] = []
        self.dtypes: list[torch.dtype] = []
        self._rows: list[Tensor] = []
        self._read: Tensor | None = None
        self.precision: str | None = None  # of the products in the velocity network, where it is known

    # Writing

    def record(
        self, step: int, x: Tensor, v: Tensor, dt: float | Tensor, *, t: float | Tensor | None = None, gain: float = 1.0
    ) -> None:
        """Record a step ``x += gain * dt * v``: x and v are (B, ...), dt a number or a one-element tensor.

        Nothing is copied to the host. t, if given, is for the table and the files.
        """
        checks.batched("Trace", "x", x)
        checks.like("Trace", "v", v, "x", x)
        with torch.no_grad():
            sums, n = velocity_stats(x, v_target=v).sums.float(), max(x[:1].numel(), 1)  # x in the place of v_pred
            if isinstance(dt, Real):
                dt = sums.new_full((1,), float(dt))  # filled on the device: a copy from the host would wait for it
            elif not isinstance(dt, Tensor):
                raise TypeError(f"Trace: dt must be a number or a one-element tensor, got {type(dt).__name__}")
            elif dt.numel() != 1:
                raise ValueError(f"Trace: dt must be a number or a one-element tensor, got shape {tuple(dt.shape)}")
            dt = dt.to(sums).reshape(1)
            change = (sums[:, 2] / n).sqrt() * dt.abs() * abs(gain)
            columns = [sums[:, 4] / n, sums[:, 5] / n, change, sums[:, 8], dt.expand(len(sums))]
            self.append(step, torch.stack(columns, dim=1), x.dtype, t)

    def step(
        self, x: Tensor, v: Tensor, dt: float | Tensor, *, t: float | Tensor | None = None, gain: float = 1.0
    ) -> None:
        """:meth:`record` under the next number."""
        self.record(self.steps[-1] + 1 if self.steps else 0, x, v, dt, t=t, gain=gain)

    def append(self, step: int, row: Tensor, dtype: torch.dtype, t: float | Tensor | None = None) -> None:
        """A row of the five columns, (B, 5), as ``euler_step_`` fills it (kept, not copied), of a state in dtype."""
        if t is not None and not (isinstance(t, Real) or (isinstance(t, Tensor) and t.numel() == 1)):
            raise TypeError(f"Trace: t must be a number or a one-element tensor, got {t!r}")
        if self._rows and row.shape != self._rows[0].shape:
            before = len(self._rows[0])
            raise ValueError(f"Trace: step {step} has {len(row)} samples, the others {before}; make a new Trace")
        self.steps.append(int(step))
        self._times.append(t)
        self.dtypes.append(dtype)
        self._rows.append(row)
        self._read = None
        if self.every and len(self._rows) % self.every == 0:
            self.check()

    def check(self) -> None:
        """Raises :class:`NonFiniteError` if a value was not finite and ``nonfinite`` is "raise". Reads the device."""
        if self.nonfinite == "raise" and (found := self._nonfinite()) is not None:
            raise NonFiniteError(found, self)

    def __enter__(self) -> "Trace":
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.check()

    # Reading

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def times(self) -> list[float | None]:
        """t of every step, where it was given."""
        return [None if t is None else float(t) for t in self._times]

    @property
    def values(self) -> Tensor:
        """(steps, B, 5) on the host, the columns of :data:`COLUMNS`; copied once."""
        if self._read is None:
            self._read = torch.stack(self._rows).cpu() if self._rows else torch.empty(0, 0, len(COLUMNS))
        return self._read

    def column(self, name: str) -> Tensor:
        """(steps, B): one of :data:`COLUMNS`."""
        if name not in COLUMNS:
            raise KeyError(f"Trace has the columns {', '.join(COLUMNS)}; got {name!r}")
        return self.values[:, :, COLUMNS.index(name)]

    def lines(self) -> list[str]:
        """The step lines of the debugging notes: ``step0: |x|=0.7889, |v|=0.4671, dt=0.0804``."""
        means = self.values.double().mean(1).tolist()
        return [
            f"step{k}: |x|={x:.4f}, |v|={v:.4f}, dt={dt:.4f}"
            for k, (x, v, _, _, dt) in zip(self.steps, means, strict=True)
        ]

    def table(self) -> str:
        """Return all columns as means over the samples, with the range of |x|, and the first anomaly."""
        out = ["  step         t        dt       |x|   min – max |x|           |v|    rms dx  nonfinite"]
        for k, t, values in zip(self.steps, self.times, self.values.double(), strict=True):
            if len(values):
                x, v, dx, _, dt = values.mean(0).tolist()
                (low, high), bad = values[:, 0].aminmax(), values[:, 3].sum()
                time = "        –" if t is None else f"{t:9.6f}"
                out.append(f"{k:>6} {time} {dt:9.6f} {x:9.4f} {low:9.4f} – {high:<9.4f} {v:9.4f} {dx:9.6f} {bad:10.0f}")
        out += [f"velocity computed in {self.precision}"] if self.precision else []
        return "\n".join([*out, f"first anomaly: {self.first_anomaly() or 'none'}"])

    __str__ = table

    def _records(self) -> Iterable[dict]:
        """Yield one dict per step and sample; non-finite values become None, which JSON can represent."""
        for k, t, samples in zip(self.steps, self.times, self.values.tolist(), strict=True):
            for i, row in enumerate(samples):
                numbers = {n: v if math.isfinite(v) else None for n, v in zip(COLUMNS, row, strict=True)}
                yield {"step": k, "sample": i, "t": t, **numbers}

    def to_jsonl(self, path: str | Path | None = None) -> str:
        """Return one line of JSON per step and sample; also write it to ``path`` if given."""
        return _written("".join(json.dumps(r) + "\n" for r in self._records()), path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return CSV with one line per step and sample; also write it to ``path`` if given."""
        text = io.StringIO()
        writer = csv.DictWriter(text, ["step", "sample", "t", *COLUMNS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._records())
        return _written(text.getvalue(), path)

    def plot(self, path: str | Path) -> Path:
        """A PNG: |x| and |v| with their spread over the samples, the change of each step, dt, the first anomaly."""
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError("Trace.plot needs matplotlib: pip install matplotlib") from None
        figure = Figure(figsize=(8, 5.5), layout="constrained")
        FigureCanvasAgg(figure)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        marker = "o" if len(self) == 1 else None
        for axis, name, label, colour in (
            (upper, "mean_abs_x", "|x|", "#3b6fb6"),
            (upper, "mean_abs_v", "|v|", "#e08e45"),
            (lower, "rms_dx", "rms of the change", "#4c9a5b"),
            (lower, "dt", "|dt|", "#888888"),
        ):
            if self.values.numel():
                values = self.column(name).double().abs()
                axis.fill_between(self.steps, *values.aminmax(dim=1), color=colour, alpha=0.2, linewidth=0)
                axis.plot(self.steps, values.mean(1), color=colour, label=label, marker=marker)
                axis.legend(fontsize=8)
        if (anomaly := self.first_anomaly()) is not None:
            upper.axvline(anomaly.step, color="#c0392b", linewidth=1)
            upper.set_title(str(anomaly), color="#c0392b", fontsize=9, wrap=True)
        for axis in (upper, lower):
            axis.grid(alpha=0.3)
        upper.set_ylabel("mean over elements; band: samples", fontsize=8)
        lower.set_xlabel("step")
        figure.savefig(path, dpi=110, format="png")
        return Path(path)

    def first_anomaly(self) -> Anomaly | None:
        """The first step where something is wrong: not finite, running away, or lost to the state's rounding."""
        found = (self._nonfinite(), self._divergence(), self._loss())
        return min((a for a in found if a is not None), key=lambda a: a.step, default=None)

    def _first(self, mask: Tensor, value: Tensor, reason: str) -> Anomaly | None:
        """An anomaly of x where the mask is first true."""
        hits = mask.nonzero()
        if not len(hits):
            return None
        row, sample = hits[0].tolist()
        number = value[row, sample].item()
        return Anomaly(self.steps[row], sample, "x", number, reason.format(number))

    def _nonfinite(self) -> Anomaly | None:
        hits = (self.column("nonfinite") > 0).nonzero()
        if not len(hits):
            return None
        row, sample = hits[0].tolist()
        x, v, dx, count, _ = self.values[row, sample].tolist()
        came_bad = not math.isfinite(x)
        # A change that is NaN beside a finite v is that of a second velocity, as heun's.
        v_bad = not came_bad and (not math.isfinite(v) or math.isnan(dx))
        reason = "is not finite" + ("" if came_bad or v_bad else " after the step") + f" ({count:.0f} elements)"
        return Anomaly(self.steps[row], sample, "v" if v_bad else "x", v if v_bad else x, reason)

    def _divergence(self) -> Anomaly | None:
        x, v, dt = (self.column(name) for name in ("mean_abs_x", "mean_abs_v", "dt"))
        reach = x[:1] + v[:1] * dt.abs().sum(0)
        far = torch.isfinite(x) & (x > DIVERGES * reach)
        return self._first(far, x, "runs away: |x| is {:.4g}, ten times as far as the first velocity leads")

    def _loss(self) -> Anomaly | None:
        """Rounding to the nearest moves an element by 0.29 of its spacing, rms; the spacing is eps |x| at most."""
        eps = [torch.finfo(dtype).eps if dtype.itemsize < 4 else 0.0 for dtype in self.dtypes]
        x, dx = self.column("mean_abs_x"), self.column("rms_dx")
        lost = (0.29 * torch.tensor(eps, dtype=x.dtype)[:, None] * x / dx).clamp(max=1.0)
        reason = "loses about {:.0%} of the step's change to rounding: keep the state in float32"
        return self._first((lost > LOST) & (dx > 0), lost, reason)


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        part = Path(f"{path}.part")
        part.write_text(text)
        part.replace(path)
    return text
