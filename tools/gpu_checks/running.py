"""How the kernels run on the device: no synchronization in a sampling loop, CUDA graphs, and a second GPU.

What only CUDA has (the debug mode, capture, the current device) is passed as an argument, so that tests can pass
stand-ins.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from support import cases

import fmkernels as fk
from fmkernels.flow import Trace, sample, uniform
from gpu_checks import Result, found, told
from gpu_checks.parity import placed

SOLVERS = ("euler", "ab2", "heun")


@contextlib.contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Make every call that synchronizes with the GPU raise, through torch's debug mode."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def field(x: torch.Tensor, t: torch.Tensor, null: torch.Tensor) -> torch.Tensor:
    """A velocity without a network, different for the null half."""
    t, null = (a.view(-1, *[1] * (x.dim() - 1)) for a in (t, null))
    return torch.where(null, -x, x.sin()) * (1 + t).to(x.dtype)


def run_loop(velocity: Callable, z0: torch.Tensor, solver: str, around: Callable) -> list[torch.Tensor]:
    """Return x and the trace of a guided ``sample``, on the host; ``around`` is open from first velocity to last step.

    This excludes what synchronizes by design: the upload of the schedule before, and the readback of the trace after.
    """
    with contextlib.ExitStack() as loop:
        opened = []

        class Read(Trace):
            def check(self):
                loop.close()
                super().check()

        def first_opens(x, t, null):
            if not opened:
                opened.append(loop.enter_context(around()))
            return velocity(x, t, null=null)

        x, trace = sample(first_opens, z0, uniform(6), solver=solver, guidance=3.0, trace=Read())
    return [x.cpu(), trace.values]


def sampling(device: str, name: str, around: Callable = waiting_is_an_error) -> Result:
    """Run whole sampling loops, twice as a warm-up and once with synchronization forbidden; the results must agree.

    The model gets a bf16 copy of the fp32 state. The tiny network runs too if fmpipe can be imported. Two warm-up runs
    are needed because Triton keeps tables of its activations' addresses, which repeat only once the allocator has seen
    a whole run.
    """
    z0 = torch.randn(3, 4, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)
    runs = {f"{solver}, bf16 field": (field, z0.bfloat16(), solver) for solver in SOLVERS}
    details, wrong = {}, []
    try:
        from fmpipe.models import build

        torch.manual_seed(0)
        runs["euler, tiny_dimr"] = (build("tiny_dimr").velocity_net.to(device).velocity, z0, "euler")
    except ImportError as error:
        details["euler, tiny_dimr"] = f"not run: {told(error)}"
    for label, run in runs.items():
        try:
            with fk.use_backend(name):
                _, warm, watched = (run_loop(*run, c) for c in (contextlib.nullcontext, contextlib.nullcontext, around))
            torch.testing.assert_close(watched, warm)
            details[label] = "passed"
        except Exception as error:
            details[label] = told(error)
            wrong.append(f"{label}: {told(error)}")
    return found(wrong, details)


def cuda_graph(call: Callable[[], list[torch.Tensor]]) -> tuple[list[torch.Tensor], Callable[[], object]]:
    """Capture the call as torch documents it. Returns (its results, which every replay overwrites; the replay)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return results, graph.replay


def captured_calls(device: str) -> Iterator[tuple[str, list[torch.Tensor], Callable[[], list[torch.Tensor]]]]:
    """(name, the tensors it reads, the call): single ops, then a guided step of the tiny network if fmpipe imports."""
    with torch.device(device):
        x, (v, v_uncond) = torch.randn(3, 4, 32, 32), torch.randn(2, 3, 4, 32, 32).bfloat16()
        low, stats = torch.empty_like(v), torch.empty(3, 5)
        params, times = [tuple(torch.randn(4, n)) for n in (1024, 513, 67584)], torch.randn(2)
        tokens, scale = torch.randn(2, 257, 1024), torch.randn(1, 1024)
    group = fk.TdpGroup(params)

    def step():
        return [fk.euler_step_(x, v, 0.02, v_uncond=v_uncond, guidance=3.0, low=low, stats=stats), low, stats]

    yield "euler_step_", [x, v, v_uncond], step
    yield "tdp_group", [times, *params[1]], lambda: [fk.tdp_group(group, times, out=group.buffer(2)).flat]
    yield "td_rms_norm", [tokens, scale], lambda: [fk.td_rms_norm(tokens, scale)]
    with contextlib.suppress(ImportError):
        from fmpipe.models import build

        torch.manual_seed(0)
        velocity = build("tiny_dimr").velocity_net.to(device).velocity
        with torch.device(device):
            state, t, null = torch.randn(2, 4, 32, 32), torch.rand(4), torch.arange(4) >= 2
            rows = torch.empty(2, 5)

        def guided():
            cond, uncond = velocity(torch.cat([state, state]), t, null=null).chunk(2)
            return [fk.euler_step_(state, cond, 0.02, v_uncond=uncond, guidance=3.0, stats=rows), rows]

        yield "guided step", [state, t], guided


def fill(tensors: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    for x, value in zip(tensors, values, strict=True):
        x.copy_(value)


def graph(device: str, name: str, capture: Callable = cuda_graph) -> Result:
    """Check that captured calls, replayed on other inputs, give bit-identical results to direct calls."""
    details, wrong = {}, []
    for op, inputs, call in captured_calls(device):
        try:
            with torch.no_grad(), fk.use_backend(name):
                results, replay = capture(call)
                values = [torch.randn_like(x) for x in inputs]
                fill(inputs, values)
                expected = [y.clone() for y in call()]
                for y in results:
                    y.fill_(torch.nan)  # so that a replay that does nothing is noticed
                fill(inputs, values)
                replay()
                same = [torch.equal(a, b) for a, b in zip(results, expected, strict=True)]
            details[op] = "same bits" if all(same) else f"result {same.index(False)} of {len(same)} differs"
        except Exception as error:
            details[op] = told(error)
        if details[op] != "same bits":
            wrong.append(f"{op}: {details[op]}")
    return found(wrong, details)


def guard(name: str, devices: Sequence[str], current: Callable = torch.cuda.device) -> Result:
    """Check the ops on tensors of the second device while the first is current: same device, bit-identical results."""
    if len(devices) < 2:
        return Result("skipped", "only one GPU")
    first, second = devices[:2]
    details = {}
    for case in cases.CASES:
        problem = ""
        for dtype in (torch.float32, torch.bfloat16):
            inputs, runs = [x.to(second) for x in case.inputs(1025, dtype)], []
            try:
                for device in (second, first):
                    with current(device), placed(second), fk.use_backend(name):
                        runs.append(case.outputs(inputs) + (case.gradients(inputs) if case.grads else []))
                for a, b in zip(*runs, strict=True):
                    if b.device != torch.device(second):
                        problem = f"a result is on {b.device}"
                    elif not torch.equal(a.nan_to_num(nan=12345.0), b.nan_to_num(nan=12345.0)):
                        problem = "different bits"
            except Exception as error:
                problem = told(error)
        details[case.name] = problem or "same bits"
    return found((f"{op}: {said}" for op, said in details.items() if said != "same bits"), details)
