"""Twenty seconds of tests/fuzz.py, always the same calls: make fuzz makes new ones."""

import pytest
from fuzz import fuzz

SEED = 2026


@pytest.mark.slow
@pytest.mark.kernels("cpu")
def test_random_calls_are_those_of_eager():
    print(f"python tests/fuzz.py 3000 {SEED}")
    found, bad = fuzz(3000, SEED, seconds=20, chunk=500)
    assert not bad, bad
    assert found["equal bit for bit"] > 50
    assert found["equal up to rounding"] > 20
    assert found["refused by both"] > 50
