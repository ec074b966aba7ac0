"""The fast half of the fault matrix, on one seed; the ranking on made-up verdicts; the table in the docs."""

import pytest
from fault_matrix import DOCS, SEEDS, found, right

from fmpipe.diagnose.checks import CHECKS
from fmpipe.diagnose.faults import FAULTS, HEALTHY, rank
from fmpipe.diagnose.faults.ranking import CAUSES
from fmpipe.diagnose.report import RunStats, judge
from fmpipe.diagnose.report.en import TEXTS
from fmpipe.diagnose.verdict import Verdict

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

# Half of them: those of sampling, which share the healthy run, and one of each part of training.
FAST = (
    "VAE scale doubled", "VAE scale changed", "epsilon target", "KL on z", "bf16 state", "ignored text",
    "velocity × 0.29", "NaN at a step", "skewed t", "wrong α′ in inference", "schedule off by one", "wrong betas",
)  # fmt: skip
BY_NAME = {fault.name: fault for fault in (*HEALTHY, *FAULTS)}
LETTERS = {h.letter for h in judge(RunStats())}


@pytest.mark.parametrize("name", [HEALTHY[0].name, *FAST])
def test_its_own_check_or_hypothesis_ranks_first(name):
    ranked = found(BY_NAME[name], SEEDS[0])
    assert right(BY_NAME[name], ranked), ranked


def test_the_docs_have_every_row_and_all_are_right():
    text = DOCS.read_text(encoding="utf-8")
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    for name in BY_NAME:
        assert rows[name].endswith(f"| {len(SEEDS)}/{len(SEEDS)} |"), rows[name]


def test_names_of_the_table_of_causes_are_known():
    known = {*CHECKS, *LETTERS, "gradient_path/leak", "gradient_path/clamp"}
    for name, causes in CAUSES.items():
        assert name in known | TEXTS.keys(), name
        assert set(causes.split()) <= known, name
    for fault in FAULTS:
        assert set(fault.own) <= known, fault.name


def verdict(name, status="fail", **values):
    return Verdict(name, status, values, "", f"{name} {status}")


@pytest.mark.parametrize(
    ("verdicts", "order"),
    [
        ([], []),
        ([("shooting", "pass"), ("one_step", "skipped")], []),
        ([("shooting", "fail"), ("one_step", "fail")], ["one_step", "shooting"]),
        ([("shooting", "fail"), ("text_path", "fail"), ("pairing", "fail")], ["text_path", "pairing", "shooting"]),
        ([("vae_round_trip", "fail"), ("scale_contract", "fail")], ["scale_contract", "vae_round_trip"]),
        ([("teacher_euler", "warn"), ("text_path", "fail")], ["text_path", "teacher_euler"]),
        ([("one_step", "warn"), ("shooting", "fail")], ["shooting", "one_step"]),  # a warning explains no failure
    ],
)
def test_root_causes_come_first_and_failures_before_warnings(verdicts, order):
    assert [s.name for s in rank(verdict(*v) for v in verdicts)] == order


def test_a_leaking_gradient_is_a_cause_and_a_clamped_logvar_a_consequence():
    leaks = rank([verdict("gradient_path", **{"d_kl/d_eps": 1.0}), verdict("kl")])
    assert [(s.name, s.causes) for s in leaks] == [("gradient_path", ()), ("kl", ("gradient_path/leak",))]
    clamped = rank([verdict("gradient_path", **{"d_kl/d_eps": 0.0, "logvar/clamped": 1.0}), verdict("kl")])
    assert all(s.causes == () for s in clamped)
