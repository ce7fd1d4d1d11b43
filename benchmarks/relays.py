"""relays: one, two and four relays over one backlog: how it grows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aio_pika

from benchmarks.backlog import create_log, fill_sql
from benchmarks.payload import transactions
from benchmarks.rabbitmq_yardsticks import bound_queue
from benchmarks.sections import Plan, Section, median, spread
from benchmarks.team import Team
from tests.services.rabbitmq import RabbitMQ
from tests.services.server import ServerMissing

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL

RELAYS = (1, 2, 4)
SLOW = "a publisher that takes 5 ms per page"


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(50_000, quick=10_000)
    header = ["", *(f"{count} relay{'s' * (count > 1)}" for count in RELAYS)]
    section = Section("relays", f"{messages:,} messages, several relays, 4 lanes: messages/s", header)
    _measure(section, plan.rounds(), messages, server=server, name=SLOW, to="slow://")
    try:
        broker = RabbitMQ()
    except ServerMissing as missing:
        section.notes.append(f"RabbitMQ left out: {missing}")
        return section
    with broker:
        asyncio.run(_queue(broker.url()))
        _measure(section, plan.rounds(), messages, server=server, name="RabbitMQ", to=broker.url())
    section.notes.append("The relays, the databases and the broker share the machine's cores.")
    return section


def _measure(section: Section, rounds: int, messages: int, *, server: PostgreSQL, name: str, to: str) -> None:
    rates: dict[int, list[float]] = {count: [] for count in RELAYS}
    for _ in range(rounds):
        for count in RELAYS:
            url = create_log(server)
            rates[count].append(asyncio.run(_rate(url, to, count, messages)))
            server.drop_database(url)
    section.rows.append([name, *(spread(each) for each in rates.values())])
    section.notes.append(f"{name}: 4 relays {median(rates[4]) / median(rates[1]):.1f} x as fast as one")
    section.raw[name] = {str(count): each for count, each in rates.items()}


async def _rate(url: str, to: str, relays: int, messages: int) -> float:
    async with Team(url, "team", to, relays) as team:
        committed, last = await team.fill([fill_sql(*each) for each in transactions(messages)])
        return messages / (await team.until_passed(last) - committed)


async def _queue(url: str) -> None:
    async with await aio_pika.connect(url) as connection:
        await bound_queue(connection)
