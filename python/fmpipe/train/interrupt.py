"""Ctrl-C and the signal that clusters send before they end a job: stop after the current step, not in the middle."""

import signal
import threading
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptedRunError(Exception):
    """A run that was asked to stop, and whose state is saved."""

    def __init__(self, stage: str, step: int, path: Path, signum: int):
        super().__init__(f"interrupted after step {step} of stage {stage}; the checkpoint is {path}")
        self.signum = signum


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
