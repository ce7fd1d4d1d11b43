"""Text that an application chooses is in the log as one escaped line, whatever formatter prints it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.postgresql import PostgreSQLStore
from tests.logs import Arrivals
from tests.security.neighbours import Neighbours

FORGED = "2026-01-01 00:00:00 CRITICAL everything is lost"
HOSTILE = f"x\n{FORGED}\r\x1b[2J\u2028\u202e\x85"
POISON = (
    "insert into postroad.outbox (id, topic, key, slot, type, payload, content_type, headers) "
    "values (gen_random_uuid(), $1, $1, postroad.slot_of($1), $1, '', $1, $2::text::json)"
)


@pytest.fixture
def printed() -> Iterator[io.StringIO]:
    """What a formatter prints that knows nothing of postroad."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("postroad")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(level)


async def test_keys_topics_types_and_reasons_forge_no_line(neighbours: Neighbours, printed: io.StringIO) -> None:
    async with neighbours.connected("billing") as hostile:
        await hostile.execute(POISON, HOSTILE, json.dumps({"source": HOSTILE}))
    broker = Arrivals()
    broker.refuse(lambda message: f"no queue for {message.topic}")
    store = PostgreSQLStore(neighbours.url("relay"))
    await Relay(store, broker, settings=RelaySettings(lanes=1, max_attempts=1)).run_until_empty()
    text = printed.getvalue()
    assert FORGED in text, "the text itself is there"
    assert not [line for line in text.splitlines() if line.startswith(FORGED)]
    assert not set(HOSTILE) & set(text.replace("\n", "")) & set("\r\x1b\u2028\u202e\x85")
