"""Processes forked from one that has imported everything: a second of work does not wait ten for ``import torch``."""

import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable

from accelerate.state import AcceleratorState


def fork(call: Callable[[], object]) -> int:
    """The id of a process that does ``call()`` and ends, with 1 and its traceback if that raises.

    For parents with one torch thread: a forked child has no pool of threads and would wait for it.
    """
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        AcceleratorState._reset_state(True)  # the parent's says that it is alone
        call()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # no hook of the parent's test run


def together(world: int, call: Callable[[], object]) -> None:
    """``call()`` in so many processes of one gloo group. RuntimeError if one failed; the others are ended then."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def ranked(rank: int) -> None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        call()

    left = {fork(lambda rank=rank: ranked(rank)): rank for rank in range(world)}
    failed = []
    while left:
        pid, status = os.wait()
        if pid not in left:
            continue
        rank = left.pop(pid)
        if status and not failed:
            failed.append(rank)
            for other in left:
                os.kill(other, signal.SIGKILL)
    if failed:
        raise RuntimeError(f"process {failed[0]} of {world} failed; its traceback is above")
