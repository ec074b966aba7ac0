"""Checkpoints of a run: equal trees back, exact continuation, damage named, disk full, kill -9."""

import errno
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from crash import crash, crash_training, same
from hypothesis import given, settings
from hypothesis import strategies as st

from fmpipe.train import checkpoint
from fmpipe.train.checkpoint import InvalidCheckpointError, find, latest, load, read_index, save

pytestmark = pytest.mark.slow
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32),
]


def bits(x: torch.Tensor) -> bytes:
    return x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 7)], ids=str)
def test_tensors_come_back_bit_for_bit(tmp_path, dtype, shape):
    x = (torch.randn(shape) * 3).abs().to(dtype)
    got = load(save(tmp_path, 1, {"model": {"x": x}}))["model"]["x"]
    assert (got.dtype, got.shape, bits(got)) == (dtype, x.shape, bits(x))


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
keys = st.text(max_size=5) | st.sampled_from(["$tensor", "$dict", "__metadata__", "a/b"]) | st.integers() | st.none()
tensors = st.lists(st.integers(-9, 9), max_size=3).map(lambda values: torch.tensor(values, dtype=torch.float32))
trees = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys | st.tuples(st.integers(), st.text(max_size=2)), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None)
@given(trees)
def test_any_tree_comes_back_equal(tmp_path_factory, tree):
    folder = tmp_path_factory.getbasetemp() / "trees"
    assert same(tree, load(save(folder, 0, {"part": tree}))["part"])


@pytest.mark.parametrize("key", ["$tensor", "$array", "$float", "$tuple", "$dict", "__metadata__", "", "a/b", 3, None])
@pytest.mark.parametrize("value", [[], "nan", torch.ones(2)], ids=["list", "text", "tensor"])
def test_keys_that_could_be_mistaken(tmp_path, key, value):
    tree = {key: value}
    assert same(tree, load(save(tmp_path, 1, {"part": tree}))["part"])


def test_floats_that_json_has_not(tmp_path):
    values = [float("inf"), -float("inf"), float("nan"), -0.0, 5e-324, 0.1 + 0.2, 2**70 + 1]
    got = load(save(tmp_path, 1, {"meta": values}))["meta"]
    assert repr(got) == repr(values)
    for file in tmp_path.glob("*/*.json"):
        json.loads(file.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_aliased_and_strided_tensors(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tree = {"a": base, "tied": base.view(3, 4), "flat": base.view(-1), "column": base[:, 1], "turned": base.T}
    tree |= {"part": base[1:], "grown": torch.ones(1).expand(5), "parameter": torch.nn.Parameter(base)}
    tree |= {"conj": torch.tensor([1 + 2j]).conj(), "dict": {"a/b": base + 1, "a": {"b": base + 2}}}
    path = save(tmp_path, 1, {"model": tree})
    got = load(path)["model"]
    assert same({**tree, "parameter": base}, got)
    assert got["a"] is got["tied"], "tied weights are no longer tied"
    assert got["a"].data_ptr() != got["flat"].data_ptr()
    assert not got["parameter"].requires_grad


def test_the_states_of_random_generators(tmp_path):
    rng = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}
    rng["generator"] = np.random.default_rng(5).bit_generator.state
    path = save(tmp_path, 1, {"rng": {"0": rng, "1": rng}})
    expected = torch.randn(5), random.random(), np.random.rand(), np.random.default_rng(5).random()
    got = load(path)["rng"]["1"]
    assert got["python"] == rng["python"]
    torch.set_rng_state(got["torch"])
    random.setstate(got["python"])
    np.random.set_state(got["numpy"])
    generator = np.random.default_rng()
    generator.bit_generator.state = got["generator"]
    assert torch.equal(torch.randn(5), expected[0])
    assert (random.random(), np.random.rand(), generator.random()) == expected[1:]


class Run:
    """A small training: noise from torch's generator, AdamW with two groups, a schedule."""

    def __init__(self):
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
        groups = [
            {"params": self.model[0].parameters(), "lr": 1e-2},
            {"params": self.model[2].parameters(), "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), amsgrad=True)
        warm = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=5)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.scheduler = torch.optim.lr_scheduler.SequentialLR(self.optimizer, [warm, cosine], [5])

    def step(self) -> float:
        x = torch.randn(4, 8)
        loss = (self.model(x) - x.flip(1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    def parts(self) -> dict:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def state(self) -> dict:
        return {name: part.state_dict() for name, part in self.parts().items()} | {"rng": torch.get_rng_state()}

    def resume(self, state: dict) -> None:
        for name, part in self.parts().items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["rng"])


@pytest.mark.parametrize("cut", [0, 1, 4, 9])
def test_training_continues_bit_for_bit(tmp_path, cut, one_thread):
    uncut = Run()
    losses = [uncut.step() for _ in range(cut)]
    path = save(tmp_path, cut, uncut.state())
    losses += [uncut.step() for _ in range(12 - cut)]
    torch.manual_seed(99)
    resumed = Run()
    resumed.resume(load(path))
    assert [resumed.step() for _ in range(12 - cut)] == losses[cut:]
    assert same({**uncut.state()["model"]}, {**resumed.state()["model"]})


def test_what_the_folder_holds(tmp_path):
    path = save(tmp_path, 1200, {"model": {"a.weight": torch.ones(2)}, "meta": {"epoch": 3}})
    assert path == tmp_path / "step-00001200"
    assert names(path) == ["checkpoint.json", "meta.json", "model.json", "model.safetensors"]
    assert list(checkpoint.load_file(path / "model.safetensors")) == ["a.weight"], "other tools know it by its name"
    index = read_index(path)
    assert (index["step"], index["parts"], index["torch"]) == (1200, ["model", "meta"], torch.__version__)
    assert {(path / name).stat().st_mode for name in names(path)} == {(path / "meta.json").stat().st_mode}


def steps(folder: Path) -> list[int]:
    return [int(name.removeprefix("step-")) for name in names(folder)]


def test_the_newest_are_kept(tmp_path):
    for step in (1, 2, 3, 10, 20):
        save(tmp_path, step, {"meta": step}, keep=3)
    assert steps(tmp_path) == [3, 10, 20]
    save(tmp_path, 5, {"meta": 5}, keep=2)  # of a run that went back
    assert steps(tmp_path) == [3, 5, 10, 20]
    save(tmp_path, 10, {"meta": "again"}, keep=9)
    assert load(find(tmp_path, 10)) == {"meta": "again"}
    assert steps(tmp_path) == [3, 5, 10, 20]


def test_leftovers_of_killed_processes(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    save(tmp_path, 1, {"meta": 1})
    (tmp_path / "step-00000001").rename(tmp_path / ".old-step-00000001")  # killed between two renames
    assert load(latest(tmp_path)) == {"meta": 1}
    for name in (f".tmp-step-00000002-{dead.pid}", f".tmp-step-00000002-{os.getppid()}", ".trash-7"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.json").write_text("{}")
    save(tmp_path, 2, {"meta": 2})
    assert names(tmp_path) == [f".tmp-step-00000002-{os.getppid()}", "step-00000001", "step-00000002"]


@pytest.mark.parametrize("suffix", ["", "mine", "00000002-", "00000002-x", "00000002--1", "x-9", f"00000002-{10**30}"])
@pytest.mark.parametrize("prefix", [".tmp-", ".tmp-step-", ".old-step-"])
def test_folders_with_other_names_are_left_alone(tmp_path, prefix, suffix):
    stray = tmp_path / f"{prefix}{suffix}"
    stray.mkdir()
    (stray / "notes.txt").write_text("mine")
    for step in (1, 2):
        save(tmp_path, step, {"meta": step})
    assert (stray / "notes.txt").read_text() == "mine"
    assert load(latest(tmp_path)) == {"meta": 2}
    assert names(tmp_path) == [stray.name, "step-00000001", "step-00000002"]


def test_a_leftover_that_is_a_file_is_removed(tmp_path):
    (tmp_path / f".tmp-step-00000002-{os.getpid()}").write_text("")
    save(tmp_path, 2, {"meta": 2})
    assert names(tmp_path) == ["step-00000002"]


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


DAMAGE = {"flipped": flip, "cut": lambda file: os.truncate(file, file.stat().st_size // 2), "gone": os.unlink}
DAMAGE["empty"] = lambda file: os.truncate(file, 0)


@pytest.mark.parametrize("file", ["model.safetensors", "model.json", "meta.json", "checkpoint.json"])
@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_named_and_the_one_before_is_used(tmp_path, file, how):
    state = {"model": {"w": torch.arange(64.0)}, "meta": {"x": "abcdefgh"}}
    before, path = save(tmp_path, 1, state), save(tmp_path, 2, state)
    DAMAGE[how](path / file)
    with pytest.raises(InvalidCheckpointError, match=file):
        load(path)
    with pytest.warns(UserWarning, match=rf"step-00000002 is skipped: .*{file}"):
        assert latest(tmp_path) == before
    with pytest.warns(UserWarning, match="skipped"):
        assert find(tmp_path, "latest") == before


def test_find(tmp_path):
    assert latest(tmp_path / "none") is None
    with pytest.raises(InvalidCheckpointError, match=r"no complete checkpoint in .*; there is none"):
        find(tmp_path, "latest")
    paths = {step: save(tmp_path, step, {"meta": step}) for step in (7, 100)}
    assert find(tmp_path, "latest") == paths[100]
    assert find(tmp_path, "7") == find(tmp_path, 7) == find("elsewhere", str(paths[7])) == paths[7]
    with pytest.raises(InvalidCheckpointError, match=r"no checkpoint of step 8 in .*; there are steps 7, 100"):
        find(tmp_path, "8")
    with pytest.raises(InvalidCheckpointError, match=r"'lastest' is neither 'latest', nor a step, nor a folder"):
        find(tmp_path, "lastest")
    with pytest.raises(InvalidCheckpointError, match=r"checkpoint\.json is missing: this is not a checkpoint"):
        find(tmp_path, str(tmp_path))


def fail_after(allowed: int):
    """An os.fsync that finds the disk full at that call: the error as it comes late, from the file system."""
    real, calls = os.fsync, iter(range(10**6))

    def fsync(number: int) -> None:
        if next(calls) >= allowed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(number)

    return fsync


def check_refused(folder: Path, state: dict, number: int) -> None:
    with pytest.raises(OSError, match=r"the checkpoint of step 2 needs [\d,]+ bytes") as error:
        save(folder, 2, state)
    assert error.value.errno == number
    assert error.value.filename == str(folder)
    assert names(folder) == ["step-00000001"]
    assert load(latest(folder)) == {"meta": 1}


@pytest.mark.parametrize("allowed", range(5))
def test_disk_full_when_synced(tmp_path, monkeypatch, allowed):
    save(tmp_path, 1, {"meta": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_after(allowed))
        check_refused(tmp_path, {"model": {"w": torch.ones(9)}, "meta": 2}, errno.ENOSPC)
    save(tmp_path, 2, {"meta": 2})
    assert steps(tmp_path) == [1, 2]


@pytest.mark.parametrize("part", [{"w": torch.ones(1 << 16)}, list(range(1 << 15))], ids=["safetensors", "json"])
def test_a_file_that_cannot_grow(tmp_path, part):
    save(tmp_path, 1, {"meta": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, limits[1]))
    try:
        check_refused(tmp_path, {"model": part}, errno.EFBIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({"meta": {"a": [1, {2}]}}, TypeError, r"save: meta/a/1 must be a tensor, .* got <class 'set'>"),
        ({"meta": {"a": b"x"}}, TypeError, "save: meta/a must be"),
        ({"m": torch.zeros(2, dtype=torch.complex128)}, TypeError, "m has a tensor that safetensors cannot hold"),
        ({"../m": 1}, ValueError, r"a part's name must be letters.* got '\.\./m'"),
        ({"checkpoint": 1}, ValueError, "got 'checkpoint'"),
    ],
)
def test_what_cannot_be_saved(tmp_path, state, error, message):
    with pytest.raises(error, match=message):
        save(tmp_path, 1, state)
    assert names(tmp_path) == []


def test_steps_and_keep(tmp_path):
    for arguments in ((-1, 3), (1, 0)):
        with pytest.raises(ValueError, match=r"step must be 0 or more and keep 1 or more, got step"):
            save(tmp_path, arguments[0], {}, keep=arguments[1])


def test_five_million_parameters_take_well_under_a_second(tmp_path):
    weights = {f"layer.{i}": torch.randn(50_000) for i in range(100)}
    adam = {i: {"step": torch.tensor(1.0), "exp_avg": w, "exp_avg_sq": w * w} for i, w in enumerate(weights.values())}
    state = {"model": weights, "ema": weights, "optimizer": {"state": adam, "param_groups": [{"params": [*adam]}]}}
    times = []
    for step in range(3):
        start = time.perf_counter()
        save(tmp_path, step, state)
        times.append(time.perf_counter() - start)
    assert min(times) < 1.0, times


def test_kill_9_of_a_process_that_saves():
    assert crash(20, seed=0) >= 6


def test_kill_9_of_a_training():
    assert crash_training(20, seed=0) >= 1
