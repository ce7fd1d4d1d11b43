"""The contract of naps: how a database wakes a lane that has nothing to do.

tests/contracts/test_wakeup.py tests every store against it; `relay/idle.py` has the protocol that uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from uuid import UUID

    from postroad.stores.base import Lease
    from postroad.stores.leases import Heartbeat, SinkSnapshot

__all__ = ["ListenConnection", "Naps", "NotifyHandler", "Tick", "Writer"]


class Writer(msgspec.Struct, frozen=True):
    """A transaction that may have added to the log and has not ended."""

    transaction: str
    prepared: bool
    """It waits for the second phase of a two-phase commit. PREPARE gives a transaction another name."""


class Tick(msgspec.Struct, frozen=True):
    """The answer to one tick: the relay's lanes as the database has them."""

    lanes: Mapping[int, tuple[int, int]]
    """The lanes that the relay owns, and the epoch and version of each."""
    has_work: Collection[int]
    """Of those, the lanes with something to read."""
    renewed_naps: Collection[int]
    """The naps that were renewed in time. Writers may have skipped the NOTIFY for any other one."""
    snapshot: SinkSnapshot | None = None
    """The answer to the heartbeat, if the tick sent one."""


class NotifyHandler(Protocol):
    """Receives what a database notifies. Methods may be called at any time, in the event loop's thread."""

    def on_notify(self, first_slot: int, last_slot: int) -> None:
        """A transaction that added messages in these slots, or in some of them, has committed."""

    def on_echo(self, token: str) -> None:
        """The token that a tick sent has come back: LISTEN works."""

    def on_listen_lost(self, reason: str) -> None:
        """The LISTEN connection has ended; nothing will be notified any more."""


class ListenConnection(Protocol):
    """A connection that listens until it is closed."""

    def close(self) -> None:
        """Stop listening, without a call of `on_listen_lost`."""


class Naps(Protocol):
    """A lane that naps is notified of every commit that adds to its slots, except those of a `Writer` that was active
    when the nap began.

    `begin`, `end` and `writers` have defaults for a store that notifies of every commit, whether lanes nap or not.
    Raises StoreUnavailable when the database is unavailable.
    """

    async def listen(self, channel: str, handler: NotifyHandler) -> ListenConnection:
        """Call the handler for what is notified on the channel, until closed or until `on_listen_lost` was called."""
        ...

    async def begin(self, lease: Lease, *, channel: str, seconds: float) -> int | None:
        """Commit a nap of the lane, which writers see and which expires after `seconds` unless renewed. Returns the
        nap's number, or None when another transaction is changing naps: try again.
        """
        return 0

    async def end(self, naps: Collection[int]) -> None:
        """Delete these naps: writers need not notify for them."""
        return

    async def writers(self) -> Collection[Writer]:
        """The transactions that hold the log for writing: right after a nap began, those that may not have seen it."""
        return ()

    async def tick(
        self,
        sink: str,
        owner: UUID,
        *,
        naps: Collection[int],
        seconds: float,
        channel: str,
        token: str,
        heartbeat: Heartbeat | None = None,
    ) -> Tick:
        """In one statement: renew the naps, check the relay's lanes, notify ourselves of the token and, if a heartbeat
        is given, do what `Leases.heartbeat` does.

        A nap with less than a third of `seconds` left is not renewed: after an answer that takes longer than that, the
        nap may have expired in between.
        """
        ...
