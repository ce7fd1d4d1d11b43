"""What the brokers know of offsets: where to begin in a partition, and how many records wait. All of it blocks."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from postroad.brokers.kafka.window import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from postroad.brokers.kafka.sessions import Place, Sessions

__all__ = ["ends_of_new", "first_offset", "starts", "waiting", "wake_up"]

ASK_SECONDS: Final = 10.0
WAKE_UP_SECONDS: Final = 0.1


def ends_of_new(client: Any, topics: Iterable[str]) -> dict[Place, int]:
    """The ends of all partitions of those topics of which the group has read nothing. Raises KafkaException.

    It has to be asked before the group is joined. Later, a partition without a commit may be one that was added, or one
    that a process which was started together with this one has not come to yet.
    """
    found: dict[Place, int] = {}
    for topic in topics:
        committed = _committed(client, topic)
        if all(each.offset < 0 for each in committed):
            places = [(topic, each.partition) for each in committed]
            found |= {place: _watermarks(client, place)[1] for place in places}
    return found


def starts(
    client: Any, partitions: Sequence[TopicPartition], size: int, ends: Mapping[Place, int]
) -> dict[Place, tuple[int, Progress | None]]:
    """Where to begin in each partition, and what its last owner has committed. Raises KafkaException.

    Of what another program has committed, the next `size` records may have been begun. Without a commit, a partition is
    read from where `ends` says, or from its beginning.
    """
    found: dict[Place, tuple[int, Progress | None]] = {}
    for each in _commits(client, partitions):
        place, offset = (each.topic, each.partition), each.offset
        if offset < 0:
            found[place] = (ends[place] if place in ends else first_offset(client, place), None)
        else:
            found[place] = (offset, Progress.read(offset, each.metadata) or Progress(offset, offset, offset + size))
    return found


def first_offset(client: Any, place: Place) -> int:
    """The offset of the first record that is there."""
    return _watermarks(client, place)[0]


def wake_up(client: Any, resumed: Iterable[TopicPartition]) -> None:
    """Make the client fetch partitions that were resumed at once. By itself it notices only after up to a second, or
    when it has something else to send to their brokers: so it is made to ask them for an offset.
    """
    with suppress(KafkaException):  # then it is later, and an outage is noticed elsewhere
        client.offsets_for_times(
            [TopicPartition(each.topic, each.partition, OFFSET_END) for each in resumed], timeout=WAKE_UP_SECONDS
        )


def waiting(client: Any, topics: Iterable[str], sessions: Sessions, ends: Mapping[Place, int]) -> int:
    """The records behind our positions and, where others have the partitions, behind their commits. `ends`: see
    `starts`.
    """
    count = 0
    for topic in topics:
        for each in _committed(client, topic):
            place = (topic, each.partition)
            first, end = _watermarks(client, place)
            session = sessions.by_place.get(place)
            if session is not None:
                position = session.window.position
            elif each.offset < 0:
                position = ends.get(place, first)
            else:
                position = each.offset
            count += max(0, end - max(first, position))
    return count


def _committed(client: Any, topic: str) -> list[TopicPartition]:
    found = client.list_topics(topic, timeout=ASK_SECONDS).topics[topic]
    places = [TopicPartition(topic, number) for number in found.partitions]
    return _commits(client, places) if places else []


def _commits(client: Any, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    found: list[TopicPartition] = client.committed(partitions, timeout=ASK_SECONDS)
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
    return found


def _watermarks(client: Any, place: Place) -> tuple[int, int]:
    first, end = client.get_watermark_offsets(TopicPartition(*place), timeout=ASK_SECONDS)
    return first, end
