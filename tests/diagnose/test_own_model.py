"""Models that are not pipelines: the protocol, the adapter for OpenUni-like classes, check, calibrate, sweep, docs."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from support.commands import run
from support.own_models import CAPTIONS, GAIN, IMAGES, OpenUniLike, Planted, open_uni, seeded
from torch import nn

from fmpipe.cli.sweep import sharpness
from fmpipe.diagnose.checks import text_path
from fmpipe.diagnose.engine import RULES
from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.run_checks import calibrate_gain, run_checks
from fmpipe.image_grid import BEST
from fmpipe.own_model import ModelError, OpenUniAdapter, load_model
from fmpipe.run_log import read_log

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
DOCS = Path(__file__).parents[2] / "docs"


def findings(model, *data, **options):
    return {f.name: f for f in run_checks(model, *data, **options).findings}


# The protocol


def test_every_check_that_the_methods_allow_runs():
    found = findings(Planted(), IMAGES, CAPTIONS, gain=3.5)
    assert found.keys() == RULES.keys()
    ran = {name for name, f in found.items() if f.status != "skipped"}
    assert ran == {
        "vae_round_trip", "image_range", "pairing", "text_path", "scale", "one_step", "target_definition",
        "condition_use", "shooting", "teacher_euler", "endpoint", "leak", "probes", "shooting_gain",
    }  # fmt: skip
    assert found["one_step"].status == "fail"
    assert found["one_step"].values["fm_gain"] == pytest.approx(GAIN, rel=1e-3)
    assert found["shooting"].status == "warn"  # the gain helps
    assert found["shooting_gain"].values["fm_gain"] == 3.5
    assert found["shooting_gain"].values["relative_gain"] < 0.01
    for name in ("vae_round_trip", "text_path", "target_definition", "teacher_euler", "pairing"):
        assert found[name].status == "pass", found[name]
    assert all(f.meaning.startswith(("needs", "E|x1|")) for f in found.values() if f.status == "skipped")


def test_a_model_with_the_right_size_passes():
    found = findings(Planted(1.0), IMAGES, CAPTIONS)
    assert {found[name].status for name in ("one_step", "shooting", "endpoint")} == {"pass"}


def test_velocity_alone_is_told_what_is_missing():
    found = findings(SimpleNamespace(velocity=lambda x, t: x), IMAGES, CAPTIONS)
    assert {name for name, f in found.items() if f.status != "skipped"} == {"image_range"}
    wanted = "needs embed(prompts) / sample_z0(prompts), encode(images) of the model"
    assert found["one_step"].meaning == wanted
    assert found["vae_round_trip"].meaning == "needs encode(images), decode(latents) of the model"


def test_images_are_resized_to_the_size_of_the_model():
    big = nn.functional.interpolate(IMAGES, scale_factor=3, mode="nearest")
    assert run_checks(Planted(), big, CAPTIONS).pictures["orig"].shape == IMAGES.shape


def test_losses_are_compared():
    class Lossy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def velocity(self, x, t):
            return x

        def loss(self, batch):
            assert len(batch["captions"]) == len(batch["images"])
            return {"flow": self.weight.square().sum(), "kl": 1e-4 * self.weight.sum()}

    found = findings(Lossy(), IMAGES, CAPTIONS)
    assert found["gradient_shares"].status == "fail"
    assert "grad/kl" in found["gradient_shares"].meaning
    assert found["loss_magnitudes"].status == "warn"
    log = Figures.of({"grad/total": [1.0] * 9, "grad/flow": [0.9] * 9, "grad/kl": [0.2] * 9})
    found = findings(Lossy(), IMAGES, CAPTIONS, log)
    assert found["gradient_shares"].status == found["gradients"].status == "pass"  # a log says more than one batch
    assert log.metrics["grad/total"].count == 9
    broken = SimpleNamespace(velocity=lambda x, t: x, loss=lambda batch: torch.tensor(float("nan")))
    assert findings(broken, IMAGES, CAPTIONS)["overflow"].status == "fail"


@pytest.mark.parametrize(
    ("mean", "std", "status"),
    [
        ("text", 0.01, "pass"),
        ("text", 1.0, "pass"),  # the samples of one prompt are nearer to each other than those of two
        ("text", 30.0, "skipped"),
        ("constant", 0.01, "fail"),
        ("constant", 30.0, "skipped"),
    ],
)
def test_samples_of_z0_need_a_control(mean, std, status):
    def sample_z0(prompts):
        mu = Planted().embed(prompts if mean == "text" else ["a"] * len(prompts))
        return mu + std * torch.randn(mu.shape)

    model = SimpleNamespace(velocity=lambda x, t: x, sample_z0=sample_z0)
    found = findings(model)["text_path"]
    assert found.status == status, found
    if status == "skipped":
        assert "samples cannot tell" in found.meaning


def test_the_global_generator_is_left_alone():
    model = open_uni()
    torch.manual_seed(7)
    wanted = torch.rand(1)
    torch.manual_seed(7)
    findings(model, IMAGES, CAPTIONS, steps=2)
    assert torch.rand(1) == wanted


def test_text_path_names_means_that_are_samples():
    draws = iter(torch.randn(2, 3, 4096, generator=seeded(0)))
    assert text_path(lambda p: next(draws), ["a", "b", "c"]).status == "skipped"


# OpenUni


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_three_debug_functions_in_one_call(dtype):
    model = open_uni(dtype)
    model.train()
    found = findings(model, IMAGES, CAPTIONS, prompts=CAPTIONS)
    assert model.training
    assert found["text_path"].status == "pass"
    assert found["text_path"].values["same"] == pytest.approx(1)  # means, not samples
    assert found["one_step"].values["ratio"] == pytest.approx([0.29] * 4, rel=0.03)
    assert min(found["one_step"].values["cos"]) > 0.98
    assert found["shooting"].values["relative_gain"] < 0.05
    assert found["teacher_euler"].status == "pass"  # the state is fp32 whatever the model's dtype is
    assert found["vae_round_trip"].status == "pass"
    assert {name for name, f in found.items() if f.status == "skipped"} & {"probes", "pairing", "leak"} == set()


@pytest.mark.parametrize(("beside", "order"), [("mu logvar", (0, 1)), ("logvar mu", (1, 0)), ("none", None)])
def test_the_order_of_mu_and_logvar_is_found(beside, order):
    adapter = OpenUniAdapter(OpenUniLike(beside=beside))
    assert (adapter.order, adapter.shape, adapter.image_size) == (order, (12, 8, 8), 16)
    assert (adapter.embed is None) == (order is None)
    if order:
        assert adapter.embed(["a cat"])[1].unique().item() == pytest.approx(2 * torch.tensor(0.05).log().item())


def test_an_ignored_text_is_found():
    model = open_uni()
    with torch.no_grad():
        model.text_ve_encoder.linear.weight.zero_()
    assert findings(model)["text_path"].status == "fail"


# Names of models


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with images, captions and modules, which is the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "images").mkdir()
    for k, image in enumerate(IMAGES):
        pixels = ((image + 1) * 127.5).round().byte().permute(1, 2, 0)
        Image.fromarray(pixels.numpy()).save(tmp_path / "images" / f"{k}.png")
    (tmp_path / "captions.txt").write_text("\n".join(CAPTIONS))
    return tmp_path


DATA = ["--images", "images", "--captions", "captions.txt"]
BAD = {
    "no_colon": ("bad_a", "name of a model must have the form package.module:factory, got 'bad_a'"),
    "no_module": ("nowhere_b.c:build", "there is no module 'nowhere_b'"),
    "no_factory": ("bad_module:missing", "'missing' of bad_module must be a function or class, but it does not exist"),
    "not_callable": ("bad_module:number", "but it is a int"),
    "arguments": ("bad_module:needy", "must be callable without arguments: missing a required argument: 'path'"),
    "no_velocity": ("bad_module:empty", "must have a method velocity(x, t), or be an OpenUni-like class, but Empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_factories_say_what_is_wrong(case, here):
    (here / "bad_module.py").write_text(
        "number = 3\nclass Empty: pass\ndef needy(path): pass\ndef empty(): return Empty()\n"
    )
    name, words = BAD[case]
    with pytest.raises(ModelError, match=re.escape(words)):
        load_model(name)
    if case != "no_colon":  # which is the name of a pipeline
        result = run("check", name)
        assert result.exit_code == 2
        assert words in result.stderr


def test_errors_of_the_users_code_are_not_hidden(here):
    (here / "broken_module.py").write_text("import nowhere_at_all\n")
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        load_model("broken_module:build")


OWN = """
from types import SimpleNamespace
from support.own_models import Planted as weak, open_uni
def alone(): return SimpleNamespace(velocity=lambda x, t: x)
"""


def test_the_command_checks_a_factory(here):
    (here / "own_module.py").write_text(OWN)
    result = run("check", "own_module:weak", *DATA, "--gain", 3.5, "--out", "out")
    assert result.exit_code == 1, result.output
    written = json.loads((here / "out" / "check.json").read_text())
    found = {f["name"]: f for f in written["findings"]}
    assert found["one_step"]["values"]["fm_gain"] == pytest.approx(GAIN, rel=0.01)
    assert found["shooting_gain"]["values"]["relative_gain"] < 0.01
    assert written["measured"]["shooting_gain"]["fm_gain"] == 3.5
    assert (here / "out" / "recon_wrap.png").is_file()
    assert run("check", "own_module:open_uni", *DATA, "--out", "uni").exit_code == 1
    alone = run("check", "own_module:alone", "--out", "alone")
    assert alone.exit_code == 2
    assert "no check could run" in alone.stderr
    assert not (here / "alone").exists()
    assert "the factory places the model" in run("check", "own_module:weak", "--device", "cpu").stderr


def test_calibrate_finds_a_planted_gain(here):
    (here / "calibrated_module.py").write_text(OWN)
    assert calibrate_gain(Planted(), IMAGES, CAPTIONS) == pytest.approx(GAIN, rel=1e-3)
    result = run("calibrate", "calibrated_module:weak", *DATA)
    assert result.exit_code == 0, result.output
    assert float(re.search(r"fm_gain (\S+),", result.stdout)[1]) == pytest.approx(GAIN, rel=0.01)
    with pytest.raises(ValueError, match="nearly 0"):
        calibrate_gain(Planted(0.0), IMAGES, CAPTIONS)
    with pytest.raises(ValueError, match=r"must define embed\(prompts\) / sample_z0"):
        calibrate_gain(SimpleNamespace(velocity=lambda x, t: x), IMAGES, CAPTIONS)


def test_calibrate_saves_the_gain_of_a_pipeline(here, folder):
    index = Path(folder) / "model_index.json"
    before = json.loads(index.read_text())
    result = run("calibrate", folder, *DATA)
    assert result.exit_code == 0, result.output
    assert json.loads(index.read_text()) == before
    try:
        assert run("calibrate", folder, *DATA, "--save").exit_code == 0
        after = json.loads(index.read_text())
        assert after.pop("fm_gain") != before["fm_gain"]
        assert after == {k: v for k, v in before.items() if k != "fm_gain"}
        assert f"{json.loads(index.read_text())['fm_gain']:.4g}" in result.stdout
    finally:
        index.write_text(json.dumps(before, indent=2))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["default", "--save"], "default is a bundled pipeline"),
        (["some_module:build", "--save", *DATA], "some_module:build is a model of your own code"),
        (["some_module:build"], "needs --images DIR"),
        (["default", "--images", "nowhere"], "--images: there is no nowhere"),
        (["default", "--captions", "captions.txt"], "--captions needs --images"),
        (["nowhere"], "no pipeline in 'nowhere'"),
    ],
)
def test_calibrate_refuses_in_one_line(arguments, said, here):
    result = run("calibrate", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_gain_of_a_pipeline(here, folder):
    run("check", folder, *DATA, "--gain", 2, "--steps", 2, "--out", "out")
    found = json.loads((here / "out" / "check.json").read_text())["findings"]
    assert [f["values"]["fm_gain"] for f in found if f["name"] == "shooting_gain"] == [2.0]
    assert "--gain must be" in run("check", folder, "--gain", "nan").stderr


# Sweep


def framed(sheet, columns, rows):
    """The cells (column, row) of a sheet that have a frame."""
    width, height = sheet.width // columns, sheet.height // rows
    color = tuple(int(BEST[i : i + 2], 16) for i in (1, 3, 5))
    cells = [(x, y) for y in range(rows) for x in range(columns)]
    return [(x, y) for x, y in cells if sheet.getpixel((x * width + 1, y * height + 1)) == color]


def test_sweep_marks_the_best_cell(here, folder):
    """The image is that of gain 2 itself: nothing can be nearer."""
    common = ["a cat", "--pipeline", folder, "--steps", 2]
    assert run("generate", *common, "--fm-gain", 2, "--out", "aim.png").exit_code == 0
    cells = ["--gain", "0.5,2,8", "--dt-scale", "1", "--out", "sheet.png"]
    result = run("sweep", *common, *cells, "--image", "aim.png")
    assert result.exit_code == 0, result.output
    scored = re.search(r"best: --dt-scale (\S+) --time-dir '(\S+)' --fm-gain (\S+) \(MSE", result.stdout)
    assert scored, result.stdout
    sheet = Image.open("sheet.png")
    (cell,) = framed(sheet, 3, 2)
    assert (["0.5", "2", "8"][cell[0]], ["0->1", "1->0"][cell[1]]) == (scored[3], scored[2])
    assert sheet.text["best"] == f"dt x 1, {scored[2]}, gain {scored[3]}"
    result = run("sweep", *common, *cells)
    assert "(sharpness" in result.stdout
    assert len(framed(Image.open("sheet.png"), 3, 2)) == 1
    tied = run("sweep", *common, "--gain", "1,2", "--dt-scale", "0.5,1", "--out", "sheet.png")
    assert "--dt-scale 0.5 --time-dir '0->1' --fm-gain 2" not in tied.stdout  # the same as 1 and 1
    assert "--image: there is no file" in run("sweep", *common, "--image", "nowhere.png").stderr


def test_sharpness_is_the_variance_of_the_laplacian():
    flat, edge = Image.new("L", (8, 8), 90), Image.new("L", (8, 8))
    edge.paste(255, (4, 0, 8, 8))
    laplacian = torch.zeros(6, 6)
    laplacian[:, 2], laplacian[:, 3] = 1, -1
    assert sharpness(flat) == 0
    assert sharpness(edge) == pytest.approx(laplacian.var().item())


# The documentation


def blocks(name, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)


def test_the_example_of_the_protocol_runs(here):
    example, call = blocks("own-model.md")
    assert len([line for line in example.splitlines() if line.strip()]) <= 18
    (here / "documented_module.py").write_text(example)
    result = run("check", "documented_module:build", *DATA, "--out", "out")
    assert result.exit_code == 1, result.output  # it is not trained
    names = {"model": load_model("documented_module:build"), "images": IMAGES, "captions": CAPTIONS}
    exec(compile(call, "own-model.md", "exec"), names)


def test_the_example_of_logging_runs_and_is_read(here):
    (block,) = blocks("logging.md")
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = read_log("runs/mine")
    assert [line["step"] for line in lines] == list(range(0, 100, 10))
    assert {"loss/flow", "lr", "flow/cos", "flow/nmse", "stat/x_t/std"} <= lines[0].keys()
