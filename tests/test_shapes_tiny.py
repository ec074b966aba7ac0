"""The preset shapes-tiny learns what it is for: 53 s on two idle cores."""

import pytest
from shapes_tiny import FLOORS, trained

pytestmark = pytest.mark.slow


def test_it_draws_the_colours_it_is_asked_for():
    found = trained()
    assert {name: found[name] for name, floor in FLOORS.items() if found[name] < floor} == {}, found
