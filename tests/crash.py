"""Kill -9 at random moments while checkpoints are written: ``python tests/crash.py 300 [seed]``."""

import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from fmpipe.train import checkpoint

KEEP = 2


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


def killed(folder: Path, start: int, life: int, saves: int, seconds: float) -> int | None:
    """A child that is killed that time after so many saves; the last step it told of."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child(folder, start, life, writer)
        finally:
            os._exit(1)  # an error of its own, which the parent sees
    os.close(writer)
    told = b"".join(os.read(reader, 8) for _ in range(saves))
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status), f"the child of life {life} failed by itself"
    with os.fdopen(reader, "rb") as file:
        told += file.read()
    return struct.unpack("<q", told[-8:])[0] if told else None


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
            told = killed(folder, start, life, life % 3, moments.uniform(0, 0.06))  # a busy disk saves too
            finished = check(folder, finished if told is None else max(told, finished))
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


if __name__ == "__main__":
    rounds, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 2**32
    print(f"seed {seed}", flush=True)
    print(f"{rounds} kills, {crash(rounds, seed)} steps saved, every time the newest was whole")
