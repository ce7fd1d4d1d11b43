"""The audit line of a change, written in the transaction that makes the change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from postroad.stores.admin.session import Rows

if TYPE_CHECKING:
    from postroad.stores.admin.contract import By, Filter, Rewind
    from postroad.stores.admin.session import Query

__all__ = ["AuditedChange", "LaneId", "arguments_of"]

LaneId = tuple[str, int]
"""A sink and a lane of it."""


class AuditedChange:
    """A change that may take several transactions. Each writes a line; later lines refer to the first."""

    def __init__(self, command: str, arguments: dict[str, Any], by: By) -> None:
        self._command = command
        self._arguments = msgspec.json.encode(arguments).decode()
        self._by = by
        self._first_line: int | None = None
        self.changed = 0

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


def arguments_of(asked: Filter | Rewind) -> dict[str, Any]:
    """The fields that were given."""
    return {name: value for name, value in msgspec.structs.asdict(asked).items() if value not in (None, (), False)}
