"""What a sampling loop did, step by step: kept on the device, read once, printed as the diary prints it."""

import csv
import io
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fmkernels.ops import _check, velocity_stats

COLUMNS = ("mean_abs_x", "mean_abs_v", "rms_dx", "nonfinite", "dt")  # csrc/shared/columns.h, step_
DIVERGES = 10.0  # times the first |x|
LOST = 0.1  # of a step's change, to rounding
STANDS = 3  # steps of the very same |x|


class Anomaly(NamedTuple):
    """The first thing wrong with a trace; ``str()`` says it in a sentence."""

    step: int
    sample: int
    quantity: str  # "x" or "v"
    value: float
    reason: str

    def __str__(self) -> str:
        return f"step {self.step}, sample {self.sample}: {self.quantity} {self.reason}"


class NonFiniteError(FloatingPointError):
    """Infinite or NaN values in a sampling loop. ``anomaly`` says where first, ``trace`` has all steps."""

    def __init__(self, anomaly: Anomaly, trace: "Trace"):
        super().__init__(f"{anomaly}. The trace is this error's .trace; Trace(nonfinite='continue') goes on")
        self.anomaly, self.trace = anomaly, trace


class Trace:
    """Per step and sample: mean |x|, mean |v|, rms of the change, number of non-finite elements, dt.

    ``fmkernels.flow.sample`` fills one. For a loop that is not ours, one call a step, before or after the update::

        trace = Trace()                       with Trace() as trace:
        for k in range(steps):                    for t, dt in schedule:
            trace.record(k, x, v, dt)                 v = model(x, t)
                                                      trace.step(x, v, dt)
                                                      x = x + v * dt

    Nothing is copied to the host until asked. Non-finite values raise :class:`NonFiniteError` at the end of the
    ``with`` block or of ``sample``, or every ``every`` steps; with ``nonfinite="continue"`` they are only noted.
    ``step`` counts by itself and also finds what a half-precision state loses to rounding.
    """

    def __init__(self, *, every: int = 0, nonfinite: str = "raise"):
        if not isinstance(every, int) or every < 0:
            raise ValueError(f"Trace: every must be a number of steps (0: only at the end), got {every!r}")
        if nonfinite not in ("raise", "continue"):
            raise ValueError(f"Trace: nonfinite must be 'raise' or 'continue', got {nonfinite!r}")
        self.every, self.nonfinite = every, nonfinite
        self.steps: list[int] = []
        self.times: list[float | None] = []
        self._rows: list[Tensor] = []
        self._lost: dict[int, Tensor] = {}
        self._before: tuple | None = None
        self._read: Tensor | None = None

    # Writing

    def record(self, step: int, x: Tensor, v: Tensor, dt: float | Tensor, *, t: float | None = None) -> None:
        """Notes step ``step``: x and v are (B, ...), dt a number or a one-element tensor. No copy to the host."""
        _check.batched("Trace", "x", x)
        _check.like("Trace", "v", v, "x", x)
        with torch.no_grad():
            sums = velocity_stats(x, v_target=v).sums.float()  # x in the place of v_pred
            n, dt = max(x[:1].numel(), 1), torch.as_tensor(dt, dtype=sums.dtype, device=sums.device).reshape(1)
            rms = (sums[:, 2] / n).sqrt() * dt.abs()
            columns = [sums[:, 4] / n, sums[:, 5] / n, rms, sums[:, 8], dt.expand(len(sums))]
            self.append(step, torch.stack(columns, dim=1), t)

    def step(self, x: Tensor, v: Tensor, dt: float | Tensor, *, t: float | None = None) -> None:
        """:meth:`record` under the next number."""
        number = self.steps[-1] + 1 if self.steps else 0
        if x.dtype.itemsize < 4:
            with torch.no_grad():
                if self._before is not None and self._before[0].shape == x.shape:
                    x_before, change = self._before
                    sums = velocity_stats(x.detach().float() - x_before, v_target=change).sums
                    self._lost[number - 1] = (sums[:, 0] / sums[:, 2]).sqrt()
                self._before = x.detach().float().clone(), (v.detach().float() * dt)
        self.record(number, x, v, dt, t=t)

    def append(self, step: int, row: Tensor, t: float | None = None) -> None:
        """A row of the five columns, (B, 5), as ``euler_step_`` fills it; it is kept, not copied."""
        if self._rows and row.shape != self._rows[0].shape:
            raise ValueError(
                f"Trace: step {step} has {len(row)} samples, the others {len(self._rows[0])}; make a new Trace"
            )
        self.steps.append(int(step))
        self.times.append(t)
        self._rows.append(row)
        self._read = None
        if self.every and len(self._rows) % self.every == 0:
            self.check()

    def check(self) -> None:
        """Raises :class:`NonFiniteError` if a value was not finite and ``nonfinite`` is "raise". Reads the device."""
        if self.nonfinite == "raise" and (found := self._first_nonfinite()) is not None:
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

    def _means(self) -> Iterable[list[float]]:
        return self.values.double().mean(1).tolist()

    def lines(self) -> list[str]:
        """The diary's step lines: ``step0: |x|=0.7889, |v|=0.4671, dt=0.0804``."""
        return [
            f"step{k}: |x|={x:.4f}, |v|={v:.4f}, dt={dt:.4f}"
            for k, (x, v, _, _, dt) in zip(self.steps, self._means(), strict=True)
        ]

    def table(self) -> str:
        """All columns, means over the samples (the spread of |x| beside it), and what is wrong, if anything."""
        out = ["  step         t        dt       |x|   min – max |x|           |v|    rms dx  nonfinite"]
        low, high = self.column("mean_abs_x").aminmax(dim=1) if len(self) else ((), ())
        for k, t, (x, v, dx, bad, dt), a, b in zip(self.steps, self.times, self._means(), low, high, strict=True):
            time = "        –" if t is None else f"{t:9.6f}"
            samples = self.values.shape[1]
            out.append(
                f"{k:>6} {time} {dt:9.6f} {x:9.4f} {a:9.4f} – {b:<9.4f} {v:9.4f} {dx:9.6f} {bad * samples:10.0f}"
            )
        anomaly = self.first_anomaly()
        return "\n".join([*out, f"first anomaly: {anomaly or 'none'}"])

    def _records(self) -> Iterable[dict]:
        """One dict a step and sample; what is not finite is None, as JSON has no word for it."""
        for k, t, samples in zip(self.steps, self.times, self.values.tolist(), strict=True):
            for i, row in enumerate(samples):
                numbers = {n: v if math.isfinite(v) else None for n, v in zip(COLUMNS, row, strict=True)}
                yield {"step": k, "sample": i, "t": t, **numbers}

    def to_jsonl(self, path: str | Path | None = None) -> str:
        """One JSON object a step and sample, to a file if one is named; returns the text."""
        return _written("".join(json.dumps(r) + "\n" for r in self._records()), path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """One line a step and sample under a header, to a file if one is named; returns the text."""
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
            raise ImportError("Trace.plot needs matplotlib: pip install 'fmkernels[plot]'") from None
        figure = Figure(figsize=(8, 5.5), layout="constrained")
        FigureCanvasAgg(figure)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        for axis, name, label, colour in (
            (upper, "mean_abs_x", "|x|", "#3b6fb6"),
            (upper, "mean_abs_v", "|v|", "#e08e45"),
            (lower, "rms_dx", "rms of the change", "#4c9a5b"),
        ):
            values = self.column(name).double()
            if len(self):
                axis.fill_between(self.steps, *values.aminmax(dim=1), color=colour, alpha=0.2, linewidth=0)
                axis.plot(self.steps, values.mean(1), color=colour, label=label)
        if len(self):
            lower.plot(self.steps, self.column("dt").abs()[:, 0], color="#888", linestyle="--", label="|dt|")
        if (anomaly := self.first_anomaly()) is not None:
            upper.axvline(anomaly.step, color="#c0392b", linewidth=1)
            upper.set_title(str(anomaly), color="#c0392b", fontsize=9, wrap=True)
        for axis in (upper, lower):
            axis.grid(alpha=0.3)
            if len(self):
                axis.legend(fontsize=8)
        upper.set_ylabel("mean over elements; band: samples", fontsize=8)
        lower.set_xlabel("step")
        figure.savefig(path, dpi=110)
        return Path(path)

    def first_anomaly(self) -> Anomaly | None:
        """The first step where something is wrong: not finite, running away, standing still, lost to rounding."""
        found = (self._first_nonfinite(), self._first_divergence(), self._first_standstill(), self._first_loss())
        return min((a for a in found if a is not None), key=lambda a: a.step, default=None)

    def _first(self, mask: Tensor, make) -> Anomaly | None:
        hits = mask.nonzero()
        return make(*hits[0].tolist()) if len(hits) else None

    def _first_nonfinite(self) -> Anomaly | None:
        x, v, bad = (self.column(n) for n in ("mean_abs_x", "mean_abs_v", "nonfinite"))

        def make(row, sample):
            quantity = "v" if torch.isfinite(x[row, sample]) and not torch.isfinite(v[row, sample]) else "x"
            value = (v if quantity == "v" else x)[row, sample].item()
            count = int(bad[row, sample])
            where = "in the step" if quantity == "x" and math.isfinite(value) else "when it came"
            return Anomaly(self.steps[row], sample, quantity, value, f"is not finite {where} ({count} elements)")

        return self._first((bad > 0) | ~torch.isfinite(x) | ~torch.isfinite(v), make)

    def _first_divergence(self) -> Anomaly | None:
        x = self.column("mean_abs_x")
        if len(self) < 2:
            return None
        grown = torch.isfinite(x) & (x > DIVERGES * x[:1]) & (x[:1] > 0)
        return self._first(
            grown,
            lambda row, i: Anomaly(
                self.steps[row], i, "x", x[row, i].item(),
                f"runs away: |x| is {x[row, i]:.4g}, {x[row, i] / x[0, i]:.0f} times what it was at the first step",
            ),
        )  # fmt: skip

    def _first_standstill(self) -> Anomaly | None:
        x, dx = self.column("mean_abs_x"), self.column("rms_dx")
        if len(self) <= STANDS:
            return None
        still = (x[1:] == x[:-1]) & (dx[:-1] > 0)
        run = still.unfold(0, STANDS, 1).all(-1)
        return self._first(
            run,
            lambda row, i: Anomaly(
                self.steps[row], i, "x", x[row, i].item(),
                f"stands still at |x| = {x[row, i]:.4f} for {STANDS} steps, though v is not 0: keep it in float32",
            ),
        )  # fmt: skip

    def _first_loss(self) -> Anomaly | None:
        for step, lost in sorted(self._lost.items()):
            worst, sample = lost.cpu().nan_to_num(0.0).max(0)
            if worst > LOST:
                return Anomaly(
                    step, int(sample), "x", worst.item(),
                    f"loses {worst:.0%} of the step's change to rounding: keep it in float32",
                )  # fmt: skip
        return None


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        part = Path(f"{path}.part")
        part.write_text(text)
        part.replace(path)
    return text
