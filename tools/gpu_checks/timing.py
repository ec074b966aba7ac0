"""Guided steps and a training step of the 256 px network, timed with device events and by replaying a CUDA graph.

Three times of each contestant, all medians in seconds per call:

host    the host's time until the call returns, which it spends in Python and on launches
call    the device's time between two events around the call, including gaps in which it waits for the host
replay  the device's time of the same call, replayed as a CUDA graph: without gaps

A contestant is launch-bound if its host time is longer than its device time: then faster kernels do not help, a graph
does. The guided steps use bf16 weights and an fp32 state, training uses fp32 weights under bf16 autocast. Each result
is compared with eager fp32 first; an error up to twice that of eager PyTorch in bf16 is allowed.
"""

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import fmkernels as fk
from gpu_checks import Result, found, running, told

PRESET, SIZE = "t2i_256px_clip_dimr", 32
EAGER, COMPILE, OURS = "eager", "compile", "fmkernels"
DT, GUIDANCE, TIME = 0.02, 7.0, 0.25  # 4 - 8 TIME is exact in bf16
LEAST = 5  # samples
SMALL = 1 << 16  # elements; gradients of smaller parameters, which include all time-dependent ones, are compared


@dataclass(frozen=True)
class Device:
    """What only a GPU has. Tests pass stand-ins."""

    event: Callable = lambda: torch.cuda.Event(enable_timing=True)
    capture: Callable = running.cuda_graph
    wait: Callable = torch.cuda.synchronize


@dataclass(frozen=True)
class Case:
    """calls: contestant -> the work. errors: computes the error of each contestant relative to eager fp32."""

    name: str
    calls: dict[str, Callable[[], list[Tensor]]]
    errors: Callable[[], dict[str, float]]
    mode: Callable


def once(call: Callable, device: Device) -> tuple[float, float]:
    """(host seconds, device seconds) of one call on an idle device."""
    device.wait()
    start, end = device.event(), device.event()
    start.record()
    began = time.perf_counter()
    call()
    host = time.perf_counter() - began
    end.record()
    end.synchronize()
    return host, start.elapsed_time(end) / 1e3


def launch_bound(times: dict) -> bool:
    """Whether the host takes longer than the device.

    Without a replay, ``call`` includes the time that the device waits for the host, so it is never much shorter than
    ``host``: a host time close to it means that the device was waiting.
    """
    return times["host"] > (times["replay"] if times["replay"] is not None else 0.9 * times["call"])


def sampled(calls: dict[str, Callable], device: Device, seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Interleaved samples of all calls for about this time, after two calls of each as a warm-up."""
    for call in [*calls.values()] * 2:
        call()
    samples, end = {name: [] for name in calls}, time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, samples.values()), default=LEAST) < LEAST:
        for name, call in calls.items():
            samples[name].append(once(call, device))
    return samples


def measure(case: Case, device: Device, seconds: float) -> dict:
    """A row of the table. A call that cannot be captured has no replay; the reason is kept."""
    with case.mode():
        errors = case.errors()
        samples = sampled(case.calls, device, seconds / 2)
        replays, reasons = {}, {}
        for name in sorted(case.calls, key=lambda name: name != OURS):  # ours before a capture that may fail
            try:
                _, replays[name] = device.capture(case.calls[name])
            except Exception as error:
                reasons[name] = told(error)
        replayed = sampled(replays, device, seconds / 2)
    times = {}
    for name, values in samples.items():
        host, call = map(statistics.median, zip(*values, strict=True))
        replay = statistics.median(device for _, device in replayed[name]) if name in replays else None
        times[name] = {"host": host, "call": call, "replay": replay, "why no replay": reasons.get(name, "")}
        times[name]["launch bound"] = launch_bound(times[name])
    allowed = 2 * errors[EAGER] + 1e-4
    ours = times[OURS]
    return {
        "name": case.name,
        "matched": all(error <= allowed for error in errors.values()),
        "errors": errors,
        "times": times,
        "speedup": {name: t["call"] / ours["call"] for name, t in times.items() if name != OURS},
        "speedup of the graph": ours["call"] / ours["replay"] if ours["replay"] else None,
    }


def apart(got: list[Tensor], expected: list[Tensor]) -> float:
    """The relative L2 distance; infinity if something is not finite."""
    a, b = (torch.cat([x.detach().double().flatten() for x in tensors]) for tensors in (got, expected))
    distance = ((a - b).norm() / b.norm()).item()
    return distance if math.isfinite(distance) else math.inf


def networks(preset: str, device: str, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """(ours, the plain structure) on the same parameters."""
    from models import pair, plain_of

    ours = nn.Module.to(pair(preset)[0], device, dtype)
    plain, owned = plain_of(ours), dict(ours.named_parameters())
    for name in [name for name, _ in plain.named_parameters()]:
        parent, _, leaf = name.rpartition(".")
        setattr(plain.get_submodule(parent), leaf, owned[name])
    return ours, plain


def compiled(plain: nn.Module) -> nn.Module:
    """A copy of the network on the same parameters with every block compiled; blocks of one kind share the code."""
    from bench_model import compiled_blocks, twin

    torch._dynamo.reset()
    return compiled_blocks(twin(plain))


def guided(preset: str, size: int, batch: int, device: str) -> Case:
    """A guided Euler step: two forward passes and plain formulas against one forward pass and one op."""
    with torch.device(device):
        x0 = torch.randn(batch, 4, size, size)
        t, null = torch.full((2 * batch,), TIME), torch.arange(2 * batch) >= batch
        x, low, stats = x0.clone(), x0.bfloat16(), torch.empty(batch, 5)

    def plain_step(model: nn.Module, state: Tensor) -> list[Tensor]:
        log_snr = (4 - 8 * t[:1]).to(state.dtype)
        cond, uncond = (model(state, log_snr, null[half])[-1].float() for half in (slice(batch), slice(batch, None)))
        return [x0 + DT * (uncond + GUIDANCE * (cond - uncond))]

    with torch.inference_mode():
        expected = plain_step(networks(preset, device, torch.float32)[1], x0)
    ours, plain = networks(preset, device, torch.bfloat16)
    blocks = compiled(plain)

    def our_step() -> list[Tensor]:
        x.copy_(x0)
        low.copy_(x0)
        cond, uncond = ours.velocity(torch.cat([low, low]), t, null=null).chunk(2)
        return [fk.euler_step_(x, cond, DT, v_uncond=uncond, guidance=GUIDANCE, low=low, stats=stats)]

    calls = {
        EAGER: lambda: plain_step(plain, x0.bfloat16()),
        COMPILE: lambda: plain_step(blocks, x0.bfloat16()),
        OURS: our_step,
    }

    def errors() -> dict[str, float]:
        moved = [expected[0] - x0]
        return {name: apart([call()[0] - x0], moved) for name, call in calls.items()}

    return Case(f"guided step, {8 * size} px, batch {batch}", calls, errors, torch.inference_mode)


def training(preset: str, size: int, batch: int, device: str) -> Case:
    """Forward, backward and AdamW. All contestants share parameters and optimizer, whose learning rate is 0."""
    ours, plain = networks(preset, device, torch.float32)
    models = {EAGER: plain, COMPILE: compiled(plain), OURS: ours}
    parameters = [p.requires_grad_() for p in ours.parameters()]
    on_gpu = device != "cpu"
    optimizer = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.0, fused=True, capturable=on_gpu)
    with torch.device(device):
        x, log_snr = torch.randn(batch, 4, size, size), torch.linspace(-3, 3, batch)
        null = torch.arange(batch) % 2 == 1

    def step(model: nn.Module, half: bool = True) -> list[Tensor]:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            loss = sum(out.float().square().mean() for out in model(x, log_snr, null))
        loss.backward()
        optimizer.step()
        return [loss.detach()]

    def result(*arguments) -> list[Tensor]:
        step(*arguments)
        return [p.grad.clone() for p in parameters if p.numel() <= SMALL]

    def errors() -> dict[str, float]:
        expected = result(plain, False)
        return {name: apart(result(model), expected) for name, model in models.items()}

    calls = {name: functools.partial(step, model) for name, model in models.items()}
    return Case(f"training step, {8 * size} px, batch {batch}", calls, errors, torch.enable_grad)


def cases(device: str, preset: str = PRESET, size: int = SIZE) -> Iterator[tuple[str, Callable[[], Case]]]:
    """(name, what builds the case), the most important first."""
    yield "guided step, batch 1", functools.partial(guided, preset, size, 1, device)
    yield "guided step, batch 16", functools.partial(guided, preset, size, 16, device)
    yield "training step", functools.partial(training, preset, size, 4, device)


def ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.2f} ms"


def told_row(row: dict) -> str:
    """A row in one line, for the terminal and for the line to paste into an issue."""
    ours = row["times"][OURS]
    parts = [ms(ours["call"]), *(f"{ratio:.2f}× {name}" for name, ratio in row["speedup"].items())]
    parts += [f"replayed {ms(ours['replay'])}"] if ours["replay"] else []
    parts += ["launch-bound"] * ours["launch bound"] + ["MISMATCH"] * (not row["matched"])
    return f"{row['name']}: {', '.join(parts)}"


def timing(
    device: str, seconds: float, until: float = math.inf, on: Device | None = None, among: Iterator | None = None
) -> Result:
    """All cases, printed as they end.

    Args:
        seconds: measuring time per case.
        until: the time.monotonic() after which no further case starts.
        on: events and graphs; those of CUDA by default.
        among: the cases; those of the 256 px network by default.
    """
    rows, skipped, wrong = [], {}, []
    for name, build in among or cases(device):
        if time.monotonic() > until:
            skipped[name] = "no time left"
            continue
        try:
            torch.manual_seed(0)
            rows.append(measure(build(), on or Device(), seconds))
        except torch.OutOfMemoryError as error:
            skipped[name] = told(error)
            continue
        except Exception as error:
            wrong.append(f"{name}: {told(error)}")
            continue
        print(told_row(rows[-1]), flush=True)
        if not rows[-1]["matched"]:
            wrong.append(f"{name}: the results differ: {rows[-1]['errors']}")
    why = "; ".join(f"{name} was not measured: {reason}" for name, reason in skipped.items())
    if not rows and not wrong:
        return Result("skipped", why)
    result = found(wrong, {"rows": rows, "skipped": skipped})
    result.why = "; ".join(filter(None, [result.why, why]))
    return result
