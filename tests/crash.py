"""Kill -9 at random moments, of a process that writes checkpoints and of one that trains.

``python tests/crash.py 300 [seed]``: each 300 times.
"""

import itertools
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from support.forked import fork
from support.tiny_models import tiny_clip

from fmpipe.train import checkpoint, settings
from fmpipe.train.config import Config, Every
from fmpipe.train.presets import shapes_tiny
from fmpipe.train.run import run

KEEP = 2
STEPS = {"vae": 4, "flow": 10}


def state(step: int, life: int) -> dict:
    """Every part says which save it is of, so that a mix of two shows."""
    return {
        "model": {"w": torch.full((3, 4), step), "b": torch.full((2,), life)},
        "optimizer": {"state": {0: {"exp_avg": torch.full((5,), step)}}, "groups": [{"betas": (step, life)}]},
        "meta": {"step": step, "life": life},
    }


def same(a: object, b: object) -> bool:
    """Equal trees: types of containers, keys, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def child(folder: Path, start: int, life: int, pipe: int) -> None:
    """Saves for ever, the step it starts from again; tells of every save that is done."""
    step = start
    while True:
        checkpoint.save(folder, step, state(step, life), keep=KEEP)
        os.write(pipe, struct.pack("<q", step))
        step += 1


def killed(work: Callable[[int], None], marks: int, seconds: float) -> tuple[bytes, bool]:
    """A child doing ``work(pipe)``, killed that time after so many marks of 8 bytes, or at its end; it must not fail.

    All it told, and whether it had ended.
    """
    reader, writer = os.pipe()
    pid = fork(lambda: work(writer))
    os.close(writer)
    told = b"".join(os.read(reader, 8) for _ in range(marks))
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    with os.fdopen(reader, "rb") as file:
        told += file.read()
    assert os.WIFSIGNALED(status) or status == 0, "the child failed by itself"
    return told, status == 0


def check(folder: Path, finished: int) -> int:
    """The step of the newest checkpoint, after it was found whole, of one save, and not before the finished one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a damaged one, skipped, is a failure too
        path = checkpoint.latest(folder)
    if path is None:
        assert finished < 0, f"step {finished} was finished, and no checkpoint is left"
        return -1
    found = checkpoint.load(path)
    step, life = found["meta"]["step"], found["meta"]["life"]
    assert same(found, state(step, life)), f"{path} is a mix: {found}"
    assert checkpoint.read_index(path)["step"] == step == int(path.name.rpartition("-")[2])
    assert step >= finished, f"step {finished} was finished, the newest is {step}"
    return step


def crash(rounds: int, seed: int = 0) -> int:
    """That many children killed in one folder, 0 to 60 ms after they began, or after their first or second save.

    Returns how many steps were saved, at least one in three rounds.
    """
    moments, folder = random.Random(seed), Path(tempfile.mkdtemp(prefix="crash-"))
    torch.set_num_threads(1)  # a forked child has no pool of threads
    finished = -1
    try:
        for life in range(rounds):
            start = max(finished, 0)
            work = partial(child, folder, start, life)
            told, ended = killed(work, life % 3, moments.uniform(0, 0.06))  # a busy disk saves too
            assert not ended
            last = struct.unpack("<q", told[-8:])[0] if told else finished
            finished = check(folder, max(last, finished))
            whole = [path for path in folder.iterdir() if path.name.startswith("step-")]
            assert len(whole) <= KEEP + 1, f"{len(whole)} checkpoints are kept"
            for path in whole:
                checkpoint.verify(path)  # one being removed must not look like one
        checkpoint.save(folder, finished + 1, state(finished + 1, rounds), keep=KEEP)
        left = sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
        assert not left, f"a save after the kills left {left}"
    finally:
        shutil.rmtree(folder)
    return finished + 1


def tiny(root: Path) -> Config:
    """An autoencoder and a flow of a few steps, a state after each; its text encoder is saved in root."""
    torch.manual_seed(0)
    tiny_clip().save_pretrained(root / "clip")
    config = shapes_tiny()
    config.data.count, config.flow.encoder, config.keep = 24, str(root / "clip"), KEEP
    config.every = Every(log=1, validate=0, save=1, sample=0)
    for stage in config.flow.net["stage_configs"]:
        stage["blocks"] = 1
    for name, steps in STEPS.items():
        optim = getattr(config, name).optim
        optim.steps, optim.batch = steps, 2
    return config


def train(config: Config, pipe: int | None = None) -> None:
    """A run, begun or gone on with; tells of every step before its state is saved."""
    tell = None if pipe is None else lambda stage, step, steps, figures: os.write(pipe, struct.pack("<q", step))
    run(config, resume="latest", on_log=tell)


def result(folder: Path) -> dict:
    """What a run came to: the last state of each stage, but its config, and the bytes of its pipeline's weights."""
    out = {stage: checkpoint.load(checkpoint.find(folder / stage / "checkpoints", n)) for stage, n in STEPS.items()}
    for state in out.values():
        del state["meta"]["config"]  # has the folder's name
    files = sorted((folder / "pipeline").glob("*/*.safetensors"))
    return out | {"pipeline": {str(file.relative_to(folder)): file.read_bytes() for file in files}}


def crash_training(rounds: int, seed: int = 0) -> int:
    """That many trainings killed, each going on from the last: within 0.6 s of its beginning, or after a step or two.

    Every run that comes to its end, as the last is let, must equal the uncut one bit by bit. Returns how many did.
    """
    moments, root, kills = random.Random(seed), Path(tempfile.mkdtemp(prefix="crash-")), 0
    torch.set_num_threads(1)
    try:
        config = tiny(root)

        def in_folder(name: str) -> Config:
            return settings.with_overrides(config, [f"out={root / name}", f"data.cache={root / name}-cache"])

        assert os.waitpid(fork(lambda: train(in_folder("uncut"))), 0)[1] == 0, "the uncut run failed"
        uncut = result(root / "uncut")
        for runs in itertools.count(1):
            ended, name = False, f"cut-{runs}"
            while not ended:
                marks = kills % 3 if kills < rounds else sum(STEPS.values()) + 1  # more than there are: until its end
                seconds = moments.uniform(0, 0.05 if marks else 0.6)
                _, ended = killed(partial(train, in_folder(name)), marks, seconds)
                kills += not ended
            assert same(result(root / name), uncut), f"run {runs}, with kills, is not the uncut one"
            if kills >= rounds:
                return runs
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    rounds, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 2**32
    print(f"seed {seed}", flush=True)
    print(f"{rounds} kills, {crash(rounds, seed)} steps saved, every time the newest was whole", flush=True)
    print(f"{rounds} kills in {crash_training(rounds, seed)} trainings, each came to what the uncut one did")
