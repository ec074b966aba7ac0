"""The checks of make gpu-check, run on the CPU with stand-ins for what only a GPU has, and the files it writes.

test_gpu_machine.py tests how the machine is examined.
"""

import contextlib
import functools
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import gpu_check
import pytest
import torch
from gpu_checks import Result, outside, parity, report, run_all, running, timing
from support import cases

import fmkernels as fk
from fmkernels import backend

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def by_triton(monkeypatch):
    """Pretend that Triton supports the CPU: its calls are recorded and done by eager."""
    asked = []
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(backend.status, "triton", backend.Status(True))
    monkeypatch.setattr(backend.Op, "by_triton", lambda op, *args: asked.append(op.name) or op.eager(*args))
    return asked


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_prints_one_line_and_exits_0():
    run = subprocess.run([sys.executable, gpu_check.__file__], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.count("\n") == 1
    assert "nothing to test: no GPU" in run.stdout


# Parity


def test_parity_of_every_op():
    found = dict(parity.errors("cpu", "cpp", sizes=(31,), dtypes=[torch.float32]))
    assert found.keys() == {case.name for case in cases.CASES}
    assert max(found.values()) <= 1
    assert max(found.values()) > 1e-3  # something was compared


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        (lambda x: x, 0.0),
        (lambda x: x + 5e-7, 0.5),
        (lambda x: x + 1, 1e6),
        (lambda x: x * torch.nan, float("inf")),
        (lambda x: x[:1], float("inf")),
    ],
    ids=["same", "near", "far", "nan", "shape"],
)
def test_errors_are_counted_in_tolerances(changed, verdict):
    expected = [torch.zeros(3), torch.full((2,), torch.nan)]
    got = [changed(expected[0]), expected[1]]
    assert parity.worst(got, expected, torch.float32, 1) == pytest.approx(verdict, rel=0.1)


def test_a_mismatch_is_named(monkeypatch):
    monkeypatch.setattr(parity, "errors", lambda *_: iter([("tdp", 0.3), ("psi", 1.5), ("head", float("nan"))]))
    result = parity.tables("cpu", "cpp", (31,))
    assert (result.verdict, result.why) == ("failed", "psi is 1.5 tolerances off; head is nan tolerances off")
    assert result.details["tdp"] == 0.3


OPS = {name: tests for name, tests in parity.GOLDEN.items() if name in ("kernels/test_tdp", "kernels/test_norm")}
NETWORK = {"models/test_models": ["test_golden_forward_and_every_gradient"]}


def test_golden_vectors():
    result = parity.golden("cpu", "cpp", OPS | NETWORK)
    assert (result.verdict, result.why) == ("passed", "")
    assert len(result.details) == 3 + 6 + 3 + 1
    assert result.details["kernels/test_norm.test_golden[tdln-1]"] == "passed"


def test_a_wrong_golden_vector_is_named_and_the_others_run(monkeypatch):
    right = fk.exported_tdp
    monkeypatch.setattr(fk, "exported_tdp", lambda *args: right(*args) * 1.001)
    result = parity.golden("cpu", "cpp", OPS)
    assert result.verdict == "failed"
    assert "kernels/test_tdp.test_golden[b5_d513]: AssertionError: Tensor-likes are not close!" in result.why
    assert sum(said == "passed" for said in result.details.values()) == 9


def test_golden_tests_that_cannot_be_imported_are_skipped():
    result = parity.golden("cpu", "cpp", {"kernels/test_absent": ["test_golden"]})
    assert (result.verdict, list(result.details)) == ("skipped", ["kernels/test_absent"])
    assert "test_absent.py" in result.why


def test_every_golden_test_of_the_list_is_there():
    for module, names in parity.GOLDEN.items():
        assert all(callable(getattr(pytest.importorskip(module), name)) for name in names)


# Running


class Watch:
    """A stand-in for torch's debug mode: inside it, reading a tensor on the host raises."""

    def __init__(self, monkeypatch):
        self.open, self.opened = False, 0
        monkeypatch.setattr(fk.nn, "_distinct", lambda log_snr: log_snr)  # reads CPU memory only
        for name in ("item", "tolist", "cpu"):
            monkeypatch.setattr(torch.Tensor, name, self.guarded(getattr(torch.Tensor, name)), raising=False)

    def guarded(self, method):
        def call(tensor, *args):
            if self.open:
                raise RuntimeError("called a synchronizing operation")
            return method(tensor, *args)

        return call

    @contextlib.contextmanager
    def __call__(self):
        self.open, self.opened = True, self.opened + 1
        try:
            yield
        finally:
            self.open = False


def test_sampling_reads_nothing_inside_the_loop(monkeypatch):
    watch = Watch(monkeypatch)
    result = running.sampling("cpu", "cpp", watch)
    assert (result.verdict, result.why) == ("passed", "")
    assert list(result.details.values()) == ["passed"] * 4
    assert watch.opened == 4  # not in the warm-up
    assert not watch.open


def test_sampling_that_waits_is_named(monkeypatch):
    watch, right = Watch(monkeypatch), running.field
    monkeypatch.setattr(running, "field", lambda x, t, null: right(x, t, null) * x.sum().isfinite().item())
    result = running.sampling("cpu", "cpp", watch)
    assert result.why.startswith("euler, bf16 field: RuntimeError: called a synchronizing operation; ab2")
    assert result.details["euler, tiny_dimr"] == "passed"
    assert not watch.open


def test_sampling_compares_with_the_warm_up(monkeypatch):
    calls, right = [], running.field
    monkeypatch.setattr(running, "field", lambda x, t, null: calls.append(0) or right(x, t, null) + len(calls))
    result = running.sampling("cpu", "cpp", contextlib.nullcontext)
    assert result.verdict == "failed"
    assert "not close" in result.details["heun, bf16 field"]


def test_the_debug_mode_is_set_inside_and_restored_after_an_error(monkeypatch):
    modes = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with pytest.raises(KeyError), running.waiting_is_an_error():
        assert modes == [0, "error"]
        raise KeyError
    assert modes == [0, "error", 0]


def recorded(call):
    """A stand-in for a CUDA graph: a replay repeats the call and writes its results to the same tensors."""
    results = call()

    def replay():
        running.fill(results, call())

    return results, replay


def stale(call):
    """A graph that read its inputs when it was captured."""
    results = call()
    kept = [y.clone() for y in results]
    return results, lambda: running.fill(results, kept)


def refused(call):
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("capture", "said"),
    [
        (recorded, "same bits"),
        (lambda call: (call(), lambda: None), "result 0 of"),
        (stale, "result 0 of"),
        (refused, "RuntimeError: operation not permitted"),
    ],
    ids=["replayed", "nothing", "stale", "refused"],
)
def test_a_captured_call_gives_the_bits_of_a_direct_one(capture, said):
    result = running.graph("cpu", "cpp", capture)
    assert list(result.details) == ["euler_step_", "tdp_group", "td_rms_norm", "guided step"]
    assert all(word.startswith(said) for word in result.details.values())
    assert result.verdict == ("passed" if capture is recorded else "failed")
    assert result.why.count(said) == (0 if capture is recorded else 4)


def test_capture_is_preceded_by_a_warm_up_on_a_side_stream(monkeypatch):
    """The order of the calls on a stand-in for torch.cuda."""
    log = []

    class Stream:
        def __init__(self, name="side"):
            self.name = name

        def wait_stream(self, other):
            log.append(f"{self.name} waits for {other.name}")

    class Graph:
        def replay(self):
            log.append("replay")

    @contextlib.contextmanager
    def inside(thing):
        log.append(f"in {getattr(thing, 'name', 'graph')}")
        yield

    for name, value in {
        "Stream": Stream,
        "current_stream": lambda: Stream("main"),
        "stream": inside,
        "CUDAGraph": Graph,
        "graph": inside,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    results, replay = running.cuda_graph(lambda: log.append("call") or ["y"])
    replay()
    warm = ["side waits for main", "in side", "call", "call", "call", "main waits for side"]
    assert (results, log) == (["y"], [*warm, "in graph", "call", "replay"])


def test_guard_with_one_device_is_skipped():
    assert running.guard("cpp", ["cuda:0"]) == Result("skipped", "only one GPU")


def test_guard_runs_every_op_with_the_other_device_current():
    seen = []
    result = running.guard("cpp", ["first", "cpu"], lambda device: seen.append(device) or contextlib.nullcontext())
    assert (result.verdict, result.why) == ("passed", "")
    assert result.details.keys() == {case.name for case in cases.CASES}
    assert seen == ["cpu", "first"] * 2 * len(cases.CASES)


def test_guard_finds_other_bits_another_device_and_errors(monkeypatch):
    right, tdp, psi, now = fk.gelu_mul, fk.tdp, fk.psi, []

    def wrong(device, fn, broken):
        return lambda *args, **more: (broken if now[-1] == device else lambda y: y)(fn(*args, **more))

    def fails(y):
        raise RuntimeError("illegal memory access")

    by_name = {case.name: case for case in cases.CASES}
    chosen = [by_name["tdp_group"], by_name["psi"]]
    made = [cases.Case("gelu", wrong("first", right, lambda y: y * 1.001), by_name["gelu_mul"].shapes)]
    made += [cases.Case("tdp", wrong("first", tdp, lambda y: y.to("meta")), by_name["tdp"].shapes)]
    monkeypatch.setattr(fk, "psi", wrong("first", psi, fails))
    monkeypatch.setattr(cases, "CASES", chosen + made)
    result = running.guard("cpp", ["first", "cpu"], lambda d: now.append(d) or contextlib.nullcontext())
    assert result.details == {
        "tdp_group": "same bits",
        "psi": "RuntimeError: illegal memory access",
        "gelu": "different bits",
        "tdp": "a result is on meta",
    }
    assert result.why == "psi: RuntimeError: illegal memory access; gelu: different bits; tdp: a result is on meta"


@pytest.mark.parametrize(
    "check",
    [
        lambda name: parity.tables("cpu", name, (3,)),
        lambda name: parity.golden("cpu", name, {"kernels/test_norm": ["test_golden_edges"]}),
        lambda name: running.sampling("cpu", name, contextlib.nullcontext),
        lambda name: running.graph("cpu", name, recorded),
        lambda name: running.guard(name, ["first", "cpu"], lambda _: contextlib.nullcontext()),
    ],
    ids=["parity", "golden", "sampling", "graph", "guard"],
)
def test_the_named_backend_is_used(by_triton, check):
    assert check("cpp").verdict == "passed"
    assert by_triton == []
    assert check("triton").verdict == "passed"
    assert by_triton != []
    assert backend.current() == "auto"


# Timing


class Event:
    """A stand-in for a device event, on a clock that the test advances."""

    now = 0.0

    def record(self):
        self.at = Event.now

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3


class HostEvent(Event):
    """A stand-in for a device event, on the host's clock."""

    def record(self):
        self.at = time.perf_counter()


def simulated_device(event=HostEvent, capture=recorded):
    return timing.Device(event, capture, wait=lambda: None)


def simulated_case(monkeypatch, host, device, errors=None):
    """Calls that take these seconds on the host and on the device; a replay takes no host time."""
    clock = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def call(name):
        clock[0] += host[name]
        Event.now += max(host[name], device[name])
        return []

    def capture(call):
        def replay():
            Event.now += device[call.args[0]]

        return [], replay

    calls = {name: functools.partial(call, name) for name in host}
    errors = errors or dict.fromkeys(host, 0.01)
    return timing.Case("step", calls, lambda: errors, contextlib.nullcontext), capture


HOST = {"eager": 0.020, "compile": 0.010, "fmkernels": 0.016}
DEVICE = {"eager": 0.012, "compile": 0.011, "fmkernels": 0.006}


def test_a_launch_bound_call_is_labelled_and_a_replay_is_not_bound_by_the_host(monkeypatch):
    case, capture = simulated_case(monkeypatch, HOST, DEVICE)
    row = timing.measure(case, simulated_device(Event, capture), 0.0)
    assert {name: times["launch bound"] for name, times in row["times"].items()} == {
        "eager": True,
        "compile": False,
        "fmkernels": True,
    }
    ours = row["times"]["fmkernels"]
    assert (ours["host"], ours["call"], ours["replay"]) == pytest.approx((0.016, 0.016, 0.006))
    assert row["speedup"] == pytest.approx({"eager": 20 / 16, "compile": 11 / 16})
    assert row["speedup of the graph"] == pytest.approx(16 / 6)
    assert "launch-bound" in timing.told_row(row)
    assert row["matched"]


def test_a_call_that_cannot_be_captured_is_timed_without_replay(monkeypatch):
    case, _ = simulated_case(monkeypatch, HOST, DEVICE)
    times = timing.measure(case, simulated_device(Event, refused), 0.0)["times"]
    assert [t["replay"] for t in times.values()] == [None] * 3
    assert [t["launch bound"] for t in times.values()] == [True, True, True]  # compile: 10 of 11 ms are the host's
    assert "not permitted when stream is capturing" in times["fmkernels"]["why no replay"]


@pytest.mark.parametrize(("error", "matched"), [(0.019, True), (0.03, False), (math.inf, False)])
def test_twice_the_error_of_eager_is_allowed(monkeypatch, error, matched):
    errors = {"eager": 0.01, "compile": 0.01, "fmkernels": error}
    case, capture = simulated_case(monkeypatch, HOST, DEVICE, errors)
    row = timing.measure(case, simulated_device(Event, capture), 0.0)
    assert row["matched"] is matched
    assert ("MISMATCH" in timing.told_row(row)) is not matched


def test_the_steps_are_timed_and_agree(monkeypatch):
    """The real cases on the smallest network. torch.compile takes a minute, so that its contestant is eager here."""
    monkeypatch.setattr(timing, "compiled", lambda plain: plain)
    result = timing.timing("cpu", 0.0, on=simulated_device(), among=timing.cases("cpu", "small_dimr", 8))
    assert (result.verdict, result.why) == ("passed", "")
    names = ["guided step, 64 px, batch 1", "guided step, 64 px, batch 16", "training step, 64 px, batch 4"]
    assert [row["name"] for row in result.details["rows"]] == names
    for row in result.details["rows"]:
        assert 1e-4 < row["errors"]["fmkernels"] < 0.1  # something was compared
        assert row["times"].keys() == {"eager", "compile", "fmkernels"}


@pytest.mark.parametrize("index", [0, 2], ids=["guided", "training"])
def test_a_wrong_step_is_a_mismatch(monkeypatch, index):
    right = timing.networks

    def wrong(*arguments):
        ours, plain = right(*arguments)
        ours.stages[-1].register_forward_hook(lambda module, inputs, output: (1.2 * output[0], *output[1:]))
        return ours, plain

    monkeypatch.setattr(timing, "compiled", lambda plain: plain)
    monkeypatch.setattr(timing, "networks", wrong)
    name, build = list(timing.cases("cpu", "small_dimr", 8))[index]
    result = timing.timing("cpu", 0.0, on=simulated_device(), among=[(name, build)])
    assert result.verdict == "failed"
    assert result.why.startswith(f"{name}: the results differ")


def no_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.54 GiB")


def test_out_of_memory_and_out_of_time_are_reported(monkeypatch):
    case, capture = simulated_case(monkeypatch, HOST, DEVICE)
    device = simulated_device(Event, capture)
    result = timing.timing("cuda", 0.0, on=device, among=[("large", no_memory), ("small", lambda: case)])
    assert result.verdict == "passed"
    assert result.why.startswith("large was not measured: OutOfMemoryError")
    result = timing.timing("cuda", 0.0, until=-math.inf, on=device, among=[("small", lambda: case)])
    assert (result.verdict, result.why) == ("skipped", "small was not measured: no time left")
    result = timing.timing("cuda", 0.0, on=device, among=[("small", broken)])
    assert (result.verdict, result.details["rows"]) == ("failed", [])


# In separate processes


@pytest.fixture
def fake_sanitizer(tmp_path, monkeypatch):
    """fake("exit 3") writes that shell script as compute-sanitizer to CUDA_HOME/bin; no other one is found."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_PATH", raising=False)

    def make(script):
        path = tmp_path / "bin" / "compute-sanitizer"
        path.parent.mkdir()
        (path.parent / "nvcc").touch()
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


def test_no_sanitizer_is_skipped(fake_sanitizer):
    result = outside.sanitizer("cuda")
    assert (result.verdict, result.details) == ("skipped", {})
    assert "neither on PATH" in result.why


def test_a_sanitizer_on_path_is_found(fake_sanitizer, tmp_path, monkeypatch):
    fake_sanitizer("exit 0")
    monkeypatch.setenv("PATH", f"/usr/bin:{tmp_path / 'bin'}")
    monkeypatch.delenv("CUDA_HOME")
    assert outside.find_sanitizer() == str(tmp_path / "bin" / "compute-sanitizer")


@pytest.mark.parametrize(
    ("script", "verdict", "why"),
    [
        ('echo "$2 $@ cache off: $PYTORCH_NO_CUDA_MEMORY_CACHING"', "passed", ""),
        ('echo "Invalid write"; [ $2 != racecheck ] || exit 3', "failed", "racecheck: errors found"),
        ("exit 1", "failed", "memcheck: exit code 1; racecheck: exit code 1; initcheck: exit code 1"),
    ],
)
def test_the_sanitizers_exit_code_is_the_verdict(fake_sanitizer, script, verdict, why):
    fake_sanitizer(script)
    result = outside.sanitizer("cuda")
    assert (result.verdict, result.why) == (verdict, why)
    assert list(result.details) == ["memcheck", "racecheck", "initcheck"]
    if verdict == "passed":
        for tool, run in result.details.items():
            assert run["tail"].startswith(f"{tool} --tool {tool} ")
            assert "--error-exitcode 3 " in run["tail"]
            assert "gpu_check.py --only parity --sizes 31,1025 --device cuda cache off: 1" in run["tail"]
    elif "errors found" in why:
        assert result.details["racecheck"] == {"said": "errors found", "tail": "Invalid write\n"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="would run parity")
def test_what_the_sanitizer_runs_is_a_valid_command(fake_sanitizer):
    fake_sanitizer('while [ "${1#/}" = "$1" ]; do shift; done; exec "$@"')  # from the first path on
    result = outside.sanitizer("cuda", tools=["memcheck"])
    assert result.verdict == "passed"
    assert "nothing to test: no GPU" in result.details["memcheck"]["tail"]


def test_a_sanitizer_that_does_not_finish_is_killed_with_its_children(fake_sanitizer):
    fake_sanitizer("sleep 60 & wait")  # the child holds the pipe
    start = time.perf_counter()
    result = outside.sanitizer("cuda", seconds=0.2, tools=["memcheck"])
    assert time.perf_counter() - start < 20
    assert (result.verdict, result.why) == ("skipped", "no tool finished in 0.2 s")


@pytest.mark.parametrize(
    ("end", "verdict", "why", "details"),
    [
        ("", "passed", "", {"rows": ["cuda", "0.5"]}),
        (
            "sys.exit('a result did not match')",
            "failed",
            "exit code 1: a result did not match",
            {"rows": ["cuda", "0.5"]},
        ),
        ("path.unlink(); os._exit(9)", "failed", "exit code 9: nothing on stderr", {}),
    ],
    ids=["well", "mismatch", "crash"],
)
def test_benchmarks_keep_what_was_written(tmp_path, end, verdict, why, details):
    script = tmp_path / "run.py"
    script.write_text(
        "import json, os, pathlib, sys\nnamed = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "path = pathlib.Path(named['--json'])\n"
        "path.write_text(json.dumps({'rows': [named['--device'], named['--seconds']]}))\n" + end
    )
    assert outside.benchmarks("cuda", 0.5, script) == Result(verdict, why, details)


# The files


def benchmark(name, matched=True, **medians):
    """A row as the harness returns it, for work that moves one gigabyte."""
    ours = medians["fmkernels"]
    return {
        "name": name,
        "matched": matched,
        "fresh": False,
        "times": {contestant: {"median": median} for contestant, median in medians.items()},
        "speedup": {contestant: median / ours for contestant, median in medians.items() if contestant != "fmkernels"},
        "gb_per_s": 1 / ours,
    }


def timed_step():
    times = {
        "eager": {"host": 0.02, "call": 0.03, "replay": None, "why no replay": "a sync", "launch bound": False},
        "fmkernels": {"host": 0.016, "call": 0.016, "replay": 0.006, "why no replay": "", "launch bound": True},
    }
    return {"name": "guided step", "matched": True, "times": times, "speedup": {"eager": 1.875}}


def made_up():
    rows = [
        benchmark("step", eager=8e-3, compile=4e-3, triton=2e-3, fmkernels=1e-3),
        benchmark("stats", matched=False, eager=5e-4, fmkernels=1e-3),
    ]
    measured = {"header": {"commit": "abc"}, "memcpy": {"reused": 2000.0, "fresh": 1500.0}, "rows": rows}
    measured["errors"] = [{"name": "norm", "error": "RuntimeError: out\nof memory"}]
    checks = [
        ("parity", "cuda", "passed", "", {"tdp": 0.25, "psi": 0.5}),
        ("parity", "triton", "failed", "psi is inf tolerances off", {"tdp": 1.0, "psi": float("inf")}),
        ("graph", "triton", "failed", "RuntimeError: a | b\nc", {"traceback": "..."}),
        ("guard", "", "skipped", "one GPU", {}),
        ("timing", "", "passed", "", {"rows": [timed_step()]}),
        ("benchmarks", "", "failed", "exit code 1", measured),
    ]
    names = ("check", "backend", "verdict", "why", "details")
    facts = {"device": "Some GPU", "driver": "580.1", "backend in use": "cuda (compiled object loaded)"}
    return report.document(facts, [dict(zip(names, row, strict=True)) | {"seconds": 1.25} for row in checks])


def test_the_files_are_named_after_the_device():
    assert report.file_name("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"
    assert report.file_name("AMD Instinct MI300X") == "amd-instinct-mi300x"


def test_markdown():
    lines = report.markdown(made_up()).splitlines()
    assert lines[0] == "# fmkernels on Some GPU"
    for line in (
        "| driver | 580.1 |",
        "2 passed, 3 failed, 1 skipped.",
        "| parity | triton | failed | psi is inf tolerances off | 1.2 |",
        "| graph | triton | failed | RuntimeError: a \\| b c | 1.2 |",
        "| guard |  | skipped | one GPU | 1.2 |",
        "| op | cuda | triton |",
        "| tdp | 0.25 ✓ | 1.00 ✓ |",
        "| psi | 0.50 ✓ | inf ✗ |",
        "| step | 8.00 ms | 4.00 ms | 2.00 ms | 1.00 ms | 8.00× | 4.00× | 2.00× | 500 (25%) | 1000 (50%) | ✓ |",
        "| stats | 500.0 µs | – | – | 1.00 ms | 0.50× | – | – | – | 1000 (50%) | ✗ MISMATCH |",
        "- norm: RuntimeError: out of memory",
        "| guided step | eager | 20.00 ms | 30.00 ms | – | device-bound | 1.88× | ✓ a sync |",
        "| guided step | fmkernels | 16.00 ms | 16.00 ms | 6.00 ms | launch-bound | – | ✓ |",
    ):
        assert line in lines
    assert "ours (cuda)" in report.markdown(made_up())


def test_the_line_for_an_issue():
    result = made_up()
    assert report.one_line(result) == (
        "gpu-check FAILED (parity triton, graph triton, benchmarks) on Some GPU (driver 580.1): 2 of 6 checks passed, "
        "skipped: guard; "
        "guided step: 16.00 ms, 1.88× eager, replayed 6.00 ms, launch-bound"
    )
    assert f"    {report.one_line(result)}" in report.markdown(result).splitlines()
    result["checks"] = [check for check in result["checks"] if check["verdict"] == "passed"]
    assert report.one_line(result).startswith("gpu-check passed on Some GPU")
    result["checks"] = []
    assert report.one_line(result).startswith("gpu-check FAILED (no check ran)")


def test_markdown_has_only_what_there_is():
    result = made_up()
    bare = report.markdown({"device": "a", "facts": result["facts"], "checks": result["checks"][2:4]})
    assert "## Checks" in bare
    assert "## Parity" not in bare
    assert "## Benchmarks" not in bare


def test_json_is_strict_and_has_what_compare_reads(tmp_path):
    paths = report.write(made_up(), tmp_path / "new" / "some-gpu-1.5")
    assert [path.name for path in paths] == ["some-gpu-1.5.json", "some-gpu-1.5.md"]
    read = json.loads(paths[0].read_text(), parse_constant=pytest.fail)
    assert read["checks"][1]["details"]["psi"] == "inf"
    assert read["checks"][5]["details"] == {}
    assert (read["header"], [row["name"] for row in read["rows"]]) == ({"commit": "abc"}, ["step", "stats"])
    assert paths[1].read_text() == report.markdown(made_up())


@pytest.mark.parametrize("failing", ["markdown", "replace"])
def test_nothing_is_half_written(tmp_path, monkeypatch, failing):
    for name in ("gpu.json", "gpu.md"):
        (tmp_path / name).write_text("of the last run")
    if failing == "markdown":
        monkeypatch.delitem(result := made_up(), "memcpy")
    else:
        result = made_up()
        monkeypatch.setattr(Path, "replace", lambda *_: os.listdir(tmp_path / "absent"))
    with pytest.raises((KeyError, FileNotFoundError)):
        report.write(result, tmp_path / "gpu")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == dict.fromkeys(
        ("gpu.json", "gpu.md"), "of the last run"
    )


# All of it


def broken(*_):
    raise RuntimeError("CUDA error: an illegal memory access\nwas encountered")


def test_a_check_that_raises_has_failed_and_the_others_run(capsys):
    results = run_all([("graph", "cuda", broken), ("guard", "", lambda: Result("passed", details={"tdp": "same"}))])
    assert [row["verdict"] for row in results] == ["failed", "passed"]
    assert results[0]["why"] == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert "in broken" in results[0]["details"]["traceback"]
    assert results[1]["details"] == {"tdp": "same"}
    assert "✗ graph cuda failed: RuntimeError: CUDA" in capsys.readouterr().out


@pytest.fixture
def stubbed(monkeypatch):
    """Replace the checks with some that take no time and pass."""
    for check in gpu_check.EACH:
        monkeypatch.setitem(gpu_check.EACH, check, lambda name, options: Result("passed", details={"tdp": 0.5}))
    return gpu_check.EACH


def test_a_run_with_a_failure_is_written_and_exits_1(stubbed, tmp_path):
    stubbed["parity"] = broken
    assert gpu_check.main(["--device", "cpu"], tmp_path) == 1
    path, text = sorted(tmp_path.iterdir())
    assert path.stem == text.stem == report.file_name(json.loads(path.read_text())["device"])
    checks = {(row["check"], row["backend"]): row for row in json.loads(path.read_text())["checks"]}
    assert {check for check, _ in checks} == set(gpu_check.NAMES)
    assert checks["parity", "cpp"]["verdict"] == "failed"
    assert checks["golden", "cpp"]["verdict"] == "passed"
    assert checks["benchmarks", ""]["why"] == "needs a GPU"
    assert "| golden | cpp | passed |" in text.read_text()
    assert "tools/gpu_check.py --device cpu |" in text.read_text()


def test_a_partial_run_writes_no_files(stubbed, tmp_path, capsys):
    assert gpu_check.main(["--device", "cpu", "--only", "golden,parity", "--sizes", "3,5"], tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
    out = capsys.readouterr().out
    assert "✓ parity cpp passed" in out
    assert "sampling" not in out


def test_a_run_in_which_everything_was_skipped_is_a_failure(stubbed, tmp_path, capsys):
    for check in stubbed:
        stubbed[check] = lambda name, options: Result("skipped", "not today")
    assert gpu_check.main(["--device", "cpu"], tmp_path) == 1
    assert "nothing was tested" in capsys.readouterr().out
    assert gpu_check.main(["--device", "cpu", "--only", "guard"], tmp_path) == 1


def test_quick_runs_four_checks_at_few_sizes_and_keeps_the_full_result(stubbed, tmp_path, capsys):
    seen = []
    stubbed["parity"] = lambda name, options: seen.append((options.sizes, options.until)) or Result("passed")
    assert gpu_check.main(["--device", "cpu", "--quick"], tmp_path) == 0
    assert seen[0][0] == parity.QUICK_SIZES
    assert 0 < seen[0][1] - time.monotonic() <= gpu_check.QUICK_SECONDS < 600
    assert all(path.stem.endswith("-quick") for path in tmp_path.iterdir())
    (path,) = tmp_path.glob("*.json")
    checks = {row["check"] for row in json.loads(path.read_text())["checks"]}
    assert checks == {"parity", "golden", "graph", "timing"}
    assert "gpu-check passed on" in capsys.readouterr().out.splitlines()[-1]


def test_a_quick_run_starts_nothing_after_its_time(stubbed, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "QUICK_SECONDS", -1)
    assert gpu_check.main(["--device", "cpu", "--quick"], tmp_path) == 1
    (path,) = tmp_path.glob("*.json")
    rows = [row for row in json.loads(path.read_text())["checks"] if row["backend"]]
    assert {(row["verdict"], row["why"]) for row in rows} == {("skipped", "no time left")}


def test_options_reach_the_checks(stubbed, tmp_path):
    stubbed["parity"] = lambda name, options: Result("failed" if options.sizes == (3, 5) else "passed")
    assert gpu_check.main(["--device", "cpu", "--only", "parity", "--sizes", "3,5"], tmp_path) == 1
    assert gpu_check.main(["--device", "cpu", "--only", "parity"], tmp_path) == 0


def test_an_unknown_check_lists_the_choices(capsys):
    with pytest.raises(SystemExit):
        gpu_check.main(["--only", "parity,speed"])
    assert "unknown check 'speed'; choose from parity, golden, sampling" in capsys.readouterr().err


def test_on_a_gpu_every_backend_is_tested_and_a_missing_one_is_reported(monkeypatch):
    monkeypatch.setitem(backend.status, "cuda", backend.Status(False, "_cuda was not built"))
    monkeypatch.setitem(backend.status, "triton", backend.Status(True))
    monkeypatch.setitem(gpu_check.EACH, "graph", lambda name, options: Result("passed", name))
    monkeypatch.setitem(gpu_check.ONCE, "sanitizer", lambda options: Result("passed", "once"))
    options = gpu_check.argparse.Namespace(device="cuda", only=["graph", "sanitizer"], until=math.inf)
    assert [(check, name, call().why) for check, name, call in gpu_check.planned(options)] == [
        ("graph", "cuda", "_cuda was not built"),
        ("graph", "triton", "triton"),
        ("sanitizer", "", "once"),
    ]


# Triton next to the compiled kernels in the benchmarks


def test_triton_runs_its_contestant_without_the_overhead_of_forcing(by_triton):
    x, scale = torch.randn(2, 8), torch.ones(8)
    for contestant, asked in (("eager", 0), ("fmkernels", 0), ("triton", 1), ("fmkernels", 1), ("triton", 2)):
        with report.harness.serving(contestant):
            assert backend.current() == "auto"
            fk.td_rms_norm(x, scale)
        assert by_triton == ["td_norm"] * asked
    with fk.use_backend("eager"):
        with report.harness.serving("triton"):
            assert backend.current() == "auto"
        assert backend.current() == "eager"


def test_triton_is_measured_next_to_ours_with_its_own_state(by_triton):
    import bench_step

    bench = bench_step.guided("step", (2, 1, 3, 5), {})
    del bench.contestants["compile"]
    row = report.harness.measure(report.harness.with_triton(bench), 0.0)
    assert row["matched"]
    assert row["times"].keys() == row["speedup"].keys() | {"fmkernels"} == {"eager", "fmkernels", "triton"}
    assert len(by_triton) >= row["times"]["triton"]["samples"]


@pytest.mark.parametrize(
    ("device", "cuda", "triton", "both"),
    [
        ("cuda", True, True, True),
        ("cuda", False, True, False),
        ("cuda", True, False, False),
        ("cpu", True, True, False),
    ],
)
def test_triton_is_a_contestant_if_both_backends_are_loaded(monkeypatch, device, cuda, triton, both):
    monkeypatch.setitem(backend.status, "cuda", backend.Status(cuda))
    monkeypatch.setitem(backend.status, "triton", backend.Status(triton))
    assert report.harness.both_serve(device) is both


def test_a_benchmark_that_raises_on_another_device_is_reported_and_the_others_run(monkeypatch, capsys):
    harness = report.harness
    monkeypatch.setattr(harness, "memcpy_bandwidth", lambda: {"reused": 1.0, "fresh": 1.0})
    monkeypatch.setattr(harness, "header", lambda: {"busy elsewhere": "0%"})
    right = {name: lambda: torch.ones(2, device="cpu") for name in ("eager", "fmkernels")}

    def family():
        yield harness.Bench("wrong", {**right, "fmkernels": broken}, moved=1)
        yield harness.Bench("right", right, moved=1)

    result = harness.run([family], 0.0, device="meta")
    assert [row["name"] for row in result["rows"]] == ["right"]
    assert result["errors"][0]["name"] == "wrong"
    assert "illegal memory access" in result["errors"][0]["error"]
    with pytest.raises(RuntimeError, match="illegal memory access"):
        harness.run([family], 0.0, device="cpu")
    monkeypatch.setattr(harness, "run", lambda *_: result)
    with pytest.raises(SystemExit, match="1 benchmarks raised"):
        harness.main([family], [])
