"""The processes that torchrun started: how they divide the work, and what happens if one fails."""

import os
import time
from typing import TypeVar

T = TypeVar("T")
GRACE = 10.0  # seconds that a failing process waits for the others, which torchrun ends when it exits


class OtherRankError(RuntimeError):
    """Another process failed; the message is that of its error."""


class Ranks:
    """One process, or those of torchrun over gloo (nccl where there are GPUs)::

        with Ranks() as ranks:
            for item in ranks.share(items):
                ranks.check()              # raises OtherRankError if a rank failed
                ...
            everything = ranks.gather(results)  # the results of all ranks on rank 0, None on the others

    If an exception leaves the block, the other processes raise it at their next ``check``. If a process is killed,
    torchrun ends the others.
    """

    def __init__(self):
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self._store = None

    def __enter__(self) -> "Ranks":
        if self.world > 1:
            import torch
            import torch.distributed as dist

            device = None
            if torch.cuda.is_available():
                device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
                torch.cuda.set_device(device)
            store, rank, world = next(dist.rendezvous("env://"))
            self._store, backend = dist.PrefixStore("fmpipe", store), "gloo" if device is None else "nccl"
            dist.init_process_group(backend, store=store, rank=rank, world_size=world, device_id=device)
        return self

    def share(self, items: list[T]) -> list[T]:
        """Return the items of this process: every world-th."""
        return items[self.rank :: self.world]

    def check(self) -> None:
        """Raise :class:`OtherRankError` if a process has failed."""
        if self._store is not None and self._store.check(["error"]):
            raise OtherRankError(self._store.get("error").decode())

    def gather(self, mine: T) -> list[T] | None:
        """Return the objects of all ranks, in order, on rank 0, and None on the others. Waits for all of them."""
        if self.world == 1:
            return [mine]
        import torch.distributed as dist

        self._wait()
        everybody = [None] * self.world if self.rank == 0 else None
        dist.gather_object(mine, everybody)
        return everybody

    def _wait(self) -> None:
        """Wait until all ranks are here or one has failed; a collective call would wait for a failed rank forever."""
        self._store.add("arrived", 1)
        while self._store.add("arrived", 0) < self.world:
            self.check()
            time.sleep(0.02)

    def __exit__(self, kind, error, trace) -> None:
        if self._store is None:
            return
        import torch.distributed as dist

        if error is not None and not isinstance(error, OtherRankError):
            self._store.set("error", f"rank {self.rank} failed: {kind.__name__}: {error}")
        ended = self._store.add("ended", 1)
        if error is not None:
            until = time.monotonic() + GRACE
            while ended < self.world and time.monotonic() < until:
                time.sleep(0.05)
                ended = self._store.add("ended", 0)
        dist.destroy_process_group()
