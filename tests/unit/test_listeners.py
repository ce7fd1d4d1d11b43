"""Events go to a relay's own listeners, and no listener costs a message."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from postroad import Refusal, events
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.events import Event
from postroad.listeners import Listener, LogListener
from postroad.relay import Relay
from tests.logs import MemoryLog, numbered

PAGE = (Path(__file__).parents[2] / "docs" / "logging.md").read_text(encoding="utf-8")


class Collecting:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def names(self) -> list[str]:
        return [event.name() for event in self.events]


async def run_relay(*listeners: Listener, count: int = 25, broker: MemoryBroker | None = None) -> MemoryBroker:
    log, broker = MemoryLog(), broker or MemoryBroker()
    await log.add(*numbered(*range(count)))
    settings = RelaySettings(lanes=1, batch_size=10)
    await Relay(log.store, broker, settings=settings, listeners=listeners).run_until_empty()
    return broker


async def test_a_listener_gets_two_events_per_page_and_none_per_message() -> None:
    listener = Collecting()
    await run_relay(listener)
    in_pages = [name for name in listener.names() if name.startswith(("page", "message"))]
    assert in_pages == ["page_taken", "page_published"] * 3
    published = [event.published for event in listener.events if isinstance(event, events.PagePublished)]
    assert published == [10, 10, 5]


async def test_with_listeners_of_its_own_a_relay_logs_nothing_unless_asked_to(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "postroad.relay")
    await run_relay(Collecting())
    assert not [record for record in caplog.records if record.name == "postroad.relay" and "event" in vars(record)
                and vars(record)["event"] in {"relay_started", "relay_ended"}]  # fmt: skip
    await run_relay(LogListener())
    assert {"relay_started", "relay_ended"} <= {vars(record).get("event") for record in caplog.records}


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError()])
@pytest.mark.parametrize("method", ["on_event", "wants"])
async def test_a_listener_that_raises_costs_no_message_and_no_other_listener_its_events(
    error: BaseException, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Collecting):
        pass

    def fail(_: Any) -> bool:
        raise error

    failing, other = Failing(), Collecting()
    setattr(failing, method, fail)
    broker = MemoryBroker()
    broker.refuse(lambda message: Refusal(message.position, "no", permanent=True) if message.payload == b"7" else None)
    await run_relay(failing, other, broker=broker)
    assert sorted(int(message.payload) for message in broker.messages) == [n for n in range(25) if n != 7]
    assert [name for name in other.names() if name.startswith(("page", "message"))] == [
        "page_taken", "message_dead", "page_published", *["page_taken", "page_published"] * 2,
    ]  # fmt: skip
    assert any("failed on page_published" in line for line in caplog.messages)


@pytest.mark.parametrize("wanted", [events.PageTaken, events.PagePublished])
async def test_a_listener_may_want_one_event_of_a_page(wanted: type[Event]) -> None:
    class One(Collecting):
        def wants(self, event_type: type[Event]) -> bool:
            return event_type is wanted

    listener = One()
    await run_relay(listener)
    assert listener.names() == [wanted.name()] * 3


async def test_an_event_of_a_page_that_no_listener_wants_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ends(Collecting):
        def wants(self, event_type: type[Event]) -> bool:
            return event_type is events.RelayEnded

    class Made(events.PagePublished, frozen=True):
        def __post_init__(self) -> None:
            raise AssertionError("no listener wanted it")

    monkeypatch.setattr(events, "PagePublished", Made)
    listener = Ends()
    await run_relay(listener)
    assert listener.names() == ["relay_ended"]
    with pytest.raises(AssertionError, match="no listener wanted it"):
        await run_relay(Collecting())


async def test_the_listener_of_the_page_works() -> None:
    (example,) = re.findall(r"```python\n(class Counter.*?)```", PAGE, re.DOTALL)
    log, broker, namespace = MemoryLog(), MemoryBroker(), dict[str, Any]()
    await log.add(*numbered(1, 2, 3))
    listener, call = example.split("\n\n\n")
    exec(listener, namespace)
    counter = namespace["Counter"]()
    relay = eval(
        call.strip().removeprefix("relay = "),
        {"Relay": Relay, "store": log.store, "publisher": broker, "counter": counter, "LogListener": LogListener},
    )
    await relay.run_until_empty()
    assert counter.published == 3
