"""Progress of anything that takes more than two seconds: bars on a terminal, lines where output is redirected."""

import time

from fmpipe.cli.base import err, say

INTERVAL = 5.0  # seconds between two lines of one task


class LatestReading:
    """Numbers of a tensor for people to watch: on a GPU those of an earlier call, so that nothing waits for it."""

    def __init__(self):
        self.copied = self.host = self.numbers = None

    def __call__(self, x) -> list[float] | None:
        """Return the newest numbers that have arrived, None before the first."""
        import torch

        if x.is_cpu:
            return x.tolist()
        if self.copied is None or self.copied.query():
            self.numbers = self.host.tolist() if self.host is not None else None
            self.host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
            self.copied = torch.Event(x.device.type)
            self.copied.record()
        return self.numbers


class Bars:
    """Named progress bars::

        with Bars() as bars:
            bars.update("flow", 3, 20, "t=0.15")

    If stderr is not a terminal, a task prints a line when it starts, every five seconds, and when it ends.
    """

    def __init__(self, quiet: bool = False, transient: bool = True):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        self.shown, self.lines = not quiet and err.is_terminal, not quiet and not err.is_terminal
        columns = "{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[state]}", TimeRemainingColumn()
        self.progress = Progress(*columns, console=err, transient=transient, disable=not self.shown)
        self.tasks, self.printed, self.began = {}, {}, {}

    def __enter__(self) -> "Bars":
        self.progress.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self.progress.__exit__(*error)

    def update(self, name: str, done: int, total: int, state: str = "") -> None:
        if self.shown:
            if name not in self.tasks:
                self.tasks[name] = self.progress.add_task(name, total=total, state="")
            self.progress.update(self.tasks[name], completed=done, total=total, state=state)
        elif self.lines:
            now = time.monotonic()
            if done >= total or now - self.printed.get(name, -INTERVAL) >= INTERVAL:
                self.printed[name] = now
                say(f"{name} {done}/{total} {state}")

    def rate(self, name: str, done: int) -> float:
        """Return the steps per second of a task since its first call, 0 until it is known."""
        now = time.monotonic()
        first, since = self.began.setdefault(name, (done, now))
        return (done - first) / (now - since) if done > first else 0.0
