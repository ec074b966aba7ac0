"""What ends a run early: alarms, Ctrl-C, and the signal that clusters send before they end a job."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedError(RuntimeError):
    """A run that ended itself; the last good state is saved. metrics: those of the step that triggered the alarm."""

    def __init__(self, why: str, step: int = 0, metrics: dict[str, object] | None = None):
        super().__init__(why)
        self.step, self.metrics = step, metrics or {}


class InterruptedRunError(Exception):
    """A run was interrupted by a signal; its state is saved."""

    def __init__(self, stage: str, step: int, path: Path, signum: int):
        super().__init__(f"interrupted after step {step} of stage {stage}; the checkpoint is {path}")
        self.signum = signum


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, where Ctrl-C raises KeyboardInterrupt."""

    signum = signal.SIGTERM


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise TerminatedError at SIGTERM within the block, so that files are closed and locks released."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(signum: int, frame) -> None:
        raise TerminatedError

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Signals:
    """Note the first SIGINT or SIGTERM in ``received``; a second one acts at once.

    Signals can be handled in the main thread only; in other threads nothing changes.
    """

    received = 0

    def __enter__(self) -> "Signals":
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {signum: signal.signal(signum, self._note) for signum in SIGNALS}
        return self

    def _note(self, signum: int, frame) -> None:
        self.received = signum
        self._restore()

    def _restore(self) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def __exit__(self, *error) -> None:
        self._restore()
