"""Which keys a partition has, and what a process gives up."""

from __future__ import annotations

import pamqp.decode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.brokers.rabbitmq.partitions import (
    BCC_HEADERS,
    PORTIONS,
    SLOTS_PER_PORTION,
    Names,
    portion_keys,
    surplus,
)
from postroad.message import SLOTS


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 16, 100, PORTIONS])
def test_each_portion_has_one_partition_and_each_partition_some(partitions: int) -> None:
    found = [portion_keys(partition, partitions) for partition in range(partitions)]
    assert [key for keys in found for key in keys] == portion_keys(0, 1)
    assert len(portion_keys(0, 1)) == PORTIONS
    sizes = {len(keys) for keys in found}
    assert max(sizes) - min(sizes) <= 1


def test_the_header_is_what_the_partitions_are_bound_with() -> None:
    decoded = [pamqp.decode.field_table(len(header).to_bytes(4, "big") + header)[1]["BCC"] for header in BCC_HEADERS]
    assert decoded == [[key] for key in portion_keys(0, 1)]
    assert {slot // SLOTS_PER_PORTION for slot in range(SLOTS)} == set(range(PORTIONS))


def test_names() -> None:
    names = Names("stock", 3)
    assert names.queues == ["stock.0", "stock.1", "stock.2"]
    assert names.alternate != Names("stock", 4).alternate
    assert names.exchange == Names("stock", 4).exchange


@pytest.mark.parametrize(
    ("active", "queues", "members", "given_up"),
    [
        ("abcd", 4, 1, ""),
        ("abcd", 4, 2, "cd"),
        ("abcd", 4, 3, "cd"),
        ("ab", 4, 3, ""),
        ("abcd", 4, 9, "bcd"),
        ("a", 4, 9, ""),
        ("", 4, 2, ""),
        ("abcd", 4, 0, ""),
    ],
)
def test_what_is_given_up(active: str, queues: int, members: int, given_up: str) -> None:
    assert surplus(active, queues, members) == given_up


@given(st.integers(1, PORTIONS), st.integers(1, 20), st.data())
def test_partitions_come_to_rest(queues: int, members: int, data: st.DataObject) -> None:
    """Wherever they are: each that is given up goes to the next in line, and to the one after it, until all is done."""
    owners: dict[int, list[int]] = {member: [] for member in range(members)}
    lines = {}
    for queue in range(queues):
        line = data.draw(st.permutations(range(members)))
        lines[queue] = list(line)
        owners[line[0]].append(queue)
    for _ in range(queues * members + 1):
        given = [(member, queue) for member, owned in owners.items() for queue in surplus(owned, queues, members)]
        if not given:
            break
        for member, queue in given:
            owners[member].remove(queue)
            lines[queue] = [*lines[queue][1:], member]
            owners[lines[queue][0]].append(queue)
    assert max(map(len, owners.values())) <= -(-queues // members)
