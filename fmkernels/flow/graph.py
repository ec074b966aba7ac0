"""Captured velocities: the launches of a forward pass recorded once and replayed as one for every step."""

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP = 2  # calls before the capture, in which libraries allocate their workspaces and Triton compiles


def _cuda(call: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    return output, graph.replay


# Device type -> capture(call) -> (its output, which every replay overwrites; the replay). Nothing is computed yet.
CAPTURES: dict[str, Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], object]]]] = {"cuda": _cuda}


class Captured:
    """``velocity(x, t)`` replayed from a graph: one launch instead of about a thousand for a 256 px network.

    x must be the same tensor at every call; its current values are used. The output is one buffer, which the next call
    overwrites. The first calls are ordinary ones, which also warm up; then the graph is captured, which computes
    nothing and reads the weights where they are at that time. If the velocity cannot be captured, one warning gives the
    reason and all calls are ordinary ones.
    """

    def __init__(self, velocity: Callable[..., Tensor]):
        self.velocity, self.replay, self.ordinary = velocity, None, WARM_UP
        self.t = self.output = None

    def __call__(self, x: Tensor, t: Tensor, **options) -> Tensor:
        if self.ordinary > 0:
            self.ordinary -= 1
            return self.velocity(x, t, **options)
        if self.replay is None:
            self.t = t.clone()
            try:
                self.output, self.replay = CAPTURES[x.device.type](lambda: self.velocity(x, self.t, **options))
            except RuntimeError as error:
                self.ordinary = math.inf
                reason = " ".join(str(error).split())[:300]
                warnings.warn(f"sample: the velocity cannot be captured in a graph: {reason}", stacklevel=4)
                return self.velocity(x, t, **options)
        self.t.copy_(t)
        self.replay()
        return self.output


def capturable(graph: bool | str, device: torch.device, solver: str) -> bool:
    """Whether to capture. ``"auto"`` captures on CUDA; True warns where it is not possible."""
    possible = device.type in CAPTURES and solver != "dopri5"
    if graph is True and not possible:
        why = "solver 'dopri5' reads every step" if solver == "dopri5" else f"{device.type} has no graphs"
        warnings.warn(f"sample: running without a graph: {why}", stacklevel=4)
    return possible and (graph is True or (graph == "auto" and device.type == "cuda"))
