"""Two runs side by side: whether they may be compared at all, and which is better in which metric."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fmpipe.diagnose.engine import judge
from fmpipe.diagnose.figures import Figures, Series
from fmpipe.diagnose.read.facts import FACTS
from fmpipe.diagnose.rule import Finding
from fmpipe.diagnose.texts import Said
from fmpipe.diagnose.thresholds import Overrides

LOWER = ("val/loss/flow", "val/loss/diffusion", "val/loss/mse", "val/flow/nmse", "loss/flow", "loss/diffusion")
HIGHER = ("val/flow/cos", "flow/cond_gain_cos", "val/vae/psnr")
COUNTS = 0.02  # of the larger, the least difference that does


@dataclass(frozen=True)
class Comparison:
    """comparable: whether nothing known forbids it. lines: what differs, or who is better in what.

    better: figure -> "A", "B" or "" where neither is; empty if they are not comparable.
    """

    comparable: bool
    lines: list[str]
    better: dict[str, str]


def compare(
    a: Figures, b: Figures, overrides: Overrides = None, findings: Sequence[Finding] | None = None
) -> Comparison:
    """A against B. Where VAE, resolution, latent size or scale are known to differ, only that is said.

    findings: those of A, if it has been judged.
    """
    known = [name for name in FACTS if name in a.facts and name in b.facts]
    differ = [name for name in known if a.facts[name] != b.facts[name]]
    if differ:
        lines = [Said("compare/differ", what=name, a=a.facts[name], b=b.facts[name]) for name in differ]
        return Comparison(False, [*lines, Said("compare/refused")], {})
    lines, better = [], {}
    if unknown := [name for name in FACTS if name not in known]:
        lines.append(Said("compare/unknown", names=unknown))
    ends = sorted(n for n in a.metrics.keys() & b.metrics.keys() if n.startswith("flow/endpt_rmse@"))
    for name in (*LOWER, *HIGHER, *ends):
        x, y = a.first_of(name), b.first_of(name)
        if x is None or y is None:
            continue
        apart = y.late - x.late if name not in HIGHER else x.late - y.late
        counts = abs(apart) > max(COUNTS * max(abs(x.late), abs(y.late)), 2 * (_error(x) + _error(y)))
        better[name] = ("A" if apart > 0 else "B") if counts else ""
        key = "compare/better" if counts else "compare/equal"
        lines.append(Said(key, name=name, better=better[name], a=x.late, b=y.late))
    if not better:
        lines.append(Said("compare/nothing"))
    judged = (findings or judge(a, overrides), judge(b, overrides))
    wrong = [[f.name for f in found if f.status == "fail"] or "-" for found in judged]
    lines.append(Said("compare/confirmed", a=wrong[0], b=wrong[1]))
    return Comparison(True, lines, better)


def _error(x: Series) -> float:
    """The standard error of where a series has come to."""
    tail = x.finite[-max(1, len(x.finite) // 4) :]
    return float(np.std(tail)) / math.sqrt(len(tail))
