"""Damaged pipelines: one clear error that names the part, and nothing in a file is ever executed."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_pipeline import ldm_vae, tiny_clip, tiny_vae
from typer.testing import CliRunner

from fmpipe.cli import app
from fmpipe.models import build
from fmpipe.pipeline import FlowPipeline

pytestmark = pytest.mark.slow
PARTS = ("text_encoder", "text_head", "velocity_net", "vae")


class Bomb:
    """Unpickled by a careless loader it leaves a file behind."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def corrupt(file: Path) -> None:
    file.write_bytes(b"\xff" * 16 + file.read_bytes()[16:])


def reshape(file: Path) -> None:
    state = load_file(file)
    key = max(state, key=lambda k: state[k].numel())
    save_file({**state, key: state[key].flatten()[:7].clone()}, file, {"format": "pt"})


def drop(file: Path) -> None:
    state = load_file(file)
    state.pop(min(state))
    save_file(state, file, {"format": "pt"})


def pickle_bomb(file: Path) -> None:
    """The weights as a pickle under the name that the libraries fall back to."""
    name = "pytorch_model.bin" if file.name == "model.safetensors" else "diffusion_pytorch_model.bin"
    torch.save({"weight": Bomb(file.parent.parent / "executed")}, file.with_name(name))
    file.unlink()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    torch.manual_seed(0)
    networks, place = build("small_dimr"), tmp_path_factory.mktemp("whole")
    FlowPipeline(tiny_clip(), networks.text_head, networks.velocity_net, tiny_vae()).save_pretrained(place)
    return place


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("damage", [truncate, corrupt, reshape, drop, pickle_bomb], ids=lambda f: f.__name__)
def test_weights(copy, part, damage):
    damage(next((copy / part).glob("*.safetensors")))
    result = CliRunner().invoke(app, ["generate", "a cat", "--pipeline", str(copy), "--out", str(copy / "x.png")])
    assert result.exit_code == 2, result.output
    said = result.stderr.splitlines()[-1]
    assert "cannot be loaded" in said
    assert part in said.split("cannot be loaded")[1] or "expected shape" in said
    assert "Traceback" not in result.output
    assert not (copy / "executed").exists()
    assert not (copy / "x.png").exists()


@pytest.mark.parametrize(
    "file",
    ["model_index.json", "vae/config.json", "text_encoder/config.json", "text_encoder/text_encoder.json",
     "text_encoder/tokenizer.json"],
)  # fmt: skip
def test_configs(copy, file):
    truncate(copy / file)
    with pytest.raises((OSError, ValueError), match=r"JSON|cannot be read"):
        FlowPipeline.from_pretrained(copy)


@pytest.mark.parametrize("which", ["tiny_dimr.pth", "autoencoder_kl.pth"])
@pytest.mark.parametrize("damage", ["truncate", "corrupt", "bomb", "shape"])
def test_released_files(tmp_path, which, damage):
    files = {"tiny_dimr.pth": build("tiny_dimr").state_dict(), "autoencoder_kl.pth": ldm_vae()}
    if damage == "bomb":
        files[which]["more"] = Bomb(tmp_path / "executed")
    if damage == "shape":
        files[which] = {k: v[:1] if v.dim() and len(v) > 1 else v for k, v in files[which].items()}
    for name, state in files.items():
        torch.save(state, tmp_path / name)
    if damage in ("truncate", "corrupt"):
        {"truncate": truncate, "corrupt": corrupt}[damage](tmp_path / which)
    with pytest.raises((RuntimeError, ValueError), match=which.split(".")[0]):
        FlowPipeline.from_released(tiny_clip(tokens=7), tmp_path / "tiny_dimr.pth", tmp_path / "autoencoder_kl.pth")
    assert not (tmp_path / "executed").exists()
