"""What is special to Redis as a destination: the form of an entry, what is refused and what is an outage, confirms,
trimming, users and TLS.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from postroad import BrokerUnavailable, InvalidSetting, LoginRefused, StoredMessage
from postroad.brokers.redis import entries as entries_module
from postroad.brokers.redis import publisher as publisher_module
from postroad.brokers.redis.address import Address
from postroad.brokers.redis.connection import LinkLost
from postroad.brokers.redis.publisher import RedisPublisher
from postroad.brokers.redis.sentinel import check_master
from postroad.brokers.redis.settings import ConnectionSettings, PublisherSettings
from postroad.message import slot_of
from tests.conftest import serving
from tests.destinations import a_page, stored
from tests.services.proxy import Proxy
from tests.services.redis import Redis, Sentinel
from tests.services.server import free_port

STREAM = "order.created"
MakePublisher = Callable[..., RedisPublisher]


@pytest.fixture
async def publisher() -> AsyncIterator[MakePublisher]:
    made: list[RedisPublisher] = []

    def make(url: str, **settings: Any) -> RedisPublisher:
        defaults: dict[str, Any] = {"confirm_timeout": "60s"}
        made.append(RedisPublisher(url, PublisherSettings(**defaults | settings)))
        return made[-1]

    yield make
    for each in made:
        await each.close()


def of_key(key: str | None, count: int, first: int = 1, **fields: Any) -> list[StoredMessage]:
    return [stored(first + n, key=key, **fields) for n in range(count)]


def ids(messages: list[StoredMessage]) -> list[UUID]:
    return [message.id for message in messages]


def arrived(redis: Redis, stream: str = STREAM) -> list[UUID]:
    return [UUID(fields["ce_id"].decode()) for _, fields in redis.entries(stream)]


def the_entry(redis: Redis, stream: str = STREAM) -> dict[str, str]:
    ((_, fields),) = redis.entries(stream)
    return {name: value.decode() for name, value in fields.items()}


# -- the form of an entry --------------------------------------------------------------------------------------------


async def test_binary(redis: Redis, publisher: MakePublisher) -> None:
    message = stored(1, key="order-ü", headers={"tenant": "north", "correlation_id": "c-1"})
    assert not await publisher(redis.url).publish([message])
    assert the_entry(redis) == {
        "ce_specversion": "1.0",
        "ce_id": str(message.id),
        "ce_source": "/tests",
        "ce_type": "order.created",
        "ce_time": "2025-01-02T03:04:05.123456Z",
        "ce_subject": "order-ü",
        "ce_partitionkey": "order-ü",
        "ce_correlationid": "c-1",
        "tenant": "north",
        "content-type": "application/json",
        "data": '{"number":1}',
    }


async def test_structured(redis: Redis, publisher: MakePublisher) -> None:
    message = stored(1, headers={"tenant": "north"})
    assert not await publisher(redis.url, envelope="structured").publish([message])
    entry = the_entry(redis)
    document = json.loads(entry.pop("data"))
    assert entry == {"content-type": "application/cloudevents+json; charset=utf-8", "tenant": "north"}
    assert (document["id"], document["data"]) == (str(message.id), {"number": 1})


async def test_plain(redis: Redis, publisher: MakePublisher) -> None:
    assert not await publisher(redis.url, envelope="plain").publish([stored(1, headers={"tenant": "north"})])
    assert the_entry(redis) == {"content-type": "application/json", "tenant": "north", "data": '{"number":1}'}


@pytest.mark.parametrize("envelope", ["binary", "plain"])
async def test_a_tombstone_has_no_data(redis: Redis, publisher: MakePublisher, envelope: str) -> None:
    tombstone = stored(1, payload=b"", content_type="")
    assert not await publisher(redis.url, envelope=envelope).publish([tombstone])
    entry = the_entry(redis)
    assert "data" not in entry
    assert not entry.get("content-type")


async def test_a_header_that_would_be_the_payload_is_refused(redis: Redis, publisher: MakePublisher) -> None:
    """And what is behind it, of its key, is not taken."""
    page = of_key("k", 4)
    page[1] = stored(2, key="k", headers={"data": "mine"})
    (refusal,) = await publisher(redis.url).publish([*page, other := stored(9, key="other")])
    assert (refusal.position, refusal.permanent) == (2, True)
    assert "it has a header 'data'" in refusal.reason
    assert arrived(redis) == ids([page[0], other])


async def test_a_message_may_have_many_headers_and_not_more(redis: Redis, publisher: MakePublisher) -> None:
    many = {f"h{number}": "x" for number in range(990)}
    page = [stored(number, key="k", headers=many) for number in (1, 2, 3)]
    page.append(stored(4, key="k", headers={f"h{number}": "x" for number in range(1001)}))
    (refusal,) = await publisher(redis.url).publish(page)
    assert (refusal.position, refusal.permanent) == (4, True)
    assert arrived(redis) == ids(page[:3])


async def test_streams_by_template_and_partition(redis: Redis, publisher: MakePublisher) -> None:
    page = [stored(n, key=f"k{n}", slot=slot_of(f"k{n}", UUID(int=0)), headers={"tenant": "north"}) for n in range(64)]
    assert not await publisher(redis.url, stream="{tenant}.orders", partitions=4).publish(page)
    for partition in range(4):
        wanted = [message for message in page if message.slot * 4 // 1024 == partition]
        assert wanted
        assert arrived(redis, f"north.orders.{partition}") == ids(wanted)
    (refusal,) = await publisher(redis.url, stream="{nobody}").publish([stored(100)])
    assert (refusal.permanent, "'nobody'" in refusal.reason) == (True, True)


# -- in order --------------------------------------------------------------------------------------------------------


async def test_a_hot_key_needs_one_round_trip(redis: Redis, publisher: MakePublisher) -> None:
    """Whatever other keys are in the page."""
    page = [stored(n, key="hot" if n % 3 else f"cold-{n}") for n in range(1, 301)]
    calls = redis.call("INFO", "stats")["total_commands_processed"]
    publishing = publisher(redis.url)
    assert not await publishing.publish(page)
    hot = [message for message in page if message.key == "hot"]
    found = arrived(redis)
    assert [id for id in found if id in set(ids(hot))] == ids(hot)
    assert len(found) == 300
    # An XADD for each that is alone of its key; the script, and what it calls.
    assert redis.call("INFO", "stats")["total_commands_processed"] - calls < 100 + 200 + 10
    assert len(publishing._free) == 1


async def test_a_key_that_goes_to_two_streams_stays_in_order(redis: Redis, publisher: MakePublisher) -> None:
    page = [stored(n, key="k", topic="a" if n in (1, 2, 5) else "b") for n in range(1, 6)]
    assert not await publisher(redis.url).publish(page)
    assert arrived(redis, "a") == ids([page[0], page[1], page[4]])
    assert arrived(redis, "b") == ids(page[2:4])
    entry_ids = sorted((id, fields["ce_id"]) for stream in ("a", "b") for id, fields in redis.entries(stream))
    assert len(entry_ids) == 5


async def test_behind_a_stream_that_is_none_nothing_of_the_key_is_taken(redis: Redis, publisher: MakePublisher) -> None:
    redis.call("SET", "b", "text")
    page = [stored(n, key="k", topic="b" if n == 3 else "a") for n in range(1, 6)]
    (refusal,) = await publisher(redis.url).publish(page)
    assert (refusal.position, refusal.route, refusal.unroutable) == (3, "b", False)
    assert "'b' is no stream" in refusal.reason
    assert arrived(redis, "a") == ids(page[:2])


# -- refusals and outages --------------------------------------------------------------------------------------------


async def test_a_stream_that_is_missing_blocks_its_route_until_it_is_there(
    redis: Redis, publisher: MakePublisher
) -> None:
    publishing, page = publisher(redis.url, declare="check"), [*of_key("k", 3), stored(9, key="l")]
    refusals = await publishing.publish(page)
    assert [(each.position, each.route, each.unroutable) for each in refusals] == [(1, STREAM, True), (9, STREAM, True)]
    assert "create it" in refusals[0].reason
    redis.call("XGROUP", "CREATE", STREAM, "inventory", "0", "MKSTREAM")
    assert not await publishing.publish(page)
    assert arrived(redis) == ids(page)


@pytest.fixture
def relay_user(redis: Redis) -> Iterator[str]:
    """A user that may add to one stream only."""
    redis.call("ACL", "SETUSER", "relay", "on", ">secret", "~order.*", "+@connection", "+info", "+xadd", "+eval")
    yield redis.url.replace("redis://", "redis://relay:secret@")
    redis.start()
    redis.call("ACL", "DELUSER", "relay")


async def test_a_user_with_few_rights(redis: Redis, publisher: MakePublisher, relay_user: str) -> None:
    publishing = publisher(relay_user)
    durability = await publishing.open()
    assert "its user may not ask" in durability.meaning
    page = [*of_key("k", 2), *of_key("l", 2, first=3, topic="payment"), stored(9, key="m", topic="payment")]
    refusals = await publishing.publish(page)
    assert [(each.position, each.route, each.permanent) for each in refusals] == [
        (3, "payment", False),
        (9, "payment", False),
    ]
    assert "grant it ~payment" in refusals[0].reason
    assert arrived(redis) == ids(page[:2])


async def test_without_the_right_to_run_scripts_it_does_not_begin(
    redis: Redis, publisher: MakePublisher, relay_user: str
) -> None:
    redis.call("ACL", "SETUSER", "relay", "-eval")
    publishing = publisher(relay_user)
    with pytest.raises(BrokerUnavailable, match=r"grant \+eval"):
        await publishing.open()
    with pytest.raises(BrokerUnavailable, match="eval"):
        await publishing.publish(of_key("k", 2))
    assert arrived(redis) == []


async def test_a_full_memory_is_an_outage_and_what_was_taken_before_is_confirmed(
    redis: Redis, publisher: MakePublisher
) -> None:
    publishing, page = publisher(redis.url), a_page(400)
    used = redis.call("INFO", "memory")["used_memory"]
    redis.call("CONFIG", "SET", "maxmemory", used + 400_000)
    try:
        with pytest.raises(BrokerUnavailable, match="OOM") as outage:
            for first in range(1000, 100_000, 400):
                assert not await publishing.publish(page)
                page = a_page(400, first=first)
    finally:
        redis.call("CONFIG", "SET", "maxmemory", 0)
    found = set(arrived(redis))
    taken = {message.position for message in page if message.id in found}
    assert outage.value.confirmed == taken
    assert not outage.value.refusals
    assert not await publishing.publish([each for each in page if each.position not in taken])


async def test_a_replica_takes_nothing(redis: Redis, publisher: MakePublisher) -> None:
    with serving(lambda: Redis(master=redis)) as replica:
        redis.until_replicated()
        publishing = publisher(replica.url)
        with pytest.raises(BrokerUnavailable, match="it is a replica"):
            await publishing.open()
        for page in (a_page(1), of_key("k", 2)):
            with pytest.raises(BrokerUnavailable, match="READONLY"):
                await publishing.publish(page)
    assert arrived(redis) == []


async def test_a_broken_pipeline_tells_what_was_confirmed_and_is_not_sent_again(
    redis: Redis, publisher: MakePublisher
) -> None:
    async with Proxy(redis.port) as proxy:
        publishing = publisher(proxy.url(redis.url))
        await publishing.open()
        seen = set()
        for attempt, answered in enumerate((30, 500, 2000, 5000)):
            page = a_page(300, first=1 + 1000 * attempt)
            before = len(arrived(redis))
            proxy.cut_after(answered=answered)
            with pytest.raises(BrokerUnavailable) as outage:
                await publishing.publish(page)
            found = arrived(redis)[before:]
            assert found == ids(page)[: len(found)], "each once, in order"
            confirmed = [message for message in page if message.position in outage.value.confirmed]
            assert confirmed == page[: len(confirmed)]
            assert len(confirmed) <= len(found)
            seen.add(len(confirmed))
            rest = [message for message in page if message.position not in outage.value.confirmed]
            assert not await publishing.publish(rest)
        assert len(seen) > 2, seen


async def test_a_server_that_is_silent_is_an_outage(redis: Redis, publisher: MakePublisher) -> None:
    publishing = publisher(redis.url, confirm_timeout="200ms", connect_timeout="200ms")
    await publishing.open()
    redis.freeze()
    with pytest.raises(BrokerUnavailable, match="answered nothing for 0.2 seconds") as outage:
        await publishing.publish(a_page(2))
    assert not outage.value.suspicious
    with pytest.raises(BrokerUnavailable):
        await publishing.open()
    redis.start()
    assert not await publishing.publish([late := stored(100)])
    assert arrived(redis)[-1] == late.id


async def test_a_killed_server_keeps_what_it_confirmed(redis: Redis, publisher: MakePublisher) -> None:
    publishing, page = publisher(redis.url), a_page(100)
    assert not await publishing.publish(page)
    redis.kill()
    with pytest.raises(BrokerUnavailable):
        await publishing.publish(a_page(1, first=500))
    redis.start()
    assert arrived(redis) == ids(page)


async def test_close_ends_a_call_that_waits(redis: Redis, publisher: MakePublisher) -> None:
    publishing = publisher(redis.url)
    await publishing.open()
    redis.freeze()
    waiting = asyncio.create_task(publishing.publish(a_page(3)))
    while not publishing._used:  # noqa: ASYNC110 - the call gets there in a few rounds of the loop
        await asyncio.sleep(0)
    await publishing.close()
    with pytest.raises(BrokerUnavailable, match="the publisher was closed"):
        await waiting


async def test_close_ends_a_call_that_is_connecting(redis: Redis, publisher: MakePublisher) -> None:
    publishing = publisher(redis.url)
    redis.freeze()
    waiting = asyncio.create_task(publishing.publish(a_page(3)))
    await asyncio.sleep(0)
    await publishing.close()
    redis.thaw()
    with pytest.raises(BrokerUnavailable, match="the publisher was closed"):
        await waiting
    assert arrived(redis) == []
    assert not publishing._free, "no connection is left open"


# -- what a confirm means --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "meaning", "weak"),
    [
        ({"appendfsync": "always"}, "synced to disk (appendfsync always)", None),
        ({"appendfsync": "everysec"}, "about a second later (appendfsync everysec)", "appendfsync is everysec"),
        ({}, "(appendfsync no)", "appendfsync is no"),
        ({"appendonly": "no"}, "next snapshot", "when the server is restarted, confirmed messages are lost"),
        ({"appendfsync": "always", "maxmemory": "1gb", "maxmemory-policy": "allkeys-lru"}, "always", "whole streams"),
    ],
)
async def test_durability_is_the_server_s_setting(
    redis: Redis, publisher: MakePublisher, settings: dict[str, str], meaning: str, weak: str | None
) -> None:
    defaults = {"appendonly": "yes", "appendfsync": "no", "maxmemory": "0", "maxmemory-policy": "noeviction"}
    for name, value in settings.items():
        redis.call("CONFIG", "SET", name, value)
    try:
        durability = await publisher(redis.url).open()
    finally:
        for name, value in defaults.items():
            redis.call("CONFIG", "SET", name, value)
    assert meaning in durability.meaning
    assert [weak in warning for warning in durability.warnings] == [True] if weak else not durability.warnings


async def test_a_confirm_can_wait_for_replicas(redis: Redis, publisher: MakePublisher) -> None:
    publishing = publisher(redis.url, replicas=1, confirm_timeout="1s")
    with pytest.raises(BrokerUnavailable, match="replicas is 1, and the server has 0"):
        await publishing.open()
    with serving(lambda: Redis(master=redis)) as replica:
        redis.until_replicated()
        assert "and by 1 replicas" in (await publishing.open()).meaning
        warnings = (await publisher(redis.url).open()).warnings
        assert any("replication is asynchronous" in warning for warning in warnings)
        page = a_page(50)
        assert not await publishing.publish(page)
        assert arrived(replica) == ids(page), "at once"
        replica.freeze()
        with pytest.raises(BrokerUnavailable, match="replicas is 1, and so many have what was sent: 0") as outage:
            await publishing.publish(late := a_page(2, first=100))
        assert outage.value.confirmed == frozenset()
        replica.thaw()
        assert not await publisher(redis.url, replicas=1).publish(late)
        assert arrived(replica)[-2:] == ids(late)


async def test_a_server_that_can_t_say_what_is_on_disk(redis: Redis, publisher: MakePublisher) -> None:
    """Redis 7.0 knows no WAITAOF; POSTROAD_TEST_REDIS may name a server that does."""
    if redis.knows("WAITAOF"):
        with pytest.raises(BrokerUnavailable, match=r"fsync is true, .* \(appendfsync no\)"):
            await publisher(redis.url, fsync=True).open()
        redis.call("CONFIG", "SET", "appendfsync", "everysec")
        try:
            durability = await publisher(redis.url, fsync=True).open()
            assert "synced to disk (fsync)" in durability.meaning
            assert not await publisher(redis.url, fsync=True).publish(a_page(3))
        finally:
            redis.call("CONFIG", "SET", "appendfsync", "no")
    else:
        with pytest.raises(BrokerUnavailable, match="fsync is true, and the server can't confirm"):
            await publisher(redis.url, fsync=True).open()


# -- trimming --------------------------------------------------------------------------------------------------------


async def test_trimming_spares_what_was_not_acked(
    redis: Redis, publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "TRIM_SECONDS", 0.0)
    publishing, page = publisher(redis.url, max_length=100), a_page(1000)
    redis.call("XGROUP", "CREATE", STREAM, "read", "0", "MKSTREAM")
    redis.call("XGROUP", "CREATE", STREAM, "late", "0", "MKSTREAM")
    assert not await publishing.publish(page)
    read = redis.call("XREADGROUP", "GROUP", "read", "c", "COUNT", 1000, "STREAMS", STREAM, ">")[0][1]
    redis.call("XACK", STREAM, "read", *(id for id, _ in read))
    assert not await publishing.publish(a_page(1, first=2000))
    assert redis.call("XLEN", STREAM) == 1001, "one group has read nothing yet"
    got = redis.call("XREADGROUP", "GROUP", "late", "c", "COUNT", 600, "STREAMS", STREAM, ">")[0][1]
    redis.call("XACK", STREAM, "late", *(id for id, _ in got[:350]))
    assert not await publishing.publish(a_page(1, first=3000))
    first = ids(page).index(arrived(redis)[0])
    assert 200 < first <= 350, "what is pending stays, and Redis deletes whole nodes of at most a hundred"
    redis.call("XACK", STREAM, "late", *(id for id, _ in got))
    redis.call("XREADGROUP", "GROUP", "late", "c", "COUNT", 900, "NOACK", "STREAMS", STREAM, ">")
    redis.call("XREADGROUP", "GROUP", "read", "c", "COUNT", 900, "NOACK", "STREAMS", STREAM, ">")
    assert not await publishing.publish(a_page(1, first=4000))
    assert 100 <= redis.call("XLEN", STREAM) < 300


def fill(redis: Redis, count: int = 500) -> None:
    """Entries from 1970."""
    redis.call("EVAL", f"for n = 1, {count} do redis.call('XADD', KEYS[1], n .. '-0', 'data', 'old') end", 1, STREAM)


async def test_trimming_by_age_spares_what_was_not_acked(
    redis: Redis, publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "TRIM_SECONDS", 0.0)
    fill(redis)
    redis.call("XGROUP", "CREATE", STREAM, "g", "300-0")
    publishing = publisher(redis.url, max_age="1h")
    assert not await publishing.publish(a_page(1))
    assert redis.entries(STREAM)[0][0] in {"201-0", "301-0"}, "what the group has not read stays"
    redis.call("XGROUP", "SETID", STREAM, "g", "$")
    assert not await publishing.publish(a_page(1, first=2))
    assert redis.call("XLEN", STREAM) <= 102


@pytest.mark.parametrize("limit", [{"max_age": "1h"}, {"max_length": 1000}])
async def test_much_is_trimmed_with_one_page_after_the_other(
    redis: Redis, publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any]
) -> None:
    """Redis deletes 10,000 by itself, and a relay that publishes more than that in TRIM_SECONDS would never end."""
    monkeypatch.setattr(entries_module, "MOST_DELETED", 20_000)
    monkeypatch.setattr(publisher_module, "MOST_DELETED", 20_000)
    fill(redis, 50_000)
    redis.call("XGROUP", "CREATE", STREAM, "g", "$")
    publishing = publisher(redis.url, **limit)
    left = []
    for number in range(4):
        assert not await publishing.publish(a_page(1, first=number))
        left.append(redis.call("XLEN", STREAM) // 1000)
    assert left[:2] == [30, 10]
    assert left[2] <= 1, "the rest"


@pytest.mark.parametrize(
    ("limit", "command"), [({"max_age": "1h"}, "time"), ({"max_length": 10, "stream": "order.all"}, "xlen")]
)
async def test_rights_for_trimming_that_are_missing_are_said(
    redis: Redis, publisher: MakePublisher, relay_user: str, limit: dict[str, Any], command: str
) -> None:
    publishing = publisher(relay_user, **limit)
    (weak,) = [warning for warning in (await publishing.open()).warnings if "is ever deleted" in warning]
    assert weak.endswith(f"grant +xinfo +xpending +xtrim +{command}")
    redis.call("ACL", "SETUSER", "relay", "+xinfo", "+xpending", f"+{command}")
    (weak,) = [warning for warning in (await publishing.open()).warnings if "is ever deleted" in warning]
    assert weak.endswith("the user may not run xtrim; grant +xtrim")
    redis.call("ACL", "SETUSER", "relay", "+xtrim")
    assert not [warning for warning in (await publishing.open()).warnings if "is ever deleted" in warning]
    fill(redis)
    redis.call("XGROUP", "CREATE", STREAM, "g", "$")
    if "stream" not in limit:
        assert not await publishing.publish(a_page(1))
        assert redis.call("XLEN", STREAM) < 500, "these are enough"


async def test_trimming_without_regard_is_said(redis: Redis, publisher: MakePublisher) -> None:
    for limit in ({"max_length": 100}, {"max_age": "1h"}):
        redis.call("DEL", STREAM)
        fill(redis)
        publishing = publisher(redis.url, trim="all", **limit)
        (weak,) = [warning for warning in (await publishing.open()).warnings if "trim" in warning]
        assert "also those that no consumer has read" in weak
        assert not await publishing.publish([*a_page(10), *of_key("k", 10, first=100)])
        assert redis.call("XLEN", STREAM) <= 200


# -- users and TLS ---------------------------------------------------------------------------------------------------


async def test_a_password_that_is_wrong_or_changed(
    redis: Redis, publisher: MakePublisher, tmp_path: Path, relay_user: str
) -> None:
    (tmp_path / "password").write_text("wrong\n")
    publishing = publisher(redis.url, username="relay", password_file=tmp_path / "password")
    with pytest.raises(LoginRefused, match="WRONGPASS"):
        await publishing.open()
    (tmp_path / "password").write_text("secret\n")
    assert not await publishing.publish(a_page(1))
    redis.call("ACL", "SETUSER", "relay", "resetpass", ">changed")
    redis.call("CLIENT", "KILL", "USER", "relay")
    (tmp_path / "password").write_text("changed\n")
    with pytest.raises(BrokerUnavailable):
        async with asyncio.timeout(60):
            while True:  # until it has noticed that its connection has ended
                await publishing.publish([stored(2)])
                redis.call("CLIENT", "KILL", "USER", "relay")
    assert not await publishing.publish([stored(3)])


async def test_tls(redis: Redis, publisher: MakePublisher) -> None:
    files = {name: str(redis.folder / f"client-{name.partition('_')[0]}.pem") for name in ("cert_file", "key_file")}
    publishing = publisher(redis.tls_url, ca_file=str(redis.folder / "ca.pem"), **files)
    page = [stored(n, payload=b"x" * 50_000) for n in range(1, 21)]
    assert not await publishing.publish(page)
    assert arrived(redis) == ids(page)
    with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
        await publisher(redis.tls_url).open()
    with pytest.raises(BrokerUnavailable):
        await publisher(redis.url.replace("redis:", "rediss:"), connect_timeout="2s").open()


async def test_sentinels_say_where_the_master_is_also_after_a_failover(publisher: MakePublisher) -> None:
    messages = of_key("k", 20)
    with ExitStack() as stack:
        first = stack.enter_context(serving(Redis))
        replica = stack.enter_context(serving(lambda: Redis(master=first)))
        sentinel = stack.enter_context(serving(lambda: Sentinel(first)))
        sentinel.until_ready()
        it = publisher(f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}/main")
        await it.open()
        assert not await it.publish(messages[:10])
        first.until_replicated()  # what is not is lost, as the page says
        first.kill()
        sentinel.until_master(replica)
        with pytest.raises(BrokerUnavailable):  # the connection to the old master
            await it.publish(messages[10:])
        await it.open()
        assert not await it.publish(messages[10:])
        assert arrived(replica) == ids(messages)


async def test_sentinels_that_know_no_master_or_name_a_replica(redis: Redis, publisher: MakePublisher) -> None:
    with serving(lambda: Redis(master=redis)) as replica, serving(lambda: Sentinel(redis)) as sentinel:
        with pytest.raises(BrokerUnavailable, match="no sentinel names the master 'other'; .*it knows no such master"):
            await publisher(f"redis+sentinel://127.0.0.1:{sentinel.port}/other").open()
        connection = await Address(replica.url, ConnectionSettings()).connect()
        with pytest.raises(LinkLost, match="name a server that is not the master: it is a slave"):
            await check_master(connection, 60)
        await connection.close()
    with pytest.raises(BrokerUnavailable, match=r"no sentinel names the master 'main'; 127.0.0.1:\d+: .*failed"):
        await publisher(f"redis+sentinel://127.0.0.1:{free_port()}/main").open()


async def test_a_database_of_its_own(redis: Redis, publisher: MakePublisher) -> None:
    publishing = publisher(redis.url.replace("/0", "/3"))
    assert publishing.destination == f"redis://127.0.0.1:{redis.port}/3?stream={{topic}}"
    assert not await publishing.publish(a_page(1))
    assert arrived(redis) == []
    assert redis.call("INFO", "keyspace")["db3"]["keys"] == 1
    with pytest.raises(BrokerUnavailable, match="out of range"):
        await publisher(redis.url.replace("/0", "/9999")).open()


def test_settings_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="trim is 'all', and max_length and max_age are both given"):
        PublisherSettings(trim="all", max_length=1, max_age="1h")
    with pytest.raises(InvalidSetting, match="stream is '{'"):
        PublisherSettings(stream="{")
    with pytest.raises(InvalidSetting, match="partitions is 1025; it must be a whole number from 1 to 1,024"):
        PublisherSettings(partitions=1025)
