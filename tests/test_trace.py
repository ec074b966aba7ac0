"""The trace of a sampling loop, ours and others'."""

import csv
import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from cases import assert_close

import fmkernels as fk
from fmkernels.flow import NonFiniteError, Trace, uniform
from fmkernels.flow.trace import COLUMNS

DIARY = (Path(__file__).parent / "golden" / "diary_steps.txt").read_text().splitlines()
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


def test_the_line_is_the_diary_s():
    assert all(LINE.fullmatch(line) for line in DIARY)
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
    text = recorded().table()
    assert len(text.splitlines()) == 6
    assert text.endswith("first anomaly: none")


def test_plot(tmp_path):
    path = recorded().plot(tmp_path / "trace.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    bad = recorded()
    bad.record(4, torch.full((3, 2, 5), torch.nan), torch.ones(3, 2, 5), 0.1)
    assert bad.plot(tmp_path / "bad.png").stat().st_size > 1000


def test_plot_without_matplotlib_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'fmkernels[plot]'")):
        recorded().plot(tmp_path / "trace.png")


def test_an_empty_trace(tmp_path):
    trace = Trace()
    assert trace.lines() == []
    assert trace.first_anomaly() is None
    assert trace.to_jsonl() == ""
    assert trace.table()
    trace.check()
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


def test_divergence_is_found():
    _, trace = fk.sample(lambda x, t: 30 * x * (t[0] >= 0.5), torch.ones(2, 3), uniform(10))
    anomaly = trace.first_anomaly()
    assert (anomaly.step, anomaly.quantity) == (7, "x")
    assert "runs away" in str(anomaly)


def loop(dtype, steps=100):
    """The diary's loop, with its state in the given dtype."""
    generator = torch.Generator().manual_seed(0)
    x, v = 6 * torch.randn(2, 4, 16, 16, generator=generator).to(dtype), torch.full((2, 4, 16, 16), 0.45, dtype=dtype)
    with Trace() as trace:
        for _ in range(steps):
            trace.step(x, v, 1 / steps)
            x = x + v * (1 / steps)
    return trace


def test_what_a_bf16_state_loses_is_found():
    anomaly = loop(torch.bfloat16).first_anomaly()
    assert anomaly.step == 0
    assert "of the step's change to rounding: keep it in float32" in str(anomaly)
    assert loop(torch.float32).first_anomaly() is None


def test_a_state_that_stands_still_is_found():
    x, v, trace = torch.full((2, 8), 6.1875), torch.full((2, 8), 0.4531), Trace()
    for k in range(6):
        trace.record(k, x, v, 0.05)
    assert "stands still at |x| = 6.1875" in str(trace.first_anomaly())
    trace = Trace()
    for k in range(6):
        trace.record(k, x, 0 * v, 0.05)
    assert trace.first_anomaly() is None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Trace(every=-1), ValueError, "every must be a number of steps"),
        (lambda: Trace(nonfinite="ignore"), ValueError, "nonfinite must be 'raise' or 'continue', got 'ignore'"),
        (lambda: Trace().record(0, 1.0, torch.ones(2), 0.1), TypeError, "x must be a tensor"),
        (lambda: Trace().record(0, torch.ones(2, 3), torch.ones(2, 4), 0.1), ValueError, "v must have shape (2, 3)"),
        (lambda: recorded().record(4, torch.ones(5, 2), torch.ones(5, 2), 0.1), ValueError, "5 samples, the others 3"),
        (lambda: recorded().column("speed"), KeyError, "Trace has the columns mean_abs_x"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()
