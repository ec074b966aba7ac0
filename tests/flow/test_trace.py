"""The trace of a sampling loop, ours and others'."""

import csv
import json
import math
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.cases import assert_close

import fmkernels as fk
from fmkernels.flow import NonFiniteError, Trace, uniform
from fmkernels.flow.trace import COLUMNS

PRINTED = (Path(__file__).parents[1] / "golden" / "printed_steps.txt").read_text().splitlines()
LINE = re.compile(r"step\d+: \|x\|=\d+\.\d{4}, \|v\|=\d+\.\d{4}, dt=-?\d\.\d{4}")


def states(steps=4, batch=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    for k in range(steps):
        x, v = torch.randn(2, batch, 2, 5, generator=generator).to(dtype)
        yield k, x, v, (k + 1) / 10


def recorded(**kinds):
    trace = Trace()
    for k, x, v, dt in states(**kinds):
        trace.record(k, x, v, dt)
    return trace


def test_the_line_has_the_format_of_the_debugging_notes():
    assert all(LINE.fullmatch(line) for line in PRINTED)
    printed = [f"step{k}: |x|={x.abs().mean():.4f}, |v|={v.abs().mean():.4f}, dt={dt:.4f}" for k, x, v, dt in states()]
    assert recorded().lines() == printed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_record(dtype):
    trace = recorded(dtype=dtype)
    for k, x, v, dt in states(dtype=dtype):
        x, v = x.double().flatten(1), v.double().flatten(1)
        rms = (v * dt).square().mean(1).sqrt()
        expected = torch.stack([x.abs().mean(1), v.abs().mean(1), rms, torch.zeros(3), torch.full((3,), dt)], dim=1)
        assert_close(trace.values[k], expected.float())


def test_record_and_sample_agree():
    z0 = torch.randn(3, 4)
    x, trace = fk.sample(lambda x, t: -x, z0, uniform(5))
    other, state = Trace(), z0.clone()
    for k, (t, dt) in enumerate(uniform(5)):
        v = -state
        other.record(k, state, v, torch.tensor(dt), t=t)
        state = state + dt * v
    assert_close(other.values, trace.values)
    assert other.lines() == trace.lines()
    assert other.times == trace.times
    assert_close(x, state)


def test_step_numbers_itself_and_gradients_do_not_matter():
    with Trace() as trace:
        for _, x, v, dt in states():
            trace.step(x.requires_grad_(), v.requires_grad_(), dt)
    assert trace.steps == [0, 1, 2, 3]
    assert not trace.values.requires_grad


def test_nothing_is_read_until_asked(monkeypatch):
    def fail(*_):
        raise AssertionError("read back")

    trace = Trace()
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "cpu", "__bool__", "__float__"):
            patch.setattr(torch.Tensor, name, fail)
        for k, x, v, dt in states():
            trace.record(k, x, v, dt)
    assert len(trace.lines()) == 4


def test_jsonl_and_csv(tmp_path):
    trace = recorded()
    trace.record(9, torch.full((3, 2, 5), torch.inf), torch.ones(3, 2, 5), 0.1, t=0.5)
    text = trace.to_jsonl(tmp_path / "trace.jsonl")
    assert (tmp_path / "trace.jsonl").read_text() == text
    rows = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert len(rows) == 5 * 3
    assert list(rows[0]) == ["step", "sample", "t", *COLUMNS]
    assert rows[4]["mean_abs_v"] == trace.column("mean_abs_v")[1, 1].item()
    assert rows[-1] == {
        "step": 9,
        "sample": 2,
        "t": 0.5,
        "mean_abs_x": None,
        "mean_abs_v": 1.0,
        "rms_dx": pytest.approx(0.1),
        "nonfinite": 10.0,
        "dt": pytest.approx(0.1),
    }
    assert trace.to_csv(tmp_path / "trace.csv") == (tmp_path / "trace.csv").read_text()
    read = list(csv.DictReader((tmp_path / "trace.csv").open()))
    assert len(read) == 15
    assert float(read[4]["mean_abs_v"]) == rows[4]["mean_abs_v"]
    assert read[-1]["mean_abs_x"] == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["trace.csv", "trace.jsonl"]


def test_table():
    trace = Trace()
    x = torch.tensor([[1.0, 3.0], [3.0, math.inf], [3.0, math.nan]])
    trace.record(7, torch.tensor([[1.0, 1.0], [2.0, 2.0], [6.0, 6.0]]), torch.ones(3, 2), 0.5, t=0.25)
    trace.record(8, x, torch.ones(3, 2), 0.5)
    header, first, second, last = trace.table().splitlines()
    assert header.split() == ["step", "t", "dt", "|x|", "min", "–", "max", "|x|", "|v|", "rms", "dx", "nonfinite"]
    assert first.split() == ["7", "0.250000", "0.500000", "3.0000", "1.0000", "–", "6.0000", "1.0000", "0.500000", "0"]
    assert second.split()[1] == "–"
    assert second.split()[-1] == "2"
    assert last == "first anomaly: step 8, sample 1: x is not finite (1 elements)"
    assert str(trace) == trace.table()


def test_plot(tmp_path):
    for trace in (recorded(), recorded(steps=1)):
        path = trace.plot(tmp_path / "without_extension")
        assert path.read_bytes().startswith(b"\x89PNG")
    bad = recorded()
    bad.record(4, torch.full((3, 2, 5), torch.nan), torch.ones(3, 2, 5), 0.1)
    assert bad.plot(tmp_path / "bad.png").stat().st_size > 1000


def test_plot_without_matplotlib_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=re.escape("pip install matplotlib")):
        recorded().plot(tmp_path / "trace.png")


def test_an_empty_trace(tmp_path):
    trace = Trace()
    assert trace.lines() == []
    assert trace.first_anomaly() is None
    assert trace.to_jsonl() == ""
    assert trace.table()
    trace.check()
    trace.plot(tmp_path / "empty.png")
    for shape in ((0, 3), (3, 0)):
        _, trace = fk.sample(lambda x, t: -x, torch.empty(shape), uniform(2))
        assert trace.first_anomaly() is None
        assert trace.table()
        trace.plot(tmp_path / "empty.png")


# Anomalies


@pytest.mark.parametrize(("where", "quantity"), [("x", "x"), ("v", "v")])
def test_nonfinite_in_somebody_else_s_loop(where, quantity):
    with pytest.raises(NonFiniteError, match=f"step 2, sample 1: {quantity} is not finite") as caught, Trace() as trace:
        for k, x, v, dt in states():
            if k == 2:
                (x if where == "x" else v)[1, 0, 3] = math.inf
            trace.step(x, v, dt)
    assert caught.value.trace is trace
    assert len(trace) == 4


def test_an_exception_of_the_loop_is_not_hidden():
    with pytest.raises(KeyError), Trace() as trace:
        trace.step(torch.full((1, 2), torch.nan), torch.ones(1, 2), 0.1)
        raise KeyError


def test_every_stops_early():
    trace = Trace(every=2)
    with pytest.raises(NonFiniteError):
        for k, x, v, dt in states(steps=9):
            trace.record(k, x * (math.nan if k == 4 else 1), v, dt)
    assert len(trace) == 6


@pytest.mark.parametrize(
    ("velocity", "start", "step"),
    [
        (lambda x, t: 30 * x * (t[0] >= 0.5), torch.ones(2, 3), 7),
        (lambda x, t: 1e3 * (x + 1), torch.zeros(2, 3), 2),
        (lambda x, t: 9 * x, torch.ones(2, 3), None),  # grows as its velocity says
        (lambda x, t: torch.ones_like(x), 0.01 * torch.ones(2, 3), None),  # from almost nothing
        (lambda x, t: -x, torch.zeros(2, 3), None),
    ],
)
def test_divergence_is_found(velocity, start, step):
    anomaly = fk.sample(velocity, start, uniform(10 if step else 2)).trace.first_anomaly()
    assert (None if anomaly is None else anomaly.step) == step
    assert step is None or "runs away" in str(anomaly)


def loop(dtype, steps, size=1.0):
    """The loop of the debugging notes, its state in the given dtype; and what share of the steps was really lost."""
    generator = torch.Generator().manual_seed(0)
    x, v = (size * torch.randn(1, 4096, generator=generator)).to(dtype), torch.full((1, 4096), 0.45).to(dtype)
    lost = []
    with Trace() as trace:
        for _ in range(steps):
            trace.step(x, v, 1 / steps)
            after = x + v * (1 / steps)
            change = v.float() / steps
            lost.append((after.float() - x.float() - change).norm() / change.norm())
            x = after
    return trace.first_anomaly(), torch.stack(lost)[0].item()


@pytest.mark.parametrize(
    ("dtype", "steps", "size", "found"),
    [
        (torch.bfloat16, 100, 6.0, True),  # the debugging notes'
        (torch.bfloat16, 20, 6.0, True),
        (torch.bfloat16, 5, 0.3, False),
        (torch.float16, 1000, 6.0, True),
        (torch.float16, 20, 1.0, False),
        (torch.float32, 1000, 6.0, False),
    ],
)
def test_what_a_half_precision_state_loses_is_found(dtype, steps, size, found):
    anomaly, lost = loop(dtype, steps, size)
    assert (anomaly is not None) == found
    assert found == (lost > 0.1), "the rule and the truth"
    if found:
        assert anomaly.step == 0
        assert "of the step's change to rounding: keep the state in float32" in str(anomaly)


@pytest.mark.parametrize("gain", [1.0, 3.5])
def test_no_false_alarm(gain):
    """Healthy loops in float16 and float32: rotation, a fixed point reached, after the update instead of before."""
    for dtype in (torch.float16, torch.float32):
        x, trace = torch.tensor([[2.0, -2.0, 3.0, -3.0]]).to(dtype), Trace()
        for _ in range(20):
            v = 0.3 * x.flip(-1)
            x = x + gain * v * 0.05
            trace.step(x, v, 0.05, gain=gain)
        assert trace.first_anomaly() is None
    _, trace = fk.sample(lambda x, t: 30 * (0.7 - x), torch.randn(2, 8), uniform(100), solver="heun")
    assert trace.first_anomaly() is None


def test_the_first_of_several():
    trace = Trace(nonfinite="continue")
    x, v = torch.ones(2, 4), torch.ones(2, 4)
    for k, (scale, bad) in enumerate([(1, 0), (1, 0), (500, 0), (1, math.nan)]):
        trace.record(k, scale * x + bad, v, 0.25)
    assert trace.first_anomaly().step == 2
    assert "runs away" in str(trace.first_anomaly())


def test_numbers_as_loops_have_them():
    trace = Trace()
    trace.step(torch.ones(1, 4), torch.ones(1, 4), np.float32(0.5), t=torch.tensor(0.25))
    trace.step(torch.ones(1, 4), torch.ones(1, 4), torch.tensor(0.5), t=np.float64(0.5))
    assert trace.times == [0.25, 0.5]
    assert '"t": 0.25' in trace.to_jsonl()


def test_two_runs_under_the_same_numbers():
    trace = Trace(nonfinite="continue")
    trace.record(0, torch.ones(1, 4), torch.ones(1, 4), 0.5)
    trace.record(0, torch.ones(1, 4), torch.full((1, 4), math.nan), 0.5)
    assert str(trace.first_anomaly()) == "step 0, sample 0: v is not finite (4 elements)"


def test_negative_dt_and_gain():
    trace = Trace()
    trace.record(0, torch.ones(1, 4), 2 * torch.ones(1, 4), torch.tensor([-0.5]), gain=3.0)
    assert trace.values.tolist() == [[[1.0, 2.0, 3.0, 0.0, -0.5]]]


def test_an_error_survives_a_pickle():
    with pytest.raises(NonFiniteError) as caught, Trace() as trace:
        trace.step(torch.full((1, 2), math.nan), torch.ones(1, 2), 0.1)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.trace.lines() == trace.lines()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Trace(every=-1), ValueError, "every must be a number of steps"),
        (lambda: Trace(nonfinite="ignore"), ValueError, "nonfinite must be 'raise' or 'continue', got 'ignore'"),
        (lambda: Trace().record(0, 1.0, torch.ones(2), 0.1), TypeError, "x must be a tensor"),
        (lambda: Trace().record(0, torch.ones(2, 3), torch.ones(2, 4), 0.1), ValueError, "v must have shape (2, 3)"),
        (lambda: Trace().step(1.0, torch.ones(2), 0.1), TypeError, "x must be a tensor"),
        (lambda: Trace().record(0, torch.ones(2), torch.ones(2), "1"), TypeError, "dt must be a number"),
        (lambda: Trace().record(0, torch.ones(2), torch.ones(2), torch.ones(2)), ValueError, "dt must be a number or"),
        (lambda: Trace().append(0, torch.ones(2, 5), torch.float32, torch.ones(2)), TypeError, "t must be a number"),
        (lambda: recorded().record(4, torch.ones(5, 2), torch.ones(5, 2), 0.1), ValueError, "5 samples, the others 3"),
        (lambda: recorded().column("speed"), KeyError, "Trace has the columns mean_abs_x"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()
