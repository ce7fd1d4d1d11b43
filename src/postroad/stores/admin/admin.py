"""`Admin`: what operators see and change while relays run. The command line and any console use this one API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from postroad.errors import InvalidSetting, NotFound
from postroad.lifecycle import State
from postroad.stores.admin import change, cleanup, inspect, preview, rewind, status
from postroad.stores.admin.contract import Filter
from postroad.stores.admin.names import check_sink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from types import TracebackType

    from postroad.stores.admin.contract import (
        AuditEntry,
        By,
        Count,
        Done,
        HeldKey,
        KeyCount,
        KeyPreview,
        MessageHistory,
        MessagePage,
        MessageRow,
        OnProgress,
        Rewind,
        SinkReport,
        StatusReport,
    )
    from postroad.stores.admin.session import AdminDatabase
    from postroad.stores.base import Blocker
    from postroad.stores.leases import RelayStatus

__all__ = ["Admin"]

_CANDIDATES: Final = 5
"""At most this many ids are listed for an ambiguous part of an id."""


class Admin:
    """A database, as operators work with it. Use it with `async with`; calls may run concurrently.

    Reading never scans the log: what would need a scan is answered up to a bound, and says so. `preview_x` tells what
    `x` would do, for a confirmation. A change locks the lanes concerned, obeys `lifecycle.TRANSITIONS`, and writes its
    audit line and the lanes' new versions in the same transaction, so that the relays that own the lanes reload them.
    A change that finds nothing left to change, because another was faster, returns `Done(0)`.

    Raises StoreUnavailable, NotMigrated, ClientTooOld or LogNotReadable as a store does; InvalidSetting for an unknown
    sink or a filter that selects nothing; NotFound for a message or key that does not exist or has no such state.
    Nothing has been changed then, except by earlier batches of a large change.
    """

    def __init__(self, database: AdminDatabase) -> None:
        self._database = database

    async def __aenter__(self) -> Self:
        await self._database.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._database.close()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def sinks(self) -> Sequence[str]:
        """The names of all sinks, sorted."""
        async with self._database.read() as query:
            return await check_sink(query, None)

    async def status(self) -> StatusReport:
        """The state of all sinks and lanes."""
        async with self._database.read() as query:
            return await status.status_report(query)

    async def sink(self, name: str) -> SinkReport:
        """The state of one sink."""
        async with self._database.read() as query:
            return await preview.sink_report(query, name)

    async def messages(self, which: Filter, limit: int = 100, *, below: int | None = None) -> MessagePage:
        """The newest messages that match, one row per sink. `below` continues below a position."""
        async with self._database.read() as query:
            await check_sink(query, which.sink)
            return await inspect.list_messages(query, which, limit, below)

    async def count(self, which: Filter) -> Count:
        """How many rows `messages` would return without a limit; an estimate if an exact count would scan the log."""
        async with self._database.read() as query:
            await check_sink(query, which.sink)
            return await inspect.count_messages(query, which)

    async def message(self, id: UUID, *, payload_bytes: int = 65_536) -> MessageHistory:
        """Everything about a message, with the beginning of its payload."""
        async with self._database.read() as query:
            found = await inspect.message_history(query, id, payload_bytes)
        if found is None:
            raise preview.no_message(id)
        return found

    async def find_id(self, digits: str) -> UUID:
        """The id that begins with these hexadecimal digits or, among the newest messages, ends with them.

        Raises NotFound if there is none, and InvalidSetting if there are several.
        """
        if len(digits) == 32:
            return UUID(digits)
        async with self._database.read() as query:
            found = await inspect.find_ids(query, digits, _CANDIDATES + 1)
        ids = sorted(map(str, found))
        if not ids:
            raise NotFound(f"no message id begins or ends with {digits!r}; give more digits, or the whole id")
        if len(ids) > 1:
            more = " and more" if len(ids) > _CANDIDATES else ""
            raise InvalidSetting(f"{digits!r} is ambiguous: {', '.join(ids[:_CANDIDATES])}{more}; give more digits")
        return UUID(ids[0])

    async def held_keys(self, sink: str | None = None) -> Sequence[HeldKey]:
        """The keys that operators hold."""
        async with self._database.read() as query:
            await check_sink(query, sink)
            return await status.held_keys(query, sink)

    async def blockers(self, *, longer_than: timedelta) -> Sequence[Blocker]:
        """The sessions that have held locks which relays need for longer than this."""
        return await self._database.blockers(longer_than=longer_than)

    async def relays(self) -> Sequence[RelayStatus]:
        """The relays of all sinks, including those that died within the last day."""
        return await self._database.relays()

    async def audit(self, limit: int = 100) -> Sequence[AuditEntry]:
        """What operators changed, newest first."""
        async with self._database.read() as query:
            return await inspect.audit_entries(query, limit)

    # -- dead messages -----------------------------------------------------------------------------------------------

    async def preview_dead(self, which: Filter) -> Count:
        """How many messages `retry` or `drop` would change. Raises NotFound if one that is named by id is not dead."""
        async with self._database.read() as query:
            return await preview.preview_dead(query, which)

    async def retry(self, which: Filter, by: By, *, on_progress: OnProgress | None = None) -> Done:
        """Retry dead messages, at once and with all their attempts; after earlier messages that block their keys."""
        return await change.change_dead(self._database, "retry", which, by, on_progress)

    async def drop(self, which: Filter, by: By, *, on_progress: OnProgress | None = None) -> Done:
        """Drop dead messages: they are never published, and retention may delete them."""
        return await change.change_dead(self._database, "drop", which, by, on_progress)

    # -- any messages ------------------------------------------------------------------------------------------------

    async def preview_skip(self, id: UUID, sink: str | None = None) -> Sequence[MessageRow]:
        """The message at each sink where it can be skipped. Raises NotFound if there is none."""
        async with self._database.read() as query:
            return await preview.preview_move(query, id, sink, State.SKIPPED, "skipped")

    async def skip(self, which: Filter, by: By, *, on_progress: OnProgress | None = None) -> Done:
        """Never publish messages that are waiting, retrying, held or dead, because they were published by other means.

        Messages that are waiting must be named by id.
        """
        return await change.skip(self._database, which, by, on_progress)

    async def preview_poison(self, id: UUID, sink: str | None = None) -> Sequence[MessageRow]:
        """The message at each sink where it can be poisoned. Raises NotFound if there is none."""
        async with self._database.read() as query:
            return await preview.preview_move(query, id, sink, State.DEAD, "poisoned")

    async def poison(
        self, which: Filter, by: By, *, holds_key: bool = False, on_progress: OnProgress | None = None
    ) -> Done:
        """Make messages dead that are waiting, retrying or held. `by.reason` becomes their error.

        Messages that are waiting must be named by id. `holds_key`: later messages of their keys are held, as with the
        setting on_dead = "hold".
        """
        return await change.poison(self._database, which, by, on_progress, holds_key=holds_key)

    # -- keys --------------------------------------------------------------------------------------------------------

    async def preview_hold(self, sink: str, key: str) -> KeyPreview:
        """What `hold` would hold back."""
        async with self._database.read() as query:
            return await preview.preview_hold(query, sink, key)

    async def hold(self, sink: str, key: str, by: By) -> Done:
        """Publish no message of this key to the sink until it is released. `changed` is 0 if it was held already."""
        return await change.hold_or_release(self._database, sink, key, by, hold=True)

    async def release(self, sink: str, key: str, by: By) -> Done:
        """Publish the messages of a held key again, in order. `changed` is 0 if it was not held."""
        return await change.hold_or_release(self._database, sink, key, by, hold=False)

    async def preview_skip_key(self, sink: str, key: str) -> int:
        """How many messages `skip_key` would skip."""
        async with self._database.read() as query:
            return await preview.preview_skip_key(query, sink, key)

    async def skip_key(self, sink: str, key: str, by: By) -> Done:
        """Skip the messages of a key that are retrying, held or dead. A hold on the key remains."""
        return await change.skip(self._database, Filter(sink=sink, key=key), by, None, command="skip_key")

    # -- sinks -------------------------------------------------------------------------------------------------------

    async def pause(self, sink: str, by: By) -> Done:
        """Pause all lanes of a sink. `changed` is the number of lanes, or 0 if it was paused already."""
        return await change.pause_or_resume(self._database, sink, by, pause=True)

    async def resume(self, sink: str, by: By) -> Done:
        """Resume a paused sink. `changed` is the number of lanes, or 0 if it was not paused."""
        return await change.pause_or_resume(self._database, sink, by, pause=False)

    async def preview_retarget(self, sink: str, destination: str) -> SinkReport:
        """The sink that `retarget` would change. Raises as `retarget` does, and NotFound if it delivers there."""
        async with self._database.read() as query:
            return await preview.preview_retarget(query, sink, destination)

    async def retarget(self, sink: str, destination: str, by: By) -> Done:
        """Change the sink's destination: what it has not delivered goes there. `changed` is the number of lanes, or 0
        if it delivers there already.

        Raises NotFound while a relay serves the sink, and InvalidSetting for NOWHERE, unless it delivers there already.
        """
        return await change.retarget(self._database, sink, destination, by)

    async def preview_remove_sink(self, sink: str) -> SinkReport:
        """The sink that `remove_sink` would delete. Raises NotFound while a relay serves it."""
        async with self._database.read() as query:
            return await preview.unserved_sink(query, sink)

    async def remove_sink(self, sink: str, by: By) -> Done:
        """Delete the sink and everything about it: what it has not delivered is not delivered there, and retention does
        not wait for it. `changed` is the number of lanes. Raises NotFound while a relay serves the sink.
        """
        return await change.remove_sink(self._database, sink, by)

    # -- the log -----------------------------------------------------------------------------------------------------

    async def preview_cleanup(self, older_than: timedelta) -> Count:
        """How many messages `cleanup` would delete now."""
        async with self._database.read() as query:
            return await cleanup.preview_cleanup(query, older_than)

    async def cleanup(self, older_than: timedelta, by: By, *, on_progress: OnProgress | None = None) -> Done:
        """Delete messages that every sink has had and that are older than this, in small batches."""
        return await cleanup.cleanup(self._database, older_than, by, on_progress)

    async def preview_forget(self, key: str) -> KeyCount:
        """How many messages of a key `forget` would delete, and how many it would leave. Scans the log, in batches."""
        async with self._database.read() as query:
            return await cleanup.count_of_key(query, key)

    async def forget(self, key: str, by: By, *, on_progress: OnProgress | None = None) -> Done:
        """Delete the messages of a key that every sink has had, whatever their age, and their failed attempts. The
        audit keeps what operators did to the key, without the key.
        """
        return await cleanup.forget(self._database, key, by, on_progress)

    async def preview_rewind(self, which: Rewind) -> Count:
        """How many messages `rewind` would publish again now."""
        async with self._database.read() as query:
            return await rewind.preview_rewind(query, which)

    async def rewind(self, which: Rewind, by: By, *, on_progress: OnProgress | None = None) -> Done:
        """Have messages published again that the sink has delivered: in order per key, with a header that marks them.

        Messages that were canceled, dropped or skipped are not published; deferred ones stay as they are.
        """
        return await rewind.rewind_sink(self._database, which, by, on_progress)
