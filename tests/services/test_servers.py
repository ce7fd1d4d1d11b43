"""The servers that other tests rely on do what those tests assume."""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiormq
import asyncpg
import pytest

from tests import conftest
from tests.services.guardian import processes_in
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ
from tests.services.redis import Redis, answers
from tests.services.server import Server, ServerMissing


async def query(url: str, sql: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def publish(url: str, body: bytes) -> None:
    """Publish durably, and wait for the confirm."""
    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel()
        await channel.queue_declare("letters", durable=True)
        persistent = aiormq.spec.Basic.Properties(delivery_mode=2)
        await channel.basic_publish(body, routing_key="letters", properties=persistent, mandatory=True)
    finally:
        await connection.close()


async def take(url: str) -> bytes:
    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel()
        return (await channel.basic_get("letters", no_ack=True)).body
    finally:
        await connection.close()


def processes_of(server: Server) -> list[int]:
    return processes_in([server.folder])


class TestPostgreSQL:
    async def test_it_is_the_version_asked_for(self, postgresql: PostgreSQL, database: str) -> None:
        assert str(await query(database, "show server_version")).startswith(postgresql.server_version)

    async def test_both_versions_are_there(self, postgresql15: PostgreSQL, postgresql18: PostgreSQL) -> None:
        assert postgresql15.server_version.startswith("15.")
        assert postgresql18.server_version.startswith("18.")

    async def test_settings(self, database: str) -> None:
        expected = {"fsync": "off", "synchronous_commit": "on", "max_connections": "200"}
        expected["max_prepared_transactions"] = "20"
        assert {name: await query(database, f"show {name}") for name in expected} == expected

    async def test_databases_are_apart(self, postgresql: PostgreSQL, database: str) -> None:
        other = postgresql.create_database()
        await query(database, "create table letters ()")
        assert await query(other, "select to_regclass('letters')") is None
        postgresql.drop_database(other)

    async def test_restart_keeps_what_was_committed(self, postgresql: PostgreSQL, database: str) -> None:
        await query(database, "create table letters as select 7 as number")
        postgresql.restart()
        assert await query(database, "select number from letters") == 7

    async def test_crash_recovers_what_was_committed(self, postgresql: PostgreSQL, database: str) -> None:
        log = postgresql.folder / "log"
        await query(database, "create table letters as select 7 as number")
        recoveries = log.read_text().count("automatic recovery in progress")
        postgresql.crash()
        postgresql.start()
        assert log.read_text().count("automatic recovery in progress") == recoveries + 1
        assert await query(database, "select number from letters") == 7

    async def test_stop_refuses_connections(self, postgresql: PostgreSQL, database: str) -> None:
        postgresql.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncpg.connect(database)
        postgresql.start()

    async def test_standby_follows_in_recovery(self, postgresql: PostgreSQL, database: str) -> None:
        with postgresql.standby() as standby:
            on_standby = standby.url(database.rpartition("/")[2])
            assert await query(standby.url(), "select pg_is_in_recovery()") is True
            assert await query(postgresql.url(), "select pg_is_in_recovery()") is False
            await query(database, "create table letters ()")
            async with asyncio.timeout(60):
                while await query(on_standby, "select to_regclass('letters')::text") is None:
                    pass  # asking takes a moment
        assert processes_of(standby) == []

    async def test_dump_and_restore(self, postgresql: PostgreSQL, database: str) -> None:
        await query(database, "create table letters as select 7 as number")
        other = postgresql.create_database()
        postgresql.restore(other, postgresql.dump(database))
        assert await query(other, "select number from letters") == 7
        postgresql.drop_database(other)

    async def test_drop_takes_connections_and_prepared_transactions_with_it(self, postgresql: PostgreSQL) -> None:
        url = postgresql.create_database()
        connection = await asyncpg.connect(url)
        await connection.execute("begin; create table letters (); prepare transaction 'left behind'")
        postgresql.drop_database(url)
        with pytest.raises(asyncpg.InvalidCatalogNameError):
            await asyncpg.connect(url)
        connection.terminate()

    async def test_nothing_is_left_after_it_closes(self) -> None:
        with conftest.serving(lambda: PostgreSQL(18)) as server:
            assert processes_of(server)
        assert processes_of(server) == []
        assert not server.folder.exists()

    def test_a_version_that_is_not_there(self) -> None:
        with pytest.raises(ServerMissing, match="PostgreSQL 9 is not installed"):
            PostgreSQL(9)


class TestRabbitMQ:
    async def test_confirmed_message_arrives(self, vhost: str) -> None:
        await publish(vhost, b"hello")
        assert await take(vhost) == b"hello"

    async def test_virtual_hosts_are_apart(self, rabbitmq: RabbitMQ, vhost: str) -> None:
        await publish(vhost, b"hello")
        other = rabbitmq.create_vhost()
        with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity):
            await take(other)
        rabbitmq.delete_vhost(other)

    @pytest.mark.parametrize("end", ["stop", "kill"])
    async def test_restart_keeps_what_was_confirmed(self, rabbitmq: RabbitMQ, vhost: str, end: str) -> None:
        await publish(vhost, b"hello")
        if end == "kill":
            rabbitmq.ctl("eval", "mnesia:sync_log().")  # RabbitMQ confirms messages, and not that a queue is on disk
            rabbitmq.kill()
        else:
            rabbitmq.stop()
        with pytest.raises(aiormq.exceptions.AMQPConnectionError):
            await aiormq.connect(vhost)
        rabbitmq.start()
        assert await take(vhost) == b"hello"

    async def test_blocked_publisher_goes_on_when_unblocked(self, rabbitmq: RabbitMQ, vhost: str) -> None:
        rabbitmq.block()
        publishing = asyncio.create_task(publish(vhost, b"hello"))
        async with asyncio.timeout(60):
            while "blocked" not in await asyncio.to_thread(rabbitmq.ctl, "list_connections", "state"):
                assert not publishing.done()  # to ask takes half a second
        assert not publishing.done()
        rabbitmq.unblock()
        await asyncio.wait_for(publishing, 60)
        assert await take(vhost) == b"hello"

    def test_ctl(self, rabbitmq: RabbitMQ, vhost: str) -> None:
        assert vhost.rpartition("/")[2] in rabbitmq.ctl("list_vhosts")

    def test_nothing_is_left_after_it_closes(self) -> None:
        with conftest.serving(RabbitMQ) as server:
            assert processes_of(server)
        assert processes_of(server) == []
        assert not server.folder.exists()


def test_redis_starts_answers_and_ends(redis: Redis) -> None:
    assert redis.running
    assert answers(redis.port)
    redis.stop()
    assert not answers(redis.port)
    redis.start()
    assert answers(redis.port)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_servers_do_not_outlive_a_test_process_that_is_killed(redis: Redis, how: signal.Signals) -> None:
    """`redis` is asked for because it is there then."""
    start = "from tests.services.redis import Redis; server = Redis(); server.start(); print(server.folder, flush=True)"
    with subprocess.Popen([sys.executable, "-c", f"{start}; input()"], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert processes_in([folder])
        process.send_signal(how)
    deadline = time.monotonic() + 60
    while folder.exists() or processes_in([folder]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
