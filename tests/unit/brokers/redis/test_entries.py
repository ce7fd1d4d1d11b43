from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.brokers.cloudevents import CannotEncode, wrap
from postroad.brokers.redis.entries import Entries
from postroad.brokers.redis.scripts import ADD
from postroad.brokers.redis.settings import PublisherSettings
from postroad.message import StoredMessage
from tests.destinations import stored

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
ATTRIBUTES = st.sampled_from(["ce_id", "ce_time", "ce_subject", "ce_partitionkey", "ce_type", "ce_specversion"])
HEADERS = st.dictionaries(
    NAMES.filter(lambda name: name not in {"data", "content-type", "source"}) | ATTRIBUTES, NAMES, max_size=5
)


def read(data: bytes) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(data)
    found: list[bytes] = reader.gets()
    assert not reader.has_data()
    return found


def sent(*messages: StoredMessage, now_ms: int = 0, **settings: Any) -> list[bytes]:
    """The arguments of the command that adds these."""
    entries = Entries(PublisherSettings(**settings))
    first, *followers = [entries.entry_of(message, "s") for message in messages]
    first.followers = followers or None
    return read(entries.command(first, entries.options(now_ms)))


def pairs(arguments: list[bytes]) -> dict[str, str]:
    texts = [each.decode() for each in arguments]
    found = dict(zip(texts[::2], texts[1::2], strict=True))
    assert 2 * len(found) == len(texts), "each once"
    return found


@given(HEADERS, NAMES, st.none() | NAMES, st.binary(max_size=50), NAMES)
def test_the_fields_are_those_of_the_envelope(
    headers: dict[str, str], type: str, key: str | None, payload: bytes, content_type: str
) -> None:
    message = stored(1, headers=headers, type=type, key=key, payload=payload, content_type=content_type)
    arguments = sent(message)
    assert arguments[:3] == [b"XADD", b"s", b"*"]
    assert arguments[-2:] == [b"data", payload]
    wire = wrap(message, "binary", "ce_")
    assert pairs(arguments[3:-2]) == wire.headers | {"content-type": content_type}


def test_options_of_xadd() -> None:
    message = stored(1)
    assert sent(message, declare="check")[:4] == [b"XADD", b"s", b"NOMKSTREAM", b"*"]
    assert sent(message, trim="all", max_length=7)[2:6] == [b"MAXLEN", b"~", b"7", b"*"]
    assert sent(message, trim="all", max_age="2s", now_ms=5000)[2:6] == [b"MINID", b"~", b"3000", b"*"]
    assert sent(message, max_length=7)[2:3] == [b"*"], "what was not acked is not deleted"


def test_several_messages_of_a_key_are_a_call_of_the_script() -> None:
    first, second = stored(1, key="k"), stored(2, key="k")
    arguments = sent(first, second, declare="check")
    assert arguments[:4] == [b"EVAL", ADD, b"1", b"s"]
    rest = arguments[4:]
    for message in (first, second):
        count = int(rest[0])
        assert rest[1:3] == [b"NOMKSTREAM", b"*"]
        assert pairs(rest[3 : count + 1])["ce_id"] == str(message.id)
        rest = rest[count + 1 :]
    assert rest == []


def test_the_stream_of_a_message() -> None:
    message = stored(1, slot=700, headers={"tenant": "north"})
    assert Entries(PublisherSettings()).stream_of(message) == "order.created"
    assert Entries(PublisherSettings(stream="{tenant}.orders")).stream_of(message) == "north.orders"
    assert Entries(PublisherSettings(stream="orders", partitions=4)).stream_of(message) == "orders.2"
    with pytest.raises(CannotEncode, match="'region'"):
        Entries(PublisherSettings(stream="{region}")).stream_of(message)


@pytest.mark.parametrize("mode", ["binary", "structured", "plain"])
def test_a_header_named_data_has_no_place(mode: Any) -> None:
    with pytest.raises(CannotEncode, match="rename it"):
        Entries(PublisherSettings(envelope=mode)).fields_of(stored(1, headers={"data": "x"}))
