"""Keeps open the session by which other relays see at once that this relay died, and reopens it when it is lost.

A relay waits only briefly for it: without it the relay works too, and its lease alone decides.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.errors import InvalidSetting, LogNotReadable, NotMigrated, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from postroad.listeners import Listeners
    from postroad.relay.clock import Clock
    from postroad.relay.store_outages import StoreOutages
    from postroad.stores.leases import Leases, LivenessLock, RelayIdentity

__all__ = ["LivenessSession"]

LONGEST_TIMEOUT: Final = 3.0


class LivenessSession:
    """Keeps a relay's session open, where the store has sessions. With `lock_id`, it also tries to get that lock."""

    def __init__(
        self,
        leases: Leases,
        identity: RelayIdentity,
        lock_id: int | None,
        listeners: Listeners,
        outages: StoreOutages,
        *,
        clock: Clock,
        on_change: Callable[[], None],
        retry_seconds: float,
    ) -> None:
        """`on_change` is called when lanes or relays have changed, and when the session was lost."""
        self._leases = leases
        self._identity = identity
        self._lock_id = lock_id
        self._listeners = listeners
        self._outages = outages
        self._clock = clock
        self._on_change = on_change
        self._retry_seconds = retry_seconds
        self._timeout = min(LONGEST_TIMEOUT, retry_seconds * 3 / 4)
        self._open_at = float("-inf")
        self._reported: bool | None = None
        """Whether the last event said that this relay holds the lock `lock_id`; None: no event yet."""
        self.lock: LivenessLock | None = None

    @property
    def may_work(self) -> bool:
        """False when there is a `lock_id` and this relay does not hold the lock."""
        return self._lock_id is None or (self.lock is not None and self.lock.held)

    def notice_loss(self) -> bool:
        """Whether the session was lost since the last call."""
        if self.lock is None or not self.lock.lost:
            return False
        self.drop()
        return True

    def drop(self) -> None:
        """Close the session. `keep_open` opens another one at once."""
        if self.lock is not None:
            self.lock.close()
        self.lock = None
        self._open_at = float("-inf")

    async def keep_open(self) -> None:
        """Open the session, if there is none; try to get the lock, if another relay had it."""
        if self.lock is None and self._clock.now() >= self._open_at:
            await self._in_time(self._open())
        elif self.lock is not None and not self.lock.held:
            await self._in_time(self.lock.acquire())
        await self._in_time(self._report())

    def close(self) -> None:
        """Release the lock and end the session."""
        self.drop()
        if self._reported:
            self._report_released()

    async def _in_time(self, step: Awaitable[object]) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await step
        except (StoreUnavailable, LogNotReadable, NotMigrated) as error:
            self._retry_later(error)
        except TimeoutError:  # not transient: `direct` may lead elsewhere than `database`, which may be available
            self._retry_later(
                StoreUnavailable(f"it did not answer within {self._timeout:g} s (at `direct`, if that is set)")
            )
        else:
            self._outages.worked("liveness session")

    def _retry_later(self, error: Exception) -> None:
        self.drop()
        self._open_at = self._clock.now() + self._retry_seconds
        self._outages.failed("liveness session", error, self._retry_seconds)

    async def _open(self) -> None:
        self.lock = await self._leases.open_session(self._identity, self._lock_id, self._on_change)
        if self.lock is None:
            self._open_at = float("inf")
            if self._lock_id is not None:
                raise InvalidSetting(
                    f"lock_id is {self._lock_id}, and this connection has no session that could hold a lock; "
                    "it must be to a PostgreSQL server, and not through a pooler"
                )

    async def _report(self) -> None:
        if self._lock_id is None or self.may_work is self._reported:
            return
        if self._reported:
            self._report_released()
        if self.may_work:
            self._reported = True
            self._listeners.emit(events.LockTaken(self._identity.sink, lock_id=self._lock_id))
        elif self.lock is not None and (holder := await self.lock.holder()) is not None:
            self._reported = False
            self._listeners.emit(events.LockHeldByOther(self._identity.sink, lock_id=self._lock_id, holder=holder))

    def _report_released(self) -> None:
        assert self._lock_id is not None  # noqa: S101 - otherwise nothing was reported
        self._reported = None
        self._listeners.emit(events.LockReleased(self._identity.sink, lock_id=self._lock_id))
