"""The worker. Start as many as you like: the one that holds PostgreSQL's advisory lock 42 publishes, others stand by.

    python -m examples.ticketflow.worker

For RabbitMQ alone, `postroad relay --lock-id 42 --rabbitmq-exchange ticketflow.events` does the same. This worker has a
publisher of its own around RabbitMQ's, which refuses some messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING

import asyncpg
import msgspec

from postroad import BrokerUnavailable, Refusal, Relay, RelaySettings, store_for
from postroad.brokers import publisher_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad import StoredMessage
    from postroad.brokers.base import Durability, Publisher

DATABASE = os.environ.get("DATABASE", "postgresql://localhost/ticketflow")
BROKER = os.environ.get("BROKER", "amqp://localhost")
EXCHANGE = "ticketflow.events"
SETTINGS = RelaySettings(lock_id=42, max_attempts=3, dead_letter_topic="ticketflow.dead")


class KnownAgents:
    """Publishes what another publisher publishes, but refuses assignments to agents that the directory does not have.

    A refusal counts as an attempt of that message. Other messages go on.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.name = publisher.name
        self.destination = publisher.destination

    async def open(self) -> Durability | None:
        return await self._publisher.open()

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        agents = {each.position: agent_of(each) for each in messages if each.topic == "ticket.assigned"}
        known = await agents_in_directory() if agents else set()
        refusals = [
            Refusal(position, f"agent {agent!r} is not in the directory")
            for position, agent in agents.items()
            if agent not in known
        ]
        refused = {each.position for each in refusals}
        sent = [each for each in messages if each.position not in refused]
        return [*refusals, *(await self._publisher.publish(sent) if sent else ())]

    async def close(self) -> None:
        await self._publisher.close()


def agent_of(message: StoredMessage) -> str:
    return msgspec.json.decode(message.payload, type=dict[str, str | int])["agent"]  # type: ignore[return-value]


async def agents_in_directory() -> set[str]:
    try:
        connection = await asyncpg.connect(DATABASE)
        try:
            return {row["name"] for row in await connection.fetch("select name from agents")}
        finally:
            await connection.close()
    except (OSError, asyncpg.PostgresError) as error:  # an outage: messages wait, and no attempt is counted
        raise BrokerUnavailable(f"the directory can't be read: {error}") from error


async def main() -> None:
    publisher = KnownAgents(publisher_for(BROKER, exchange=EXCHANGE))
    relay = Relay(store_for(DATABASE), publisher, settings=SETTINGS)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stop)
    await relay.run()


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)-7s %(message)s")
    logging.getLogger("postroad").setLevel(os.environ.get("LOG_LEVEL", "INFO"))
    asyncio.run(main())
