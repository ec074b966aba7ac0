"""The report as Markdown, and what both of its forms say: summary, findings, observations, advice, the log itself."""

from collections.abc import Iterator, Sequence

from fmpipe.diagnose.report.compare import Comparison
from fmpipe.diagnose.report.diffusion import LOSSES, contradictions
from fmpipe.diagnose.report.judge import CONFIRMED, REJECTED, UNKNOWN, Hypothesis
from fmpipe.diagnose.report.said import Said, into, template
from fmpipe.diagnose.report.stats import RunStats

MARKS = {CONFIRMED: "❌", REJECTED: "✅", UNKNOWN: "❔"}


def word(lang: str, key: str, **values: object) -> str:
    return template(lang, key).format(**values)


def runs(stats: RunStats) -> dict[str, RunStats]:
    """The run's stages by name, the main one first."""
    return {stats.stage: stats, **stats.stages}


def headline(hypotheses: Sequence[Hypothesis], lang: str) -> str:
    bad = [h for h in hypotheses if h]
    if bad:
        first = f"{bad[0].letter} {bad[0].title.into(lang)}"
        return word(lang, "wrong", confirmed=len(bad), all=len(hypotheses), first=first)
    counts = {v: sum(h.verdict == v for h in hypotheses) for v in (REJECTED, UNKNOWN)}
    said = {"rejected": counts[REJECTED], "unknown": counts[UNKNOWN], "all": len(hypotheses)}
    return word(lang, "healthy" if counts[REJECTED] >= counts[UNKNOWN] else "little", **said)


def tree(hypotheses: Sequence[Hypothesis]) -> list[tuple[Hypothesis, list[Hypothesis]]]:
    """The root causes in their order, each with those that follow from it, once each."""
    bad = [h for h in hypotheses if h]
    under: dict[str, list[Hypothesis]] = {h.name: [] for h in bad if not h.causes}
    root_of = {name: name for name in under}
    left = [h for h in bad if h.causes]
    while left:
        for h in list(left):
            if root := next((root_of[c] for c in h.causes if c in root_of), None):
                root_of[h.name] = root
                under[root].append(h)
                left.remove(h)
    return [(h, under[h.name]) for h in bad if not h.causes]


def findings(stats: RunStats) -> Iterator[Said]:
    for stage, s in runs(stats).items():
        loss = s.first_of(*LOSSES)
        if loss is not None:
            name = next(n for n, x in s.metrics.items() if x is loss)
            drop = 100 * (loss.last10 / loss.first10 - 1) if loss.first10 else 0.0
            said = {"first": loss.first10, "last": loss.last10, "drop": drop, "count": loss.count}
            yield Said("finding/loss", name=f"{stage} {name}".strip(), **said)
    every = {n: x for s in runs(stats).values() for n, x in s.metrics.items()}
    if every:
        bad = [n for n, x in every.items() if x.nonfinite]
        yield Said("finding/nonfinite", names=", ".join(bad)) if bad else Said("finding/finite", count=len(every))


def observations(stats: RunStats) -> Iterator[str]:
    """What is odd but no fault: of the numbers, then of the log."""
    for s in runs(stats).values():
        for name, x in contradictions(s):
            said = {"low": x.min, "high": x.max, "first": x.first10, "last": x.last10}
            yield Said("remark/contradiction", name=name, **said)
        kinds = {n.split("/")[1]: kind for n, kind in s.texts.items() if n.endswith("/dtype") and "float" in kind}
        a = next((n for n in ("predicted_x0", "v_pred", "x_t") if n in kinds), None)
        b = next((n for n in ("x_0_target", "x_0", "noise") if a and kinds.get(n, kinds[a]) != kinds[a]), None)
        if a and b:
            yield Said("remark/dtype", a=a, a_type=kinds[a], b=b, b_type=kinds[b])
        yield from s.remarks


def advice(hypotheses: Sequence[Hypothesis]) -> list[str]:
    """Of root causes, then of the others; what heals the first may heal all."""
    todo = dict.fromkeys(a for h in hypotheses if h for a in h.advice)
    return list(todo) or [Said("go_on")]


def about(stats: RunStats, lang: str) -> dict[str, str]:
    """The log itself, as rows of a table."""
    every = runs(stats).values()
    steps = [int(x.steps[-1]) for s in every for x in s.metrics.values() if len(x.steps)]
    rows = {
        "source": stats.source,
        "lines": f"{sum(s.lines for s in every):,}",
        "losses": f"{sum(s.losses for s in every):,}",
        "figures": f"{sum(len(s.metrics) for s in every):,}",
    }
    if steps:
        rows["steps"] = f"{max(steps):,}"
    if seconds := sum(s.seconds or 0 for s in every):
        rows["time"] = word(lang, "log/minutes", minutes=seconds / 60)
    return {word(lang, f"log/{key}"): value for key, value in rows.items() if value}


def follows(h: Hypothesis, hypotheses: Sequence[Hypothesis], lang: str) -> str:
    """Why it is where it is: ``follows from K, G``, or that it is a root cause; "" if it is not confirmed."""
    letters = ", ".join(o.letter for o in hypotheses if o.name in h.causes)
    return word(lang, "follows", causes=letters) if letters else word(lang, "root") if h else ""


def markdown(
    stats: RunStats, hypotheses: Sequence[Hypothesis], lang: str = "en", comparison: Comparison | None = None
) -> str:
    """The whole report as text. ValueError for another language than ``en`` and ``zh``."""
    out = [f"# {word(lang, 'report')}: {stats.source or stats.stage}", f"## {word(lang, 'summary')}"]
    out.append(headline(hypotheses, lang))
    for k, (root, below) in enumerate(tree(hypotheses), 1):
        bad = [into(e, lang) for e, ok in zip(root.evidence, root.marks) if not ok]
        todo = " ".join(into(a, lang) for a in root.advice)
        lines = [f"{k}. **{root.letter} {root.title.into(lang)}.** {' '.join(bad)} → {todo}"]
        lines += [f"   - {h.letter} {h.title.into(lang)} ({follows(h, hypotheses, lang)})" for h in below]
        out.append("\n".join(lines))
    if comparison is not None:
        out += [f"## {word(lang, 'compare')}", _items(comparison.lines, lang)]
    out.append(f"## {word(lang, 'hypotheses')}")
    for h in hypotheses:
        why = follows(h, hypotheses, lang)
        verdict = f"{MARKS[h.verdict]} **{word(lang, f'verdict/{h.verdict}')}**{f' ({why})' if why else ''}"
        evidence = [f"- {'✓' if ok else '✗'} {into(e, lang)}" for e, ok in zip(h.evidence, h.marks)]
        out += [f"### {h.letter} {h.title.into(lang)} {verdict}", "\n".join(evidence) or word(lang, "no_data")]
        out.append(f"{word(lang, 'rule')}: {into(h.rule, lang)}")
    out += [f"## {word(lang, 'findings')}", _items(findings(stats), lang)]
    out += [f"## {word(lang, 'observations')}", _items(observations(stats), lang)]
    out += [f"## {word(lang, 'advice')}", _items(advice(hypotheses), lang)]
    rows = [f"| {name} | {value} |" for name, value in about(stats, lang).items()]
    out += [f"## {word(lang, 'log')}", "\n".join(["| | |", "|---|---|", *rows])]
    return "\n\n".join(out) + "\n"


def _items(lines, lang: str) -> str:
    return "\n".join(f"- {into(line, lang)}" for line in lines) or word(lang, "none")
