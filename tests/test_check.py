"""fmpipe check: the diary's own lines, a pipeline with and without data, what is written, how it ends."""

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from test_cli import run
from test_pipeline import tiny_clip, tiny_vae

from fmpipe.diagnose import checks, diary
from fmpipe.diagnose.examine import examine, history_of
from fmpipe.diagnose.log import RunLog
from fmpipe.diagnose.verdict import STATUSES, THRESHOLDS, Verdict, limits, nonfinite
from fmpipe.models import build
from fmpipe.pipeline import FlowPipeline

pytestmark = pytest.mark.slow

# What the diary printed on its worst day, line by line as its code prints them.
DIARY = """
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


def test_the_diary_gets_its_own_conclusions_and_one_correction():
    found = {v.name: v for v in diary.verdicts(DIARY)}
    assert {name: v.status for name, v in found.items()} == {
        "vae_round_trip": "pass",
        "text_path": "pass",
        "one_step": "fail",
        "shooting": "fail",
        "teacher_euler": "fail",
    }
    step = found["one_step"]
    assert step.values["fm_gain"] == pytest.approx(3.5, abs=0.05)
    assert "weak" in step.meaning
    assert "too small by a factor of 3.49" in step.meaning
    assert "fm_gain = 3.49" in step.advice
    assert "rounding of the state, not the schedule" in found["teacher_euler"].meaning
    assert found["teacher_euler"].values["steps"] == [5, 10, 20, 50, 100]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("[shoot] MSE(z_end, x1) = nan", {"shoot"}),
        ("noise\n[fm] t=0.5 cos(v_pred, v_tgt)=0.9 ||pred||/||tgt||=1.0\n", {"fm"}),
        ("for N=100 steps we used lr=1e-4", set()),
        ("N=20 3 runs, N = 100 5 runs", set()),
        ("[shoot] N=5 MSE(z_end, x1) = 0.2", {"shoot"}),
        ("[text] cos({prompts[i]}, {prompts[j]}) = {c:.3f}", set()),
        ("", set()),
    ],
)
def test_lines_are_found_and_code_is_not(text, kinds):
    assert diary.figures(text).keys() == kinds


def test_a_text_without_figures_is_refused():
    with pytest.raises(ValueError, match="no figure found"):
        diary.verdicts("the loss went down")


@pytest.fixture(scope="module")
def pipe():
    torch.manual_seed(0)
    networks = build("small_dimr").eval()
    made = FlowPipeline(tiny_clip(), networks.text_head, networks.velocity_net, tiny_vae())
    made.set_progress_bar_config(disable=True)
    return made


def history():
    falling = [1.0 / (k + 1) for k in range(20)]
    return {
        "mu/abs_mean": falling,
        "std/mean": [1 - x / 2 for x in falling],
        "logvar/mean": [-x for x in falling],
        "grad/total": [1.0] * 20,
        "grad/flow": [0.9] * 20,
        "grad/kl": [1e-3] * 20,
        "loss/flow": falling,
        "loss/kl": falling,
        "w/kl": [0.5] * 20,
        "step/z_head_update_ratio": [1e-4] * 20,
    }


def test_every_check_has_a_verdict_or_says_what_it_lacks(pipe):
    alone = examine(pipe, steps=2)
    assert [v.name for v in alone.verdicts] == list(checks.CHECKS)
    assert {v.name for v in alone.verdicts if v.status != "skipped"} == {"vae_eval", "text_path", "probes"}
    assert all(v.meaning.startswith("needs") for v in alone.verdicts if v.status == "skipped")
    images = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    captions = ["a cat", "the moon", "a red house", "a dog", "a car", "two trees"]
    full = examine(pipe, images, captions, history(), steps=2)
    left = {v.name for v in full.verdicts if v.status == "skipped"}
    assert left == {
        "latent_scale", "same_augmentation", "time_embedding", "dino", "overflow", "overfit", "ablation_only_flow",
        "ablation_kl_off", "ablation_condition_shuffled",
    }  # fmt: skip
    status = {v.name: v.status for v in full.verdicts}
    # What does not depend on training is right in a random pipeline; what does is not.
    for name in ("image_range", "latent_is_sample", "teacher_euler", "gradient_path", "vae_eval", "kl"):
        assert status[name] == "pass", name
    for name in ("vae_round_trip", "one_step", "shooting", "gradient_shares"):
        assert status[name] == "fail", name
    assert set(full.pictures) == {"orig", "recon_wrap", "recon_direct", "A", "C"}
    torch.testing.assert_close(full.pictures["orig"], images)


def test_a_pipeline_that_is_not_finite_fails_and_the_rest_is_judged(pipe):
    weight = list(pipe.velocity_net.parameters())[-1]
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.fill_(float("nan"))
        status = {v.name: v for v in examine(pipe, steps=2).verdicts}
    finally:
        with torch.no_grad():
            weight.copy_(kept)
    assert status["probes"].status == "fail"
    assert "v is not finite" in status["probes"].meaning
    assert status["text_path"].status != "skipped"


def test_a_pipeline_without_its_text_encoder_is_judged_as_far_as_it_goes(pipe):
    parts = {**pipe.components, "text_encoder": None}
    images = torch.rand(2, 3, 16, 16) * 2 - 1
    found = {v.name: v for v in examine(FlowPipeline(**parts), images, ["a", "b"], steps=2).verdicts}
    assert found["text_path"].meaning == found["probes"].meaning == "needs a text encoder, which this pipeline has not"
    assert found["latent_is_sample"].status == "pass"


def test_a_log_of_a_run_that_diverged_fails(pipe):
    bad = {**history(), "loss/total": [1.0, float("nan")], "z_init/mean": [0.1]}
    found = {v.name: v.status for v in examine(pipe, history=bad, steps=2).verdicts}
    assert found["overflow"] == "fail"
    assert found["kl"] == "pass"


def test_wrong_calls_name_the_argument(pipe):
    with pytest.raises(ValueError, match="captions must be one for each image, got 1 for 2"):
        examine(pipe, torch.zeros(2, 3, 16, 16), ["a"])


def test_thresholds_can_be_overridden_and_are_all_used():
    assert limits({"one_step/cos": 0.01})["one_step/cos"] == 0.01
    with pytest.raises(KeyError, match="the nearest is 'one_step/cos'"):
        limits({"onestep/cos": 0.01})
    code = "".join(p.read_text() for p in Path(checks.__file__).parent.glob("*.py"))
    for name in THRESHOLDS:
        family, rule = name.split("/")
        assert name in code or (f"{family}/{{" in code and f'"{rule}"' in code) or "share/" in name, name


def test_a_verdict_is_what_it_says():
    v = Verdict("x", "fail", {"a": float("nan"), "b": {"c": [1.0, float("inf")]}}, "a below 1", "It is.", "Do.")
    assert not v
    assert bool(Verdict("x", "warn", {}, "", ""))
    assert str(v) == "x: FAIL. It is. Do."
    assert nonfinite(v.values) == ["a", "b c"]
    with pytest.raises(ValueError, match=f"choose one of {', '.join(STATUSES)}"):
        Verdict("x", "broken", {}, "", "")


def test_history_has_numbers_only():
    lines = [{"step": 1, "a": 1.0, "b": "text"}, {"step": 2, "a": 2.0, "c": True}]
    assert history_of(lines) == {"step": [1, 2], "a": [1.0, 2.0]}


@pytest.fixture(scope="module")
def place(pipe, tmp_path_factory):
    """A pipeline, a folder of pictures with captions, and a log."""
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
    verdicts = json.loads((tmp_path / "out" / "check.json").read_text())
    assert [v["name"] for v in verdicts] == list(checks.CHECKS)
    failed = next(v for v in verdicts if v["name"] == "one_step")
    assert failed["status"] == "fail"
    assert failed["values"]["cos"]
    assert all(failed[key] for key in ("threshold", "meaning", "advice", "experience"))
    page = (tmp_path / "out" / "check.html").read_text()
    assert page.count('class="fail"') == sum(v["status"] == "fail" for v in verdicts)
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert Image.open(tmp_path / "out" / "orig.png").size == (5 * 16, 16)
    assert "one_step" in result.stdout


def test_the_command_on_a_text(tmp_path):
    (tmp_path / "notes.txt").write_text(DIARY)
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
        ([__file__.replace("test_check", "test_layers")], "no figure found"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, said, tmp_path):
    result = run("check", *arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (tmp_path / "out").exists()
