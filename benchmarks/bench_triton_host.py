"""Host time of the Triton ops: the Python and torch work of a call up to the launch of its kernels.

python benchmarks/bench_triton_host.py                     # 30 seconds; writes results/triton_host.json
python benchmarks/bench_triton_host.py --seconds 5 --only norm --json /tmp/triton_host.json

The ops run on CPU tensors. The launch (``JITFunction.run``) is replaced by a counter, so nothing is compiled or
computed; tests/gpu/test_triton.py checks the results. The launches of each case are counted before it is timed.
The cases are interleaved. A sample is about 5 ms of calls. The result is the smallest of the medians of several rounds,
because other processes on the machine can only make a call slower. Exits 1 if a case makes an unexpected number of
launches.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import harness
import torch
from bench_tdp import MODEL_256

from fmkernels import triton as kernels

ROUNDS = 5


def cases() -> dict[str, tuple[str, Callable[[], object]]]:
    """name -> (op, call). There are few, short rows: on a GPU, an allocation takes the same time for every size."""

    def r(*sizes, dtype=torch.bfloat16):
        return torch.randn(sizes).to(dtype)

    x, residual, grad, scale, row = r(2, 4, 1024), r(2, 4, 1024), r(2, 4, 1024), r(2, 1024), r(1024)
    parts, wide = [r(1, 1, 1024) for _ in range(66)], r(66 * 1024)
    two, pair = [r(1, 1, 1024) for _ in range(2)], r(2048)
    stat, wide_grad = r(8, 2, dtype=torch.float32), r(1, 1, 66 * 1024)
    four = [[r(n, dtype=torch.float32) for n in MODEL_256] for _ in range(4)]
    times, one = r(1, dtype=torch.float32), [r(1024) for _ in range(4)]
    out = torch.empty(1, sum(MODEL_256))
    t, state, stats = torch.rand(2), torch.randn(2, 4096), torch.empty(2, 5)
    v, low = r(2, 4096), r(2, 4096)
    views, groups = iter(()), iter(())

    def new_group():
        """The group's parameters at addresses that are in no table."""
        nonlocal groups
        lists = next(groups, None)
        if lists is None:
            pool = torch.empty(sum(sum(MODEL_256) for _ in range(4)) + 8 * 512)
            sizes = [*MODEL_256 * 4]
            groups = iter(
                [
                    [parts[j * len(MODEL_256) : (j + 1) * len(MODEL_256)] for j in range(4)]
                    for parts in ([*pool[8 * i :][: sum(sizes)].split(sizes)] for i in range(512))
                ]
            )
            lists = next(groups)
        return lists

    def new_addresses():
        """Views of one tensor at addresses that are in no table."""
        nonlocal views
        part = next(views, None)
        if part is None:
            pool = torch.empty(66 * 1024 + 8 * 4096, dtype=torch.bfloat16)
            views = iter([pool[8 * i : 8 * i + 66 * 1024].view(66, 1, 1, 1024).unbind() for i in range(4096)])
            part = next(views)
        return part

    return {
        "td_norm": ("td_norm", lambda: kernels.td_norm([x], scale, None, None, None, 1e-6, False, False)),
        "td_norm, residual, offset": (
            "td_norm",
            lambda: kernels.td_norm([x], scale, scale, residual, None, 1e-6, True, True),
        ),
        "td_norm_out": (
            "td_norm_out",
            lambda: kernels.td_norm_out([x], row, None, None, None, 1e-6, False, False, grad, None),
        ),
        "td_norm_backward": (
            "td_norm_backward",
            lambda: kernels.td_norm_backward(grad, None, [x], scale, stat, 1e-6, False, False),
        ),
        "td_norm of 2 tensors": ("td_norm", lambda: kernels.td_norm(two, pair, None, None, None, 1e-6, False, False)),
        "td_norm of 66 tensors": ("td_norm", lambda: kernels.td_norm(parts, wide, wide, None, None, 1e-5, True, True)),
        "td_norm of 66 tensors, new addresses": (
            "",
            lambda: kernels.td_norm(new_addresses(), wide, wide, None, None, 1e-5, True, True),
        ),
        "td_norm_backward of 66 tensors": (
            "td_norm_backward",
            lambda: kernels.td_norm_backward(wide_grad, None, parts, wide, stat[:1], 1e-5, True, True),
        ),
        "gelu_mul": ("gate_mul", lambda: kernels.gate_mul(x, residual, 0, True)),
        "gelu_mul of halves": ("gate_mul", lambda: kernels.gate_mul(x, None, 0, True)),
        "gelu_mul_backward": ("gate_mul_backward", lambda: kernels.gate_mul_backward(grad, x, residual, 0, True)),
        "tdp": ("tdp", lambda: kernels.tdp(*one, times, 1.0)),
        "tdp_group of 171": ("tdp_group", lambda: kernels.tdp_group(*four, times, 1.0)),
        "tdp_group of 171, new addresses": ("", lambda: kernels.tdp_group(*new_group(), times, 1.0)),
        "tdp_group_out of 171": ("tdp_group_out", lambda: kernels.tdp_group_out(*four, times, 1.0, out)),
        "tdp_group_backward of 171": (
            "tdp_group_backward",
            lambda: kernels.tdp_group_backward(out, *four, times, 1.0),
        ),
        "flow_pair": ("flow_pair", lambda: kernels.flow_pair(t, v, low, 0.0, 1.0, None)),
        "flow_loss": ("flow_loss", lambda: kernels.flow_loss(v, None, None, low, None, 0.0, 1.0)),
        "flow_loss_backward": (
            "flow_loss_backward",
            lambda: kernels.flow_loss_backward(t, v, None, None, low, None, 0.0, 1.0),
        ),
        "step_": (
            "step_",
            lambda: kernels.step_(state, v, None, v, 0.1, None, 1.0, 0.0, 3.0, 1.0, low, stats),
        ),
        "reparameterize": ("reparameterize", lambda: kernels.reparameterize(v, v, v, -6.0, 6.0)),
    }


def median(call: Callable[[], object], seconds: float) -> float:
    """Seconds per call: the median of samples of about 5 ms."""
    once = min(harness.timed(call, 1) for _ in range(5))
    loops, samples = max(1, round(5e-3 / once)), []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples) < 5:
        samples.append(harness.timed(call, loops))
    return statistics.median(samples)


def measure(only: str, seconds: float) -> dict[str, object]:
    """Microseconds of each case, and the cases whose number of launches is not that of ``kernels.LAUNCHES``."""
    from triton.runtime.jit import JITFunction

    run, launches = JITFunction.run, []
    JITFunction.run = lambda kernel, *args, **kwargs: launches.append(kernel)
    medians, wrong = {}, []
    try:
        chosen = {name: case for name, case in cases().items() if only in name}
        for name, (op, call) in chosen.items():
            call()  # makes the table of addresses
            launches.clear()
            call()
            if op and len(launches) != kernels.LAUNCHES[op]:
                wrong.append(f"{name}: {len(launches)} launches, expected {kernels.LAUNCHES[op]}")
        with torch.no_grad():
            for _ in range(ROUNDS):
                for name, (_, call) in chosen.items():
                    launches.clear()
                    medians.setdefault(name, []).append(median(call, seconds / ROUNDS / len(chosen)))
    finally:
        JITFunction.run = run
    return {"microseconds": {name: round(min(found) * 1e6, 1) for name, found in medians.items()}, "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30, help="time for all cases (default 30)")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--json", type=Path, default=harness.RESULTS / "triton_host.json", help="where to write")
    args = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET=1 replaces the launch that this benchmark replaces; unset it")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    header = harness.header()
    found = measure(args.only, args.seconds)
    if not found["microseconds"]:
        parser.error(f"--only: no case's name contains {args.only!r}")
    earlier = json.loads(args.json.read_text())["before"] if args.json.exists() else {}
    print(f"{'µs of host time before the launch':<40}{'before':>10}{'now':>10}{'ratio':>8}")
    for name, now in found["microseconds"].items():
        before = earlier.get(name)
        compared = f"{before:10.1f}{now:10.1f}{before / now:7.1f}×" if before else f"{'':10}{now:10.1f}"
        print(f"{name:<40}{compared}")
    result = {"header": header, "before": earlier or found["microseconds"], "now": found["microseconds"]}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(f"written: {args.json}")
    if found["wrong"]:
        sys.exit("\n".join(found["wrong"]))


if __name__ == "__main__":
    main()
