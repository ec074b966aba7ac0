"""The one kind of judgment: a rule looks at figures and yields evidence, which adds up to a finding."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps

from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.texts import ADVICE, CAUSE, EXPERIENCE, THRESHOLD, TITLE, Message, into, template
from fmpipe.diagnose.thresholds import Limits

STATUSES = ("pass", "warn", "fail", "skipped")


@dataclass(frozen=True)
class Evidence:
    """One fact. status: ``pass``, ``warn``, ``fail``, or ``skipped`` with the reason.

    causes: rules that would explain it, instead of those of the rule's row in the cause graph; None for that row.
    effect: the share of the run's error that it explains, from 0 to 1. stage: of a run with several stages.
    """

    status: str
    message: Message
    causes: tuple[str, ...] | None = None
    effect: float = 1.0
    stage: str = ""

    def into(self, lang: str = "en") -> str:
        """Return the sentence, after the name of its stage if the run has several."""
        return f"{self.stage}: {self.message.into(lang)}" if self.stage else self.message.into(lang)

    @property
    def advice(self) -> Message | None:
        if self.status in ("pass", "skipped") or not template("en", self.message.key, ADVICE):
            return None
        return Message(self.message.key, ADVICE, **self.message.values)


def say(
    status: str | bool, key: str, causes: Iterable[str] | None = None, effect: float = 1.0, **values: object
) -> Evidence:
    """Return a piece of evidence. status: one of STATUSES, or whether the fact is as it should be."""
    status = status if isinstance(status, str) else ("fail", "pass")[bool(status)]
    return Evidence(status, Message(key, **values), None if causes is None else tuple(causes), effect)


@dataclass(frozen=True)
class Finding:
    """The result of a rule for one run.

    status: that of the worst evidence; ``skipped`` if there is none. values: all numbers that were judged. causes: the
    failed rules of which this one is a consequence, filled in by the engine. ``bool(finding)`` is False if it failed.
    """

    name: str
    evidence: tuple[Evidence, ...]
    values: dict[str, object]
    limit: Limits = field(repr=False, default_factory=dict)
    causes: tuple[str, ...] = ()

    @cached_property
    def status(self) -> str:
        found = {e.status for e in self.evidence}
        return next((status for status in ("fail", "warn", "pass") if status in found), "skipped")

    def __bool__(self) -> bool:
        return self.status != "fail"

    @property
    def bad(self) -> list[Evidence]:
        """Return the evidence that decides, the largest effect first: failures, or warnings if nothing failed."""
        found = [e for e in self.evidence if e.status == self.status and self.status in ("warn", "fail")]
        return sorted(found, key=lambda e: -e.effect)

    @property
    def effect(self) -> float:
        return max((e.effect for e in self.bad), default=0.0)

    @property
    def title(self) -> Message:
        """Return what is wrong: the cause that the worst evidence names, or the title of the rule."""
        if self.bad and template("en", self.bad[0].message.key, CAUSE):
            return Message(self.bad[0].message.key, CAUSE, **self.bad[0].message.values)
        return Message(self.name, TITLE, "RULES")

    @property
    def threshold(self) -> Message:
        return Message(self.name, THRESHOLD, "RULES", **self.limit)

    @property
    def experience(self) -> Message:
        return Message(self.name, EXPERIENCE, "RULES")

    @property
    def advices(self) -> list[Message]:
        """Return what to do next, once each."""
        return list(dict.fromkeys(e.advice for e in self.evidence if e.advice))

    @property
    def meaning(self) -> str:
        return self.says()

    @property
    def advice(self) -> str:
        return " ".join(self.advices)

    def says(self, lang: str = "en") -> str:
        """Return the evidence as one text: what decides if something is wrong, otherwise all of it."""
        shown = [e for e in self.evidence if e.status in ("warn", "fail")] or self.evidence
        return " ".join(dict.fromkeys(e.into(lang) for e in shown))

    def __str__(self) -> str:
        return " ".join(filter(None, [f"{self.name}: {self.status.upper()}.", self.meaning, self.advice]))

    def as_dict(self, lang: str = "en") -> dict[str, object]:
        """Return names, verdict and texts as plain types."""
        return {
            "name": self.name,
            "status": self.status,
            "title": into(self.title, lang),
            "causes": list(self.causes),
            "values": self.values,
            "threshold": into(self.threshold, lang),
            "meaning": self.says(lang),
            "advice": " ".join(str(into(a, lang)) for a in self.advices),
            "experience": into(self.experience, lang),
        }


Judge = Callable[[Figures, Limits], Iterator[Evidence]]


@dataclass(frozen=True)
class Rule:
    """name: also that of the check that measures for it. metrics: the series of a log that it judges and plots."""

    name: str
    function: Judge
    metrics: tuple[str, ...] = ()
    letter: str = ""

    def judge(self, figures: Figures, limit: Limits) -> Finding:
        """Judge every stage of a run. Measured numbers that are not finite fail, whatever a comparison would say."""
        evidence, values = [], {}
        for stage, part in figures.all_stages.items():
            measured = part.measured.get(self.name, {})
            values |= measured
            if why := measured.get("not_measured"):
                found = [Evidence("skipped", why)]
            elif bad := nonfinite(measured):
                found = [say("fail", "not_finite", names=bad)]
            else:
                found = list(self.function(part, limit))
            for e in found:
                values |= {k: v for k, v in e.message.values.items() if k not in measured}
                evidence.append(replace(e, stage=stage if figures.stages else ""))
        return Finding(self.name, tuple(evidence), values, limit)


REGISTRY: dict[str, Rule] = {}


def rule(*metrics: str, letter: str = "") -> Callable[[Judge], Judge]:
    """Register a function ``(figures, limits) -> evidence`` as the rule of its name."""

    def register(function: Judge) -> Judge:
        REGISTRY[function.__name__] = Rule(function.__name__, function, metrics, letter)
        return function

    return register


def measured_rule(function: Callable[[dict, Limits], Iterator[Evidence]]) -> Judge:
    """Register a function ``(numbers, limits) -> evidence`` as the rule of its name, on what its check measured."""

    @wraps(function)
    def judge(figures: Figures, limit: Limits) -> Iterator[Evidence]:
        numbers = figures.measured.get(function.__name__)
        return function(numbers, limit) if numbers else iter(())

    return rule()(judge)


def nonfinite(values: object, name: str = "") -> list[str]:
    """Return the names of numbers that are infinite or NaN, in a dict of numbers, lists and dicts."""
    if isinstance(values, Mapping):
        return [bad for key, value in values.items() for bad in nonfinite(value, f"{name} {key}".strip())]
    if isinstance(values, (list, tuple)):
        return [name] * any(nonfinite(value, name) for value in values)
    return [name] * (isinstance(values, float) and not math.isfinite(values))
