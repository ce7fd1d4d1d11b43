"""The dead letters of consumers: what their database has recorded, and changes to what their broker has.

The broker acts first, letter by letter; then a transaction deletes the records of these letters and writes the audit
line. A process that is killed in between leaves records of letters that are not there any more: to drop such a letter
deletes its record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.errors import InvalidSetting, NotFound
from postroad.lifecycle import State
from postroad.stores.admin.audit import AuditedChange, arguments_of
from postroad.stores.admin.contract import Count, DeadLetterPage, DeadLetterRow, Done
from postroad.stores.admin.session import Rows, from_microseconds, to_microseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.dead_letters import DeadLetter, DeadLetterBox
    from postroad.stores.admin.contract import By, DeadLetterFilter, OnProgress
    from postroad.stores.admin.session import AdminDatabase, Query

__all__ = ["count_letters", "drop_letters", "find_letter", "list_letters", "read_letter", "retry_letters"]

MOST_COUNTED: Final = 10_000
"""Further letters are not counted, and a change leaves them for the next time."""
BATCH: Final = 100


async def list_letters(query: Query, which: DeadLetterFilter, limit: int) -> DeadLetterPage:
    rows = await _rows(query, which, limit)
    total = await count_letters(query, which) if len(rows) == limit else Count(len(rows))
    return DeadLetterPage(rows, total)


async def count_letters(query: Query, which: DeadLetterFilter) -> Count:
    number = len(await _rows(query, which, MOST_COUNTED + 1))
    return Count(min(number, MOST_COUNTED), exact=number <= MOST_COUNTED)


async def find_letter(query: Query, which: DeadLetterFilter, ending: str) -> DeadLetterRow:
    """The only dead letter whose id is this, or ends with it."""
    rows = await _rows(query, which, MOST_COUNTED)
    found = [row for row in rows if ending in {row.id, row.message_id}] or [
        row for row in rows if row.id.endswith(ending)
    ]
    if not found:
        of = "" if which.consumer is None else f" of consumer {which.consumer!r}"
        raise NotFound(f"no dead letter{of} has an id that is or ends with {ending!r}")
    if len(found) > 1:
        names = ", ".join(f"{row.message_id} of {row.consumer}" for row in found[:5])
        raise InvalidSetting(f"{ending!r} is ambiguous: {names}; give more of the id, or the consumer")
    return found[0]


async def read_letter(box: DeadLetterBox, consumer: str, id: str) -> DeadLetter | None:
    """The letter as the broker has it; None if it is not there."""
    await box.open()
    try:
        async for letter in box.letters():
            if letter.identity == id and letter.consumer == consumer:
                return letter
    finally:
        await box.close()
    return None


async def retry_letters(
    database: AdminDatabase,
    box: DeadLetterBox,
    which: DeadLetterFilter,
    by: By,
    on_progress: OnProgress | None,
    *,
    expected: int | None = None,
) -> Done:
    change = _Change("inbox dead retry", database, which, by, on_progress, expected=expected)
    wanted = await change.wanted()
    await change.act(box, wanted, box.retry)
    missing = len(wanted)
    return Done(change.changed, {State.DEAD: missing} if missing else {})


async def drop_letters(
    database: AdminDatabase,
    box: DeadLetterBox,
    which: DeadLetterFilter,
    by: By,
    on_progress: OnProgress | None,
    *,
    expected: int | None = None,
) -> Done:
    change = _Change("inbox dead drop", database, which, by, on_progress, expected=expected)
    wanted = await change.wanted()
    await change.act(box, wanted, box.drop)
    await change.record(list(wanted.values()))  # of letters that the broker does not have any more
    return Done(change.changed)


class _Change:
    """A change to letters of one consumer."""

    def __init__(
        self,
        command: str,
        database: AdminDatabase,
        which: DeadLetterFilter,
        by: By,
        on_progress: OnProgress | None,
        *,
        expected: int | None,
    ) -> None:
        if which.consumer is None:
            raise InvalidSetting("the filter names no consumer")
        if which.is_empty and not which.all:
            raise InvalidSetting("the filter selects no dead letters; give a field of it, or all")
        self._consumer = which.consumer
        self._database = database
        self._which = which
        self._audited = AuditedChange(command, arguments_of(which), by, expected)
        self._on_progress = on_progress

    @property
    def changed(self) -> int:
        return self._audited.changed

    async def wanted(self) -> dict[str, DeadLetterRow]:
        """The letters that are selected, by id. Raises CountGrown if they are more than expected."""
        async with self._database.read() as query:
            rows = {row.id: row for row in await _rows(query, self._which, MOST_COUNTED)}

        async def count() -> int:
            return len(rows)

        await self._audited.confirm(count)
        return rows

    async def act(self, box: DeadLetterBox, wanted: dict[str, DeadLetterRow], action: Any) -> None:
        """Take each wanted letter that the box has out of `wanted`, and act on it."""
        done: list[DeadLetterRow] = []
        await box.open()
        try:
            async for letter in box.letters():
                if not wanted:
                    break
                if letter.consumer != self._consumer or letter.identity not in wanted:
                    continue
                await action(letter)
                done.append(wanted.pop(letter.identity))
                if len(done) == BATCH:
                    await self.record(done)
                    done = []
        finally:
            try:
                await self.record(done)  # also of a change that fails halfway
            finally:
                await box.close()

    async def record(self, rows: Sequence[DeadLetterRow]) -> None:
        """Delete the records of these letters, and write the audit line."""
        if not rows:
            return
        these = Rows([(row.consumer, row.id, to_microseconds(row.dead_at)) for row in rows])
        async with self._database.write() as query:
            await query("forget_dead_letters", these)
            await self._audited.record(query, len(rows), set())
        if self._on_progress is not None:
            self._on_progress(self.changed)


async def _rows(query: Query, which: DeadLetterFilter, limit: int) -> list[DeadLetterRow]:
    times = [None if time is None else to_microseconds(time) for time in (which.since, which.before)]
    ids = list(which.ids) or None
    found = await query("list_dead_letters", which.consumer, ids, which.type, which.error, *times, limit)
    return [
        DeadLetterRow(
            consumer=consumer,
            id=id,
            type=type,
            attempts=attempts,
            crashes=crashes,
            error=error,
            dead_at=from_microseconds(dead_at),
        )
        for consumer, id, type, attempts, crashes, error, dead_at in found
    ]
