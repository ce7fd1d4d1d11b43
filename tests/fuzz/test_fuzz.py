"""A minute of `make fuzz`, with other input each time."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from tests.fuzz.runner import fuzz
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_input(target: str) -> None:
    assert fuzz(TARGETS[target], seconds=60 / len(TARGETS)) > 0


def test_a_finding_names_the_seed_that_finds_it_again() -> None:
    def broken(data: st.DataObject) -> None:
        assert data.draw(st.integers()) < 1000

    with pytest.raises(AssertionError) as found:
        fuzz(broken, seconds=60)
    *_, note = found.value.__notes__
    number = int(note.rpartition(" ")[2])
    with pytest.raises(AssertionError):
        fuzz(broken, seconds=0, number=number)
