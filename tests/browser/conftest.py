"""A shift: a shop's log in PostgreSQL, a virtual host in RabbitMQ, relays, and operators at consoles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser

from tests.browser.shift import Shift
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ


@pytest_asyncio.fixture(loop_scope="session")
async def shift(
    browser: Browser, postgresql15: PostgreSQL, rabbitmq: RabbitMQ, vhost: str, tmp_path: Path
) -> AsyncIterator[Shift]:
    log = await PostgreSQLLog.fresh(postgresql15)
    try:
        yield Shift(browser, log, rabbitmq, vhost, tmp_path)
    finally:
        await log.close()
