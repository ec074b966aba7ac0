"""The preset shapes-tiny learns what it is for; 80 s of one core's time on a busy machine."""

import pytest
from shapes_tiny import FLOORS, trained

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def test_it_draws_the_colours_it_is_asked_for():
    found = trained()
    assert {name: found[name] for name, floor in FLOORS.items() if found[name] < floor} == {}, found
