"""What the brokers know of offsets: where to begin in a partition, and how many records wait. All of it blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, TopicPartition

from postroad.brokers.kafka.window import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroad.brokers.kafka.sessions import Place, Sessions

__all__ = ["first_offset", "starts", "waiting"]

ASK_SECONDS: Final = 10.0


def starts(
    client: Any, partitions: Sequence[TopicPartition], size: int, *, latest: bool
) -> dict[Place, tuple[int, Progress | None]]:
    """Where to begin in each partition, and what its last owner has committed. Raises KafkaException.

    Of what another program has committed, the next `size` records may have been begun. `latest`: a group that has read
    nothing of a topic begins behind its last record. A partition that was added later is read from its beginning.
    """
    found: dict[Place, tuple[int, Progress | None]] = {}
    for each in client.committed(partitions, timeout=ASK_SECONDS):
        if each.error is not None:
            raise KafkaException(each.error)
        place, offset = (each.topic, each.partition), each.offset
        if offset < 0:
            first, end = _watermarks(client, place)
            found[place] = (end if latest and not _has_commits(client, each.topic) else first, None)
        else:
            found[place] = (offset, Progress.read(offset, each.metadata) or Progress(offset, offset, offset + size))
    return found


def first_offset(client: Any, place: Place) -> int:
    """The offset of the first record that is there."""
    return _watermarks(client, place)[0]


def waiting(client: Any, topics: Iterable[str], sessions: Sessions, *, latest: bool) -> int:
    """The records behind our positions and, where others have the partitions, behind their commits."""
    count = 0
    for topic in topics:
        for each in _committed(client, topic):
            first, end = _watermarks(client, (topic, each.partition))
            session = sessions.by_place.get((topic, each.partition))
            if session is not None:
                position = session.window.position
            elif each.offset < 0:
                position = end if latest else first
            else:
                position = each.offset
            count += max(0, end - max(first, position))
    return count


def _has_commits(client: Any, topic: str) -> bool:
    return any(each.offset >= 0 for each in _committed(client, topic))


def _committed(client: Any, topic: str) -> list[TopicPartition]:
    found = client.list_topics(topic, timeout=ASK_SECONDS).topics[topic]
    places = [TopicPartition(topic, number) for number in found.partitions]
    return list(client.committed(places, timeout=ASK_SECONDS)) if places else []


def _watermarks(client: Any, place: Place) -> tuple[int, int]:
    first, end = client.get_watermark_offsets(TopicPartition(*place), timeout=ASK_SECONDS)
    return first, end
