"""What an operator's shift has: a log, a broker, relays as processes, and consoles in a browser."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from postroad import Message
from postroad.message import new_id
from tests.browser.operators import operator
from tests.destinations import bound_queue, rabbitmq_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from playwright.async_api import Browser

    from tests.browser.operators import Operator
    from tests.logs import PostgreSQLLog
    from tests.services.rabbitmq import RabbitMQ

SECONDS = 120
QUEUE = "orders"
ORDER = "order.created"


class Shift:
    """The servers of one test."""

    def __init__(self, browser: Browser, log: PostgreSQLLog, rabbitmq: RabbitMQ, vhost: str, folder: Path) -> None:
        self.browser = browser
        self.log = log
        self.rabbitmq = rabbitmq
        self.vhost = vhost
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")} | {
            "POSTROAD_DATABASE": log.url, "POSTROAD_TO": vhost, "PYTHONPATH": os.pathsep.join(map(str, sys.path)),
        }  # fmt: skip

    @asynccontextmanager
    async def operator(self, **options: Any) -> AsyncIterator[Operator]:
        """Anna, an admin, unless the options say something else."""
        async with operator(self.browser, self.log.url, **options) as someone:
            yield someone

    async def add(self, payload: Any = "{}", *, type: str = ORDER, **more: Any) -> str:
        """The id of a new message."""
        id = new_id()
        await self.log.add(Message(payload, type=type, id=id, **more))
        return str(id)

    async def bind(self, topic: str = ORDER, queue: str = QUEUE) -> None:
        async with rabbitmq_channel(self.vhost) as channel:
            await bound_queue(channel, queue, topic)

    async def arrived(self, number: int, queue: str = QUEUE) -> list[str]:
        """The ids of so many messages, as soon as RabbitMQ has them; it does not have them any more then."""
        ids: list[str] = []
        async with rabbitmq_channel(self.vhost) as channel, asyncio.timeout(SECONDS):
            taken = await channel.declare_queue(queue, passive=True)
            async with taken.iterator() as messages:
                while len(ids) < number:
                    message = await anext(messages)
                    ids.append(str(message.message_id))
                    await message.ack()
        return ids

    def postroad(self, *arguments: str) -> str:
        """What a colleague types."""
        done = subprocess.run(
            [sys.executable, "-m", "postroad", *arguments], env=self.environment, cwd=self.folder,
            capture_output=True, text=True, check=False, timeout=SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, command: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command such as `postroad relay` as a process, which is killed at the end."""
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *shlex.split(command)],
                env=self.environment, cwd=self.folder, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def relay(self, options: str = "") -> Any:
        """A relay with two lanes, whose leases are short."""
        return self.running(f"postroad relay --lanes 2 --lease 3s {options}")
