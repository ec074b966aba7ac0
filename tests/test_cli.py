"""The command fmpipe on a tiny random pipeline: what it writes, what it says, how it ends."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from test_pipeline import tiny_clip, tiny_vae
from typer.testing import CliRunner

from fmpipe.cli import app
from fmpipe.cli.draw import noise_of
from fmpipe.models import build
from fmpipe.pipeline import FlowPipeline

pytestmark = pytest.mark.slow
DRIVER = str(Path(__file__).parent / "drive_ranks.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    networks, place = build("small_dimr"), tmp_path_factory.mktemp("pipeline")
    FlowPipeline(tiny_clip(), networks.text_head, networks.velocity_net, tiny_vae()).save_pretrained(place)
    return str(place)


def pixels(image):
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).int()


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


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


def test_several_prompts_and_a_file_make_a_folder(folder, tmp_path):
    (tmp_path / "prompts.txt").write_text("a cat\n\nthe moon\n")
    options = ["--prompts", tmp_path / "prompts.txt", "--steps", 1, "--n", 2, "--batch", 4, "--out", tmp_path / "x.png"]
    result = run("generate", "a dog", "--pipeline", folder, *options)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == [f"{i:04d}.png" for i in range(6)]


@pytest.mark.parametrize(
    ("prompts", "place", "written"),
    [
        (["a"], "folder", "folder/0000.png"),
        (["a", "b"], "folder", "folder/0001.png"),
        (["a", "b"], "run.v2/step.100", "run.v2/step.100/0001.png"),
        (["a", "b"], "x.png", "x/0001.png"),
        (["a"], "deep/er/x.jpg", "deep/er/x.jpg"),
    ],
)
def test_where_pictures_go(folder, tmp_path, prompts, place, written):
    (tmp_path / "folder").mkdir()
    result = run("generate", *prompts, "--pipeline", folder, "--steps", 1, "--out", tmp_path / place)
    assert result.exit_code == 0, result.output
    assert (tmp_path / written).is_file()
    assert not list(tmp_path.rglob("*.part"))


def test_a_prompts_noise_is_its_own(folder, tmp_path):
    """The same picture whatever else is in the batch; another for another seed."""
    run("generate", "a cat", "the moon", "--pipeline", folder, "--steps", 2, "--out", tmp_path / "both")
    for name, seed in (("alone.png", 0), ("other.png", 1)):
        run("generate", "the moon", "--pipeline", folder, "--steps", 2, "--seed", seed, "--out", tmp_path / name)
    both, alone, other = (pixels(Image.open(tmp_path / x)) for x in ("both/0001.png", "alone.png", "other.png"))
    assert (both - alone).abs().max() <= 1
    assert (both - other).abs().max() > 1
    draws = {noise_of(p, s, i).initial_seed() for p in ("a", "b") for s in (0, 1) for i in (0, 1)}
    assert len(draws) == 8


def test_interpolate_arith_and_sweep(folder, tmp_path):
    where = ["--pipeline", folder, "--steps", 1, "--out"]
    for arguments, size in (
        (["interpolate", "a cat", "moon", "--n", 4], (64, 16)),
        (["arith", "--add", "a cat", "--add", "moon", "--subtract", "a"], (16, 16)),
        (["sweep", "a cat", "--dt-scale", "0.5,1", "--gain", "1,2,4"], (3 * 128, 4 * (128 + 16))),
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
        drawn, expected = (pixels(i) for i in (Image.open(tmp_path / "two" / f"{k:04d}.png"), together.images[k]))
        assert (drawn - expected).abs().max() <= 1
    text = (tmp_path / "two.html").read_text()
    assert "3 pictures" in text
    assert all(p in text for p in prompts)


@pytest.mark.parametrize(("way", "said"), [("raise", "rank 1 failed: Refused: no more"), ("kill", "SIGKILL")])
def test_a_rank_that_dies_stops_all_and_what_is_finished_stays(folder, tmp_path, way, said):
    """Rank 1 dies before its first picture, once rank 0 has drawn one of its two; rank 0 would then wait."""
    result = torchrun(folder, tmp_path, "out", "--batch", 1, DRIVE_DEATH=way)
    assert result.returncode != 0
    assert said in result.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0000.png"]
    assert Image.open(tmp_path / "out" / "0000.png").size == (16, 16)


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
        (["a", "--solver", "rk4"], "unknown solver 'rk4'"),
        (["a", "--dtype", "int8"], "--dtype must be one of"),
        (["--prompts", "missing.txt"], "no file missing.txt"),
        ([], "no prompt given"),
        (["a", "--time-dir", "up"], "unknown time_dir 'up'"),
        (["a", "--velocity-dtype", "int8"], "--velocity-dtype must be"),
        (["a", "--out", f"{__file__}/x.png"], "cannot be written"),
        (["a", "b", "--out", __file__], "is a file"),
        (["a", "--html", "."], "--html: . is a folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder, arguments, said):
    result = run("generate", *([] if "nowhere" in arguments else ["--pipeline", folder]), *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)
