"""The report: rules on planted numbers, the debugging notes, root causes, the forms and languages, two runs."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.commands import run
from support.logs import STEPS, N, failed, healthy

from fmpipe.diagnose.checks.base import skip
from fmpipe.diagnose.compare import compare
from fmpipe.diagnose.engine import RULES, judge
from fmpipe.diagnose.figures import Figures, Series
from fmpipe.diagnose.figures import SamplingTrace as Trace
from fmpipe.diagnose.read import UnknownLogError, read
from fmpipe.diagnose.render import headline, observations
from fmpipe.diagnose.render.html import html, lines_of, thinned
from fmpipe.diagnose.render.markdown import markdown
from fmpipe.diagnose.texts import Message, en, zh

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"


WORDS = {"en": en.WORDS, "zh": zh.WORDS}


def seed(number):
    found = sorted(SEEDS.glob(f"{number}_*"))
    if not found:
        pytest.skip(f"note {number} is not in {SEEDS}")
    return found[0]


def keys(finding):
    return [e.message.key for e in finding.evidence]


def scaled(name, factor):
    return lambda s: {name: s.metrics[name].values * factor}


def ends_at(name, value):
    """From half of the run on."""
    return lambda s: {name: np.where(np.arange(N) < N // 2, s.metrics[name].values, value)}


def reversed_(name):
    return lambda s: {name: s.metrics[name].values[::-1]}


def all_of(*changes):
    return lambda s: {k: v for change in changes for k, v in change(s).items()}


PLANTED = [  # change, rule that must come first, what its evidence says
    ("vae scale twice", all_of(scaled("stat/x_0/std", 0.3), scaled("scale/z1", 0.3)), "scale_factor", "std 0.3"),
    ("vae scale itself", scaled("stat/x_0/std", 0.18), "scale_factor", "scale factor 0.18215 itself: it is applied tw"),
    ("raw moments", all_of(scaled("stat/x_0/std", 5), scaled("scale/z1", 6)), "scale_factor", "1 / 0.18215"),
    ("scales apart", scaled("scale/z1", 6), "scale", "v* = x1 - x0 is z1 almost alone"),
    ("stds apart", scaled("stat/noise/std", 6), "scale", "times apart"),
    ("shifted input", lambda s: {"stat/x_0/mean": np.full(N, 0.8)}, "input_range", "mean 0.8"),
    ("broken input", ends_at("stat/x_0/nonfinite", 7.0), "input_range", "NaN or infinite (first step: 820)"),
    ("skewed t", all_of(scaled("stat/t/mean", 0.4), scaled("stat/t/std", 0.5)), "time_sampling", "t has mean 0.19"),
    ("t a batch, not a sample", scaled("stat/t/std", 0.1), "time_sampling", "t has std 0.0"),
    ("x_t too wide", scaled("stat/x_t/std", 3), "forward_process", "x_t has std 2.4"),
    ("constant output", lambda s: {"stat/predicted_x0/std": np.full(N, 0.01)}, "model_output", "target has 1"),
    ("NaN at step 820", ends_at("loss/flow", np.nan), "loss_numerics", "40 losses are NaN or infinite (first step: 82"),
    ("loss rises", all_of(reversed_("loss/flow"), reversed_("val/loss/flow")), "loss_trend", "at step 60 and ends"),
    ("exploding", all_of(ends_at("grad/total", 900.0), ends_at("loss/flow", 50.0)), "gradients", "peaks at 900"),
    ("vanishing", lambda s: {"grad/total": 10.0 ** -np.linspace(0, 8, N)}, "gradients", "ends at"),
    ("drowned", scaled("grad/flow", 1e-4), "gradient_shares", "grad/flow is 0.01%"),
    ("head still", scaled("step/z_head_update_ratio", 1e-4), "update_ratios", "hardly moves"),
    ("saturated teacher", ends_at("ent/teacher", 0.01), "dino", "The entropy of the teacher is 0."),
    ("text ignored", lambda s: {"flow/cond_gain_cos": np.full(N, 0.001)}, "condition_use", "costs 0.001"),
    ("collapsed", all_of(ends_at("std/mean", 0.01), ends_at("std/min", 0.05)), "kl", "to 0.01"),
    ("runaway mu", all_of(ends_at("mu/rms", 9.0), scaled("scale/z0", 12)), "kl", "mu/rms goes from 0.6"),
    ("no clamp", ends_at("std/min", 1e-4), "kl", "sigma is in [0.0001"),
    ("KL on z", lambda s: {"loss/kl": np.linspace(0.1, 1.5, N)}, "kl", "spread"),
    ("x0.29 velocity", scaled("val/flow/speed_ratio", 0.29), "one_step", "fm_gain would be 4."),
    ("wrong target", scaled("flow/endpt_rmse@64", 3), "endpoint", "MSE(z0, z1) is left"),
    ("worse with K", scaled("flow/endpt_rmse@64", 1.2), "endpoint", "at K = 8, 16, 32, 64"),
    ("leak", all_of(ends_at("val/flow/cos", 0.95), ends_at("std/mean", 0.1)), "leak", "cos 0.95, std/mean 0.1"),
]  # fmt: skip


def test_nothing_is_wrong_with_a_healthy_run_and_every_rule_with_figures_is_judged():
    found = judge(healthy())
    assert [str(f) for f in found if f.status in ("fail", "warn")] == []
    assert {f.name for f in found} == set(RULES)
    judged = [f for f in found if f.status == "pass"]
    assert {f.name for f in judged} == {
        "scale_factor", "schedule_constants", "scale", "target_definition", "moving_target", "time_sampling",
        "learning_rate", "resumed", "metrics_lost", "input_range", "forward_process", "kl", "dino", "gradients",
        "gradient_shares", "update_ratios", "sampler_state", "leak", "condition_use", "endpoint", "step_sizes",
        "one_step", "loss_numerics", "time_slices", "model_output", "generalization", "memorization", "loss_trend",
    }  # fmt: skip
    assert {RULES[f.name].letter for f in judged} >= set("ABCDEF")
    assert all(f.evidence and f.threshold and f.experience and not f.advices for f in judged)
    assert all({e.status for e in f.evidence} == {"pass"} for f in judged)


@pytest.mark.parametrize(("change", "name", "says"), [row[1:] for row in PLANTED], ids=[row[0] for row in PLANTED])
def test_a_planted_fault_is_the_only_root_cause(change, name, says):
    figures = healthy()
    figures.metrics |= {key: Series(STEPS, values) for key, values in change(figures).items()}
    first, *others = judge(figures)
    assert (first.name, first.status, first.causes) == (name, "fail", ())
    assert any(says in e.message for e in first.bad), first.bad
    assert first.advices
    assert [f.name for f in others if f.status == "fail" and not f.causes] == []


@pytest.mark.parametrize(
    ("trace", "names", "key"),
    [
        (Trace([6.1875] * 18 + [6.2188] * 2, [0.4531] * 20, [0.05] * 20), "scale sampler_state", "trace/rounded"),
        (Trace([0.8] * 20, [0.0] * 20, [0.05] * 20), "sampler_state", "trace/still"),
        (Trace(np.round(np.linspace(0.8, 0.81, 500), 4), [0.05] * 500, [0.002] * 500), "", "trace/moves"),
        (Trace(np.linspace(1, 90, 20), [1.0] * 20, [0.05] * 20), "sampler_state", "trace/far"),
        (Trace([1.0, np.nan], [1.0, 1.0], [0.5, 0.5]), "sampler_state", "trace/nonfinite"),
        (Trace(np.linspace(0.8, 0.9, 20), [0.4] * 20, [0.05] * 20, dtype="bfloat16"), "", "trace/rounded"),
        (
            Trace(np.linspace(6, 7, 100), [0.4] * 100, [0.01] * 100, dtype="bfloat16"),
            "scale sampler_state",
            "trace/rounded",
        ),
        (Trace(np.linspace(0.8, 0.9, 19), [0.4] * 19, [0.05] * 19), "step_sizes", "trace/sum"),
        (Trace(np.linspace(0.8, 0.9, 101), [0.4] * 101, [0.01] * 101), "step_sizes", "trace/sum"),
    ],
    ids=[
        "bf16",
        "stuck",
        "slow, printed",
        "runs away",
        "NaN",
        "bf16, few steps",
        "bf16, many steps",
        "a step too few",
        "one too many",
    ],
)
def test_traces(trace, names, key):
    found = judge(Figures(traces=[trace]))
    assert failed(found) == names.split()
    assert key in [k for f in found for k in keys(f)]


@pytest.mark.parametrize(
    ("constants", "ok"),
    [
        ({"betas": [1e-4, 0.02], "alphas_cumprod": [0.9999, 4.04e-5]}, True),
        ({"betas": [0.00085, 0.012], "alphas_cumprod": [0.99915, 0.00466]}, True),
        ({"betas": [4.128e-5, 0.999], "alphas_cumprod": [0.99996, 2.43e-9]}, True),
        ({"betas": [1e-4, 0.2], "alphas_cumprod": [0.9999, 1e-45]}, False),
        ({"betas": [1e-4, 0.002], "alphas_cumprod": [0.9999, 0.35]}, False),
        ({"betas": [1e-4, 0.02], "alphas_cumprod": [0.9999, 4e-3]}, False),
        ({"alphas_cumprod": [0.9999, 4.04e-5], "sqrt_alphas_cumprod": [0.9999, 0.064]}, False),
    ],
)
def test_schedule_constants(constants, ok):
    figures = Figures(constants={f"const/{name}": values for name, values in constants.items()})
    found = {f.name: f.status for f in judge(figures)}
    assert found["schedule_constants"] == ("pass" if ok else "fail")


def test_nan_is_blamed_on_the_tensor_that_had_it_first():
    figures = healthy()
    for name, first in (("loss/flow", 40), ("stat/predicted_x0/nonfinite", 41), ("grad/total", 40)):
        bad = 3.0 if name.endswith("nonfinite") else np.nan
        values = np.where(np.arange(N) < first, figures.metrics[name].values, bad)
        figures.metrics[name] = Series(STEPS, values)
    found = {f.name: f for f in judge(figures) if f.status == "fail"}
    assert found["loss_numerics"].causes == ()
    assert found["model_output"].causes == found["gradients"].causes == ("loss_numerics",)
    figures.metrics["stat/predicted_x0/nonfinite"] = Series(STEPS, np.where(np.arange(N) < 40, 0.0, 3.0))
    found = {f.name: f for f in judge(figures) if f.status == "fail"}
    assert (found["model_output"].causes, found["loss_numerics"].causes) == ((), ("model_output",))


MEASURED = [  # rule, status, what its check measured
    ("scale_contract", "pass", {"plain": 31.5, "multiplied": 20.0, "divided": 21.0}),
    ("scale_contract", "warn", {"plain": 11.5, "multiplied": 11.0, "divided": 12.0}),
    ("scale_contract", "fail", {"plain": 11.5, "multiplied": 31.0, "divided": 12.0}),
    ("scale_contract", "skipped", skip("contract/one")),
    ("target_definition", "pass", {"velocity": 0.61, "x1": 0.12}),
    ("target_definition", "warn", {"velocity": 0.41, "x1": 0.42}),
    ("target_definition", "fail", {"velocity": 0.11, "x1": 0.62}),
    ("gradient_path", "pass", {"d_target/d_x1": 0.0, "d_kl/d_eps": 0.0, "logvar/clamped": 0.0}),
    ("gradient_path", "warn", {"d_target/d_x1": 0.0, "logvar/clamped": 0.25}),
    ("gradient_path", "fail", {"d_target/d_x1": 1.5}),
    ("pairing", "pass", {"true": 1.5, "shuffled": 0.5, "error": 0.01}),
    ("pairing", "warn", {"true": 1.5, "shuffled": 0.5, "error": 0.3}),
    ("pairing", "fail", {"true": 1.5, "shuffled": 0.5, "error": 0.7}),
    ("kl", "pass", {"clamped": 0.25}),
    ("kl", "warn", {"without": {}}),
    ("kl", "fail", {"clamped": 0.75}),
    ("leak", "pass", {"cos": 0.95, "relative_shooting": 0.15}),
    ("leak", "fail", {"cos": 0.95, "relative_shooting": 0.85}),
    ("leak", "skipped", {"cos": 0.95}),
    ("overflow", "pass", {"skipped": 0.025}),
    ("overflow", "warn", {"skipped": 0.15, "early": True}),
    ("overflow", "fail", {"nonfinite": 3}),
]


@pytest.mark.parametrize(("name", "status", "measured"), MEASURED)
def test_what_checks_measured_counts(name, status, measured):
    findings = judge(Figures(measured={name: measured}))
    assert [f.name for f in findings if f.status not in ("pass", "skipped")] == [name] * (status in ("warn", "fail"))
    found = next(f for f in findings if f.name == name)
    assert found.status == status
    assert found.evidence
    assert bool(found.advices) == (status in ("warn", "fail"))
    assert measured.items() <= found.values.items()
    texts = {lang: " ".join([found.says(lang), *(a.into(lang) for a in found.advices)]) for lang in ("en", "zh")}
    numbers = {lang: sorted(re.findall(r"\d+(?:\.\d+)?", text)) for lang, text in texts.items()}
    assert numbers["en"] == numbers["zh"]
    assert re.search("[一-鿿]", texts["zh"])


def test_thresholds_can_be_set_and_unknown_ones_are_refused():
    assert judge(healthy(), {"input/std_high": 0.9})[0].name == "scale_factor"
    assert judge(healthy(), {"scale/ratio": 1.01})[0].name == "scale"
    with pytest.raises(KeyError, match="input/std_high"):
        judge(healthy(), {"input/std_hi": 1})


def test_a_loss_alone_is_too_little_for_a_verdict():
    loss = {"loss/flow": healthy().metrics["loss/flow"]}
    for lang, wrong in (("en", "Nothing is wrong"), ("zh", "没有问题")):
        found = judge(Figures(loss))
        assert failed(found) == []
        assert wrong not in headline(found, lang)
        assert wrong in headline(judge(healthy()), lang)
    assert headline(found, "en").startswith("Too little is known for a verdict: only ")


def test_a_model_that_passes_every_check_of_its_parts_is_healthy_without_a_log():
    image = {"low": -1.0, "high": 1.0, "contrast": 0.5, "rms": 1.0}
    measured = {
        "vae_round_trip": {"psnr": 31.0},
        "text_path": {"cosines": {"a | b": 0.1}, "same": 1.0},
        "scale": {"z0": 14.0, "z1": 16.0, "x_t": 12.0, "v*": 20.0},
        "one_step": {"t": [0.5], "cos": [0.95], "ratio": [0.97]},
        "shooting": {"relative": [0.06], "steps": [50], "start": 2.0},
        "endpoint": {"rmse": {"euler": {8: 0.3, 16: 0.29}}, "start": 1.41},
        "probes": {"A": image, "B": 0.1, "C": image},
    }
    found = judge(Figures(measured=measured))
    assert [str(f) for f in found if f.status in ("fail", "warn")] == []
    assert headline(found, "en").startswith("Nothing is wrong")
    for name in measured:
        part = judge(Figures(measured={k: m for k, m in measured.items() if k != name}))
        assert headline(part, "en").startswith("Too little is known")


# The debugging notes


def test_note_000_starts_at_another_scale_and_does_not_move_in_bf16():
    figures = read(seed("000"))
    assert [len(trace) for trace in figures.traces] == [20, 20, 20, 100, 100]
    findings = judge(figures)
    assert failed(findings) == ["scale", "sampler_state"]
    first, second = findings[:2]
    assert first.causes == second.causes == ()  # 6.19 and 0.79 in fp32: another scale of z0, before any rounding
    assert re.search(r"\|x\| begins at 0\.7\d+ to 6\.188", first.meaning)
    assert [e.status for e in second.evidence] == ["fail", "fail", "fail", "pass", "pass"]
    assert re.search(r"moves at 1 of 19 steps.*grid of bfloat16, 0.0312 apart", second.evidence[0].message)
    assert re.search(r"moves at 99 of 99 steps.*fp32", second.evidence[3].message)
    assert "float32" in second.advices[0]


def test_note_001_has_raw_moments_for_z1():
    figures = read(seed("001"))
    findings = judge(figures)
    assert failed(findings) == ["scale"]
    assert findings[0].values["ratio"] == pytest.approx(7, abs=0.5)
    assert (findings[0].values["large"], findings[0].values["small"]) == ("z1", "z0")
    assert "sample()" in findings[0].advice


def test_note_002_is_rejected_six_times_and_contradicts_itself():
    figures = read(seed("002"))
    findings = judge(figures)
    assert [str(f) for f in findings if f.status in ("fail", "warn")] == []
    lettered = {RULES[f.name].letter: f for f in findings if RULES[f.name].letter}
    assert {letter: f.status for letter, f in lettered.items()} == dict.fromkeys("ABCDEF", "pass")
    assert any("32 losses are above 1" in e.message for e in lettered["E"].evidence)
    assert any("96.27 %" in e.message for e in lettered["E"].evidence)
    said = {s.key: s for s in observations(figures)}
    assert "range [0.16, 1.35] contradicts" in said["remark/contradiction"]


def test_figures_as_note_002_states_them():
    """Its figures, as its report states them: ranges of batches, early and late, first and last ten."""

    def stated(low, high, **more):
        return Series([0, 1], [low, high], {"count": 57168, **more})

    rows = {"loss/total": stated(1.34, 0.05, min=0.16, max=1.35, first10=1.34, last10=0.05)}
    for name, (low, high), mean, std in (
        ("x_0", (-6.57, 4.48), (-0.0006, 0.0004), (0.998, 1.003)),
        ("t", (0, 999), (347.9, 631.3), (235.7, 351.8)),
        ("noise", (-6.22, 6.25), (-0.0016, 0.0016), (0.999, 1.001)),
        ("x_t", (-7.26, 6.34), (-0.0013, 0.0012), (0.999, 1.002)),
        ("predicted_x0", (-6.59, 3.92), (0.0, 0.0), (0.57, 0.98)),
    ):
        rows |= {f"stat/{name}/min": stated(low, low), f"stat/{name}/max": stated(high, high)}
        rows |= {f"stat/{name}/mean": stated(*mean), f"stat/{name}/std": stated(*std)}
        rows[f"stat/{name}/nonfinite"] = stated(0, 0)
    constants = {
        "const/betas": [0.0001, 0.02], "const/alphas_cumprod": [0.9999, 4.04e-5],
        "const/sqrt_alphas_cumprod": [0.9999, 0.0064], "const/sqrt_one_minus_alphas_cumprod": [0.0100, 0.99998],
    }  # fmt: skip
    texts = {"stat/predicted_x0/dtype": "bfloat16", "stat/x_0_target/dtype": "float32"}
    figures = Figures(rows, constants=constants, texts=texts, lines=504152, seconds=2700.0)
    assert figures.losses == 57168
    findings = judge(figures)
    lettered = {RULES[f.name].letter: f for f in findings if RULES[f.name].letter}
    assert {letter: f.status for letter, f in lettered.items()} == dict.fromkeys("ABCDEF", "pass")
    assert {f.status for f in findings} == {"pass", "skipped"}
    assert any("96.27 %" in e.message for e in lettered["E"].evidence)
    said = list(observations(figures))
    assert "range [0.16, 1.35] contradicts" in said[0]
    assert "predicted_x0 is bfloat16, x_0_target is float32" in said[1]
    text = markdown(figures, findings, "zh")
    assert all(part in text for part in ("504,152", "57,168", "45.0 分钟", "矛盾", "排除", "继续训练"))


def test_note_003_has_no_figures():
    with pytest.raises(UnknownLogError, match="no metric found that is recognized"):
        read(seed("003"))


def test_note_004_gets_its_conclusion_its_remedy_and_two_corrections():
    figures = read(seed("004"))
    findings = judge(figures)
    assert failed(findings) == ["one_step", "teacher_euler", "shooting"]
    step, teacher, shot = findings[:3]
    assert (step.causes, teacher.causes, shot.causes) == ((), (), ("one_step",))
    assert step.values["fm_gain"] == pytest.approx(3.49, abs=0.01)
    assert "weak" in step.meaning
    assert "0.287, 0.296, 0.286, 0.282, too small by a factor of 3.49" in step.meaning
    assert "fm_gain = 3.49" in step.advice
    assert "rounding of the state, not the schedule" in teacher.meaning
    assert teacher.effect < 0.01 < step.effect  # 0.015 of an MSE of 4.5
    found = {f.name: f for f in findings}
    assert found["text_path"].status == "skipped"  # cosines of samples, without a control
    assert keys(found["text_path"]) == ["text/control"]
    assert found["vae_round_trip"].status == found["target_definition"].status == "pass"
    chinese = markdown(figures, findings, "zh")
    assert all(part in chinese for part in ("fm_gain = 3.49", "舍入", "0.287, 0.296, 0.286, 0.282"))
    assert f"\n- `text_path`: {found['text_path'].says('zh')}\n" in chinese  # why it was not judged


@pytest.mark.parametrize(("number", "names"), [("000", set()), ("001", {"scale/z0", "scale/z1"})])
def test_sentences_of_a_note_are_not_read_as_metrics(number, names):
    """Such as "gradients may be clipped or NaN" and "VAEs often use scale=0.18215", both in Chinese."""
    assert read(seed(number)).metrics.keys() == names


@pytest.mark.parametrize(("number", "code"), [("000", 1), ("001", 1), ("002", 0), ("004", 1)])
def test_check_and_report_of_a_note_name_the_same_first_finding(number, code, tmp_path):
    checked = run("check", seed(number), "--out", tmp_path / "check")
    reported = run("report", seed(number), "--out", tmp_path / "report")
    assert (checked.exit_code, reported.exit_code) == (code, 0), checked.output + reported.output
    found = [json.loads((tmp_path / kind / f"{kind}.json").read_text())["findings"] for kind in ("check", "report")]
    assert found[0] == found[1]
    title = found[0][0]["title"] if code else "Nothing is wrong"
    for result in (checked, reported):
        assert title in " ".join(result.stdout.split())


@pytest.mark.parametrize("command", ["check", "report"])
def test_a_note_without_figures_is_refused(command, tmp_path):
    result = run(command, seed("003"), "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "no metric found that is recognized" in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


# Both languages, both forms


def sick():
    figures = healthy()
    figures.metrics |= {n: Series(STEPS, figures.metrics[n].values * 5) for n in ("stat/x_0/std", "scale/z1")}
    total = figures.metrics["loss/total"].values
    figures.metrics["loss/total"] = Series(STEPS, np.where(np.arange(N) == 7, np.nan, total))
    figures.traces[0].label = "</script><sick>"
    figures.source, figures.lines, figures.remarks = "runs/<sick> & co", 80, [Message("remark/twice", count=3)]
    return figures


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_markdown_has_every_section_and_roots_with_their_consequences(lang):
    figures = sick()
    findings = judge(figures)
    text, words, titles = markdown(figures, findings, lang), WORDS[lang], {"en": en.RULES, "zh": zh.RULES}[lang]
    sections = [words[key] for key in ("summary", "rules", "findings", "observations", "advice", "log")]
    assert re.findall(r"^## (.+)$", text, re.M) == sections
    judged = [f.name for f in findings if f.status != "skipped"]
    assert re.findall(r"^### .* \(`(\w+)`\) ", text, re.M) == judged
    (rest,) = re.findall(r"^### ❔ .*\n\n(.+)\n\n##", text, re.M)
    assert re.findall(r"`(\w+)`", rest) == [f.name for f in findings if f.status == "skipped"]
    assert failed(findings)[:2] == ["scale_factor", "scale"]
    summary = text.split("## ")[1]
    first = findings[0].title.into(lang)
    assert summary.index(first) < summary.index(titles["scale"][0]) < summary.index(titles["input_range"][0])
    assert words["follows"].format(causes="scale_factor") in summary
    assert (zh if lang == "zh" else en).TEXTS["remark/twice"].format(count=3) in text
    if lang == "zh":
        assert not re.search(r"[a-z]{4,} [a-z]{4,} [a-z]{4,}", text)  # no English sentence


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_is_self_contained_and_has_a_plot_for_each_rule_with_series(lang):
    figures = sick()
    findings = judge(figures)
    text = html(figures, findings, lang)
    assert f'<html lang="{lang}">' in text
    assert "runs/&lt;sick&gt; &amp; co" in text
    assert "<sick>" not in text.partition('id="data"')[0]
    assert not re.search(r"(src|href)=|@import|url\(", text)
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    plotted = [f.name for f in findings if lines_of(f, figures)]
    due = [f.name for f in findings if figures.metrics.keys() & set(RULES[f.name].metrics)]
    assert set(plotted) == {*due, "sampler_state", "schedule_constants"}
    shown = [
        f.name for f in findings if f.name in plotted and f.status != "skipped"
    ]  # the others are listed at the end
    assert [int(k) for k in re.findall(r'data-k="(\d+)"', text)] == list(range(len(shown)))
    assert len(data["charts"]) == len(shown) >= 20
    assert all(len(line["x"]) == len(line["y"]) > 0 for chart in data["charts"] for line in chart)
    assert any(None in line["y"] for chart in data["charts"] for line in chart)  # NaN is a gap, and JSON


@pytest.mark.parametrize("label", ["<!--<script>", "</script><b>", "<!--", "<img src=x onerror=alert(1)>"])
@pytest.mark.parametrize("page", ["report", "check"])
def test_no_label_changes_what_a_browser_reads(label, page):
    """It takes the text of the script to its end tag as it is, except that <!--<script> hides this tag."""
    figures = sick()
    figures.traces[0].label = label
    more = {"pictures": {label: Image.new("RGB", (2, 2))}, "settings": {label: label}} if page == "check" else {}
    text = html(figures, judge(figures), **more)
    assert label not in text
    data = re.search(r'id="data">(.*?)</script>', text, re.S)[1]
    assert "<" not in data
    assert any(label in line["name"] for chart in json.loads(data)["charts"] for line in chart)


def test_another_language_is_refused():
    with pytest.raises(ValueError, match="en, zh"):
        markdown(Figures(), [], "de")


def test_a_long_line_is_thinned_to_its_extremes():
    y = np.sin(np.arange(100_000) / 50)
    y[[31_234, 77_000]] = 9.0, np.nan
    x, kept = thinned(np.arange(100_000), y)
    assert len(kept) < 700
    assert (np.nanmax(kept), x[np.nanargmax(kept)]) == (9.0, 31_234)
    assert np.isnan(kept).sum() == 1
    assert (x[0], x[-1]) == (0, 99_999)


# Two runs


def test_runs_with_other_latents_are_not_ranked():
    a, b = healthy(), healthy()
    a.facts = {"vae_digest": "aa", "resolution": 64, "latent_size": "4×16×16", "scale": "1"}
    for name, value in (("vae_digest", "bb"), ("resolution", 32), ("latent_size", "4×8×8"), ("scale", "2")):
        b.facts = {**a.facts, name: value}
        found = compare(a, b)
        assert not found.comparable
        assert found.better == {}
        assert str(value) in found.lines[0]
        assert "not ranked" in found.lines[1]


def test_the_better_run_is_named_figure_by_figure():
    a, b = healthy(), healthy()
    b.metrics["val/flow/cos"] = Series(STEPS, b.metrics["val/flow/cos"].values * 1.1)
    b.metrics["val/loss/flow"] = Series(STEPS, b.metrics["val/loss/flow"].values * 1.2)
    found = compare(a, b)
    assert found.comparable
    better = [found.better[name] for name in ("val/flow/cos", "val/loss/flow", "val/flow/nmse")]
    assert better == ["B", "A", ""]
    assert "vae_digest" in found.lines[0]
    text = markdown(a, judge(a), "zh", found)
    assert "两次训练对比" in text


def test_an_autoencoders_latents_need_not_have_the_scale_of_its_images():
    """In the stage vae, x_0 are images and noise is the latent."""
    rows = {"stat/x_0/std": 0.3, "stat/noise/std": 1.11, "stat/x_0/min": -1.0, "stat/x_0/max": 1.0}
    metrics = {name: Series(STEPS, np.full(N, value)) for name, value in rows.items()}
    assert failed(judge(Figures(metrics, stage="vae"))) == []
    apart = {
        **metrics,
        "stat/x_0/min": Series(STEPS, np.full(N, -5.0)),
        "stat/noise/std": Series(STEPS, np.full(N, 9.0)),
    }
    assert "scale" in failed(judge(Figures(apart, stage="flow")))


@pytest.mark.parametrize(("mu", "std", "wrong"), [(0.9, 0.02, []), (0.01, 1.0, ["kl"])])
def test_an_autoencoders_posterior_may_be_narrow_but_not_the_prior(mu, std, wrong):
    metrics = {name: Series(STEPS, np.full(N, value)) for name, value in (("mu/abs_mean", mu), ("std/mean", std))}
    assert failed(judge(Figures(metrics, stage="vae"))) == wrong


@pytest.mark.parametrize(("kl", "wrong"), [(2.6, []), (0.001, ["kl"])])
def test_an_autoencoder_of_this_trainer_is_judged_by_its_kl_per_element(kl, wrong):
    metrics = {"loss/kl": Series(STEPS, np.full(N, kl))}
    assert failed(judge(Figures(metrics, stage="vae"))) == wrong


def test_a_run_that_was_judged_is_not_judged_again_to_be_compared(monkeypatch):
    a, b, seen = healthy(), healthy(), []
    monkeypatch.setattr("fmpipe.diagnose.compare.judge", lambda figures, overrides: seen.append(figures) or [])
    compare(a, b, None, judge(a))
    assert len(seen) == 1
    assert seen[0] is b
