"""The audit line of a change, written in the transaction that makes the change; and how much it may change at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from postroad.errors import CountGrown
from postroad.stores.admin.session import Rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from postroad.stores.admin.contract import By, DeadLetterFilter, Filter, Rewind
    from postroad.stores.admin.session import Query

__all__ = ["AuditedChange", "LaneId", "arguments_of", "record_view"]

T = TypeVar("T")

LaneId = tuple[str, int]
"""A sink and a lane of it."""


class AuditedChange:
    """A change that may take several transactions. Each writes a line; later lines refer to the first.

    `expected`: it changes no more than this, and nothing at all if more match when it begins.
    """

    def __init__(self, command: str, arguments: dict[str, Any], by: By, expected: int | None = None) -> None:
        self._command = command
        self._arguments = msgspec.json.encode(arguments).decode()
        self._by = by
        self._first_line: int | None = None
        self._expected = expected
        self._confirmed = expected is None
        self.changed = 0

    async def confirm(self, count: Callable[[], Awaitable[int]]) -> None:
        """Raise CountGrown if more match now than were expected. Called with the locks of the first transaction held;
        later calls do not count again.
        """
        if self._confirmed or self._expected is None:
            return
        number = await count()
        if number > self._expected:
            raise CountGrown(self._expected, number)
        self._confirmed = True

    def within(self, batch: list[T]) -> list[T]:
        """What of a batch is still expected."""
        return batch if self._expected is None else batch[: self._expected - self.changed]

    async def record(self, query: Query, changed: int, lanes: set[LaneId]) -> None:
        """Write a line and raise the versions of the lanes, so that the relays that own them reload them."""
        if not changed:
            return
        await self.add_line(query, changed)
        if lanes:
            await query("raise_version", Rows(sorted(lanes)))
        self.changed += changed

    async def add_line(self, query: Query, changed: int) -> int:
        """Write a line. Returns the number of the first line of this change."""
        line = (self._by.who, self._command, self._arguments, self._by.reason, changed, self._first_line)
        ((number,),) = await query("add_audit", *line)
        self._first_line = self._first_line or int(number)
        return self._first_line


async def record_view(query: Query, id: str, consumer: str | None, by: By) -> None:
    """Write the line of a payload that was looked at. It changed nothing."""
    arguments = {"id": id} if consumer is None else {"id": id, "consumer": consumer}
    await AuditedChange("view_payload", arguments, by).add_line(query, 0)


def arguments_of(asked: Filter | DeadLetterFilter | Rewind) -> dict[str, Any]:
    """The fields that were given."""
    return {name: value for name, value in msgspec.structs.asdict(asked).items() if value not in (None, (), False)}
