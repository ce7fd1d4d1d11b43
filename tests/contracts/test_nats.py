"""What is NATS' own of a publisher: streams, duplicates, no responders, permissions, users, TLS, a cluster. On real
servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import nats as nats_py
import pytest
from cloudevents.core.bindings import common
from nats.js.api import DiscardPolicy, StreamConfig

from postroad import BrokerUnavailable, StoredMessage
from postroad.brokers.nats.answers import Answers
from postroad.brokers.nats.nkeys import Signer
from postroad.brokers.nats.publisher import NATSPublisher
from postroad.brokers.nats.settings import PublisherSettings
from postroad.errors import LoginRefused
from tests.conftest import serving
from tests.destinations import NATSDestination, a_page, jetstream_of, stored
from tests.services.kafka import make_certificates
from tests.services.nats import NATS, Node

Make = Callable[..., NATSDestination]
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"


@pytest.fixture
async def make(nats: NATS) -> AsyncIterator[Make]:
    made: list[NATSDestination] = []

    def make(**settings: Any) -> NATSDestination:
        made.append(NATSDestination(settings.pop("server", nats), **settings))
        return made[-1]

    yield make
    for destination in made:
        await destination.publisher.close()


# -- duplicates ------------------------------------------------------------------------------------------------------


async def test_what_is_published_again_within_the_window_is_stored_once(make: Make) -> None:
    """As after a crash of the relay between the confirm and its cursor."""
    destination = make()
    page = a_page(20)
    assert not await destination.publisher.publish(page[:15])
    await destination.publisher.close()  # another process begins where the cursor was saved
    assert not await destination.publisher.publish(page)
    assert await destination.arrived() == [message.id for message in page]


async def test_behind_the_window_it_is_stored_again_and_a_rewound_one_always(make: Make) -> None:
    destination = make(stream_config={"duplicate_window": 100_000_000})
    message = stored()
    rewound = msgspec.structs.replace(message, headers_json='{"source":"/tests","postroad-rewind":"r1"}')
    for each in (message, rewound, rewound):
        assert not await destination.publisher.publish([each])
    assert await destination.arrived() == [message.id] * 2
    async with asyncio.timeout(60):
        while len(await destination.arrived()) == 2:
            assert not await destination.publisher.publish([message])


# -- the form of a message -------------------------------------------------------------------------------------------


async def test_a_message_by_cloud_events_nats_binding(make: Make) -> None:
    destination = make(stream=None, declare=None, subjects=None)
    async with jetstream_of(destination.server) as jetstream:
        await jetstream.add_stream(name=destination.stream, subjects=[f"{destination.stream}.>"])
    message = stored(key="Müller 1", headers={"mine": 'a "b" 100%', "empty": ""})
    assert not await destination.publisher.publish([message])
    (found,) = await destination.stored()
    assert found.headers == {
        "ce-specversion": "1.0",
        "ce-id": str(message.id),
        "ce-source": "/tests",
        "ce-type": "order.created",
        "ce-time": "2025-01-02T03:04:05.123456Z",
        "ce-subject": "M%C3%BCller%201",
        "ce-partitionkey": "M%C3%BCller%201",
        "ce-datacontenttype": "application/json",
        "mine": "a%20%22b%22%20100%25",
        "empty": "",
        "Nats-Msg-Id": f"{message.id}/{destination.subject}",
    }
    assert common.decode_header_value("mine", found.headers["mine"]) == 'a "b" 100%'
    assert (found.subject, found.data) == (destination.subject, message.payload)


async def test_one_json_document(make: Make) -> None:
    destination = make(envelope="structured")
    assert not await destination.publisher.publish([stored()])
    (found,) = await destination.stored()
    assert (found.headers or {})["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert msgspec.json.decode(found.data or b"")["data"] == {"number": 1}


# -- refusals --------------------------------------------------------------------------------------------------------


async def test_a_message_that_is_too_large_is_refused_and_the_others_are_not(make: Make) -> None:
    destination = make(stream_config={"max_msg_size": 10_000})
    page = a_page(4)
    page[0] = stored(1, payload=b"x" * 2_000_000)  # the server would end the connection
    page[2] = stored(3, payload=b"x" * 20_000)  # the stream refuses it
    refusals = await destination.publisher.publish(page)
    assert [(each.position, each.permanent) for each in refusals] == [(1, True), (3, True)]
    assert "max_payload" in refusals[0].reason
    assert "max_msg_size" in refusals[1].reason
    assert await destination.arrived() == [page[1].id, page[3].id]


async def test_a_stream_that_is_full_blocks_its_route(make: Make) -> None:
    destination = make(stream_config={"max_msgs": 3})
    page = a_page(5)
    refusals = await destination.publisher.publish(page)
    assert [(each.position, each.route, each.permanent, each.unroutable) for each in refusals] == [
        (position, destination.subject, False, False) for position in (4, 5)
    ]
    async with jetstream_of(destination.server) as jetstream:
        await jetstream.purge_stream(destination.stream)
    assert not await destination.publisher.publish(page[3:])


async def test_what_another_program_answers_on_the_subject_is_no_confirm(make: Make, nats: NATS) -> None:
    destination = make()
    await destination.publisher.open()
    service = await nats_py.connect(nats.servers)

    async def answer(message: Any) -> None:
        await service.publish(message.reply, b"+OK")

    await service.subscribe(f"{destination.stream}.>", cb=answer)
    await service.flush()
    page = a_page(50)
    assert not await destination.publisher.publish(page)
    assert await destination.arrived() == [message.id for message in page]
    await service.close()


async def test_an_answer_that_names_no_message_does_not_end_the_connection(make: Make, nats: NATS) -> None:
    """Other programs of the account can send to any inbox."""
    publisher = make().publisher
    link = await publisher._linked()
    call = link.begin(Answers([], str))
    service = await nats_py.connect(nats.servers)
    await service.publish(f"{call.prefix}x", b"{}")
    await service.flush()
    await link.connection.flush()
    assert link.connection.lost is None
    await service.close()


async def test_a_subject_without_a_stream_is_unroutable_and_probed(make: Make) -> None:
    destination = make(stream=None, declare=None, subjects=None)
    durability = await destination.publisher.open()
    assert any("no stream takes" in warning for warning in durability.warnings)
    (refusal,) = await destination.publisher.publish([stored()])
    assert (refusal.route, refusal.unroutable) == (destination.subject, True)
    async with jetstream_of(destination.server) as jetstream:
        await jetstream.add_stream(name=destination.stream, subjects=[f"{destination.stream}.>"])
    assert not await destination.publisher.publish([stored()])


# -- streams ---------------------------------------------------------------------------------------------------------


async def test_a_stream_is_checked_or_created_or_left_alone(make: Make) -> None:
    destination = make(declare="check", subjects=None)
    with pytest.raises(BrokerUnavailable, match="there is no stream .*declare='create'"):
        await destination.publisher.open()
    async with jetstream_of(destination.server) as jetstream:
        await jetstream.add_stream(name=destination.stream, subjects=[f"{destination.stream}.>"])
    await destination.publisher.open()
    other = make(stream_config={"num_replicas": 3})
    with pytest.raises(BrokerUnavailable, match="can't be created"):
        await other.publisher.open()


async def test_messages_that_go_to_another_stream_are_an_outage_with_a_reason(make: Make) -> None:
    destination = make(stream="elsewhere", declare=None, subjects=None)
    async with jetstream_of(destination.server) as jetstream:
        await jetstream.add_stream(name=destination.stream, subjects=[f"{destination.stream}.>"])
    with pytest.raises(BrokerUnavailable, match="another stream than the setting 'stream' says"):
        await destination.publisher.publish([stored()])
    assert await destination.arrived() == []


async def test_open_warns_of_what_weakens_a_confirm(make: Make) -> None:
    destination = make()
    durability = await destination.publisher.open()
    assert "stored by one server" in durability.meaning
    assert [warning.partition(": ")[2].partition(",")[0] for warning in durability.warnings] == ["num_replicas is 1"]
    async with jetstream_of(destination.server) as jetstream:
        config = StreamConfig(name=destination.stream, subjects=[f"{destination.stream}.order.>"], max_bytes=1000)
        await jetstream.update_stream(config, discard=DiscardPolicy.OLD)
    warnings = (await destination.publisher.open()).warnings
    assert any("discard is 'old'" in warning and "max_bytes" in warning for warning in warnings)


# -- users -----------------------------------------------------------------------------------------------------------

ACCOUNTS = """
accounts {
  SHOP {
    jetstream: enabled
    users: [
      { user: shop, password: "s3cr3t" }
      { nkey: NKEY }
      { user: limited, password: "s3cr3t", permissions: { publish: { deny: ["*.order.secret", "$JS.API.>"] } } }
      { user: inbox, password: "s3cr3t", permissions: { subscribe: { allow: ["mine.>"] } } }
    ]
  }
}
"""


@pytest.fixture(scope="module")
def guarded_nats() -> Iterator[NATS]:
    with serving(lambda: NATS(config=ACCOUNTS.replace("NKEY", Signer(SEED).public))) as server:
        yield server


def publisher_to(server: NATS, user: str = "", **settings: Any) -> NATSPublisher:
    defaults: dict[str, Any] = {"subject": "s.{topic}", "confirm_timeout": "5s"}
    return NATSPublisher(server.url(user), PublisherSettings(**defaults | settings))


async def test_users_with_passwords_and_keys(guarded_nats: NATS, tmp_path: Path) -> None:
    password, key = tmp_path / "password", tmp_path / "key"
    password.write_text("wrong\n")
    key.write_text(SEED)
    stream: dict[str, Any] = {"stream": "S", "declare": "create", "subjects": ["s.>"]}
    for publisher in (
        publisher_to(guarded_nats, "shop:s3cr3t", **stream),
        publisher_to(guarded_nats, nkey_file=key, **stream),
    ):
        assert not await publisher.publish([stored()])
        await publisher.close()
    publisher = publisher_to(guarded_nats, "shop", password_file=password)
    with pytest.raises(LoginRefused, match="login was refused"):
        await publisher.open()
    password.write_text("s3cr3t\n")  # it is read anew
    await publisher.open()
    await publisher.close()
    with pytest.raises(LoginRefused):
        await publisher_to(guarded_nats).open()


async def test_a_permission_that_is_missing_blocks_one_route(guarded_nats: NATS) -> None:
    """There is no answer for it, only an error on the connection."""
    owner = publisher_to(guarded_nats, "shop:s3cr3t", stream="S", declare="create", subjects=["s.>"])
    await owner.open()
    await owner.close()
    publisher = publisher_to(guarded_nats, "limited:s3cr3t")
    assert "not known" in (await publisher.open()).meaning
    page = a_page(4)
    page[1] = stored(2, topic="order.secret")
    (refusal,) = await publisher.publish(page)
    assert (refusal.position, refusal.route, refusal.permanent) == (2, "s.order.secret", False)
    assert "Permissions Violation" in refusal.reason
    other = publisher_to(guarded_nats, "limited:s3cr3t", subject="t.{topic}")
    (refusal,) = await other.publish([stored()])
    assert (refusal.route, refusal.unroutable) == ("t.order.created", False), "it can't be asked whether it is one"
    await publisher.close()
    await other.close()


async def test_answers_need_a_subject_that_the_user_may_subscribe_to(guarded_nats: NATS) -> None:
    with pytest.raises(BrokerUnavailable, match="set inbox_prefix"):
        await publisher_to(guarded_nats, "inbox:s3cr3t").open()
    publisher = publisher_to(guarded_nats, "inbox:s3cr3t", inbox_prefix="mine")
    await publisher.open()
    await publisher.close()


@pytest.fixture(scope="module")
def tls_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NATS, Path]]:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    tls = f'cert_file: "{folder}/server-cert.pem", key_file: "{folder}/server-key.pem", ca_file: "{folder}/ca.pem"'
    with serving(lambda: NATS(config=f"tls {{ {tls}, verify: true }}\n")) as server:
        yield server, folder


async def test_tls_with_certificates_of_both_sides(tls_nats: tuple[NATS, Path]) -> None:
    server, folder = tls_nats
    files = {"ca_file": "ca.pem", "cert_file": "client-cert.pem", "key_file": "client-key.pem"}
    given: dict[str, Any] = {name: str(folder / file) for name, file in files.items()}
    stream: dict[str, Any] = {"stream": "S", "declare": "create", "subjects": ["s.>"], "subject": "s.{topic}"}
    for scheme in ("tls", "nats"):  # a server that requires TLS gets it
        publisher = NATSPublisher(server.url(scheme=scheme, host="localhost"), PublisherSettings(**given, **stream))
        page = [stored(position, payload=b"x" * 50_000) for position in range(1, 40)]
        assert not await publisher.publish(page)
        await publisher.close()
    with pytest.raises(BrokerUnavailable, match="certificate"):
        await NATSPublisher(server.url(scheme="tls", host="localhost")).open()
    with pytest.raises(BrokerUnavailable):
        await NATSPublisher(
            server.url(scheme="tls", host="localhost"), PublisherSettings(ca_file=given["ca_file"])
        ).open()


async def test_a_server_without_tls_is_not_spoken_to_in_the_clear(nats: NATS) -> None:
    with pytest.raises(BrokerUnavailable, match="the server has no TLS"):
        await NATSPublisher(nats.url(scheme="tls")).open()


# -- outages ---------------------------------------------------------------------------------------------------------


async def test_without_a_server(unused_tcp_port: int) -> None:
    with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{unused_tcp_port}"):
        await NATSPublisher(f"nats://127.0.0.1:{unused_tcp_port}").open()


async def test_a_silent_server_is_an_outage_in_which_nothing_is_suspected(make: Make) -> None:
    destination = make(confirm_timeout="1s")
    await destination.publisher.publish([stored(100)])
    destination.server.freeze()
    with pytest.raises(BrokerUnavailable, match="confirmed nothing for 1 seconds") as outage:
        await destination.publisher.publish(a_page(3))
    assert not outage.value.suspicious
    destination.server.start()


async def test_calls_that_share_a_connection_share_its_end(make: Make) -> None:
    destination = make(confirm_timeout="60s")
    await destination.publisher.open()
    destination.server.freeze()
    calls = [asyncio.create_task(destination.publisher.publish(a_page(3, first=n))) for n in (1, 10)]
    await asyncio.sleep(0)
    await destination.publisher.close()
    for call in calls:
        with pytest.raises(BrokerUnavailable):
            await asyncio.wait_for(call, 60)
    destination.server.start()


# -- a cluster -------------------------------------------------------------------------------------------------------


async def test_the_leader_is_killed_while_pages_are_published(make: Make, nats3: NATS) -> None:
    """Nothing that was confirmed is lost; what is sent again within the window is stored once, and keys stay in
    order.
    """
    destination = make(server=nats3, stream_config={"num_replicas": 3}, confirm_timeout="8s")
    assert "a majority of 3" in (await destination.publisher.open()).meaning
    for number in range(30):
        page = [stored(1 + number * 20 + each, key=f"k{each}") for each in range(20)]
        sending = asyncio.create_task(published(destination, page))
        if number == 10:
            await asyncio.to_thread((await leader_of(destination)).kill)
        await asyncio.wait_for(sending, 120)
    nats3.start()
    found = await destination.stored()
    numbers = [msgspec.json.decode(message.data or b"")["number"] for message in found]
    assert sorted(numbers) == list(range(1, 601)), "each once"
    for key in range(20):
        of_key = [number for number in numbers if (number - 1) % 20 == key]
        assert of_key == sorted(of_key)


async def leader_of(destination: NATSDestination) -> Node:
    async with jetstream_of(destination.server) as jetstream:
        cluster = (await jetstream.stream_info(destination.stream)).cluster
    assert cluster is not None
    return destination.server.node(str(cluster.leader))


async def published(destination: NATSDestination, missing: list[StoredMessage]) -> None:
    """Publish as a relay does: what was not confirmed again, after an outage."""
    while missing:
        try:
            refusals = await destination.publisher.publish(missing)
        except BrokerUnavailable as outage:
            refusals = outage.refusals
            missing = [message for message in missing if message.position not in outage.confirmed]
            await asyncio.sleep(0.1)
        else:
            missing = []
        assert not refusals, "a lost leader is no missing stream"
