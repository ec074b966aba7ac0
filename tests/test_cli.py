"""The command fmpipe on a tiny random pipeline: what it writes, what it says, how it ends."""

import re
import subprocess
import sys

import pytest
import torch
from PIL import Image
from test_pipeline import tiny_clip, tiny_vae
from typer.testing import CliRunner

from fmpipe.cli import app, noise_of
from fmpipe.models import build
from fmpipe.pipeline import FlowPipeline


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    networks, place = build("small_dimr"), tmp_path_factory.mktemp("pipeline")
    FlowPipeline(tiny_clip(), networks.text_head, networks.velocity_net, tiny_vae()).save_pretrained(place)
    return str(place)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_help_imports_nothing_heavy():
    code = "import sys, fmpipe.cli; print({'torch', 'diffusers', 'transformers', 'PIL'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
    said = run("--help").output
    assert all(command in said for command in ("generate", "interpolate", "arith", "info"))


def test_generate_writes_the_picture_and_prints_the_trace(folder, tmp_path):
    place = tmp_path / "cat.png"
    result = run("generate", folder, "a red cat", "--steps", 3, "--out", place, "--trace")
    assert result.exit_code == 0, result.output
    assert Image.open(place).size == (16, 16)
    assert len(re.findall(r"^step\d+: \|x\|=\d+\.\d{4}, \|v\|=\d+\.\d{4}, dt=\d\.\d{4}$", result.stdout, re.M)) == 3
    assert list(tmp_path.iterdir()) == [place]


def test_several_prompts_and_a_file_make_a_folder(folder, tmp_path):
    (tmp_path / "prompts.txt").write_text("a cat\n\nthe moon\n")
    result = run(
        "generate", folder, f"@{tmp_path / 'prompts.txt'}", "a dog", "--steps", 1, "--n", 2, "--out", tmp_path / "x.png"
    )
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == [f"{i:04d}.png" for i in range(6)]


def test_a_prompts_noise_is_its_own(folder, tmp_path):
    """The same picture whatever else is in the batch; another for another seed."""
    run("generate", folder, "a cat", "the moon", "--steps", 2, "--out", tmp_path / "both")
    for name, seed in (("alone.png", 0), ("other.png", 1)):
        run("generate", folder, "the moon", "--steps", 2, "--seed", seed, "--out", tmp_path / name)
    both, alone, other = (
        torch.frombuffer(bytearray(Image.open(tmp_path / name).tobytes()), dtype=torch.uint8).int()
        for name in ("both/0001.png", "alone.png", "other.png")
    )
    assert (both - alone).abs().max() <= 1
    assert (both - other).abs().max() > 1
    draws = {noise_of(p, s, i).initial_seed() for p in ("a", "b") for s in (0, 1) for i in (0, 1)}
    assert len(draws) == 8


def test_interpolate_and_arith(folder, tmp_path):
    assert (
        run("interpolate", folder, "a cat", "moon", "--n", 4, "--steps", 1, "--out", tmp_path / "row.png").exit_code
        == 0
    )
    assert Image.open(tmp_path / "row.png").size == (64, 16)
    sums = run(
        "arith", folder, "--add", "a cat", "--add", "moon", "--subtract", "a", "--steps", 1, "--out", tmp_path / "s.png"
    )
    assert sums.exit_code == 0, sums.output
    assert Image.open(tmp_path / "s.png").size == (16, 16)


def test_info_names_the_parts(folder):
    said = run("info", folder).output
    for word in ("text_encoder", "CLIPText", "velocity_net", "DiMR", "0.2301", "sha256"):
        assert word in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "nowhere", "a"], "no pipeline in 'nowhere'"),
        (["generate", "FOLDER", "a", "--solver", "rk4"], "unknown solver 'rk4'"),
        (["generate", "FOLDER", "a", "--dtype", "int8"], "--dtype must be one of"),
        (["generate", "FOLDER", "@missing.txt"], "no file missing.txt"),
        (["generate", "FOLDER", "a", "--time-dir", "up"], "time_dir must be"),
        (["generate", "FOLDER", "a", "--velocity-dtype", "int8"], "--velocity-dtype must be"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder, arguments, said):
    result = run(*(folder if a == "FOLDER" else a for a in arguments))
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
