"""Device launches of one guided step of the 256 px model, counted on meta tensors by dispatch: nothing is computed.

python benchmarks/count_launches.py [--preset NAME]

Views and empty buffers count nothing, attention counts one, every other torch operation one. Our ops count what their
Triton kernels launch, as tests/gpu/test_triton.py counts it with a stand-in for the launcher: there is no GPU here.
The last lines are those of ``sample`` without and with a graph. Host times are measured on the CPU with a network of
the same blocks that are too narrow to take time: mostly Python and torch's dispatcher.
"""

import argparse
import dataclasses
import statistics
import time
from collections import Counter
from collections.abc import Callable

import torch
import torch.nn.functional as F
from models import plain_of, plain_step, step
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fmkernels.flow import Trace, sample, uniform
from fmkernels.flow.graph import CAPTURES
from fmkernels.triton import LAUNCHES
from fmpipe.models import PRESETS, DiMR, build

aten = torch.ops.aten
NO_LAUNCH = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "lift_fresh"}


def launches_nothing(op: torch._ops.OpOverload) -> bool:
    """A view, an empty buffer, or a question about types."""
    returns, name = op._schema.returns, op._schema.name.split("::")[1]
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    return is_view or name in NO_LAUNCH or not any("Tensor" in str(r.type) for r in returns)


class Launches(TorchDispatchMode):
    """Counts by name; what attention does inside is its own business. each: our ops' launches."""

    each = LAUNCHES

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            return True  # the plain structure asks whether all samples share their time: they do
        kwargs = kwargs or {}
        if func is aten.to.dtype:  # the gradients in C++ call it whole: a view by its schema, or a copy
            with self:
                return func.decompose(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        number = self.each[name] if func.namespace == "fmkernels" else int(not launches_nothing(func))
        out = func(*args, **kwargs)
        if number:
            self.launched(name, number, func, args, kwargs, out)
        return out

    def launched(self, name: str, number: int, func: Callable, args: tuple, kwargs: dict, out: object) -> None:
        self.counts[name] += number


class AttentionIsOne(TorchFunctionMode):
    """Its result has the layout the fused GPU kernels give it, (B, N, heads, D)."""

    def __init__(self, launches: Launches):
        super().__init__()
        self.launches = launches

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        b, heads, n, d = args[0].shape
        out = torch.empty(b, n, heads, d, device="meta", dtype=args[0].dtype).transpose(1, 2)
        self.launches.launched("attention", 1, func, args, kwargs or {}, out)
        return out


def counted(call: Callable, launches: Launches) -> Launches:
    with torch.no_grad(), launches, AttentionIsOne(launches):
        call()
    return launches


def guided_steps(preset: str, dtype: torch.dtype = torch.float32) -> dict[str, Callable]:
    """Contestant -> one guided step of batch 1, on meta tensors: networks in dtype, the state in fp32."""
    ours = build(preset, "meta").velocity_net.eval().type(dtype)
    plain = plain_of(ours)
    _, height, width = PRESETS[preset].text_head_config["latent_shape"]
    x = torch.empty(1, ours.config.channels, height, width, device="meta")
    t, null = torch.empty(2, device="meta"), torch.empty(2, dtype=torch.bool, device="meta")
    stats = torch.empty(1, 5, device="meta")

    def plain_velocity(x, log_snr, null):
        return plain(x.to(dtype), log_snr.to(dtype), null)  # with an fp32 time its norms would answer in fp32

    def velocity(x, t, null):
        return ours.velocity(x.to(dtype), t, null=null)

    return {
        "plain": lambda: plain_step(plain_velocity, x, t, null),
        "fmkernels": lambda: step(ours, x, t, null, stats, velocity),
    }


def count(preset: str) -> dict[str, Counter]:
    """Contestant -> launches of one guided step of batch 1, by operation."""
    return {name: counted(call, Launches()).counts for name, call in guided_steps(preset).items()}


def narrow(preset: str) -> DiMR:
    """The network of a preset with all its blocks, each of them 16 wide on 4 x 4 tokens: little to compute."""
    stages = [
        dataclasses.replace(stage, dim=16, hidden=16, heads=2, grid=(4, 4), patch=1)
        for stage in PRESETS[preset].velocity_config["stage_configs"]
    ]
    return DiMR(stage_configs=stages).eval()


def sampling_steps(preset: str, graph: bool, solver: str) -> tuple[Counter, float]:
    """Launches of one guided step of ``sample``, on meta tensors, and host seconds with a narrow network, on the CPU.

    Both are what steps beyond the tenth add. The replay of a graph is replaced by a counter.
    """
    nets = {device: narrow(preset).to(device) for device in ("cpu", "meta")}
    many = 1000 if graph else 20  # replays take microseconds
    launches, schedules = Launches(), {steps: uniform(steps) for steps in (10, 14, many)}

    def run(steps: int, device: str = "cpu") -> float:
        net, trace = nets[device], Trace(nonfinite="continue")  # reads nothing
        z0, began = torch.zeros(1, net.config.channels, 4, 4, device=device), time.perf_counter()
        sample(net.velocity, z0, schedules[steps], guidance=2.0, trace=trace, graph=graph, solver=solver)
        return time.perf_counter() - began

    def capture(call: Callable) -> Callable:
        call()
        return lambda: launches.launched("graph", 1, None, (), {}, None)

    CAPTURES.update(cpu=capture, meta=capture)
    try:
        seconds = statistics.median(run(many) - run(10) for _ in range(9)) / (many - 10)
        launches.counts.clear()
        ten, both = (counted(lambda n=n: run(n, "meta"), launches).counts.copy() for n in (10, 14))  # counts go on
    finally:
        del CAPTURES["cpu"], CAPTURES["meta"]
    by_op = +Counter({name: (n - 2 * ten[name]) // 4 for name, n in both.items()})
    by_op["clone"] -= 1  # of a velocity that is its own input, which meta tensors, all at address 0, seem to be
    return +by_op, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="t2i_256px_clip_dimr", choices=[n for n in PRESETS if "dimr" in n])
    preset = parser.parse_args().preset
    counts = count(preset)
    for name, by_op in counts.items():
        print(f"{name}: {by_op.total()} launches per guided step")
        print("  " + ", ".join(f"{op} {n}" for op, n in by_op.most_common()))
    for solver, graph in (("euler", False), ("euler", True), ("ab2", True)):
        by_op, seconds = sampling_steps(preset, graph, solver)
        call = f"sample(graph={graph}, solver={solver!r})"
        print(f"{call}: {by_op.total()} launches, {seconds * 1e6:.0f} µs of host time per guided step")
        if graph:
            print("  " + ", ".join(f"{op} {n}" for op, n in by_op.most_common()))


if __name__ == "__main__":
    main()
