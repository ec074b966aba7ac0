"""Twenty seconds of tests/fuzz.py, other calls every time."""

import time

import pytest
from fuzz import fuzz


@pytest.mark.slow
@pytest.mark.kernels("cpu")
def test_random_calls_are_those_of_eager():
    seed = time.time_ns() % 2**32
    print(f"python tests/fuzz.py 3000 {seed}")
    found, bad = fuzz(3000, seed, seconds=20, chunk=500)
    assert not bad, bad
    assert found["equal bit for bit"] > 50
    assert found["equal up to rounding"] > 20
    assert found["refused by both"] > 50
