"""Every mutant can still be planted: the right text stands in the source as often as it says."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT, SOURCE, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_planted(mutant: Mutant) -> None:
    assert (SOURCE / mutant.file).read_text().count(mutant.right) == mutant.times
    assert all((ROOT / test.partition("::")[0]).is_file() for test in mutant.tests)
