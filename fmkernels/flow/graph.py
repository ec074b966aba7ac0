"""CUDA graphs: the launches of a solver step are recorded once and replayed as one launch for every further step."""

import warnings
from collections.abc import Callable

import torch

WARM_UP = 2  # calls before the capture, in which libraries allocate their workspaces and Triton compiles


def _cuda(call: Callable[[], object]) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


# Device type -> capture(call), which returns the replay. Capturing changes no tensor.
CAPTURES: dict[str, Callable[[Callable[[], object]], Callable[[], object]]] = {"cuda": _cuda}


class Captured:
    """``call()`` replayed from a graph: one launch instead of about a thousand for a 256 px network.

    ``call`` takes no arguments and returns nothing: it reads and writes tensors that stay where they are, such as the
    state and the weights. The first calls are ordinary ones, which also warm up; then the graph is captured. If that
    fails, one warning gives the reason, and all calls are ordinary ones.
    """

    def __init__(self, call: Callable[[], object], device: torch.device):
        self.call, self.device, self.replay, self.ordinary = call, device, None, WARM_UP

    def __call__(self) -> None:
        if self.ordinary == 0 and self.replay is None:
            try:
                self.replay = CAPTURES[self.device.type](self.call)
            except RuntimeError as error:
                self.replay = self.call
                reason = " ".join(str(error).split())[:300]
                warnings.warn(f"sample: the velocity cannot be captured in a graph: {reason}", stacklevel=6)
        self.ordinary = max(self.ordinary - 1, 0)
        (self.replay or self.call)()


def capturable(graph: bool | str, device: torch.device, solver: str) -> bool:
    """Tell whether to capture. ``"auto"`` captures on CUDA; True warns where it is not possible."""
    possible = device.type in CAPTURES and solver != "dopri5"
    if graph is True and not possible:
        why = "solver 'dopri5' reads every step" if solver == "dopri5" else f"{device.type} has no graphs"
        warnings.warn(f"sample: running without a graph: {why}", stacklevel=4)
    return possible and (graph is True or (graph == "auto" and device.type == "cuda"))
