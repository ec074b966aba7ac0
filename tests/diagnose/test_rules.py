"""Tables of the diagnosis: texts in both languages, thresholds, the cause graph, and what the package imports."""

import ast
import json
import re
import string
import subprocess
import sys
from pathlib import Path

import pytest

from fmpipe.diagnose import engine
from fmpipe.diagnose.checks import CHECKS
from fmpipe.diagnose.engine import CAUSES, RULES, judge, judged
from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.rule import REGISTRY, STATUSES, Evidence, Finding, nonfinite, say
from fmpipe.diagnose.rules.autoencoder import WRONG_LATENTS
from fmpipe.diagnose.texts import Message, en, zh
from fmpipe.diagnose.thresholds import THRESHOLDS, limits

PACKAGE = Path(engine.__file__).parent
CODE = {
    path: ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.parent.name != "texts" and path.name != "thresholds.py"
}


# Texts


def parts(entry):
    return (entry,) if isinstance(entry, str) else entry


def fields(text):
    return sorted({name for _, name, _, _ in string.Formatter().parse(text) if name is not None})


@pytest.mark.parametrize("table", ["RULES", "TEXTS", "WORDS"])
def test_both_languages_have_the_same_keys_parts_and_fields(table):
    ours, theirs = getattr(en, table), getattr(zh, table)
    assert list(ours) == list(theirs)
    assert [key for key in ours if len(parts(ours[key])) != len(parts(theirs[key]))] == []
    pairs = {key: list(zip(parts(ours[key]), parts(theirs[key]), strict=True)) for key in ours}
    assert [key for key, both in pairs.items() if any(fields(a) != fields(b) for a, b in both)] == []
    long = [b for both in pairs.values() for a, b in both if len(a) > 25]
    assert [text for text in long if not re.search("[一-鿿]", text)] == []


def values_of(node, function, seen=()):
    """Yield the strings that an expression may be, as regular expressions; a variable is looked up in its function."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.escape(node.value)
    elif isinstance(node, ast.IfExp):
        yield from values_of(node.body, function, seen)
        yield from values_of(node.orelse, function, seen)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(re.escape(p.value) if isinstance(p, ast.Constant) else "([^/]+)" for p in node.values)
    elif isinstance(node, ast.Name) and node.id not in seen:
        for other in ast.walk(function):
            if isinstance(other, ast.Assign) and any(getattr(t, "id", None) == node.id for t in other.targets):
                yield from values_of(other.value, function, (*seen, node.id))
    elif isinstance(node, ast.Tuple):
        for part in node.elts:
            yield from values_of(part, function, seen)


def used_keys():
    """Return the keys of every ``say(status, key)`` and ``Message(key)`` of the package, by place."""
    found = {}
    for path, tree in CODE.items():
        for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
            for call in ast.walk(function):
                name = getattr(getattr(call, "func", None), "id", "") if isinstance(call, ast.Call) else ""
                at = {"say": 1, "Message": 0}.get(name)
                table = len(call.args) > 2 if name == "Message" else False  # Message(key, part, "RULES") of rule.py
                if at is not None and len(call.args) > at and not table:
                    found[path, call.lineno, call.col_offset] = set(values_of(call.args[at], function))
    return found


def test_every_evidence_key_of_the_rules_exists():
    used = used_keys()
    in_rules = [place for place in used if place[0].parent.name == "rules"]
    assert len(in_rules) > 120
    assert [place for place in in_rules if not used[place]] == []  # each key can be resolved
    every = {key for found in used.values() for key in found}
    assert [key for key in every if not any(re.fullmatch(key, name) for name in en.TEXTS)] == []
    # what the placeholders of f-strings stand for
    assert {f"latent/{name}" for name in (*WRONG_LATENTS, "sample")} <= en.TEXTS.keys()
    targets = {"flipped", "x1", "x0", "noise", "score", "-noise", "-x_t", "x_t"}
    assert {f"target/{name}" for name in targets} <= en.TEXTS.keys()
    kinds = {"normalized", "mirrored", "upside down", "shifted", "resized", "other"}
    assert {f"augmentation/{name}" for name in kinds} <= en.TEXTS.keys()


def test_every_text_is_used():
    nodes = [node for tree in CODE.values() for node in ast.walk(tree)]
    written = {node.value for node in nodes if isinstance(node, ast.Constant)}
    patterns = {key for found in used_keys().values() for key in found}
    left = [name for name in en.TEXTS if name not in written]
    assert [name for name in left if not any(re.fullmatch(key, name) for key in patterns)] == []


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_rule_has_a_title_its_thresholds_and_an_experience(lang):
    table = {"en": en, "zh": zh}[lang].RULES
    assert set(table) == set(RULES)
    for name, (title, threshold, experience) in table.items():
        assert title, name
        assert experience, name
        assert set(fields(threshold)) <= THRESHOLDS.keys(), name
        assert judged(name).threshold.into(lang)


# Thresholds


def used_thresholds():
    """Return the keys of ``limit[key]`` in the code as regular expressions, each with the strings of its file."""
    found = set()
    for tree in CODE.values():
        strings = frozenset(n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
        for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
            for node in ast.walk(function):
                if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "limit":
                    keys = set(values_of(node.slice, function))
                    assert keys, ast.unparse(node)
                    found |= {(key, strings) for key in keys}
    return found


def test_every_threshold_is_used_and_every_used_one_exists():
    left, unknown = set(THRESHOLDS), []
    for key, strings in used_thresholds():
        matches = {name: re.fullmatch(key, name) for name in THRESHOLDS}
        found = {name for name, match in matches.items() if match and set(match.groups()) <= strings}
        left -= found
        unknown += [] if found else [key]
    assert (sorted(left), unknown) == ([], [])


def test_thresholds_can_be_overridden():
    assert limits({"one_step/cos": 0.01}) == {**THRESHOLDS, "one_step/cos": 0.01}
    with pytest.raises(KeyError, match="the nearest is 'one_step/cos'"):
        limits({"onestep/cos": 0.01})


# The cause graph


def test_the_cause_graph_names_every_rule_and_no_other():
    assert set(CAUSES) == set(REGISTRY)
    named = {name: row.split() for name, row in CAUSES.items()}
    assert {name: sorted(set(row) - CAUSES.keys()) for name, row in named.items() if set(row) - CAUSES.keys()} == {}
    assert [name for name, row in named.items() if len(set(row)) < len(row)] == []
    assert [name for name, row in named.items() if name in row] == []
    assert set(CHECKS) <= set(RULES)


def test_every_letter_is_given_once():
    assert sorted(rule.letter for rule in RULES.values() if rule.letter) == list("ABCDEF")


def test_consequences_follow_their_causes_and_a_small_effect_ranks_last():
    measured = {
        "one_step": {"t": [0.5], "cos": [0.05], "ratio": [0.29]},
        "shooting": {"error": [4.5], "start": 2.0},
        "teacher_euler": {"steps": [5, 100], "error": [5e-5, 1.5e-2]},
        "probes": {"anomaly": "v is not finite at step 3"},
    }
    found = judge(Figures(measured=measured))
    bad = [(f.name, f.causes) for f in found if f.status == "fail"]
    assert bad == [
        ("one_step", ()), ("teacher_euler", ()), ("shooting", ("one_step",)), ("probes", ("one_step", "shooting")),
    ]  # fmt: skip
    measured["shooting"] = {"error": [0.02], "start": 2.0}
    assert [f.name for f in judge(Figures(measured=measured))][:2] == ["teacher_euler", "one_step"]
    order = [f.status for f in found]
    assert order == sorted(order, key=("fail", "warn", "skipped", "pass").index)


# A finding


def test_a_finding_is_that_of_its_worst_evidence():
    said = {status: say(status, "finite", names=[status]) for status in STATUSES}
    assert Finding("kl", (), {}).status == "skipped"
    for worst, statuses in (
        ("skipped", ["skipped"]),
        ("pass", ["skipped", "pass"]),
        ("warn", ["pass", "warn", "skipped"]),
        ("fail", ["warn", "fail", "pass"]),
    ):
        found = Finding("kl", tuple(said[status] for status in statuses), {})
        assert (found.status, bool(found)) == (worst, worst != "fail")
        assert [e.status for e in found.bad] == [worst] * (worst in ("warn", "fail"))
    assert Evidence("fail", Message("finite", names=["x"]), stage="vae").into("en").startswith("vae: ")


def test_a_finding_is_what_it_says():
    found = judged("vae_round_trip", psnr=11.5)
    assert str(found) == f"vae_round_trip: FAIL. {found.meaning} {found.advice}"
    assert "11.50 dB" in found.meaning
    table = found.as_dict("zh")
    assert list(table) == [
        "name", "status", "title", "causes", "values", "threshold", "meaning", "advice", "experience",
    ]  # fmt: skip
    assert all(re.search("[一-鿿]", table[key]) for key in ("title", "threshold", "meaning", "advice", "experience"))
    assert "11.50 dB" in table["meaning"]
    assert json.loads(json.dumps(table))["values"] == {"psnr": 11.5}


def test_numbers_that_are_not_finite_fail_whatever_a_comparison_says():
    values = {"a": float("nan"), "b": {"c": [1.0, float("inf")]}, "d": 1.0}
    assert nonfinite(values) == ["a", "b c"]
    found = judged("vae_round_trip", psnr=float("inf"))
    assert (found.status, found.meaning) == ("fail", "Not finite: psnr.")


# Imports


FORBIDDEN = {"unittest.mock", "fmpipe.train", "fmpipe.train.loop"}
IMPORTING = """
import json, sys, torch
del sys.modules["unittest.mock"]  # torch imports it
{}
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize(
    "code",
    [
        "import fmpipe.diagnose.run_checks",
        "from typer.testing import CliRunner; from fmpipe.cli import app\n"
        "assert CliRunner().invoke(app, ['check', 'notes.txt', '--out', 'out']).exit_code == 1",
    ],
    ids=["run_checks", "fmpipe check notes.txt"],
)
def test_a_check_imports_neither_mocks_nor_the_training_loop(code, tmp_path):
    (tmp_path / "notes.txt").write_text("[shoot] MSE(z_end, x1) = 4.531314\n")
    command = [sys.executable, "-c", IMPORTING.format(code)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert "fmpipe.diagnose.checks.sampling" in loaded
    assert loaded & FORBIDDEN == set()


def test_no_module_of_the_package_imports_mocks():
    for path in PACKAGE.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "")]
            assert not any((name or "").startswith("unittest") for name in names), path
