"""The verdict on every hypothesis, and who caused whom: root causes first."""

from collections.abc import Mapping
from dataclasses import dataclass

from fmpipe.diagnose.report.finding import Finding, limits
from fmpipe.diagnose.report.hypotheses import HYPOTHESES
from fmpipe.diagnose.report.said import Said, template
from fmpipe.diagnose.report.stats import RunStats
from fmpipe.diagnose.verdict import Overrides

CONFIRMED, REJECTED, UNKNOWN = "CONFIRMED", "REJECTED", "NOT ENOUGH DATA"


@dataclass(frozen=True)
class Hypothesis:
    """What might be wrong with a run. verdict: CONFIRMED, REJECTED or NOT ENOUGH DATA.

    evidence, rule, advice: English, and a Said for other languages. marks: for each evidence, whether it is as it
    should be. causes: ids of those of which this one is a consequence, all confirmed. metrics: series for its plot.
    """

    letter: str
    name: str
    verdict: str
    evidence: list[str]
    rule: str
    advice: list[str]
    causes: tuple[str, ...]
    metrics: tuple[str, ...]
    marks: tuple[bool, ...] = ()

    @property
    def title(self) -> Said:
        return Said(f"{self.name}/title")

    def __bool__(self) -> bool:
        """True if it is confirmed."""
        return self.verdict == CONFIRMED

    def __str__(self) -> str:
        return f"{self.letter} {self.name}: {self.verdict}. {' '.join([*self.evidence, *self.advice])}"


def judge(stats: RunStats, overrides: Overrides = None) -> list[Hypothesis]:
    """All hypotheses: confirmed ones first, root causes before their consequences, then the undecided, the rejected.

    A finding is explained by the confirmed among its causes; a hypothesis with an unexplained one is a root cause.
    Every stage of the run is judged, and its sentences say which. KeyError for an unknown threshold.
    """
    limit = limits(overrides)
    runs = {"": stats} if not stats.stages else {stats.stage: stats, **stats.stages}
    by_rank = sorted(HYPOTHESES, key=lambda h: h.rank)
    found = {h.name: [(stage, f) for stage, s in runs.items() for f in h.function(s, limit)] for h in by_rank}
    bad = {name: [f for _, f in rows if not f.ok] for name, rows in found.items()}
    causes = _causes({name: rows for name, rows in bad.items() if rows})
    out = []
    for h in HYPOTHESES:
        rows = found[h.name]
        hypothesis = Hypothesis(
            letter=h.letter,
            name=h.name,
            verdict=CONFIRMED if bad[h.name] else REJECTED if rows else UNKNOWN,
            evidence=[_placed(stage, f.said) for stage, f in rows],
            rule=Said(f"{h.name}/rule", **limit),
            advice=list(dict.fromkeys(filter(None, (_advice(f.said) for f in bad[h.name])))),
            causes=causes.get(h.name, ()),
            metrics=tuple(n for n in h.metrics if any(n in s.metrics for s in runs.values())),
            marks=tuple(f.ok for _, f in rows),
        )
        out.append(((CONFIRMED, UNKNOWN, REJECTED).index(hypothesis.verdict), bool(hypothesis.causes), h, hypothesis))
    out.sort(key=lambda row: (*row[:2], row[2].rank if row[3] else row[2].letter))
    return [row[3] for row in out]


def _causes(bad: Mapping[str, list[Finding]]) -> dict[str, tuple[str, ...]]:
    """Who is whose consequence; of those who only explain each other, the first is a root."""
    causes = {}
    for name, rows in bad.items():
        explained = [[c for c in f.causes if c in bad and c != name] for f in rows]
        causes[name] = tuple(dict.fromkeys(c for cs in explained for c in cs)) if all(explained) else ()
    reached = {name for name in bad if not causes[name]}
    while len(reached) < len(bad):
        more = {name for name in bad if reached & set(causes[name])} - reached
        if not more:
            first = next(name for name in bad if name not in reached)
            causes[first], more = (), {first}
        reached |= more
    # Two that explain each other, and a third that explains one of them: the nearer to it is the cause.
    return {name: tuple(c for c in cs if name not in causes[c]) or cs for name, cs in causes.items()}


def _placed(stage: str, said: Said) -> Said:
    return Said("stage", stage=stage, said=said) if stage else said


def _advice(said: Said) -> Said | None:
    if template("en", said.key, "ADVICE") is None:
        return None
    return Said(said.key, "ADVICE", **said.values)
