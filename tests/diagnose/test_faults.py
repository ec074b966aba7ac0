"""The fast half of the fault matrix, on one seed; the ranking of made-up figures; the tables in the docs."""

import pytest
from fault_matrix import DOCS, SEEDS, found, right, rules
from faults import FAULTS, HEALTHY

from fmpipe.diagnose.engine import CAUSES, RULES, judge
from fmpipe.diagnose.figures import Figures

# Half of them: those of sampling, which share the healthy run, and one of each part of training.
FAST = (
    "VAE scale doubled", "VAE scale changed", "epsilon target", "KL on z", "bf16 state", "ignored text",
    "velocity × 0.29", "NaN at a step", "skewed t", "wrong α′ in inference", "schedule off by one", "wrong betas",
)  # fmt: skip
BY_NAME = {fault.name: fault for fault in (*HEALTHY, *FAULTS)}
FAILS = {
    "scale_contract": {"plain": 16.0, "multiplied": 14.0, "divided": 30.0},
    "vae_round_trip": {"psnr": 16.0},
    "text_path": {"cosines": {"a cat | a car": 0.99}, "same": 1.0},
    "pairing": {"true": -1.0, "shuffled": -1.0, "error": 0.1},
    "kl": {"clamped": 1.0},
    "one_step": {"t": [0.5], "cos": [0.95], "ratio": [0.29]},
    "leak": {"cos": 0.95, "relative_shooting": 0.6, "std/mean": 0.5},
    "shooting": {"relative": [1.2], "steps": [50], "start": 2.0},
    "teacher_euler": {"steps": [5, 100], "error": [1e-4, 0.01], "start": 2.0},
}
WARNS = {
    "one_step": {"t": [0.1, 0.5, 0.9], "cos": [0.6, 0.6, 0.4], "ratio": [1.0, 1.0, 1.0]},
    "teacher_euler": {"steps": [5, 100], "error": [0.1, 0.01], "start": 2.0},
}
LEAKS = {"d_target/d_x1": 0.0, "d_kl/d_eps": 1.0, "logvar/clamped": 0.0}
CLAMPED = {"d_target/d_x1": 0.0, "d_kl/d_eps": 0.0, "logvar/clamped": 1.0}


def ranked(**measured):
    """Return the findings on measured numbers that fail or warn."""
    return [finding for finding in judge(Figures(measured=measured)) if finding.status in ("fail", "warn")]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", [HEALTHY[0].name, *FAST])
def test_a_rule_of_the_fault_ranks_first(name):
    findings = found(BY_NAME[name], SEEDS[0])
    assert right(BY_NAME[name], findings), [str(finding) for finding in findings]


def test_the_docs_have_every_row_and_all_are_right():
    text = DOCS.read_text(encoding="utf-8")
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    for name in BY_NAME:
        assert rows[name].endswith(f"| {len(SEEDS)}/{len(SEEDS)} |"), rows[name]


def test_the_docs_have_the_table_of_all_rules():
    assert f"<!-- rules -->\n{rules()}\n<!-- end of rules -->" in DOCS.read_text(encoding="utf-8")


def test_rules_that_faults_and_causes_name_exist():
    for name, causes in CAUSES.items():
        assert set(causes.split()) <= RULES.keys() - {name}, name
    for fault in FAULTS:
        assert fault.own, fault.name
        assert set(fault.own) <= RULES.keys(), fault.name


@pytest.mark.parametrize(
    ("fails", "warns", "order"),
    [
        ([], [], []),
        (["shooting", "one_step"], [], ["one_step", "shooting"]),
        (["shooting", "text_path", "pairing"], [], ["text_path", "pairing", "shooting"]),
        (["vae_round_trip", "scale_contract"], [], ["scale_contract", "vae_round_trip"]),
        (["leak", "one_step"], [], ["one_step", "leak"]),
        (["text_path"], ["teacher_euler"], ["text_path", "teacher_euler"]),
        (["shooting"], ["one_step"], ["shooting", "one_step"]),  # a warning explains no failure
    ],
)
def test_root_causes_come_first_and_failures_before_warnings(fails, warns, order):
    findings = ranked(**{name: FAILS[name] for name in fails}, **{name: WARNS[name] for name in warns})
    assert [finding.name for finding in findings] == order
    assert {f.name for f in findings if f.status == "fail"} == set(fails)
    assert not any(f.causes for f in findings[:1])


def test_a_leaking_gradient_is_a_cause_and_a_clamped_logvar_a_consequence():
    leaks = ranked(gradient_path=LEAKS, kl=FAILS["kl"])
    assert [(f.name, f.causes) for f in leaks] == [("gradient_path", ()), ("kl", ("gradient_path",))]
    clamped = ranked(gradient_path=CLAMPED, kl=FAILS["kl"])
    assert [(f.name, f.causes) for f in clamped] == [("kl", ()), ("gradient_path", ("kl",))]


def test_a_root_cause_with_a_small_effect_ranks_behind_the_others():
    rounding = FAILS["teacher_euler"]
    assert [f.name for f in ranked(teacher_euler=rounding)] == ["teacher_euler"]
    findings = ranked(teacher_euler=rounding, shooting=FAILS["shooting"])
    assert [(f.name, f.causes) for f in findings] == [("shooting", ()), ("teacher_euler", ())]


def test_a_loss_that_is_not_finite_explains_what_was_measured():
    figures = Figures.of({"loss/flow": [1.0] * 10 + [float("nan")] * 10})
    figures.measured = {name: FAILS[name] for name in ("pairing", "one_step")}
    first, *others = [finding for finding in judge(figures) if finding.status == "fail"]
    assert first.name == "loss_numerics"
    assert {f.name for f in others} >= {"pairing", "one_step"}
    assert all("loss_numerics" in f.causes for f in others)
