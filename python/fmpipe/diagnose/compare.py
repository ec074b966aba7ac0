"""Compare two runs: whether their metrics are comparable, and which run is better in which metric."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fmpipe.diagnose.engine import judge
from fmpipe.diagnose.figures import Figures, Series
from fmpipe.diagnose.read.facts import FACTS
from fmpipe.diagnose.rule import Finding
from fmpipe.diagnose.texts import Message
from fmpipe.diagnose.thresholds import Overrides

LOWER = ("val/loss/flow", "val/loss/diffusion", "val/loss/mse", "val/flow/nmse", "loss/flow", "loss/diffusion")
HIGHER = ("val/flow/cos", "flow/cond_gain_cos", "val/vae/psnr")
COUNTS = 0.02  # smallest relative difference that counts


@dataclass(frozen=True)
class Comparison:
    """The result of :func:`compare`.

    Args:
        comparable: False if VAE, resolution, latent size or scale are known to differ.
        lines: what differs, or which run is better in which metric.
        better: metric -> "A", "B", or "" if neither is better; empty if the runs are not comparable.
    """

    comparable: bool
    lines: list[str]
    better: dict[str, str]


def compare(
    a: Figures, b: Figures, overrides: Overrides = None, findings: Sequence[Finding] | None = None
) -> Comparison:
    """Compare the metrics of A and B, or list what differs if they are not comparable.

    findings: those of A, if it has been judged.
    """
    known = [name for name in FACTS if name in a.facts and name in b.facts]
    differ = [name for name in known if a.facts[name] != b.facts[name]]
    if differ:
        lines = [Message("compare/differ", what=name, a=a.facts[name], b=b.facts[name]) for name in differ]
        return Comparison(False, [*lines, Message("compare/refused")], {})
    lines, better = [], {}
    if unknown := [name for name in FACTS if name not in known]:
        lines.append(Message("compare/unknown", names=unknown))
    ends = sorted(n for n in a.metrics.keys() & b.metrics.keys() if n.startswith("flow/endpt_rmse@"))
    for name in (*LOWER, *HIGHER, *ends):
        x, y = a.first_of(name), b.first_of(name)
        if x is None or y is None:
            continue
        apart = y.late - x.late if name not in HIGHER else x.late - y.late
        counts = abs(apart) > max(COUNTS * max(abs(x.late), abs(y.late)), 2 * (_error(x) + _error(y)))
        better[name] = ("A" if apart > 0 else "B") if counts else ""
        key = "compare/better" if counts else "compare/equal"
        lines.append(Message(key, name=name, better=better[name], a=x.late, b=y.late))
    if not better:
        lines.append(Message("compare/nothing"))
    judged = (findings or judge(a, overrides), judge(b, overrides))
    wrong = [[f.name for f in found if f.status == "fail"] or "-" for found in judged]
    lines.append(Message("compare/confirmed", a=wrong[0], b=wrong[1]))
    return Comparison(True, lines, better)


def _error(x: Series) -> float:
    """Return the standard error of the late value of a series."""
    tail = x.finite[-max(1, len(x.finite) // 4) :]
    return float(np.std(tail)) / math.sqrt(len(tail))
