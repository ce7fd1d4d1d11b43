"""The changes that the console makes, by name. Each is declared in a module, with the right that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.console.changes import keys, letters, log, messages, sinks

if TYPE_CHECKING:
    from postroad.console.changes.plan import Change

__all__ = ["CHANGES"]

CHANGES: Final[dict[str, Change]] = {
    change.name: change for module in (messages, keys, sinks, log, letters) for change in module.CHANGES
}
