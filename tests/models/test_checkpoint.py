"""Released checkpoints: every key and shape, both file formats, and what is said about those that do not fit."""

import json
from pathlib import Path

import pytest
import torch
from support.tiny_models import write

from fmpipe.models import CheckpointError, build, load_checkpoint

KEYS = json.loads((Path(__file__).parents[1] / "golden" / "checkpoint_keys.json").read_text())
NAME = "small_dimr"


@pytest.mark.parametrize("name", KEYS)
def test_a_released_preset_has_exactly_its_checkpoint_s_keys(name):
    assert {k: list(v.shape) for k, v in build(name, "meta").state_dict().items()} == KEYS[name]


def test_the_256_px_networks_are_as_large_as_they_are_said_to_be():
    networks = build("t2i_256px_clip_dimr", "meta")
    total = sum(p.numel() for p in networks.parameters())
    assert round(total / 1e9, 2) == 1.06


@pytest.fixture
def state():
    torch.manual_seed(0)
    return {k: torch.randn_like(v) for k, v in build(NAME).state_dict().items()}


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_round_trip(state, suffix, tmp_path):
    extra = {"open_clip.visual.weight": torch.ones(2), "open_clip_output.bias": torch.ones(3)}
    networks = load_checkpoint(write(state | extra, tmp_path / f"nnet{suffix}"), NAME)
    assert not networks.velocity_net.training
    assert not networks.text_head.training
    again = networks.state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[k], state[k]) for k in state)
    x = torch.randn(1, 4, 8, 8)
    networks.velocity_net.velocity(x, torch.zeros(1)).sum().backward()  # loaded parameters train


def spoil(state):
    """A key of each kind that does not fit."""
    state = dict(state)
    del state["stages.0.tensor_true"], state["context_encoder.linear.bias"]
    state["stages.9.tensor_true"] = torch.ones(1)
    state["stages.0.tensor_false"] = torch.ones(2)
    return state


def test_every_key_that_does_not_fit_is_reported(state, tmp_path):
    path = write(spoil(state), tmp_path / "nnet.pth")
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(path, NAME)
    fit = error.value.fit
    assert fit.missing == ["stages.0.tensor_true", "context_encoder.linear.bias"]
    assert fit.unexpected == ["stages.9.tensor_true"]
    assert fit.misshapen == {"stages.0.tensor_false": ((2,), (1,))}
    for key in (*fit.missing, *fit.unexpected, *fit.misshapen):
        assert key in str(error.value)


def test_not_strict_loads_the_rest_and_warns(state, tmp_path):
    path = write(spoil(state), tmp_path / "nnet.safetensors")
    with pytest.warns(UserWarning, match="2 missing"):
        networks = load_checkpoint(path, NAME, strict=False)
    loaded, fresh = networks.state_dict(), build(NAME).state_dict()
    assert torch.equal(loaded["stages.0.tensor_true"], fresh["stages.0.tensor_true"])
    assert torch.equal(loaded["stages.0.tensor_false"], fresh["stages.0.tensor_false"])
    same = [k for k in state if k in loaded and torch.equal(loaded[k], state[k])]
    assert len(same) == len(state) - 3


def test_a_state_that_does_not_fit_changes_nothing(state):
    networks = build(NAME)
    before = {k: v.clone() for k, v in networks.state_dict().items()}
    with pytest.raises(CheckpointError):
        networks.load_state_dict(state | {"context_encoder.linear.bias": torch.ones(3)})
    assert all(torch.equal(v, before[k]) for k, v in networks.state_dict().items())
    assert networks.load_state_dict(state | {"open_clip.x": torch.ones(1)}).ignored == ["open_clip.x"]


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_saving_over_the_file_that_was_loaded(state, suffix, tmp_path):
    path = write(state, tmp_path / f"nnet{suffix}")
    networks = load_checkpoint(path, NAME)
    write({k: v + 1 for k, v in networks.state_dict().items()}, path)
    assert torch.equal(
        load_checkpoint(path, NAME).state_dict()["stages.0.tensor_true"], state["stages.0.tensor_true"] + 1
    )


def test_tensors_of_other_types(state, tmp_path):
    mixed = state | {"stages.0.tensor_true": state["stages.0.tensor_true"].bfloat16()}
    assert {p.dtype for p in load_checkpoint(write(mixed, tmp_path / "a.pth"), NAME).parameters()} == {torch.float32}
    whole = state | {"stages.0.tensor_true": torch.ones(1, dtype=torch.int64), 7: torch.ones(1)}
    with pytest.raises(CheckpointError, match=r"stages.0.tensor_true: torch.int64, expected \[1\]") as error:
        load_checkpoint(write(whole, tmp_path / "b.pth"), NAME)
    assert error.value.fit.unexpected == ["7"]


def test_of_another_preset(state, tmp_path):
    with pytest.raises(CheckpointError, match=r"does not fit the preset tiny_dimr \(it fits small_dimr\)"):
        load_checkpoint(write(state, tmp_path / "nnet.pth"), "tiny_dimr")


class Harm:
    def __reduce__(self):
        return print, ("code in a checkpoint was run",)


def test_code_in_a_pickle_is_not_run(tmp_path, capsys):
    torch.save({"a": Harm()}, tmp_path / "nnet.pth")
    with pytest.raises(RuntimeError, match=r"nnet\.pth") as error:
        load_checkpoint(tmp_path / "nnet.pth", NAME)
    assert "its code is never run" in str(error.value)
    assert "was run" not in capsys.readouterr().out


def test_old_format_and_another_dtype(state, tmp_path):
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    networks = load_checkpoint(tmp_path / "old.pth", NAME, dtype=torch.bfloat16)
    assert {p.dtype for p in networks.parameters()} == {torch.bfloat16}
    assert torch.equal(networks.state_dict()["stages.0.tensor_true"], state["stages.0.tensor_true"].bfloat16())


def test_what_is_no_checkpoint(tmp_path):
    (tmp_path / "broken.pth").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(RuntimeError, match=r"broken\.pth \(42 bytes\) cannot be read"):
        load_checkpoint(tmp_path / "broken.pth", NAME)
    with pytest.raises(FileNotFoundError, match=r"this folder has broken\.pth"):
        load_checkpoint(tmp_path, NAME)
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "nothing.pth", NAME)
    torch.save({"step": 3, "w": torch.ones(1)}, tmp_path / "nnet.pth")
    with pytest.raises(ValueError, match="expected a dict of tensors by name, got also step"):
        load_checkpoint(tmp_path / "nnet.pth", NAME)
    with pytest.raises(ValueError, match="choose one of"):
        load_checkpoint(tmp_path / "nnet.pth", "no such preset")
