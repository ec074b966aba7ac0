"""The log of a run: one JSON object per line, and the same numbers for TensorBoard."""

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

from fmpipe.untrusted import parse_json

try:
    import fcntl
except ImportError:  # Windows: only one writer per file
    fcntl = None

LOG_NAME = "log.jsonl"
WRITERS = ("jsonl", "tensorboard")
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RunLog:
    """Writes lines such as ``{"step": 12, "time": 1700000000.0, "flow/cos": 0.5}`` to ``folder/log.jsonl``.

    report_to: ``jsonl``, ``tensorboard``, or both. Lines are buffered until there are ``flush_every`` of them or
    ``flush_seconds`` have passed, and written as complete lines, so a file may have several writers. The buffer is
    also written by ``close``, at the end of a ``with`` block, and when Python exits, also after an exception or Ctrl-C.
    No signal handler is installed: a process killed without Python's exit (SIGTERM unless it is turned into SystemExit,
    kill -9, ``os._exit``) loses the buffered lines and may leave an incomplete one. The next writer removes that line
    with a warning, and :func:`read_log` ignores it.
    A full disk does not stop training: there is a warning, and the lines are kept for the next write; ``close`` raises
    OSError if some are still not written. In a job with several processes, write from one.
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
                _end_line(self._file, self.path)
        self._open = True
        atexit.register(self.close)

    def write(self, step: int, values: Mapping[str, object] | None = None, **more: object) -> None:
        """Write one line. Values: numbers (also tensors or arrays of one element), strings, bool, None, lists of these.

        Non-finite numbers become the strings "NaN", "Infinity", "-Infinity", which JSON lacks. Raises TypeError for
        other values, ValueError after ``close`` and for a value named step or time, RuntimeError in a forked process.
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
        """Write the buffered lines to the files."""
        with self._lock:
            self._try_append()
            if self._board:
                self._board.flush()

    def close(self) -> None:
        """Flush and close the files, once. Raises OSError if lines could not be written."""
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
        """Write all buffered lines at once. If this fails, complete lines stay in the file; the others are kept."""
        if not self._lines or self._file is None:
            return
        lines, self._lines = self._lines, []  # out of the way of a signal handler that flushes too
        data, done = b"".join(lines), 0
        try:
            with _locked(self._file):
                _end_line(self._file, self.path)
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
        """Write numbers as scalars, those of a list as name/0, name/1, and a string as text when it is new."""
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
    """Return the lines of a log, or of the log in a folder; "NaN", "Infinity", "-Infinity" become floats.

    Lines that are incomplete or not a JSON object are left out, with a warning.
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
    """Lock a file against other writers. On file systems without locks, a file may have one writer only."""
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


def _end_line(file: int, path: Path) -> None:
    """End the file with a complete line: terminate a last line that is complete, remove one that is not."""
    size = os.fstat(file).st_size
    start, tail = size, b""
    while start and b"\n" not in tail:
        step = min(start, 1 if start == size else 1 << 16)  # the last byte suffices, except after a kill
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
        value = parse_json(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _plain(name: str, value: object) -> object:
    """Return a value as a type of Python; those of numpy and torch through ``item``."""
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
    """Return a tree of lists and dicts with "NaN", "Infinity", "-Infinity" in place of non-finite numbers, for JSON."""
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
