"""Processes that race for payloads: a writer that stores them elsewhere, and a sweeper. Both run until they are killed.

python -m tests.scenarios.payload_services writer|sweeper DATABASE STORE
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from datetime import timedelta

import asyncpg

from postroad import Message, Outbox
from postroad.admin import By, open_admin
from postroad.codecs import ClaimCheck, payload_store

ABOVE = 100


async def write(database: str, store: str) -> None:
    outbox = Outbox(source="/writer", codecs=[ClaimCheck(store, above=ABOVE)])
    connection = await asyncpg.connect(database)
    dice = random.Random()
    while True:
        transaction = connection.transaction()
        await transaction.start()
        messages = [Message(os.urandom(200), type="large") for _ in range(dice.randint(1, 3))]
        await outbox.add_many(connection, messages)
        await asyncio.sleep(dice.random() * 0.02)
        await (transaction.rollback if dice.random() < 0.3 else transaction.commit)()


async def sweep(database: str, store: str) -> None:
    payloads = payload_store(store)
    async with open_admin(database) as admin:
        while True:
            await admin.sweep_payloads(payloads, timedelta(0), By("sweeper", None))


if __name__ == "__main__":
    role, *where = sys.argv[1:]
    asyncio.run({"writer": write, "sweeper": sweep}[role](*where))
