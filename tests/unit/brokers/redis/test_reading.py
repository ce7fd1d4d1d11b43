from postroad.brokers.base import Delivery
from postroad.brokers.cloudevents import unwrap
from postroad.brokers.redis.reading import Entry, Reader


def read(*fields: bytes, types: tuple[str, ...] = (), foreign: bool = True) -> Delivery:
    return Reader(types, foreign=foreign).delivery(Entry("s", "5-1", fields), None, 1, redelivered=False)


EVENT = (b"ce_id", b"1", b"ce_source", b"/shop", b"ce_type", b"paid", b"content-type", b"text/plain", b"data", b"\xff")


def test_a_cloudevent() -> None:
    message = unwrap(read(*EVENT, b"ce_partitionkey", b"k", b"tenant", b"north"))
    assert (message.id, message.source, message.type, message.key) == ("1", "/shop", "paid", "k")
    assert (message.payload, message.content_type, message.headers) == (b"\xff", "text/plain", {"tenant": "north"})


def test_a_tombstone() -> None:
    message = unwrap(read(*EVENT[:6]))
    assert (message.payload, message.content_type) == (b"", "")


def test_what_is_skipped() -> None:
    reader = Reader(("created",))
    assert reader.skipped_type(read(*EVENT)) == "paid"
    assert Reader().skipped_type(read(*EVENT)) is None
    assert Reader(("paid",)).skipped_type(read(*EVENT)) is None


def test_foreign_entries() -> None:
    message = unwrap(read(b"total", b"5"))
    assert (message.id, message.type, message.payload) == ("s/5-1", "s", b'{"total":"5"}')
    assert read(b"total", b"5", foreign=False).unreadable is not None
    assert read(b"\xff", b"5").unreadable is not None
