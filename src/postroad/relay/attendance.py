"""The session by which others see at once that this relay died: opened, lost, opened again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad import events
from postroad.errors import InvalidSetting, StoreUnavailable
from postroad.events import tell

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.relay.clock import Clock
    from postroad.stores.leases import Leases, Presence, Runner

__all__ = ["Attendance"]


class Attendance:
    """Keeps a relay's session open, where there is such a thing. Without it the lease alone decides."""

    def __init__(
        self, leases: Leases, runner: Runner, lock_id: int | None, *, clock: Clock, retry_seconds: float
    ) -> None:
        self._leases = leases
        self._runner = runner
        self._lock_id = lock_id
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._try_at = float("-inf")
        self._told = False
        """It was said that this relay has the lock of everybody's."""
        self.presence: Presence | None = None

    @property
    def may_work(self) -> bool:
        """Unless only one relay is to work at a time, and this is not the one."""
        return self._lock_id is None or (self.presence is not None and self.presence.holds)

    def notice_loss(self) -> bool:
        """Whether the session was lost since this was asked last."""
        if self.presence is None or not self.presence.lost:
            return False
        self.presence = None
        self._try_at = float("-inf")
        return True

    async def keep(self, stirred: Callable[[], None]) -> None:
        """Open the session, if there is none; with a lock of everybody's, try to get it."""
        if self.presence is None and self._clock.now() >= self._try_at:
            await self._open(stirred)
        elif self.presence is not None and not self.presence.holds:
            await self.presence.lock()
        if self._lock_id is not None and self.may_work != self._told:
            self._told = self.may_work
            if self._told:
                tell(events.LockTaken(self._runner.sink, lock_id=self._lock_id))

    def close(self) -> None:
        """Let go of the lock."""
        if self.presence is not None:
            self.presence.close()

    async def _open(self, stirred: Callable[[], None]) -> None:
        self._try_at = self._clock.now() + self._retry_seconds
        try:
            self.presence = await self._leases.attend(self._runner, self._lock_id, stirred)
        except StoreUnavailable as error:
            tell(events.LeasesOut(self._runner.sink, reason=str(error), retry_ms=self._retry_seconds * 1000))
            return
        if self.presence is None:
            self._try_at = float("inf")
            if self._lock_id is not None:
                raise InvalidSetting(
                    f"lock_id is {self._lock_id}, and this connection has no session that could hold a lock; "
                    "it must be to a PostgreSQL server, and not through a pooler"
                )
