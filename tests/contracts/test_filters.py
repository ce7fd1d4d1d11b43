"""A sink with a filter: its relay delivers what it takes, in every store, and nothing else is a message of this sink
for retention, operators or applications that cancel; and it is one for all relays, until an operator changes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from postroad import Cancellation, InvalidSetting, Message
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.errors import NotFound
from postroad.lifecycle import State
from postroad.relay import Relay
from postroad.sink_filter import EVERYTHING, SinkFilter
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.answers import Reason
from postroad.stores.admin.contract import By, Filter, Rewind
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase
from postroad.stores.admin.sqlite import SQLiteAdminDatabase
from postroad.stores.base import Deferred
from postroad.stores.cursor import PageLimit
from tests.lanes import HERE, identity, take_lanes
from tests.logs import PLENTY, Arrivals, Log, PostgreSQLLog, SQLiteLog, log_fixture

ME = By("anna", "because")
ORDERS = SinkFilter(topics=["order.*"])

log = log_fixture("memory", "sqlite", "postgresql15", "postgresql18", opened=True)
kept = log_fixture("sqlite", "postgresql15", opened=True)  # logs that operators work with


@pytest.fixture
async def ops(kept: SQLiteLog | PostgreSQLLog) -> AsyncIterator[Admin]:
    operating = Admin(
        SQLiteAdminDatabase(kept.path) if isinstance(kept, SQLiteLog) else PostgreSQLAdminDatabase(kept.url)
    )
    async with operating:
        yield operating


def relay(log: Log, publisher: Any, filter: SinkFilter = ORDERS, sink: str = "orders", **more: Any) -> Relay:
    settings: dict[str, Any] = {"lanes": 2, "poll_interval": "1ms", "max_idle_backoff": "5ms"} | more
    return Relay(log.another_store(), publisher, sink=sink, filter=filter, settings=RelaySettings(**settings))


async def add(log: Log, *topics: str, first: int = 1) -> list[Message]:
    """One message of each topic, numbered from `first` on."""
    messages = [Message(str(number), type=topic, key="k", id=uuid4()) for number, topic in enumerate(topics, first)]
    await log.add(*messages)
    return messages


# -- delivering ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("batch_size", [1, 1000])
async def test_a_sink_gets_what_its_filter_takes(log: Log, lanes: int, batch_size: int) -> None:
    topics = ["order.created", "payment.done", "order.item.added", "order.paid", "order", "order.shipped"]
    await add(log, *topics, *topics)
    broker = Arrivals()
    summary = await relay(log, broker, lanes=lanes, batch_size=batch_size).run_until_empty()
    assert broker.numbers == [1, 4, 6, 7, 10, 12]
    assert summary.published == 6


@pytest.mark.parametrize(
    ("filter", "numbers"),
    [
        (SinkFilter(types=["a.b", "c"]), [1, 2, 4]),
        (SinkFilter(exclude_topics=["a.*"]), [2, 3]),
        (SinkFilter(topics=["#"], exclude_topics=["c"]), [1, 3, 4]),
        (SinkFilter(sources=["/tests"]), [1, 2, 3, 4]),
        (SinkFilter(sources=["/other"]), []),
        (SinkFilter(topics=["a.#"], types=["d"]), [3]),
    ],
)
async def test_every_part_of_a_filter_counts(log: Log, filter: SinkFilter, numbers: list[int]) -> None:
    await log.add(
        Message("1", type="a.b"), Message("2", type="c"), Message("3", type="d", topic="a"), Message("4", type="a.b")
    )
    broker = Arrivals()
    await relay(log, broker, filter).run_until_empty()
    assert sorted(broker.numbers) == numbers


async def test_what_comes_later_is_delivered_to_a_relay_that_waits(log: Log) -> None:
    broker = Arrivals()
    async with relay(log, broker):
        await add(log, "payment.done", "order.created")
        await broker.until(2)
        await add(log, *["payment.done"] * 50, "order.paid", first=3)
        await broker.until(53)
    assert broker.numbers == [2, 53]


async def test_the_cursor_passes_what_does_not_match(log: Log) -> None:
    await add(log, *["payment.done"] * 30)
    await relay(log, MemoryBroker()).run_until_empty()
    assert await log.waiting() == 0
    assert set(await log.cursors()) == {30}


async def test_a_page_says_whether_the_log_goes_on(kept: Log) -> None:
    """A read reaches over a part of the log only: an empty page with `more` is not the end."""
    await add(kept, *["payment.done"] * 30, "order.created", *["payment.done"] * 30)
    store: Any = kept.store
    store._sql = {name: sql.replace("+ 50000", "+ 10") for name, sql in store._sql.items()}
    (taken,) = await take_lanes(store, "orders", filter=ORDERS)
    lane = (await store.load(taken)).lease
    pages = [await store.read(lane, lane.cursor, PLENTY)]
    while pages[-1].more:
        pages.append(await store.read(lane, pages[-1].after, PLENTY))
    assert [message.position for page in pages for message in page.messages] == [31]
    ends = [page.after.position for page in pages]
    assert ends == sorted(set(ends))
    assert ends[-1] == 61
    assert max(end - page.before.position for page, end in zip(pages, ends, strict=True)) <= 11


async def test_a_full_page_ends_with_its_last_message(log: Log) -> None:
    await add(log, "order.a", "payment.done", "order.b", "payment.done", "order.c")
    (taken,) = await take_lanes(log.store, "orders", filter=ORDERS)
    lane = (await log.store.load(taken)).lease
    page = await log.store.read(lane, lane.cursor, PageLimit(rows=2, payload_bytes=1 << 20))
    assert [message.position for message in page.messages] == [1, 3]
    assert page.after.position == 3
    rest = await log.store.read(lane, page.after, PageLimit(rows=2, payload_bytes=1 << 20))
    assert [message.position for message in rest.messages] == [5]
    assert (rest.after.position, rest.more) == (5, False)


# -- one filter for all relays ---------------------------------------------------------------------------------------


async def test_a_relay_with_another_filter_is_refused_before_it_publishes_anything(log: Log) -> None:
    await relay(log, MemoryBroker()).run_until_empty()
    await add(log, "order.created", "payment.done")
    broker = MemoryBroker()
    for filter in (EVERYTHING, SinkFilter(topics=["payment.*"])):
        with pytest.raises(InvalidSetting, match=r"sink 'orders' takes topics order\.\*, and this relay would take .*"):
            await relay(log, broker, filter).run_until_empty()
    assert not broker.messages
    await relay(log, MemoryBroker(), EVERYTHING, sink="all").run_until_empty()
    with pytest.raises(InvalidSetting, match="sink 'all' takes everything, and this relay would take topics"):
        await relay(log, broker, ORDERS, sink="all").run_until_empty()


async def test_a_lane_is_taken_only_with_the_sinks_filter(log: Log) -> None:
    await log.store.leases.create("s", HERE, lanes=1, start="oldest", filter=ORDERS)
    other = identity("s")
    assert await log.store.leases.take(other, 1, 10.0) == []
    assert (await log.store.leases.inspect(other)).filter == ORDERS.text
    mine = msgspec.structs.replace(other, filter=ORDERS.text)
    assert len(await log.store.leases.take(mine, 1, 10.0)) == 1


# -- retention, canceling ----------------------------------------------------------------------------------------------


async def test_retention_does_not_keep_for_a_sink_what_it_does_not_take(log: Log) -> None:
    await log.store.leases.create("orders", HERE, lanes=2, start="oldest", filter=ORDERS)
    await add(log, "order.created", "payment.done", "order.paid", "payment.done")
    await log.make_older(timedelta(hours=1))
    cleaned = await log.store.delete_passed(after=0, older_than=timedelta(0), batch=100)
    assert cleaned.deleted == 2
    broker = Arrivals()
    await relay(log, broker).run_until_empty()
    assert broker.numbers == [1, 3]


async def test_retention_keeps_for_another_sink_what_this_one_does_not_take(log: Log) -> None:
    await relay(log, MemoryBroker()).run_until_empty()
    await log.store.leases.create("all", HERE, lanes=1, start="oldest")
    await add(log, "order.created", "payment.done")
    await relay(log, MemoryBroker()).run_until_empty()
    await log.make_older(timedelta(hours=1))
    assert (await log.store.delete_passed(after=0, older_than=timedelta(0), batch=100)).deleted == 0


async def test_a_sink_that_does_not_take_a_message_does_not_keep_it_from_being_canceled(log: Log) -> None:
    await log.store.leases.create("payments", HERE, lanes=1, start="oldest", filter=SinkFilter(topics=["payment.*"]))
    (taken,) = await take_lanes(log.store, "orders", filter=ORDERS)
    lane = (await log.store.load(taken)).lease
    published, refused = await add(log, "order.created", "order.paid")
    page = await log.store.read(lane, lane.cursor, PLENTY)
    await log.store.record(lane, page.after, deferred=[Deferred(2, "k", State.RETRYING, 1, 60.0, counted=True)])
    assert published.id is not None
    assert refused.id is not None
    assert await log.cancel(published.id, refused.id) == [Cancellation.TOO_LATE, Cancellation.CANCELED]


# -- operators ---------------------------------------------------------------------------------------------------------


async def test_status_and_numbers_count_what_the_sink_takes(kept: Log, ops: Admin) -> None:
    await kept.store.leases.create("orders", HERE, lanes=2, start="oldest", filter=ORDERS)
    await kept.store.leases.create("all", HERE, lanes=2, start="oldest")
    await add(kept, "order.created", "payment.done", "payment.done")
    report = await ops.status()
    pending = {each.sink: sum(lane.pending.number for lane in each.lanes) for each in report.sinks}
    assert pending == {"orders": 1, "all": 3}
    assert {each.sink: each.filter for each in report.sinks} == {"orders": ORDERS, "all": EVERYTHING}
    numbers = {each.sink: sum(lane.pending for lane in each.lanes) for each in (await ops.numbers()).sinks}
    assert numbers == pending


async def test_a_message_that_a_sink_does_not_take_is_not_listed_there_and_why_says_so(kept: Log, ops: Admin) -> None:
    await kept.store.leases.create("all", HERE, lanes=1, start="oldest")
    await kept.store.leases.create("orders", HERE, lanes=1, start="oldest", filter=ORDERS)
    order, payment = await add(kept, "order.created", "payment.done")
    listed = (await ops.messages(Filter(), 10)).messages
    assert sorted((each.sink, each.type) for each in listed) == [
        ("all", "order.created"),
        ("all", "payment.done"),
        ("orders", "order.created"),
    ]
    assert payment.id is not None
    assert order.id is not None
    answers = {each.sink: each for each in (await ops.why(payment.id)).answers}
    assert answers["all"].reason is Reason.NO_OWNER
    assert answers["orders"].reason is Reason.NOT_TAKEN
    assert answers["orders"].text == "sink 'orders' does not take it: it takes topics order.*"
    assert {each.reason for each in (await ops.why(order.id)).answers} == {Reason.NO_OWNER}
    of_key = await ops.why_key("k", "orders")
    assert of_key is not None
    assert of_key.answers[0].evidence["message"] == order.id


async def test_a_rewind_sends_what_the_sink_takes(kept: Log, ops: Admin) -> None:
    await add(kept, "order.created", "payment.done", "order.paid")
    await relay(kept, MemoryBroker()).run_until_empty()
    which = Rewind(sink="orders", to=1)
    assert (await ops.preview_rewind(which)).number == 2
    assert (await ops.rewind(which, ME)).changed == 2
    broker = Arrivals()
    await relay(kept, broker).run_until_empty()
    assert broker.numbers == [1, 3]


async def test_an_operator_gives_a_sink_another_filter(kept: Log, ops: Admin) -> None:
    await add(kept, "order.created", "payment.done", "refund.made")
    await relay(kept, MemoryBroker()).run_until_empty()
    await add(kept, "order.paid", "payment.done", first=4)
    wider = SinkFilter(topics=["payment.*", "refund.*"])
    preview = await ops.preview_refilter("orders", wider)
    assert (preview.before, preview.after) == (ORDERS, wider)
    assert (preview.passed, preview.first_passed, preview.dropped) == (2, 2, 1)
    assert (preview.searched, preview.all_searched) == (5, True)
    assert (await ops.refilter("orders", wider, ME)).changed == 2
    assert (await ops.refilter("orders", wider, ME)).changed == 0
    with pytest.raises(NotFound, match=r"takes topics payment.\*, refund.\* already"):
        await ops.preview_refilter("orders", wider)
    line = (await ops.audit(1))[0]
    assert (line.command, line.arguments["from"], line.arguments["to"]) == ("sink filter", str(ORDERS), str(wider))
    with pytest.raises(InvalidSetting, match="takes topics payment"):
        await relay(kept, MemoryBroker()).run_until_empty()
    broker = Arrivals()
    await relay(kept, broker, wider).run_until_empty()
    assert broker.numbers == [5]
    await ops.rewind(Rewind(sink="orders", to=preview.first_passed or 0), ME)
    await relay(kept, broker, wider).run_until_empty()
    assert sorted(broker.numbers) == [2, 3, 5, 5]
    assert (await ops.refilter("orders", EVERYTHING, ME)).changed == 2
    await relay(kept, broker, EVERYTHING).run_until_empty()


async def test_the_filter_of_a_sink_that_is_served_can_not_be_changed(kept: Log, ops: Admin) -> None:
    async with relay(kept, MemoryBroker()):
        async with asyncio.timeout(60):
            while not (await ops.status()).sinks[0].relays:  # noqa: ASYNC110 - the relay has its own connection
                await asyncio.sleep(0.01)
        with pytest.raises(NotFound, match="still served"):
            await ops.preview_refilter("orders", EVERYTHING)
        with pytest.raises(NotFound, match="still served"):
            await ops.refilter("orders", EVERYTHING, ME)
