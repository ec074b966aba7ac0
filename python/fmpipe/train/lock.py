"""A lock on the folder of a run: only one run at a time may write there."""

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from fmpipe.untrusted import parse_json

try:
    import fcntl
except ImportError:  # Windows: only the contents of the file are compared
    fcntl = None

LOCK_NAME = "run.lock"


class LockedRunError(OSError):
    """Another run writes to the folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder, which is created if it does not exist, for the duration of the block.

    The kernel releases the lock when the process ends, also after kill -9, so a run can be resumed at once. The file
    ``run.lock`` names its host, process and time; it is removed at the end. One that a killed run of this host left is
    taken over. Whether a run of another host still lives cannot be seen from here, because not every file system
    shares locks between hosts: its lock must be removed by hand. Raises LockedRunError.
    """
    path, me = folder / LOCK_NAME, {"host": socket.gethostname(), "process": os.getpid()}
    while True:
        file = _open(path)
        try:
            free = _try_lock(file)
            holder = _holder(file)
            if not free or holder.get("host", me["host"]) != me["host"]:
                raise LockedRunError(_message(folder, holder, free))
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), os.stat(path)):
                    break
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # the run that held this file removed it before it could be locked
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps({**me, "since": time.strftime("%Y-%m-%d %H:%M:%S")}).encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)
        with contextlib.suppress(OSError):
            folder.rmdir()  # of a run that was refused before it wrote anything


def _open(path: Path) -> int:
    """Open a file for reading and writing; create it, and its folder, if they do not exist."""
    for attempt in range(100):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except (FileNotFoundError, FileExistsError):  # another run has just removed the empty folder
            if attempt == 99:  # no: the folder is a file, for example
                raise


def _try_lock(file: int) -> bool:
    """Lock the file; return False if another run holds it. Without locks, see if a process of this host lives."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
    holder = _holder(file)
    return holder.get("host") != socket.gethostname() or not Path(f"/proc/{holder.get('process')}").exists()


def _holder(file: int) -> dict[str, object]:
    try:
        holder = parse_json(os.pread(file, 4096, 0))
    except ValueError:  # empty, or killed while it was written
        return {}
    return holder if isinstance(holder, dict) else {}


def _message(folder: Path, holder: dict[str, object], free: bool) -> str:
    run = f"process {holder.get('process', '?')} on {holder.get('host', 'this host')}, since {holder.get('since', '?')}"
    if not free:
        return f"another run writes to {folder}: {run}. Wait for its end, or choose another out=..."
    return (
        f"{folder} is locked by a run on another host: {run}. If that process no longer runs, remove "
        f"{folder / LOCK_NAME}; otherwise choose another out=..."
    )
