"""One of several instances, which share the backlog of messages to recipients.

    python -m examples.parcels.instance

The destination is a function in this process. It deduplicates nothing, so every call of it counts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import msgspec
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.parcels.parcels import DATABASE, ParcelChanged, Text
from postroad import LocalPublisher, Relay, RelaySettings, StoredMessage, store_for

INSTANCE = os.environ.get("INSTANCE", "instance")
SETTINGS = RelaySettings(lanes=6, lease="8s", max_attempts=2)
Session = async_sessionmaker(create_async_engine(DATABASE.replace("postgresql:", "postgresql+asyncpg:")))


async def send_text(message: StoredMessage) -> None:
    event = msgspec.json.decode(message.payload, type=ParcelChanged)
    if event.phone is None:
        raise ValueError(f"parcel {event.parcel} has no phone number")
    async with Session.begin() as session:
        session.add(Text(str(message.id), INSTANCE))


async def main() -> None:
    relay = Relay(store_for(DATABASE), LocalPublisher(send_text), sink="texts", settings=SETTINGS)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stop)
    await relay.run()


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(levelname)-7s %(message)s")
    asyncio.run(main())
