"""Read a hostile file as a user would, and watch what it does meanwhile."""

import json
import os
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.commands import run
from support.sources import png

from fmpipe.data.sources import open_source
from fmpipe.models.checkpoint import read_state
from fmpipe.train import checkpoint

SECONDS, MEGABYTES = 20, 1024
CODE = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
_seen: list[str] = []
_place: list[str] = []  # where the hostile file is, while it is read


def _watch(event: str, arguments: tuple) -> None:
    if _place and (event in CODE or (event in ("import", "ctypes.dlopen") and _place[0] in str(arguments))):
        _seen.append(f"{event} {arguments}")


sys.addaudithook(_watch)


class TooLongError(BaseException):
    """Not an Exception, so that no reader takes it for a fault of the file."""


def _late(*_: object) -> None:
    raise TooLongError(f"it was not read in {SECONDS} s")


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Bound time and memory, and notice programs, connections, and modules of the folder."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits, old = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, _late)
    resource.setrlimit(resource.RLIMIT_AS, (size + (MEGABYTES << 20), limits[1]))
    signal.alarm(SECONDS)
    _seen.clear(), _place.append(str(folder))
    try:
        yield
    finally:
        _place.clear()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert not _seen, f"code was executed: {_seen}"
    assert not list(folder.rglob("executed")), "code was executed"


def _command(*arguments: object) -> tuple[str, str]:
    result = run(*arguments)
    failed = result.exception is not None and not isinstance(result.exception, SystemExit)
    assert not failed, f"a traceback: {result.exception!r}"
    said = (result.stderr.splitlines() or [""])[-1]
    assert "\x1b" not in result.output, "escape sequences of the file reach the terminal"
    assert result.exit_code in (0, 1, 2), result.exit_code
    return ("refuse" if result.exit_code else "read"), said


def report(file: Path, place: Path) -> tuple[str, str]:
    out = place / "report"
    got, said = _command("report", file, "--out", out)
    if got == "read":
        json.loads((out / "report.json").read_text(encoding="utf-8"))
        assert (out / "report.md").read_text(encoding="utf-8")
        page = (out / "report.html").read_text(encoding="utf-8")
        assert "<script>alert" not in page
        assert "<!--<script" not in page
    return got, said


def train(file: Path, place: Path) -> tuple[str, str]:
    return _command("train", "--config", file, "--dry-run", f"out={place / 'run'}")


def pipeline(file: Path, place: Path) -> tuple[str, str]:
    got, said = _command("generate", "a cat", "--pipeline", place / "pipeline", "--steps", 1, "--out", place / "x.png")
    assert (got == "read") == (place / "x.png").is_file()
    return got, said


def _python(read: Callable[[], object], *kinds: type[Exception]) -> tuple[str, str]:
    """Call a reader. The errors of these kinds are those that the commands print as one line."""
    try:
        read()
    except (ValueError, OSError, *kinds) as error:
        return "refuse", str(error)
    return "read", ""


def source(kind: str) -> Callable[[Path, Path], tuple[str, str]]:
    def read(file: Path, place: Path) -> tuple[str, str]:
        def items() -> None:
            found = open_source(kind, file.parent if kind in ("folder", "latents") else file, size=8)
            assert found.digest
            for i in range(len(found)):
                found.latent(i) if kind == "latents" else found[i]

        return _python(items)

    return read


def checkpoints(file: Path, place: Path) -> tuple[str, str]:
    return _python(lambda: (checkpoint.load(file.parent), checkpoint.read_meta(file.parent)), RuntimeError)


def weights(file: Path, place: Path) -> tuple[str, str]:
    return _python(lambda: read_state(file), RuntimeError)


READERS = {
    "report": report,
    "train": train,
    "pipeline": pipeline,
    "folder": source("folder"),
    "shards": source("shards"),
    "latents": source("latents"),
    "parquet": source("hf"),
    "checkpoint": checkpoints,
    "weights": weights,
}


def prepare(reader: str, place: Path, whole: dict[str, Path]) -> Path:
    """Return the folder into which the hostile file comes, with all the good files around it."""
    folder = place / reader
    if reader in whole:
        return Path(shutil.copytree(whole[reader], folder))
    folder.mkdir()
    if reader in ("folder", "latents"):
        (folder / "1.txt").write_text("a cat\n")
    if reader == "folder":
        (folder / "1.png").write_bytes(png())
    return folder


def remove(file: Path) -> None:
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    elif file.is_symlink() or file.exists():
        file.unlink()


def reindexed(file: Path) -> None:
    """Give a checkpoint with a changed file the digests of what it has now, as an attacker would."""
    index = json.loads((file.parent / checkpoint.INDEX).read_text())
    index.pop("digest")
    data = file.read_bytes()
    index["files"][file.name] = {"bytes": len(data), "sha256": checkpoint._sha256(file)}
    digest = checkpoint._digest_of(index)
    (file.parent / checkpoint.INDEX).write_text(json.dumps({**index, "digest": digest}))


def tried(row, place: Path, whole: dict[str, Path]) -> tuple[str, str, float]:
    """Read the file of a row. Returns "read" or "refuse", the message and the seconds."""
    from hostile.make import put

    folder = prepare(row.reader, place, whole)
    file = folder / re.sub(r"#.*", "", row.name)
    remove(file)
    put(file, row.data)
    if row.reader == "checkpoint" and file.name != checkpoint.INDEX:
        reindexed(file)
    os.chdir(place)
    began = time.perf_counter()
    with watched(place):
        got, said = READERS[row.reader](file, place)
    return got, said, time.perf_counter() - began
