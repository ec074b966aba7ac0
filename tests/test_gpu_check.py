"""make gpu-check as far as it goes without a GPU: the one line, and its comparison with the CPU standing in."""

import subprocess
import sys
from pathlib import Path

import cases
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import gpu_check


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_that_is_no_failure():
    run = subprocess.run([sys.executable, gpu_check.__file__], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.count("\n") == 1
    assert "nothing was run" in run.stdout


def test_the_result_is_named_after_the_device():
    assert gpu_check.file_name("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3.json"
    assert gpu_check.file_name("AMD Instinct MI300X") == "amd-instinct-mi300x.json"


def test_parity_of_every_op():
    served = "triton" if cases.TRITON else "cpp"
    found = dict(gpu_check.parity("cpu", served, sizes=(31,), dtypes=[torch.float32]))
    assert found.keys() == {case.name for case in cases.CASES}
    assert max(found.values()) <= 1
    assert max(found.values()) > 1e-3  # something was compared


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [(lambda x: x, 0.0), (lambda x: x + 5e-7, 0.5), (lambda x: x + 1, 1e6), (lambda x: x * torch.nan, float("inf"))],
    ids=["same", "near", "far", "nan"],
)
def test_errors_are_counted_in_tolerances(changed, verdict):
    expected = [torch.zeros(3), torch.full((2,), torch.nan)]
    got = [changed(expected[0]), expected[1]]
    assert gpu_check.worst(got, expected, torch.float32, 1) == pytest.approx(verdict, rel=0.1)
