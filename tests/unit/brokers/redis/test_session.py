from typing import Any

from postroad.brokers.redis.reading import Reader
from postroad.brokers.redis.session import FIRST_READ, StreamSession

READER = Reader()


def reply(cursor: bytes, *ids: bytes, last: bytes | None = None) -> list[Any]:
    entries = [[id, [b"data", b"x" * 100]] for id in ids]
    return [cursor, entries, []] + ([] if last is None else [last])


def test_what_was_left_comes_first_and_is_marked() -> None:
    session = StreamSession("s", prefetch=50, max_bytes=10_000)
    assert session.cursor == "0-0"
    left = session.deliver(reply(b"2-0", b"1-0"), READER) + session.deliver(reply(b">", b"2-0"), READER)
    assert [(each.tag, each.redelivered) for each in left] == [(1, True), (2, True)]
    assert (session.cursor, session.hungry) == (">", True), "there may be new ones"
    (new,) = session.deliver(reply(b">", b"3-0"), READER)
    assert (new.tag, new.redelivered, new.original.id) == (3, False, "3-0")
    assert session.deliver(reply(b">", last=b"3-0"), READER) == []
    assert (session.hungry, session.last_id) == (False, "3-0")


def test_entries_that_are_gone_are_passed_over() -> None:
    session = StreamSession("s", prefetch=50, max_bytes=10_000)
    found = session.deliver([b">", [None, [b"2-0", None], [b"3-0", [b"data", b""]]], []], READER)
    assert [each.original.id for each in found] == ["3-0"]


def test_room_is_limited_by_number_and_by_size() -> None:
    session = StreamSession("s", prefetch=20, max_bytes=1000)
    assert session.room == FIRST_READ
    session.deliver(reply(b">", *(b"%d-0" % n for n in range(1, 6))), READER)
    assert (session.open, session.room) == (5, (1000 - 5 * 104) // 104)
    session.deliver(reply(b">", *(b"%d-0" % n for n in range(6, 11))), READER)
    assert session.room == 0
    assert session.finish(1) == "1-0"
    assert session.finish(1) is None, "once"
    assert session.room == 1
