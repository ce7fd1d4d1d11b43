"""Of a batch that fails as a whole, exactly the guilty ones are refused, and the others are taken once, in order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.brokers.guilty import find_guilty


class Batches:
    """Takes a batch as a whole, or not at all if a guilty one is in it."""

    def __init__(self, guilty: set[int]) -> None:
        self._guilty = guilty
        self.taken: list[int] = []
        self.refused: list[int] = []
        self.sent = 0

    async def send(self, part: Sequence[int], why: str) -> tuple[Sequence[int], str] | None:
        assert part
        self.sent += 1
        if self._guilty.isdisjoint(part):
            self.taken += part
            return None
        return part, "one of these"

    def refuse(self, item: int, why: str) -> None:
        assert why == "one of these"
        self.refused.append(item)


@given(st.integers(1, 600), st.sets(st.integers(0, 599), min_size=1, max_size=5))
async def test_exactly_the_guilty_ones_are_refused(size: int, guilty: set[int]) -> None:
    items, guilty = list(range(size)), {each % size for each in guilty}
    batches = Batches(guilty)
    await find_guilty(items, "one of these", send=batches.send, refuse=batches.refuse)
    assert batches.refused == sorted(guilty)
    assert batches.taken == [item for item in items if item not in guilty]
    assert batches.sent <= 2 * len(guilty) * size.bit_length(), "in halves, not one by one"


async def test_what_was_answered_meanwhile_is_not_sent_again() -> None:
    batches = Batches({3})

    async def send(part: Sequence[int], why: str) -> tuple[Sequence[int], str] | None:
        """Of each part, the first is taken in any case."""
        left = [item for item in part if item == 3 or item not in batches.taken]
        batches.taken += [item for item in left[:1] if item != 3]
        return await batches.send([item for item in left if item not in batches.taken] or [9], why)

    await find_guilty([1, 2, 3, 4], "one of these", send=send, refuse=batches.refuse)
    assert batches.refused == [3]
    assert [batches.taken.count(item) for item in (1, 2, 4)] == [1, 1, 1]


async def test_what_was_found_is_kept_when_sending_ends_with_an_error() -> None:
    batches = Batches({0, 3})

    async def send(part: Sequence[int], why: str) -> tuple[Sequence[int], str] | None:
        if part == [2, 3]:
            raise ConnectionError
        return await batches.send(part, why)

    with pytest.raises(ConnectionError):
        await find_guilty([0, 1, 2, 3], "one of these", send=send, refuse=batches.refuse)
    assert (batches.refused, batches.taken) == ([0], [1])
