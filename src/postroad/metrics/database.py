"""Metrics from the database: read at most every 10 seconds, however many scrape, and not at all while none does.

- A reading takes a bounded number of index look-ups (`Admin.numbers`), on a connection of its own.
- When the database is unavailable, or hangs, the last values stay, and `exporter_last_success_timestamp_seconds` stands
  still.
- Exporters that can't await (prometheus_client, OpenTelemetry) get the last reading, and cause the next one.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from postroad.admin import open_admin
from postroad.config import DEFAULT_SCHEMA
from postroad.errors import PostroadError
from postroad.events import MetricsUnavailable
from postroad.listeners import tell

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.admin import Admin, DatabaseNumbers

__all__ = ["DatabaseReader"]

EVERY_SECONDS: Final = 10.0
TIMEOUT_SECONDS: Final = 5.0
"""How long a reading may take."""
PATIENCE_SECONDS: Final = 2.0
"""How long a scrape waits for one. Prometheus gives up after 10 seconds, unless told otherwise."""
_SUCCESS: Final = "postroad_exporter_last_success_timestamp_seconds"
_Values = dict[tuple[str, ...], float]


class DatabaseReader:
    """Reads one database. Use it with `async with`, in the event loop that it is to read in."""

    def __init__(
        self, database: str, *, schema: str = DEFAULT_SCHEMA, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`database` is its URL. The role needs what a relay or a reader has."""
        self._database = database
        self._schema = schema
        self._monotonic = monotonic
        self._admin: Admin | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading: asyncio.Task[None] | None = None
        self._tried_at = float("-inf")
        self._values: dict[str, _Values] = {_SUCCESS: {(): 0}}
        self._unavailable = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop = None
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))
        await self._disconnect()

    def values(self) -> dict[str, _Values]:
        """The last reading: values by metric and labels. If it is old, the next one is caused. From any thread."""
        last = self._values  # before the next one is caused, which may be there at once
        if self._is_due() and (loop := self._loop) is not None:
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(self._begin)
        return last

    async def refresh(self) -> None:
        """Wait for a reading if the last one is old, 2 seconds at most: one that takes longer goes on. Never raises."""
        if self._is_due():
            self._begin()
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=PATIENCE_SECONDS)

    def _is_due(self) -> bool:
        return self._monotonic() - self._tried_at >= EVERY_SECONDS

    def _begin(self) -> None:
        if self._loop is not None and self._is_due() and (self._reading is None or self._reading.done()):
            self._tried_at = self._monotonic()
            self._reading = asyncio.create_task(self._read(), name="postroad metrics of the database")

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                numbers = await (await self._connect()).numbers()
        except Exception as error:  # whatever it is, it must not end the relay beside it
            await self._disconnect()
            if not self._unavailable:
                self._unavailable = True
                reason = str(error) if isinstance(error, PostroadError) else repr(error)
                tell(MetricsUnavailable(reason=reason))
        else:
            self._unavailable = False
            self._values = _values(numbers, time.time())

    async def _connect(self) -> Admin:
        if self._admin is None:
            admin = open_admin(self._database, schema=self._schema, connections=1)
            self._admin = await admin.__aenter__()
        return self._admin

    async def _disconnect(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            with suppress(Exception):  # the connection may be broken, which is why it is closed
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await admin.__aexit__(None, None, None)


def _values(numbers: DatabaseNumbers, now: float) -> dict[str, _Values]:
    """Values by metric and labels. Pure."""
    sinks = numbers.sinks
    return {
        "postroad_outbox_pending_messages": {
            (sink.sink, str(lane.lane)): lane.pending for sink in sinks for lane in sink.lanes
        },
        "postroad_outbox_lag_seconds": {
            (sink.sink, str(lane.lane)): lane.lag_seconds for sink in sinks for lane in sink.lanes
        },
        "postroad_outbox_oldest_unsent_age_seconds": {(sink.sink,): sink.oldest_unsent_seconds for sink in sinks},
        "postroad_sink_paused": {(sink.sink,): int(sink.paused) for sink in sinks},
        "postroad_held_keys": {(sink.sink,): sink.held_keys for sink in sinks},
        "postroad_outbox_deferred_messages": {
            (sink.sink, state.value): number for sink in sinks for state, number in sink.deferred.items()
        },
        "postroad_relays": {(sink.sink, state): number for sink in sinks for state, number in sink.relays.items()},
        "postroad_outbox_log_position": {(): numbers.log_position},
        "postroad_scheduled_messages": {(): numbers.scheduled},
        "postroad_scheduled_overdue_seconds": {(): numbers.overdue_seconds},
        "postroad_outbox_oldest_row_age_seconds": {(): numbers.oldest_row_seconds},
        "postroad_table_bytes": {(table,): size for table, size in numbers.table_bytes.items()},
        _SUCCESS: {(): now},
    }
