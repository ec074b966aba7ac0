"""The parts that the three outputs of both commands share: terminal table, Markdown and HTML page."""

from collections.abc import Iterator, Sequence

from fmpipe.diagnose.engine import RULES, evaluated
from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.rule import Finding
from fmpipe.diagnose.rules.data import LOSSES
from fmpipe.diagnose.texts import Message, into, word

MARKS = {"fail": "❌", "warn": "⚠️", "pass": "✅", "skipped": "❔"}
ENOUGH = 0.5  # of the rules that a log can feed: with fewer, nothing is values to be healthy
LISTED = 14  # names of metrics to log
FIRST = ("loss/", "val/", "lr", "grad/", "flow/", "std/", "mu/", "scale/", "step/")  # the order in which to name them
MODEL = ("vae_round_trip", "text_path", "scale", "one_step", "shooting", "endpoint", "probes")  # of a check with images


def headline(findings: Sequence[Finding], lang: str) -> str:
    """Return the verdict in one sentence: what to fix first, or how many rules could be evaluated."""
    judged, every = evaluated(findings)
    for status, key, name in (("fail", "wrong", "confirmed"), ("warn", "warned", "warned")):
        if found := [f for f in findings if f.status == status]:
            return word(lang, key, **{name: len(found)}, evaluated=judged, first=into(found[0].title, lang))
    left = {f.name for f in findings if f.status == "skipped"}
    fed, lettered = ([f.name for f in findings if getattr(RULES[f.name], kind)] for kind in ("metrics", "letter"))
    enough = sum(name not in left for name in fed) >= ENOUGH * len(fed)
    enough = enough or any(not left.intersection(names) for names in (lettered, MODEL))
    return word(lang, "healthy" if enough else "little", evaluated=judged, all=every)


def needs(findings: Sequence[Finding], lang: str) -> str:
    """Return how many rules could be evaluated, and what to log for the others."""
    judged, every = evaluated(findings)
    left = [RULES[f.name].metrics for f in findings if f.status == "skipped"]
    names = dict.fromkeys(name for metrics in left for name in metrics[:2])
    names = sorted(names, key=lambda name: next((k for k, p in enumerate(FIRST) if name.startswith(p)), len(FIRST)))
    if not names:
        return word(lang, "needs_none", evaluated=judged, all=every)
    names = names[:LISTED] + ["…"] * (len(names) > LISTED)
    measured = sum(not metrics for metrics in left)
    return word(lang, "needs", evaluated=judged, all=every, names=names, measured=measured)


def tree(findings: Sequence[Finding]) -> list[tuple[Finding, list[Finding]]]:
    """Return the root causes in their order, each with those that follow from it, once each."""
    bad = [f for f in findings if f.status == "fail"]
    under: dict[str, list[Finding]] = {f.name: [] for f in bad if not f.causes}
    root_of = {name: name for name in under}
    left = [f for f in bad if f.causes]
    while left:
        for f in list(left):
            if root := next((root_of[c] for c in f.causes if c in root_of), None):
                root_of[f.name] = root
                under[root].append(f)
                left.remove(f)
    return [(f, under[f.name]) for f in bad if not f.causes]


def label(finding: Finding, lang: str) -> str:
    """Return the title of a finding, with the letter that the debugging notes give it and the name of its rule."""
    letter = RULES[finding.name].letter
    return f"{letter + ': ' if letter else ''}{into(finding.title, lang)}"


def follows(finding: Finding, lang: str) -> str:
    """Return ``follows from scale, kl``, or that it is a root cause; "" if it did not fail."""
    if finding.status != "fail":
        return ""
    return word(lang, "follows", causes=list(finding.causes)) if finding.causes else word(lang, "root")


def facts(figures: Figures) -> Iterator[Message]:
    """Yield what the log shows in general: the losses, and whether everything is finite."""
    for stage, part in figures.all_stages.items():
        loss = part.first_of(*LOSSES)
        if loss is not None:
            name = next(n for n, x in part.metrics.items() if x is loss)
            drop = 100 * (loss.last10 / loss.first10 - 1) if loss.first10 else 0.0
            values = {"first": loss.first10, "last": loss.last10, "drop": drop, "count": loss.count}
            yield Message("finding/loss", name=f"{stage} {name}".strip(), **values)
    every = {n: x for part in figures.all_stages.values() for n, x in part.metrics.items()}
    if every:
        bad = [n for n, x in every.items() if x.nonfinite]
        yield Message("finding/nonfinite", names=bad) if bad else Message("finding/finite", count=len(every))


def observations(figures: Figures) -> Iterator[Message]:
    """Yield what is odd but not a fault: contradictions in stated numbers, dtypes, then remarks on the log."""
    for part in figures.all_stages.values():
        for name, x in part.metrics.items():
            slack = 1e-3 * max(abs(x.min), abs(x.max))
            ends = [y for y in (x.first10, x.last10) if y == y]
            if "loss" in name and not all(x.min - slack <= y <= x.max + slack for y in ends):
                yield Message("remark/contradiction", name=name, low=x.min, high=x.max, first=x.first10, last=x.last10)
        kinds = {n.split("/")[1]: kind for n, kind in part.texts.items() if n.endswith("/dtype") and "float" in kind}
        a = next((n for n in ("predicted_x0", "v_pred", "x_t") if n in kinds), None)
        b = next((n for n in ("x_0_target", "x_0", "noise") if a and kinds.get(n, kinds[a]) != kinds[a]), None)
        if a and b:
            yield Message("remark/dtype", a=a, a_type=kinds[a], b=b, b_type=kinds[b])
        yield from part.remarks


def advices(findings: Sequence[Finding]) -> list[Message]:
    """Return the advice of root causes, then of the others: what cures the first may cure all."""
    todo = dict.fromkeys(a for f in findings if f.status == "fail" for a in f.advices)
    return list(todo) or [Message("go_on")]


def about(figures: Figures, lang: str) -> dict[str, str]:
    """Return the log itself as rows of a table."""
    every = figures.all_stages.values()
    steps = [int(x.steps[-1]) for part in every for x in part.metrics.values() if len(x.steps)]
    rows = {
        "source": figures.source,
        "lines": f"{sum(part.lines for part in every):,}",
        "losses": f"{sum(part.losses for part in every):,}",
        "figures": f"{sum(len(part.metrics) for part in every):,}",
    }
    if steps:
        rows["steps"] = f"{max(steps):,}"
    if seconds := sum(part.seconds or 0 for part in every):
        rows["time"] = word(lang, "log/minutes", minutes=seconds / 60)
    return {word(lang, f"log/{key}"): value for key, value in rows.items() if value}
