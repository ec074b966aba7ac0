"""Damaged pipelines: one clear error that names the part, and nothing in a file is ever executed."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import ldm_vae, tiny_clip, tiny_vae
from typer.testing import CliRunner

from fmpipe.cli import app
from fmpipe.models import build
from fmpipe.pipeline import FlowPipeline
from fmpipe.text import load_text_encoder

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


# Code: no file of a pipeline may have any executed.

CODE = """
import pathlib
pathlib.Path({mark!r}).mkdir()
from transformers import BertConfig as C, BertModel as M, BertTokenizer as T
class C(C):
    model_type = "own"
"""


MODULES = {"CLIPText": "encoders", "MiniLMText": "encoders", "MetaQueryText": "meta_query"}


def own_code(folder: Path, mark: Path) -> None:
    (folder / "own.py").write_text(CODE.format(mark=str(mark)))


def change(file: Path, **values) -> None:
    old = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**old, **values}))


def own_model(folder: Path, kind: str) -> None:
    change(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.C", "AutoModel": "own.M"})
    change(folder / "text_encoder.json", _class_name=kind)


def own_tokenizer(folder: Path, kind: str) -> None:
    change(folder / "tokenizer_config.json", tokenizer_class="T", auto_map={"AutoTokenizer": ["own.T", None]})
    change(folder / "text_encoder.json", _class_name=kind)


def own_class(folder: Path, kind: str) -> None:
    """Known to transformers, which would ignore the code."""
    change(folder / "config.json", auto_map={"AutoModel": "own.M"})
    change(folder / "text_encoder.json", _class_name=kind)


@pytest.mark.parametrize("kind", ["CLIPText", "MiniLMText", "MetaQueryText"])
@pytest.mark.parametrize("plant", [own_model, own_tokenizer, own_class], ids=lambda f: f.__name__)
def test_code_of_a_text_encoder_is_refused_and_never_run(copy, plant, kind):
    folder, mark = copy / "text_encoder", copy / "executed"
    plant(folder, kind)
    change(copy / "model_index.json", text_encoder=[f"fmpipe.text.{MODULES[kind]}", kind])
    own_code(folder, mark)
    refused(copy, r"text_encoder'? .*Python code", mark)
    with pytest.raises(OSError, match="Python code"):
        load_text_encoder((kind, folder))
    assert not mark.exists()


def refused(folder: Path, why: str, mark: Path, *more: str) -> None:
    """The command refuses it in one line, with "y" on standard input."""
    arguments = ["generate", "a cat", "--pipeline", str(folder), "--out", str(folder / "x.png"), *more]
    result = CliRunner().invoke(app, arguments, input="y\n" * 9)
    assert result.exit_code == 2, result.output
    assert not mark.exists()
    assert not (folder / "x.png").exists()
    assert re.search(why, result.stderr.splitlines()[-1]), result.stderr
    assert "Do you wish" not in result.output


def test_code_elsewhere_is_refused_without_a_question(copy):
    """A repository of the Hub, which transformers would ask about."""
    change(copy / "text_encoder/config.json", model_type="own", auto_map={"AutoModel": "some/repo--own.M"})
    change(copy / "text_encoder/text_encoder.json", _class_name="MiniLMText")
    change(copy / "model_index.json", text_encoder=["fmpipe.text.encoders", "MiniLMText"])
    refused(copy, "text_encoder", copy / "executed")


@pytest.mark.parametrize(
    "changes",
    [
        {"text_head": ["own", "Head"]},
        {"vae": ["subprocess", "Popen"]},
        {"velocity_net": ["transformers", "AutoModel"]},
        {"text_encoder": ["fmpipe.text.encoders", "Path"]},
        {"more": ["own", "Head"]},
        {"_class_name": ["own", "Head"]},
        {"text_head": ["fmpipe.models"]},
        {"text_head": "DiMR"},
        {"vae": [None, None]},
    ],
    ids=str,
)
def test_an_index_that_names_other_modules_is_refused(copy, changes):
    change(copy / "model_index.json", **changes)
    for folder in (copy, *(copy / part for part in PARTS)):
        own_code(folder, copy / "executed")
    refused(copy, rf"model_index.json.*{next(iter(changes))}", copy / "executed")


NUMBERS = ["3", True, 10**400, float("nan"), float("-inf"), 1e300, [3.0], ["os", "path"], {"a": 1}]


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("guidance_scale", value) for value in NUMBERS), ("max_guidance", 10**400), ("fm_gain", True)],
    ids=lambda x: str(x)[:20],
)
def test_a_stored_number_is_checked_before_anything_is_loaded(copy, name, value):
    change(copy / "model_index.json", **{name: value})
    truncate(copy / "velocity_net/diffusion_pytorch_model.safetensors")
    refused(copy, rf"model_index.json.*{name}", copy / "executed")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_a_picture_that_is_not_finite_is_an_error_that_names_the_vae(copy, value):
    file = copy / "vae/diffusion_pytorch_model.safetensors"
    state = load_file(file)
    for name in ("vae.decoder.conv_in.weight", "vae.decoder.conv_out.weight"):
        state[name] = torch.full_like(state[name], value)
    save_file(state, file, {"format": "pt"})
    refused(copy, "vae: .* decoded values are infinite or NaN", copy / "executed", "--steps", "1")


KERNEL = "kernels-community/flash-attn"


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_implementation": KERNEL},
        {"_attn_implementation": KERNEL},
        {"attn_implementation": {"": KERNEL}},
        {"attn_implementation": "flash_attention_2"},  # from the Hub if it is not installed
        {"experts_implementation": KERNEL},
        {"text_config": {"attn_implementation": KERNEL}},
        {"attn_implementation": "paged|" + KERNEL},
    ],
    ids=str,
)
def test_an_attention_kernel_of_the_hub_is_refused(copy, changes):
    change(copy / "text_encoder/config.json", **changes)
    refused(copy, r"text_encoder.*config\.json names '.*as an implementation", copy / "executed")


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_attention_of_torch_may_be_named(copy, name):
    change(copy / "text_encoder/config.json", attn_implementation=name)
    FlowPipeline.from_pretrained(copy)


def test_an_adapter_that_names_another_model_is_refused(copy):
    change(copy / "text_encoder/adapter_config.json", peft_type="LORA", base_model_name_or_path=str(copy / "other"))
    refused(copy, "adapter_config.json.*names another model", copy / "executed")


@pytest.mark.parametrize("value", [0, -1, 10**5 + 1, 10**400, 1.5, True, "20"])
def test_a_stored_number_of_steps_is_bounded(copy, value):
    change(copy / "model_index.json", num_inference_steps=value)
    refused(copy, "model_index.json.*num_inference_steps must be a whole number from 1 to 100000", copy / "executed")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("scaling_factor", value) for value in (10**400, -(10**400), 0, "1", float("nan"), [1.0], None)),
        *((name, value) for name in ("latents_mean", "latents_std") for value in ([10**400] * 4, [None] * 4, "1234")),
        ("shift_factor", 10**400),
    ],
    ids=lambda x: str(x)[:20],
)
def test_a_scale_of_the_autoencoder_is_a_finite_number(copy, name, value):
    if (name, value) == ("scaling_factor", None):
        value = {"a": 1}
    change(copy / "vae/config.json", **{name: value})
    refused(copy, rf"(?i)vae.*{name}", copy / "executed")
