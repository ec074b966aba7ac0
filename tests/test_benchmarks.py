"""The harness checks what it times: equal results pass, a wrong one exits with an error, files compare. Launches."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import harness

    monkeypatch.setattr(harness, "memcpy_bandwidth", lambda: {"reused": 1.0, "fresh": 1.0})
    monkeypatch.setattr(harness, "import_milliseconds", lambda: 0.0)
    return harness


def family(harness, ours):
    stats = torch.tensor([[100.0, 0.02], [100.0, 0.02]])
    calls = {"eager": lambda: stats, "fmkernels": lambda: ours(stats)}
    return lambda: iter([harness.Bench("two columns", calls, moved=32, floors={"eager": 1e9})])


def test_a_match_is_written_and_a_missed_floor_is_only_said(harness, tmp_path, capsys):
    path = tmp_path / "result.json"
    harness.main([family(harness, torch.clone)], ["--seconds", "0", "--json", str(path)])
    assert "below its floor: two columns" in capsys.readouterr().out
    (row,) = json.loads(path.read_text())["rows"]
    assert row["matched"]
    assert row["times"]["fmkernels"]["samples"] >= 9
    run = subprocess.run([sys.executable, BENCHMARKS / "compare.py", path, path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "two columns" in run.stdout
    assert "1.00~" in run.stdout


@pytest.mark.parametrize("wrong", [lambda x: x + torch.tensor([0.0, 0.001]), lambda x: x[:1], lambda x: x * torch.nan])
def test_a_mismatch_exits_with_an_error(harness, wrong):
    with pytest.raises(SystemExit) as stop:
        harness.main([family(harness, wrong)], ["--seconds", "0"])
    assert "did not match" in str(stop.value)


@pytest.mark.slow
def test_launches_of_a_guided_step(harness):
    """Of the 256 px model. The plain structure (third_party_model.py) takes two operations a parameter more."""
    from count_launches import count

    counts = count("t2i_256px_clip_dimr")
    assert counts["fmkernels"].total() <= 1000
    assert counts["fmkernels"]["tdp_group"] == 1
    assert counts["fmkernels"]["attention"] == 65
    assert counts["plain"].total() - 2 * 2 * 171 == pytest.approx(5492, rel=0.01)
