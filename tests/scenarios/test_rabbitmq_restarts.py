"""From PostgreSQL to RabbitMQ while one or the other goes away underway: everything arrives, and each key in order.

The relay is a process of its own. What arrives twice is counted, and the relay's log, or the cursor that it had saved,
must say why.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.conftest import serving
from tests.logs import PostgreSQLLog, log_fixture
from tests.queues import arrivals, with_queue
from tests.relays import Place, Span, frozen_in_a_page, relay
from tests.services.rabbitmq import RabbitMQ
from tests.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


UNTIL_EMPTY = "--until-empty"
PATIENT = ("--lease", "1h", "--grace", "2m")  # a busy machine costs no lane, and no confirm


log = log_fixture("postgresql15")


async def places(log: PostgreSQLLog, numbers: Sequence[int]) -> list[Place]:
    rows = await log.execute(
        """
        select convert_from(payload, 'utf8')::int, lanes.lane, outbox.position, lanes.position
          from postroad.outbox join postroad.lanes on slot between first_slot and last_slot
         where payload = any($1)
        """,
        [b"%d" % number for number in numbers],
    )
    assert len(rows) == len(numbers)
    return [Place(*row) for row in rows]


def report(text: str) -> None:
    """What a test has counted; `pytest -rP` shows it."""
    print(text)  # noqa: T201


# -- the scenarios ---------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[RabbitMQ]:
    """One of its own, because it is restarted and killed."""
    with serving(RabbitMQ) as server:
        yield server


async def test_the_broker_is_restarted_and_killed(log: PostgreSQLLog, server: RabbitMQ, tmp_path: Path) -> None:
    """Twice may come what was sent and not confirmed when the broker went away, and nothing else."""
    traffic = Traffic(100_000, keys=400)
    await with_queue(server.url())
    await traffic.add_to(log)
    with relay(log, server.url(), tmp_path / "log", UNTIL_EMPTY, "--until-empty-timeout", "10m", *PATIENT) as running:
        await running.until(25_000)
        assert not running.interrupted()
        await asyncio.to_thread(server.restart)
        await running.until_logged("broker_recovered")
        once = running.interrupted()
        assert once
        await running.until(60_000)
        await frozen_in_a_page(running)
        await asyncio.to_thread(server.kill)
        running.process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(server.start)
        assert await running.ended() == 0
    assert await log.waiting() == 0
    (end,) = running.logged("relay_ended")
    assert end["published"] == traffic.count
    assert not running.logged(
        "message_refused", "message_dead", "route_blocked", "lane_lost", "lane_reloaded", "store_unavailable"
    )
    under_way = running.interrupted()
    assert len(under_way) > len(once)

    again = traffic.check(await arrivals(server.url()))
    waves: Counter[tuple[Span, str]] = Counter()
    for place in await places(log, list(again)):
        (page,) = [each for each in under_way if each.holds(place)]
        if key := traffic.key_of(place.number):
            waves[page, key] += 1
    # In each outage only one wave of a page was under way, and a wave has no two messages of a key.
    assert all(messages <= under_way[page] for (page, _), messages in waves.items())
    report(
        f"{traffic.count:,} arrived, {again.total()} of them again; "
        f"{len(under_way)} pages were under way when the broker went away"
    )


@pytest.mark.parametrize("keys", [0, 400])
async def test_a_relay_that_is_asked_to_stop_sends_nothing_again(
    log: PostgreSQLLog, vhost: str, tmp_path: Path, keys: int
) -> None:
    traffic = Traffic(20_000, keys)
    await with_queue(vhost)
    await traffic.add_to(log)
    # Nothing is saved in time, so it must be done when the relay stops.
    with relay(log, vhost, tmp_path / "first", UNTIL_EMPTY, "--settle-interval", "1h", *PATIENT) as running:
        await running.until(1)
        assert await running.ended_by(signal.SIGTERM) == 0
    left = await log.waiting()
    assert 0 < left < traffic.count
    with relay(log, vhost, tmp_path / "second", UNTIL_EMPTY) as running:
        assert await running.ended() == 0
    assert await log.waiting() == 0
    again = traffic.check(await arrivals(vhost))
    report(f"{traffic.count:,} arrived, {again.total()} of them again; {left:,} were left to the second relay")
    assert not again


async def test_a_relay_that_is_killed_sends_again_what_it_had_not_saved(
    log: PostgreSQLLog, vhost: str, tmp_path: Path
) -> None:
    traffic = Traffic(20_000, keys=400)
    await with_queue(vhost)
    await traffic.add_to(log)
    with relay(log, vhost, tmp_path / "first", UNTIL_EMPTY) as running:
        await running.until(5_000)
        assert await running.ended_by(signal.SIGKILL) == -signal.SIGKILL
    saved = {place.lane: place.saved for place in await places(log, range(1, traffic.count + 1))}
    with relay(log, vhost, tmp_path / "second", UNTIL_EMPTY) as running:
        assert await running.ended() == 0
    assert await log.waiting() == 0
    again = traffic.check(await arrivals(vhost))
    report(f"{traffic.count:,} arrived, {again.total()} of them again")
    assert all(place.position > saved[place.lane] for place in await places(log, list(again)))
    assert set(again.values()) <= {1}
