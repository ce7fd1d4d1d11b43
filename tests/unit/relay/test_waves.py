"""The order within a page."""

from __future__ import annotations

from itertools import chain
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from postroad import StoredMessage
from postroad.relay.waves import in_waves


def message(position: int, key: str | None) -> StoredMessage:
    return StoredMessage(position, UUID(int=position), "t", key, 0, "t", b"", "c", "{}", 0)


def waves_of(*keys: str | None) -> list[list[int]]:
    page = [message(position, key) for position, key in enumerate(keys)]
    return [[each.position for each in wave] for wave in in_waves(page)]


def test_different_keys_go_at_once() -> None:
    assert waves_of("a", "b", None, "c") == [[0, 1, 2, 3]]


def test_a_follower_waits_for_the_next_wave() -> None:
    assert waves_of("a", "b", "a", "a", "b") == [[0, 1], [2, 4], [3]]


def test_messages_without_a_key_never_wait() -> None:
    assert waves_of(None, "a", None, "a", None) == [[0, 1, 2, 4], [3]]


def test_nothing_is_no_wave() -> None:
    assert waves_of() == []


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=40))
def test_waves_hold_every_message_once_and_each_key_once_and_in_order(keys: list[str | None]) -> None:
    page = [message(position, key) for position, key in enumerate(keys)]
    waves = in_waves(page)
    sent = list(chain.from_iterable(waves))
    assert sorted(each.position for each in sent) == list(range(len(keys)))
    for wave in waves:
        keyed = [each.key for each in wave if each.key is not None]
        assert len(keyed) == len(set(keyed))
    for key in ("a", "b", "c"):
        assert [each.position for each in sent if each.key == key] == [n for n, k in enumerate(keys) if k == key]
