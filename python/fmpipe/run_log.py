"""A run's log: one JSON object a line, and the same numbers for TensorBoard."""

import atexit
import contextlib
import json
import math
import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows; one writer a file there
    fcntl = None

LOG_NAME = "log.jsonl"
WRITERS = ("jsonl", "tensorboard")
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RunLog:
    """Writes ``{"step": 12, "time": 1700000000.0, "flow/cos": 0.5}`` and the like to ``folder/log.jsonl``.

    report_to: ``jsonl``, ``tensorboard``, or both. Lines wait in memory until there are ``flush_every`` of them or
    ``flush_seconds`` have passed at a write, and go to the file as whole lines: one file may have several writers. They
    are written out by ``close``, at the end of a ``with``, and when Python ends, also by an exception or Ctrl-C.
    No signal handler is installed: what kills without Python's end (SIGTERM unless you turn it into SystemExit, kill
    -9, ``os._exit``) costs the waiting lines, and may tear the last one in the file. A torn line is cut off by the next
    writer, with a warning, and left out by :func:`read_log`.
    A full disk does not end a training: it is a warning, the file keeps whole lines, the others wait for the next try;
    ``close`` raises OSError if some are still left. In several processes of a job, write from one.
    """

    def __init__(
        self,
        folder: str | Path,
        report_to: Sequence[str] = ("jsonl",),
        *,
        flush_every: int = 64,
        flush_seconds: float = 10.0,
    ):
        report_to = (report_to,) if isinstance(report_to, str) else tuple(report_to)
        for name in report_to:
            if name not in WRITERS:
                raise ValueError(f"RunLog: report_to has unknown {name!r}; choose of {', '.join(WRITERS)}")
        if not isinstance(flush_every, int) or flush_every < 1:
            raise ValueError(f"RunLog: flush_every must be a whole number of at least 1, got {flush_every!r}")
        if not flush_seconds >= 0:
            raise ValueError(f"RunLog: flush_seconds must be 0 or more, got {flush_seconds!r}")
        self.folder, self.flush_every, self.flush_seconds = Path(folder), flush_every, flush_seconds
        self.path = self.folder / LOG_NAME
        self._lines: list[bytes] = []
        self._texts: dict[str, str] = {}
        self._lock, self._owner, self._flushed = threading.RLock(), os.getpid(), time.monotonic()
        self._board = _tensorboard(self.folder) if "tensorboard" in report_to else None
        self._file = None
        if "jsonl" in report_to:
            self.folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
            self._file = os.open(self.path, flags, 0o644)
            with _locked(self._file):
                _mend(self._file, self.path)
        self._open = True
        atexit.register(self.close)

    def write(self, step: int, values: Mapping[str, object] | None = None, **more: object) -> None:
        """One line. Values: numbers (a tensor or array of one element too), strings, bool, None, lists of these.

        Non-finite numbers become the strings "NaN", "Infinity", "-Infinity", as JSON has no others. TypeError for what
        is none of these; ValueError after ``close``, and for a value called step or time; RuntimeError in a fork.
        """
        if not self._open:
            raise ValueError(f"RunLog.write: the log of {self.folder} is closed")
        if os.getpid() != self._owner:
            raise RuntimeError("RunLog.write: this log is the parent process's; a forked one opens its own")
        values = {**(values or {}), **more}
        if taken := {"step", "time"} & values.keys():
            raise ValueError(f"RunLog.write: {taken.pop()!r} is the line's own, not the name of a value")
        now, values = time.time(), {name: _plain(name, value) for name, value in values.items()}
        line = {"step": int(step), "time": round(now, 3), **strict(values)}
        with self._lock:
            if self._board:
                self._show(int(step), now, values)
            if self._file is not None:
                self._lines.append(json.dumps(line, allow_nan=False).encode() + b"\n")
                late = time.monotonic() - self._flushed >= self.flush_seconds
                if late or len(self._lines) >= self.flush_every:
                    self._try_append()

    def flush(self) -> None:
        """What waits goes to the files now."""
        with self._lock:
            self._try_append()
            if self._board:
                self._board.flush()

    def close(self) -> None:
        """Flushes and lets go of the files; a second time does nothing. OSError if lines could not be written."""
        atexit.unregister(self.close)
        with self._lock:
            if not self._open:
                return
            self._open = False
            if os.getpid() != self._owner:
                return  # a forked child: the lines are its parent's
            if self._board:
                self._board.close()
            if self._file is None:
                return
            try:
                self._append()
            except OSError as error:
                raise OSError(
                    error.errno, f"{len(self._lines)} lines were lost: {error.strerror}", str(self.path)
                ) from None
            finally:
                os.close(self._file)
                self._file = None

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _try_append(self) -> None:
        self._flushed = time.monotonic()
        try:
            self._append()
        except OSError as error:
            warnings.warn(
                f"{self.path}: {error.strerror}; {len(self._lines)} lines wait for the next try", stacklevel=3
            )

    def _append(self) -> None:
        """All waiting lines in one write. If it fails, the whole lines it wrote stay in the file; the others wait."""
        if not self._lines or self._file is None:
            return
        lines, self._lines = self._lines, []  # out of the way of a signal handler that flushes too
        data, done = b"".join(lines), 0
        try:
            with _locked(self._file):
                _mend(self._file, self.path)
                start = os.fstat(self._file).st_size
                try:
                    while done < len(data):  # a write may take less than it was given
                        done += os.write(self._file, data[done:])
                finally:
                    done = os.fstat(self._file).st_size - start  # also of a write that was interrupted
                    whole = data.rfind(b"\n", 0, done) + 1
                    if whole < done:
                        os.ftruncate(self._file, start + whole)
                        done = whole
        finally:
            self._lines[:0] = lines[data.count(b"\n", 0, done) :]

    def _show(self, step: int, now: float, values: Mapping[str, object]) -> None:
        """Numbers as scalars, a list's as name/0, name/1; a string as text, when it is new."""
        for name, value in values.items():
            if isinstance(value, list):
                self._show(step, now, {f"{name}/{i}": part for i, part in enumerate(value)})
            elif isinstance(value, str):
                if self._texts.get(name) != value:
                    self._texts[name] = value
                    self._board.add_text(name, value, step, now)
            elif value is not None:
                self._board.add_scalar(name, value, step, walltime=now)


def read_log(path: str | Path) -> list[dict]:
    """The lines of a log, or of the log in a folder; "NaN", "Infinity", "-Infinity" are floats again.

    Lines that are torn, or no JSON object, are left out, with a warning that counts them.
    """
    path = Path(path)
    path = path / LOG_NAME if path.is_dir() else path
    parsed = [_parsed(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    lines = [line for line in parsed if line is not None]
    if len(lines) < len(parsed):
        warnings.warn(f"{path}: {len(parsed) - len(lines)} of {len(parsed)} lines torn, left out", stacklevel=2)
    return [{name: _loose(value) for name, value in line.items()} for line in lines]


def _tensorboard(folder: Path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(f"RunLog: report_to='tensorboard' needs it: pip install tensorboard ({error})") from None
    return SummaryWriter(str(folder))


@contextlib.contextmanager
def _locked(file: int) -> Iterator[None]:
    """Alone among the writers of a file. Some file systems have no locks; there a file has one writer."""
    if fcntl is None:
        yield
        return
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def _mend(file: int, path: Path) -> None:
    """Ends the file at a line's end: a last line without one gets it if it is whole, and is cut off if it is torn."""
    size = os.fstat(file).st_size
    start, tail = size, b""
    while start and b"\n" not in tail:
        step = min(start, 1 if start == size else 1 << 16)  # the last byte says it all, but after a kill
        start -= step
        os.lseek(file, start, os.SEEK_SET)
        tail = os.read(file, step) + tail
    tail = tail[tail.rfind(b"\n") + 1 :]
    if not tail:
        return
    if _parsed(tail) is not None:
        os.write(file, b"\n")
        return
    os.ftruncate(file, size - len(tail))
    warnings.warn(f"{path}: the last line, {len(tail)} bytes, was torn and is cut off", stacklevel=4)


def _parsed(line: bytes) -> dict | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _plain(name: str, value: object) -> object:
    """Python's own types; those of numpy and torch through ``item``."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(name, part) for part in value]
    if hasattr(value, "item") and getattr(value, "size", None) is not None:
        count = value.numel() if hasattr(value, "numel") else value.size
        if count == 1:
            return value.item()
        raise TypeError(f"RunLog.write: {name} must have one element, got {count}; log its statistics, or a list")
    raise TypeError(f"RunLog.write: {name} must be a number, a string, or a list of them, got {type(value).__name__}")


def strict(value: object) -> object:
    """A tree of lists and dicts whose non-finite numbers are "NaN", "Infinity", "-Infinity": JSON has no others."""
    if isinstance(value, dict):
        return {name: strict(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _loose(value: object) -> object:
    if isinstance(value, list):
        return [_loose(part) for part in value]
    return _WORDS.get(value, value) if isinstance(value, str) else value


def history_of(lines: Sequence[Mapping]) -> dict[str, list[float]]:
    """Return name -> values, in the order of the lines of :func:`read_log`; numbers only."""
    history: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                history.setdefault(name, []).append(value)
    return history
