"""Signals at random moments, full disks and clocks that go backwards; nothing that was finished may be lost.

``python tests/crash.py 300 [seed]``: 300 kills of a process that saves, and of one that trains; a tenth as many of
trainings in one and two processes, of two runs in one folder, and of reports and pictures; and full disks.
"""

import contextlib
import copy
import errno
import itertools
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image
from support import commands
from support.forked import fork, together
from support.tiny_models import tiny_clip
from support.training import apart

from fmpipe.cli.base import Refused
from fmpipe.cli.files import save_image
from fmpipe.run_log import RunLog, read_log
from fmpipe.train import checkpoint, settings
from fmpipe.train.config import Config, Every
from fmpipe.train.interrupt import InterruptedRunError, sigterm_raises
from fmpipe.train.lock import LockedRunError
from fmpipe.train.presets import shapes_tiny
from fmpipe.train.run import run

KEEP = 2
STEPS = {"vae": 4, "flow": 10}
ALL_STEPS = {"vae": 4, "head": 3, "flow": 6, "diffusion": 4}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
INTERRUPTED, LOCKED, FULL = 75, 76, 77  # exit codes of a training
CODES = {INTERRUPTED: "interrupted", LOCKED: "locked", FULL: "full"}


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


def killed(
    work: Callable[[int], None], marks: int, seconds: float, signum: int = signal.SIGKILL, group: bool = False
) -> tuple[bytes, str]:
    """Send a signal to a child that does ``work(pipe)``, that time after so many marks of 8 bytes.

    group: to its children too. Returns all it told, and how it ended: "done", "killed", or as :data:`CODES`.
    """
    reader, writer = os.pipe()

    def child() -> None:
        if group:
            os.setpgrp()
        work(writer)

    with _blocked():
        pid = fork(child)
    os.close(writer)
    told = b"".join(os.read(reader, 8) for _ in range(marks))
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):  # it may not have its group yet
        os.killpg(pid, signum) if group else os.kill(pid, signum)
    how = ending(pid)
    with os.fdopen(reader, "rb") as file:
        told += file.read()
    return told, how


@contextlib.contextmanager
def _blocked():
    """Hold back the signals until the child handles them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS[2:])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS[2:])


def ending(pid: int) -> str:
    """Wait for a child, and return how it ended; it must not fail."""
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return "killed"
    code = os.waitstatus_to_exitcode(status)
    assert code == 0 or code in CODES, f"the child failed by itself, code {code}"
    return CODES.get(code, "done")


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
            told, how = killed(work, life % 3, moments.uniform(0, 0.06))  # a busy disk saves too
            assert how == "killed"
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


def tiny(root: Path, steps: dict[str, int], sample: int = 0) -> Config:
    """Stages of a few steps, a state after each; their text encoder is saved in root."""
    torch.manual_seed(0)
    tiny_clip().save_pretrained(root / "clip")
    config = shapes_tiny()
    config.data.count, config.flow.encoder, config.keep = 24, str(root / "clip"), KEEP
    config.stages, config.every = list(steps), Every(log=1, validate=0, save=1, sample=sample)
    for stage in config.flow.net["stage_configs"]:
        stage["blocks"] = 1
    config.diffusion.net = copy.deepcopy(config.flow.net)
    for name, count in steps.items():
        optim = config.flow.head_optim if name == "head" else getattr(config, name).optim
        optim.steps, optim.batch = count, 2
    return config


def train(config: Config, pipe: int | None = None, back: float = 0.0) -> None:
    """A run, begun or gone on with; tells of every step before its state is saved.

    back: seconds by which the clock is behind.
    """
    clock, nanoseconds = time.time, time.time_ns
    time.time, time.time_ns = lambda: clock() - back, lambda: nanoseconds() - int(back * 1e9)
    tell = None if pipe is None else lambda stage, step, steps, figures: os.write(pipe, struct.pack("<q", step))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with sigterm_raises():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS[2:])
            run(config, resume="latest", on_log=tell)
    except (InterruptedRunError, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    except LockedRunError:
        os._exit(LOCKED)
    except OSError as error:
        if error.errno != errno.ENOSPC or "\n" in str(error):
            raise
        os._exit(FULL)


def train_in(world: int, config: Config, pipe: int, back: float) -> None:
    """The same in so many processes."""
    if world == 1:
        train(config, pipe, back)
        return
    for signum in SIGNALS[2:]:
        signal.signal(signum, signal.SIG_IGN)  # this process only waits for its children
    try:
        together(world, lambda: train(config, pipe, back))
    except RuntimeError:
        os._exit(INTERRUPTED)


def result(folder: Path, steps: dict[str, int]) -> dict:
    """What a run came to: the last state of each stage, but its config, and the bytes of its pipeline's weights.

    Every step must be in the log.
    """
    out = {stage: checkpoint.load(checkpoint.find(folder / stage / "checkpoints", n)) for stage, n in steps.items()}
    for stage, state in out.items():
        del state["meta"]["config"]  # has the folder's name
        logged = {line["step"] for line in read_log(folder / stage)}
        assert logged >= set(range(1, steps[stage] + 1)), f"{folder / stage} lacks steps: {sorted(logged)}"
    files = sorted((folder / "pipeline").glob("*/*.safetensors"))
    return out | {"pipeline": {str(file.relative_to(folder)): file.read_bytes() for file in files}}


@contextlib.contextmanager
def uncut(steps: dict[str, int], sample: int = 0):
    """A place, a function that gives the config of a run in it, and the result of one that was not interrupted."""
    root = Path(tempfile.mkdtemp(prefix="crash-"))
    torch.set_num_threads(1)
    try:
        config = tiny(root, steps, sample)

        def in_folder(name: str | Path) -> Config:
            return settings.with_overrides(config, [f"out={root / name}", f"data.cache={root}-cache"])

        with _blocked():
            pid = fork(lambda: train(in_folder("uncut")))
        assert ending(pid) == "done", "the uncut run failed"
        yield root, in_folder, result(root / "uncut", steps)
    finally:
        shutil.rmtree(root)
        shutil.rmtree(f"{root}-cache", ignore_errors=True)


def crash_training(rounds: int, seed: int = 0) -> int:
    """That many trainings ended by a signal, each going on from the last, with a clock that is an hour behind.

    Within 0.6 s of its beginning, or after a step or two. Every run that comes to its end, as the last is let, must
    equal the uncut one bit by bit. Returns how many did.
    """
    moments, kills = random.Random(seed), 0
    with uncut(STEPS) as (root, in_folder, whole):
        for runs in itertools.count(1):
            how, name = "", f"cut-{runs}"
            while how != "done":
                marks = kills % 3 if kills < rounds else sum(STEPS.values()) + 1  # more than there are: until its end
                seconds = moments.uniform(0, 0.05 if marks else 0.6)
                signum = moments.choice(SIGNALS)
                _, how = killed(partial(train, in_folder(name), back=3600 * kills), marks, seconds, signum)
                kills += how != "done"
            assert same(result(root / name, STEPS), whole), f"run {runs}, with kills, is not the uncut one"
            if kills >= rounds:
                return runs


def crash_processes(rounds: int, seed: int = 0) -> int:
    """The same in one and two processes by turns, in every stage. Sums in another order differ by rounding."""
    moments, kills = random.Random(seed), 0
    with uncut(ALL_STEPS) as (root, in_folder, whole):
        for runs in itertools.count(1):
            how, name, total = "", f"cut-{runs}", sum(ALL_STEPS.values())
            for life in itertools.count():
                free = kills >= rounds
                marks = total + 1 if free else moments.randint(1, 5)
                work = partial(train_in, 1 + life % 2, in_folder(name), back=3600 * life)
                _, how = killed(work, marks, moments.uniform(0, 0.05), moments.choice(SIGNALS), group=True)
                kills += how != "done"
                if how == "done":
                    break
                assert not free or life < 3, "a run that nobody ends does not come to its end"
            found = result(root / name, ALL_STEPS)
            for stage in ALL_STEPS:
                for part in ("model", "ema", "optimizer"):
                    assert apart(whole[stage][part], found[stage][part], 1e-3, f"{stage} {part}") == []
            if kills >= rounds:
                return runs


def crash_two(rounds: int, seed: int = 0) -> int:
    """Two runs begin in one folder, and one is killed; the other is refused or goes on. Returns how many were."""
    moments, refused = random.Random(seed), 0
    with uncut(STEPS) as (root, in_folder, whole):
        for number in range(rounds):
            with _blocked():
                other = fork(partial(train, in_folder("both")))
            _, how = killed(partial(train, in_folder("both")), 0, moments.uniform(0, 0.8))
            both = how, ending(other)
            assert both != ("locked", "locked"), "both runs were refused"
            refused += "locked" in both
            if number % 5 == 4 or number == rounds - 1:
                with _blocked():
                    pid = fork(partial(train, in_folder("both")))
                assert ending(pid) == "done"
                assert same(result(root / "both", STEPS), whole), "a folder of two runs is not that of one"
                shutil.rmtree(root / "both")
    return refused


def write_files(log: Path, place: Path, pipe: int) -> None:
    """Write a report and a picture for ever."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS[2:])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the commands print
    for number in itertools.count():
        assert commands.run("report", log, "--out", place).exit_code == 0
        os.write(pipe, struct.pack("<q", number))
        save_image(Image.effect_noise((300, 300), number % 100), place / "picture.png", {"prompt": "a cat" * 1000})


def check_files(place: Path) -> int:
    """Return how many files there are, after each was found whole."""
    files = [path for path in place.glob("*") if not path.name.startswith(".")]
    for path in files:
        data = path.read_bytes()
        if path.suffix == ".json":
            json.loads(data)
        elif path.suffix == ".html":
            assert data.endswith(b"</html>\n"), f"{path} is cut"
        elif path.suffix == ".png":
            Image.open(path).load()
        else:
            assert data.startswith(b"# "), f"{path} is cut"
            assert data.endswith(b"\n"), f"{path} is cut"
    return len(files)


def crash_files(rounds: int, seed: int = 0) -> int:
    """That many processes that write reports and pictures are ended by a signal; every file must be whole."""
    moments, root, checked = random.Random(seed), Path(tempfile.mkdtemp(prefix="crash-")), 0
    try:
        with RunLog(root) as log:
            for step in range(50):
                log.write(step, {"loss/flow": 1 / (step + 1), "flow/cos": 0.5})
        for life in range(rounds):
            signum = moments.choice(SIGNALS)
            work = partial(write_files, root / "log.jsonl", root / "report")
            assert killed(work, life % 3, moments.uniform(0, 0.3), signum)[1] == "killed"
            checked += check_files(root / "report")
    finally:
        shutil.rmtree(root)
    return checked


@contextlib.contextmanager
def disk(place: Path, size: str):
    """A disk of a size. PermissionError without the right to mount one."""
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True).returncode:
        raise PermissionError("a full disk needs the right to mount one")
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


def crash_disk(rounds: int, seed: int = 0) -> int:
    """Disks that fill up at some point of a training, and under a log, a report and a picture.

    With more space, the training goes on to the result of the uncut one. Returns how many disks were full.
    """
    moments, full = random.Random(seed), 0
    with uncut(STEPS, sample=2) as (root, in_folder, whole):
        for number in range(rounds):
            place = root / f"disk-{number}"
            with disk(place, f"{int(8 * 2 ** moments.uniform(0, 11))}k"):
                with _blocked():
                    pid = fork(partial(train, in_folder(place / "run")))
                full += ending(pid) == "full"
                for stage in STEPS:
                    check_all(place / "run" / stage / "checkpoints")
                subprocess.run(["mount", "-o", "remount,size=256m", place], check=True)
                with _blocked():
                    pid = fork(partial(train, in_folder(place / "run")))
                assert ending(pid) == "done"
                assert same(result(place / "run", STEPS), whole), "a run with a full disk is not the uncut one"
                full += full_files(place)
            place.rmdir()
    return full


def check_all(folder: Path) -> None:
    """Every checkpoint of a folder is whole."""
    for path in folder.glob("step-*"):
        checkpoint.verify(path)


def full_files(place: Path) -> int:
    """Log, report and picture on a full disk: an error or a warning, and nothing that was there is lost."""
    log, out = RunLog(place / "log"), place / "report"
    log.write(1, {"loss/flow": 1.0})
    log.flush()
    written = [place / "run" / "flow" / "log.jsonl", "--out", out]
    assert commands.run("report", *written).exit_code == 0
    save_image(Image.effect_noise((300, 300), 50), out / "picture.png")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with (place / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    done = commands.run("report", *written)
    assert done.exit_code == 1, done.output
    assert "No space left on device" in done.stderr.splitlines()[-1]
    with pytest.raises(Refused, match="No space left on device"):
        save_image(Image.effect_noise((300, 300), 60), out / "picture.png")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before, "a file was lost"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(2, 500):
            log.write(step, {"loss/flow": 1.0})
            log.flush()
    (place / "filler").unlink()
    log.close()
    assert [line["step"] for line in read_log(place / "log")] == list(range(1, 500)), "lines of the log were lost"
    return 3


if __name__ == "__main__":
    rounds, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 2**32
    few = max(rounds // 10, 1)
    print(f"seed {seed}", flush=True)
    print(f"{rounds} kills, {crash(rounds, seed)} steps saved, every time the newest was whole", flush=True)
    done = crash_training(rounds, seed)
    print(f"{rounds} signals in {done} trainings, each came to what the uncut one did, clock backwards", flush=True)
    done = crash_processes(few, seed)
    print(f"{few} signals in {done} trainings of four stages in one and two processes by turns", flush=True)
    print(f"{few} kills of two runs in one folder, {crash_two(few, seed)} refused, none mixed", flush=True)
    print(f"{few} kills of reports and pictures, {crash_files(few, seed)} files, all whole", flush=True)
    try:
        print(f"{few} disks, {crash_disk(few, seed)} times full, nothing lost")
    except PermissionError as error:
        print(f"left out: {error}")
