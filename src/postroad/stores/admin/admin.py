"""`Admin`: what operators see and change while relays run. The command line and any console use this one API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from postroad.errors import InvalidSetting, NotFound
from postroad.lifecycle import State
from postroad.stores.admin import (
    audit,
    caused,
    change,
    cleanup,
    consumers,
    dead_letters,
    inspect,
    latency_matrix,
    numbers,
    payloads,
    preview,
    rewind,
    slots,
    status,
    trouble,
    why,
)
from postroad.stores.admin.contract import DeadLetterFilter, Filter
from postroad.stores.admin.names import check_sink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta
    from types import TracebackType

    from postroad.codecs.payload_store import PayloadStore
    from postroad.dead_letters import DeadLetter, DeadLetterBox
    from postroad.sink_filter import SinkFilter
    from postroad.stores.admin.answers import Explanation, KeyExplanation, KeyWindow
    from postroad.stores.admin.causation import Causation
    from postroad.stores.admin.contract import (
        AuditEntry,
        AuditFilter,
        By,
        ConsumerStatus,
        Count,
        DatabaseNumbers,
        DeadLetterPage,
        DeadLetterRow,
        Done,
        FilterPreview,
        FollowedSlot,
        HeldKey,
        KeyCount,
        KeyPreview,
        LatencyMatrix,
        MessageHistory,
        MessagePage,
        MessageRow,
        OnProgress,
        Rewind,
        RewindPreview,
        SinkReport,
        StatusReport,
        TroubleGroup,
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

    `expected` of a change is the number that its preview has shown. If more match when the change begins, it raises
    CountGrown and changes nothing; it never changes more. Messages and sinks are counted in the transaction that makes
    the change, with the lanes locked; what is deleted in batches (`cleanup`, `forget`, `sweep_payloads`), and dead
    letters, right before the first batch. The number of a `hold`, a `remove_sink`, a `rewind` and a `cleanup` grows by
    itself while relays run: give it some room there, or leave it out; `Rewind.until` keeps later messages out. A number
    that is not exact is none to expect.

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

    async def numbers(self) -> DatabaseNumbers:
        """The numbers for metrics. Cheaper than `status`, and bounded however much is deferred."""
        relays = await self._database.relays()
        async with self._database.read() as query:
            return await numbers.database_numbers(query, relays)

    async def latency(self, sink: str, since: datetime, until: datetime) -> LatencyMatrix:
        """How long the messages that were published in this time had been on their way, in buckets by time: for a
        heatmap. As long as progress is kept; a long time of many lanes is cut at its beginning.
        """
        async with self._database.read() as query:
            return await latency_matrix.latency_matrix(query, sink, since, until)

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

    async def trouble(self, sink: str | None = None, limit: int = 50) -> Sequence[TroubleGroup]:
        """What fails: deferred messages with an error, grouped by sink and by the error without ids and values; the
        largest groups first.
        """
        async with self._database.read() as query:
            return await trouble.trouble_groups(query, sink, limit)

    async def message(self, id: UUID, *, payload_bytes: int = 65_536) -> MessageHistory:
        """Everything about a message, with the beginning of its payload."""
        async with self._database.read() as query:
            found = await inspect.message_history(query, id, payload_bytes)
        if found is None:
            raise preview.no_message(id)
        return found

    async def causation(self, id: UUID, *, identity: str | None = None) -> Causation:
        """The neighbourhood of a message in this database: its cause, what it caused here, and which consumers here
        have handled it. Also for a message of another database, of which only the inbox here may know.

        `identity` is `Causation.identity` of the database that has the message: with it the inbox is asked by index,
        without it only recent messages are searched. `join` makes a graph of the answers of several databases.
        """
        async with self._database.snapshot() as query:
            return await caused.causation(query, id, identity)

    async def why(self, id: UUID, sink: str | None = None) -> Explanation:
        """Why a message has not been sent to a sink, or what became of it: one answer per sink, with its evidence.

        Also for an id that no message has: the answer then says what can have happened.
        """
        async with self._database.snapshot() as query:
            return await why.why_message(query, id, sink)

    async def why_key(self, key: str, sink: str | None = None) -> KeyExplanation | None:
        """What the messages of a key wait for: one answer per sink, about the message that goes next. None if there is
        no sink yet. Messages that no lane has read are searched up to a bound.
        """
        async with self._database.snapshot() as query:
            return await why.why_key(query, key, sink)

    async def key_window(self, sink: str, key: str, limit: int = 50) -> KeyWindow:
        """A key's messages at a sink, in order: the first that wait, with the head that blocks the others, and the
        newest in the log, which is searched up to a bound; and who holds the key, and what it waits for.
        """
        async with self._database.snapshot() as query:
            return await why.key_window(query, sink, key, limit)

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

    async def consumers(self) -> Sequence[ConsumerStatus]:
        """The consumers that use this database, including those that died within the last week."""
        async with self._database.read() as query:
            return await consumers.list_consumers(query)

    async def audit(self, limit: int = 100, *, which: AuditFilter | None = None) -> Sequence[AuditEntry]:
        """What operators changed, newest first. A filter searches the newest 20,000 lines, below `which.below`."""
        async with self._database.read() as query:
            return await inspect.audit_entries(query, limit, which)

    async def record_view(self, id: UUID | str, by: By, *, consumer: str | None = None) -> None:
        """Write into the audit, as the command "view_payload", that a message's payload was looked at; or that of a
        dead letter of a consumer. Call it before the payload is shown.
        """
        async with self._database.write() as query:
            await audit.record_view(query, str(id), consumer, by)

    # -- dead messages -----------------------------------------------------------------------------------------------

    async def preview_dead(self, which: Filter) -> Count:
        """How many messages `retry` or `drop` would change. Raises NotFound if one that is named by id is not dead."""
        async with self._database.read() as query:
            return await preview.preview_dead(query, which)

    async def retry(
        self, which: Filter, by: By, *, expected: int | None = None, on_progress: OnProgress | None = None
    ) -> Done:
        """Retry dead messages at once, with attempts counted from 0; after earlier messages that block their keys."""
        return await change.change_dead(self._database, "retry", which, by, on_progress, expected=expected)

    async def drop(
        self, which: Filter, by: By, *, expected: int | None = None, on_progress: OnProgress | None = None
    ) -> Done:
        """Drop dead messages: they are never published, and retention deletes them. Until then `restore` undoes it."""
        return await change.change_dead(self._database, "drop", which, by, on_progress, expected=expected)

    async def preview_restore(self, which: Filter) -> Count:
        """How many messages `restore` would change. Raises NotFound if one that is named by id is not dropped."""
        async with self._database.read() as query:
            return await preview.preview_restore(query, which)

    async def restore(
        self, which: Filter, by: By, *, expected: int | None = None, on_progress: OnProgress | None = None
    ) -> Done:
        """Make dropped messages dead again, as long as they are in the log; then `retry` publishes them. Also what the
        relay dropped because no consumer had subscribed. They hold no later messages of their keys.
        """
        return await change.restore(self._database, which, by, on_progress, expected=expected)

    # -- dead letters of consumers -----------------------------------------------------------------------------------

    async def dead_letters(self, which: DeadLetterFilter, limit: int = 100) -> DeadLetterPage:
        """What consumers have given up, newest first, as their database has recorded it: index look-ups, no broker.

        A record is deleted when its letter is retried or dropped, or when the inbox's `retain` is over.
        """
        async with self._database.read() as query:
            return await dead_letters.list_letters(query, which, limit)

    async def find_dead_letter(self, ending: str, consumer: str | None = None) -> DeadLetterRow:
        """The dead letter whose id is this, or ends with it. Raises NotFound, and InvalidSetting if there are several.

        `read_dead_letter` gets its contents.
        """
        async with self._database.read() as query:
            return await dead_letters.find_letter(query, DeadLetterFilter(consumer=consumer), ending)

    async def read_dead_letter(self, box: DeadLetterBox, row: DeadLetterRow) -> DeadLetter | None:
        """The letter with its headers and its payload, from the consumer's broker; None if it is not there any more.

        `box` is `Consumer.dead_letters()`. Raises BrokerUnavailable.
        """
        return await dead_letters.read_letter(box, row.consumer, row.id)

    async def preview_dead_letters(self, which: DeadLetterFilter) -> Count:
        """How many letters `retry_dead_letters` or `drop_dead_letters` would change, as far as the database knows."""
        async with self._database.read() as query:
            return await dead_letters.count_letters(query, which)

    async def retry_dead_letters(
        self,
        box: DeadLetterBox,
        which: DeadLetterFilter,
        by: By,
        *,
        expected: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Done:
        """Move letters of one consumer back to where it receives from: RabbitMQ's queue, the partition of a topic of
        Kafka, the subject of NATS, the stream of Redis. The consumer handles them with attempts counted from 0.

        `box` is `Consumer.dead_letters()` of the consumer that `which` names. `Done.unchanged` counts letters that the
        broker does not have. Up to 10,000 at a time. Raises BrokerUnavailable; what was moved until then is recorded.
        """
        return await dead_letters.retry_letters(self._database, box, which, by, on_progress, expected=expected)

    async def drop_dead_letters(
        self,
        box: DeadLetterBox,
        which: DeadLetterFilter,
        by: By,
        *,
        expected: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Done:
        """Delete letters of one consumer, and their records, also of letters that the broker does not have any more.
        Kafka keeps its records until its own retention deletes them.
        """
        return await dead_letters.drop_letters(self._database, box, which, by, on_progress, expected=expected)

    # -- any messages ------------------------------------------------------------------------------------------------

    async def preview_skip(self, id: UUID, sink: str | None = None) -> Sequence[MessageRow]:
        """The message at each sink where it can be skipped. Raises NotFound if there is none."""
        async with self._database.read() as query:
            return await preview.preview_move(query, id, sink, State.SKIPPED, "skipped")

    async def skip(
        self, which: Filter, by: By, *, expected: int | None = None, on_progress: OnProgress | None = None
    ) -> Done:
        """Never publish messages that are waiting, retrying, held or dead, because they were published by other means.

        Messages that are waiting must be named by id.
        """
        return await change.skip(self._database, which, by, on_progress, expected=expected)

    async def preview_poison(self, id: UUID, sink: str | None = None) -> Sequence[MessageRow]:
        """The message at each sink where it can be poisoned. Raises NotFound if there is none."""
        async with self._database.read() as query:
            return await preview.preview_move(query, id, sink, State.DEAD, "poisoned")

    async def poison(
        self,
        which: Filter,
        by: By,
        *,
        holds_key: bool = False,
        expected: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Done:
        """Make messages dead that are waiting, retrying or held. `by.reason` becomes their error.

        Messages that are waiting must be named by id. `holds_key`: later messages of their keys are held, as with the
        setting on_dead = "hold".
        """
        return await change.poison(self._database, which, by, on_progress, holds_key=holds_key, expected=expected)

    # -- keys --------------------------------------------------------------------------------------------------------

    async def preview_hold(self, sink: str, key: str) -> KeyPreview:
        """What `hold` would hold back."""
        async with self._database.read() as query:
            return await preview.preview_hold(query, sink, key)

    async def hold(self, sink: str, key: str, by: By, *, expected: int | None = None) -> Done:
        """Publish no message of this key to the sink until it is released. `changed` is 0 if it was held already.
        `expected` is of messages that wait, as `KeyPreview.waiting`.
        """
        return await change.hold_or_release(self._database, sink, key, by, hold=True, expected=expected)

    async def release(self, sink: str, key: str, by: By) -> Done:
        """Publish the messages of a held key again, in order. `changed` is 0 if it was not held."""
        return await change.hold_or_release(self._database, sink, key, by, hold=False)

    async def preview_skip_key(self, sink: str, key: str) -> int:
        """How many messages `skip_key` would skip."""
        async with self._database.read() as query:
            return await preview.preview_skip_key(query, sink, key)

    async def skip_key(self, sink: str, key: str, by: By, *, expected: int | None = None) -> Done:
        """Skip the messages of a key that are retrying, held or dead. A hold on the key remains."""
        return await change.skip(
            self._database, Filter(sink=sink, key=key), by, None, command="skip_key", expected=expected
        )

    # -- sinks -------------------------------------------------------------------------------------------------------

    async def pause(self, sink: str, by: By) -> Done:
        """Pause all lanes of a sink. `changed` is the number of lanes, or 0 if it was paused already."""
        return await change.pause_or_resume(self._database, sink, by, pause=True)

    async def resume(self, sink: str, by: By) -> Done:
        """Resume a paused sink. `changed` is the number of lanes, or 0 if it was not paused."""
        return await change.pause_or_resume(self._database, sink, by, pause=False)

    async def preview_adopt_slot(self, sink: str) -> FollowedSlot:
        """The replication slot that `adopt_slot` would adopt. Raises NotFound if there is none, or none was lost."""
        async with self._database.read() as query:
            return await slots.preview_adopt_slot(query, sink)

    async def adopt_slot(self, sink: str, by: By) -> Done:
        """Let a sink whose replication slot was lost follow the slot that has its name now, and resume it. `changed` is
        the number of lanes.

        Every message that the sink has not passed counts as carried once that slot has confirmed the present end of
        the log. So this is for an operator who has had them carried by other means.
        """
        return await slots.adopt_slot(self._database, sink, by)

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

    async def preview_refilter(self, sink: str, filter: SinkFilter) -> FilterPreview:
        """What `refilter` would change. Raises as it does, and NotFound if the sink has this filter."""
        async with self._database.read() as query:
            return await preview.preview_refilter(query, sink, filter)

    async def refilter(self, sink: str, filter: SinkFilter, by: By) -> Done:
        """Change which messages the sink takes, from now on: what its cursors have passed is not sent (`rewind` sends
        it), and deferred messages stay as they are. `changed` is the number of lanes, or 0 if it has this filter.

        Raises NotFound while a relay serves the sink.
        """
        return await change.refilter(self._database, sink, filter, by)

    async def preview_remove_sink(self, sink: str) -> SinkReport:
        """The sink that `remove_sink` would delete. Raises NotFound while a relay serves it."""
        async with self._database.read() as query:
            return await preview.unserved_sink(query, sink)

    async def remove_sink(self, sink: str, by: By, *, expected: int | None = None) -> Done:
        """Delete the sink and everything about it: what it has not delivered is not delivered there, and retention does
        not wait for it. `changed` is the number of lanes. Raises NotFound while a relay serves the sink. `expected` is
        of messages that are not delivered, as `Totals.undelivered`.
        """
        return await change.remove_sink(self._database, sink, by, expected)

    # -- the log -----------------------------------------------------------------------------------------------------

    async def preview_cleanup(self, older_than: timedelta) -> Count:
        """How many messages `cleanup` would delete now."""
        async with self._database.read() as query:
            return await cleanup.preview_cleanup(query, older_than)

    async def cleanup(
        self, older_than: timedelta, by: By, *, expected: int | None = None, on_progress: OnProgress | None = None
    ) -> Done:
        """Delete messages that every sink has had and that are older than this, in small batches."""
        return await cleanup.cleanup(self._database, older_than, by, on_progress, expected)

    async def preview_forget(self, key: str) -> KeyCount:
        """How many messages of a key `forget` would delete, and how many it would leave. Scans the log, in batches."""
        async with self._database.read() as query:
            return await cleanup.count_of_key(query, key)

    async def forget(
        self, key: str, by: By, *, expected: int | None = None, on_progress: OnProgress | None = None
    ) -> Done:
        """Delete the messages of a key that every sink has had, whatever their age, and their failed attempts. The
        audit keeps what operators did to the key, without the key.
        """
        return await cleanup.forget(self._database, key, by, on_progress, expected)

    async def preview_sweep_payloads(self, store: PayloadStore, older_than: timedelta) -> Count:
        """How many payloads `sweep_payloads` would delete, if no transaction is open that refers to one."""
        return await payloads.preview_sweep(self._database, store, older_than)

    async def sweep_payloads(
        self,
        store: PayloadStore,
        older_than: timedelta,
        by: By,
        *,
        expected: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Done:
        """Delete payloads that were stored elsewhere longer ago than this and that no message in the log refers to.

        Waits for transactions that were open when the payloads were listed. Raises PayloadsUnavailable.
        """
        return await payloads.sweep(self._database, store, older_than, by, on_progress, expected=expected)

    async def end_of_log(self) -> int:
        """The position of the newest message; 0 if the log is empty. As `Rewind.until`, it lets a change be about the
        messages that its preview was about, however many are added meanwhile.
        """
        async with self._database.read() as query:
            return await inspect.end_of_log(query)

    async def preview_rewind(self, which: Rewind) -> Count:
        """How many messages `rewind` would publish again now."""
        async with self._database.read() as query:
            return await rewind.preview_rewind(query, which)

    async def preview_rewind_details(self, which: Rewind) -> RewindPreview:
        """What `rewind` would publish again now: how many, of which types and keys, and how many of them the consumers
        of this database would ignore; estimated from the first messages if there are many.
        """
        async with self._database.snapshot() as query:
            return await rewind.preview_details(query, which)

    async def rewind(
        self, which: Rewind, by: By, *, expected: int | None = None, on_progress: OnProgress | None = None
    ) -> Done:
        """Have messages published again that the sink has delivered: in order per key, with a header that marks them.

        Messages that were canceled, dropped or skipped are not published; deferred ones stay as they are.
        """
        return await rewind.rewind_sink(self._database, which, by, on_progress, expected)
