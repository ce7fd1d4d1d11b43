"""The session by which others see at once that this relay died: opened, lost, opened again.

It is never waited for long: what can't be opened must not keep a relay from its lanes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.errors import InvalidSetting, LogNotReadable, NotMigrated, StoreUnavailable
from postroad.listeners import tell

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from postroad.relay.clock import Clock
    from postroad.stores.leases import Leases, LivenessLock, RelayIdentity

__all__ = ["LivenessSession"]

LONGEST_PATIENCE: Final = 3.0


class LivenessSession:
    """Keeps a relay's session open, where there is such a thing. Without it the lease alone decides."""

    def __init__(
        self, leases: Leases, identity: RelayIdentity, lock_id: int | None, *, clock: Clock, retry_seconds: float
    ) -> None:
        self._leases = leases
        self._identity = identity
        self._lock_id = lock_id
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._patience = min(LONGEST_PATIENCE, retry_seconds * 3 / 4)
        self._try_at = float("-inf")
        self._told: bool | None = None
        """It was said that this relay has the lock of everybody's, or who has it."""
        self.liveness_lock: LivenessLock | None = None

    @property
    def may_work(self) -> bool:
        """Unless only one relay is to work at a time, and this is not the one."""
        return self._lock_id is None or (self.liveness_lock is not None and self.liveness_lock.holds)

    def notice_loss(self) -> bool:
        """Whether the session was lost since this was asked last."""
        if self.liveness_lock is None or not self.liveness_lock.lost:
            return False
        self.drop()
        return True

    def drop(self) -> None:
        """The session is gone, or as good as that. Another may be opened at once."""
        if self.liveness_lock is not None:
            self.liveness_lock.close()
        self.liveness_lock = None
        self._try_at = float("-inf")

    async def keep(self, stirred: Callable[[], None]) -> None:
        """Open the session, if there is none; with a lock of everybody's, try to get it."""
        if self.liveness_lock is None and self._clock.now() >= self._try_at:
            await self._in_time(self._open(stirred))
        elif self.liveness_lock is not None and not self.liveness_lock.holds:
            await self._in_time(self.liveness_lock.lock())
        await self._in_time(self._tell())

    def close(self) -> None:
        """Let go of the lock."""
        self.drop()
        if self._told:
            self._tell_released()

    async def _in_time(self, asking: Awaitable[object]) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await asking
        except (StoreUnavailable, LogNotReadable, NotMigrated) as error:
            self._put_off(str(error))
        except TimeoutError:
            self._put_off(
                "the session by which others see that this relay lives (at `direct`, if that is set) did not answer "
                f"within {self._patience:g} s"
            )

    def _put_off(self, reason: str) -> None:
        self.drop()
        self._try_at = self._clock.now() + self._retry_seconds
        tell(events.LeasesUnavailable(self._identity.sink, reason=reason, retry_ms=self._retry_seconds * 1000))

    async def _open(self, stirred: Callable[[], None]) -> None:
        self.liveness_lock = await self._leases.attend(self._identity, self._lock_id, stirred)
        if self.liveness_lock is None:
            self._try_at = float("inf")
            if self._lock_id is not None:
                raise InvalidSetting(
                    f"lock_id is {self._lock_id}, and this connection has no session that could hold a lock; "
                    "it must be to a PostgreSQL server, and not through a pooler"
                )

    async def _tell(self) -> None:
        if self._lock_id is None or self.may_work is self._told:
            return
        if self._told:
            self._tell_released()
        if self.may_work:
            self._told = True
            tell(events.LockTaken(self._identity.sink, lock_id=self._lock_id))
        elif self.liveness_lock is not None and (holder := await self.liveness_lock.holder()) is not None:
            self._told = False
            tell(events.LockHeldByOther(self._identity.sink, lock_id=self._lock_id, holder=holder))

    def _tell_released(self) -> None:
        assert self._lock_id is not None  # noqa: S101 - otherwise nothing was told
        self._told = None
        tell(events.LockReleased(self._identity.sink, lock_id=self._lock_id))
