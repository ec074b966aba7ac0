"""fmpipe check: the lines of the debugging notes, a pipeline with and without data, what is written, how it ends."""

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.commands import run
from support.tiny_models import tiny_clip, tiny_vae

from fmpipe.diagnose.checks import CHECKS
from fmpipe.diagnose.engine import RULES, judge
from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.read import UnknownLogError, read
from fmpipe.diagnose.run_checks import run_checks
from fmpipe.models import build
from fmpipe.pipeline import FlowPipeline
from fmpipe.run_log import RunLog, history_of

pytestmark = pytest.mark.slow

# What the debugging code of the notes printed, line by line.
NOTES = """
- z: **range [-4.500, 5.562], mean -0.014, var 1.414**
- pixels: **range [0.000, 0.992], PSNR=29.08 dB**
[text] cos(a cat, a car) = 0.098
[text] cos(a cat, a red apple) = 0.114
[text] cos(a car, a red apple) = 0.108
[fm] t=0.10  cos(v_pred, v_tgt)=0.050  ||pred||/||tgt||=0.287
[fm] t=0.37  cos(v_pred, v_tgt)=0.045  ||pred||/||tgt||=0.296
[fm] t=0.63  cos(v_pred, v_tgt)=0.036  ||pred||/||tgt||=0.286
[fm] t=0.90  cos(v_pred, v_tgt)=0.015  ||pred||/||tgt||=0.282
[shoot] MSE(z_end, x1) = 4.531314
[teacher-euler] N=100 MSE=1.51e-02
[teacher-euler] N=50 MSE=3.41e-03
  - `N=20  → 5.84e-04`
  - `N=10  → 1.54e-04`
  - `N=5   → 5.42e-05`
print(f"[fm] t={float(t):.2f}  cos(v_pred, v_tgt)={cos:.3f}  ||pred||/||tgt||={ratio:.3f}")
"""


def read_from(folder, text):
    (folder / "notes.txt").write_text(text)
    return read(folder / "notes.txt")


def test_printed_lines_get_the_conclusions_of_the_notes_and_two_corrections(tmp_path):
    found = {f.name: f for f in judge(read_from(tmp_path, NOTES))}
    assert {name: found[name].status for name in found if found[name].evidence} == {
        "one_step": "fail",
        "teacher_euler": "fail",
        "shooting": "fail",
        "text_path": "skipped",  # samples without a control
        "vae_round_trip": "pass",
        "target_definition": "pass",
    }
    step = found["one_step"]
    assert step.values["fm_gain"] == pytest.approx(3.5, abs=0.05)
    assert "weak" in step.meaning
    assert "too small by a factor of 3.49" in step.meaning
    assert "fm_gain = 3.49" in step.advice
    assert "rounding of the state, not the schedule" in found["teacher_euler"].meaning
    assert found["teacher_euler"].values["steps"] == [5, 10, 20, 50, 100]
    assert found["vae_round_trip"].values["psnr"] == 29.08


def test_the_same_prompt_twice_is_the_control_of_sampled_cosines(tmp_path):
    for same, status in ((0.99, "pass"), (0.11, "skipped")):
        figures = read_from(tmp_path, f"{NOTES}\n[text] cos(a cat, a cat) = {same}\n")
        assert {f.name: f.status for f in judge(figures)}["text_path"] == status


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("[shoot] MSE(z_end, x1) = nan", {"shooting"}),
        ("noise\n[fm] t=0.5 cos(v_pred, v_tgt)=0.9 ||pred||/||tgt||=1.0\n", {"one_step"}),
        ("for N=100 steps we used lr=1e-4", set()),
        ("N=20 3 runs, N = 100 5 runs", set()),
        ("[shoot] N=5 MSE(z_end, x1) = 0.2", {"shooting"}),
        ("[text] cos({prompts[i]}, {prompts[j]}) = {c:.3f}", set()),
        ("", set()),
    ],
)
def test_lines_are_found_and_code_is_not(text, rules, tmp_path):
    try:
        found = read_from(tmp_path, text).measured.keys()
    except UnknownLogError:
        found = set()
    assert found == rules


def test_a_text_without_figures_is_refused(tmp_path):
    with pytest.raises(UnknownLogError, match="no metric found that is recognized"):
        read_from(tmp_path, "the loss went down")


@pytest.fixture(scope="module")
def pipe():
    torch.manual_seed(0)
    networks = build("small_dimr").eval()
    made = FlowPipeline(tiny_clip(), networks.text_head, networks.velocity_net, tiny_vae())
    made.set_progress_bar_config(disable=True)
    return made


def history():
    falling = [0.2 + 0.8 / (k + 1) for k in range(20)]
    return {
        "mu/abs_mean": falling,
        "std/mean": [1 - x / 2 for x in falling],
        "logvar/mean": [-x for x in falling],
        "grad/total": [1.0] * 20,
        "grad/flow": [0.9] * 20,
        "grad/kl": [1e-3] * 20,
        "loss/flow": falling,
        "loss/kl": falling,
        "w/flow": [1.0] * 20,
        "w/kl": [0.5] * 20,
        "step/z_head_update_ratio": [1e-4] * 20,
    }


def test_every_rule_has_a_finding_or_says_what_it_lacks(pipe):
    alone = run_checks(pipe, steps=2)
    assert {f.name for f in alone.findings} == set(RULES)
    assert {f.name for f in alone.findings if f.status != "skipped"} == {"vae_eval", "text_path", "probes", "precision"}
    assert all(f.meaning.startswith("needs") for f in alone.findings if f.status == "skipped")
    images = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    captions = ["a cat", "the moon", "a red house", "a dog", "a car", "two trees"]
    full = run_checks(pipe, images, captions, Figures.of(history()), steps=2)
    left = {f.name for f in full.findings if f.status == "skipped"}
    assert left & set(CHECKS) == {
        "latent_scale", "same_augmentation", "time_embedding", "dino", "overflow", "overfit", "ablation_only_flow",
        "ablation_kl_off", "ablation_condition_shuffled", "ablation_dino_shuffled",
    }  # fmt: skip
    status = {f.name: f.status for f in full.findings}
    # What does not depend on training is right in a random pipeline; what does is not.
    for name in ("image_range", "latent_is_sample", "teacher_euler", "gradient_path", "vae_eval", "kl"):
        assert status[name] == "pass", name
    for name in ("vae_round_trip", "one_step", "shooting", "gradient_shares"):
        assert status[name] == "fail", name
    assert set(full.pictures) == {"orig", "recon_wrap", "recon_direct", "A", "C"}
    torch.testing.assert_close(full.pictures["orig"], images)


def test_the_figures_of_a_log_are_left_as_they_were(pipe):
    figures = Figures.of(history())
    found = run_checks(pipe, figures=figures, steps=2)
    assert found.figures.measured.keys() == {"vae_eval", "text_path", "probes", "precision"}
    assert figures.measured == {}
    assert figures.metrics.keys() == history().keys()


def test_a_pipeline_that_is_not_finite_fails_and_the_rest_is_judged(pipe):
    weight = list(pipe.velocity_net.parameters())[-1]
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.fill_(float("nan"))
        found = {f.name: f for f in run_checks(pipe, steps=2).findings}
    finally:
        with torch.no_grad():
            weight.copy_(kept)
    assert found["probes"].status == "fail"
    assert "v is not finite" in found["probes"].meaning
    assert found["text_path"].status != "skipped"


def test_a_pipeline_without_its_text_encoder_is_judged_as_far_as_possible(pipe):
    parts = {**pipe.components, "text_encoder": None}
    images = torch.rand(2, 3, 16, 16) * 2 - 1
    found = {f.name: f for f in run_checks(FlowPipeline(**parts), images, ["a", "b"], steps=2).findings}
    wanted = "needs a text encoder, which this pipeline does not have"
    assert found["text_path"].meaning == found["probes"].meaning == wanted
    assert found["latent_is_sample"].status == "pass"


def test_a_log_of_a_run_that_diverged_fails(pipe):
    bad = Figures.of({**history(), "loss/total": [1.0, float("nan")], "z_init/mean": [0.1]})
    found = {f.name: f for f in run_checks(pipe, figures=bad, steps=2).findings}
    assert not found["loss_numerics"]
    assert "loss/total" in found["loss_numerics"].meaning
    assert found["kl"].status == "pass"


def test_a_log_is_judged_as_by_the_report(pipe):
    """A posterior that is the prior whatever the text says; losses whose weights are not logged."""
    rows = {**history(), "mu/abs_mean": [1.0 / (k + 1) for k in range(20)], "std/mean": [1.0] * 20}
    del rows["w/flow"]
    found = {f.name: f for f in run_checks(pipe, figures=Figures.of(rows), steps=2).findings}
    assert found["kl"].status == "fail"
    assert [e.message.key for e in found["kl"].bad] == ["kl/prior"]
    assert found["loss_magnitudes"].status == "skipped"
    alone = {f.name: f for f in judge(Figures.of(rows)) if f.evidence}
    assert {name: f.status for name, f in alone.items()} == {name: found[name].status for name in alone}


def test_wrong_calls_name_the_argument(pipe):
    with pytest.raises(ValueError, match="captions must be one for each image, got 1 for 2"):
        run_checks(pipe, torch.zeros(2, 3, 16, 16), ["a"])


def test_history_has_numbers_only():
    lines = [{"step": 1, "a": 1.0, "b": "text"}, {"step": 2, "a": 2.0, "c": True}]
    assert history_of(lines) == {"step": [1, 2], "a": [1.0, 2.0]}


@pytest.fixture(scope="module")
def place(pipe, tmp_path_factory):
    """Write a pipeline, a folder of images with captions, and a log."""
    root = tmp_path_factory.mktemp("check")
    pipe.save_pretrained(root / "pipeline")
    (root / "images").mkdir()
    draw = torch.Generator().manual_seed(1)
    for k in range(5):
        pixels = torch.randint(256, (20, 24, 3), generator=draw, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(root / "images" / f"{k}.png")
    (root / "captions.txt").write_text("a cat\na dog\nthe moon\na car\na house\n")
    with RunLog(root / "run") as log:
        for k in range(20):
            log.write(k, {name: values[k] for name, values in history().items()})
    return root


def test_the_command_writes_table_json_page_and_pictures(place, tmp_path):
    data = ["--images", place / "images", "--captions", place / "captions.txt", "--log", place / "run"]
    result = run("check", place / "pipeline", *data, "--steps", 2, "--out", tmp_path / "out")
    assert result.exit_code == 1, result.output
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "check.json", "check.html", "orig.png", "recon_wrap.png", "recon_direct.png", "A.png", "C.png",
    }  # fmt: skip
    written = json.loads((tmp_path / "out" / "check.json").read_text())
    assert written.keys() == {"measured", "findings"}
    findings = written["findings"]
    assert {f["name"] for f in findings} == set(RULES)
    failed = next(f for f in findings if f["name"] == "one_step")
    assert failed["status"] == "fail"
    assert failed["values"]["cos"] == written["measured"]["one_step"]["cos"]
    assert all(failed[key] for key in ("title", "threshold", "meaning", "advice", "experience"))
    page = (tmp_path / "out" / "check.html").read_text()
    assert page.count('class="fail"') == sum(f["status"] == "fail" for f in findings)
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert Image.open(tmp_path / "out" / "orig.png").size == (5 * 16, 16)
    assert "one_step" in result.stdout


def test_a_report_judges_what_a_check_measured_by_the_same_rules(place, tmp_path):
    data = ["--images", place / "images", "--captions", place / "captions.txt", "--log", place / "run"]
    run("check", place / "pipeline", *data, "--steps", 2, "--out", tmp_path / "run" / "check")
    (tmp_path / "run" / "log.jsonl").write_bytes((place / "run" / "log.jsonl").read_bytes())
    checked = json.loads((tmp_path / "run" / "check" / "check.json").read_text())["findings"]
    found = judge(read(tmp_path / "run"))
    assert [(f.name, f.status, list(f.causes)) for f in found] == [
        (f["name"], f["status"], f["causes"]) for f in checked
    ]
    said = {f["name"]: f["meaning"] for f in checked if f["status"] != "skipped"}
    assert {f.name: f.meaning for f in found if f.status != "skipped"} == said


def test_the_command_speaks_chinese(tmp_path):
    (tmp_path / "notes.txt").write_text(NOTES)
    result = run("check", tmp_path / "notes.txt", "--lang", "zh", "--out", tmp_path / "out")
    assert result.exit_code == 1, result.output
    assert "先处理：" in result.stdout
    assert '<html lang="zh">' in (tmp_path / "out" / "check.html").read_text()
    findings = json.loads((tmp_path / "out" / "check.json").read_text())["findings"]
    assert all(re.search("[一-鿿]", f["title"] + f["meaning"]) for f in findings)


def test_the_command_on_a_text(tmp_path):
    (tmp_path / "notes.txt").write_text(NOTES)
    assert run("check", tmp_path / "notes.txt", "--out", tmp_path / "out").exit_code == 1
    gentle = ["--set", "one_step/cos=0.01", "--set", "one_step/ratio_low=0.1", "--set", "teacher/growth=1000"]
    gentle += ["--set", "shooting/relative=3", "--set", "teacher/relative=1"]
    result = run("check", tmp_path / "notes.txt", "--out", tmp_path / "out", *gentle)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no pipeline in 'nowhere'"),
        (["default", "--set", "one_step/cosine=1"], "the nearest is 'one_step/cos'"),
        (["default", "--set", "one_step/cos=high"], "--set one_step/cos: could not convert"),
        (["default", "--set", "text/cos=nan"], "--set text/cos: must be a finite number"),
        ([str(Path(__file__).parents[1] / "test_layers.py")], "no metric found that is recognized"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, said, tmp_path):
    result = run("check", *arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (tmp_path / "out").exists()
