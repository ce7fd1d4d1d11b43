"""An application with a relay in each of its workers, as `uvicorn tests.application:app --workers 4` runs it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from postroad.brokers import publisher_for
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores import store_for


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    relay = Relay(
        store_for(os.environ["POSTROAD_DATABASE"]),
        publisher_for(os.environ["POSTROAD_TO"]),
        settings=RelaySettings(lease="1h"),  # only the lock can tell that a worker died
    )
    async with relay:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/pid")
async def pid() -> int:
    return os.getpid()
