"""The button for what `Admin` advises: where it leads, and which right it needs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from postroad.admin import Action
from postroad.console.access import Right

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroad.admin import Remedy

__all__ = ["Button", "button_of"]


class Button(NamedTuple):
    """A link to a page, or to the preview of a change."""

    label: str
    path: str
    query: Mapping[str, str]
    right: Right = Right.VIEW


_BUTTONS: Final = {
    Action.RESUME: ("Resume", "do/resume", Right.OPERATE),
    Action.RELEASE: ("Release the key", "do/release", Right.OPERATE),
    Action.RETRY: ("Retry", "do/retry", Right.OPERATE),
    Action.ADOPT_SLOT: ("Adopt the slot", "do/adopt-slot", Right.ADMINISTER),
    Action.REMOVE_SINK: ("Remove the sink", "do/remove-sink", Right.ADMINISTER),
    Action.LIST_DEAD: ("See what is dead", "trouble", Right.VIEW),
    Action.LIST_MESSAGES: ("See the messages", "messages", Right.VIEW),
    Action.LIST_RELAYS: ("See the relays", "lanes", Right.VIEW),
    Action.LIST_DEAD_LETTERS: ("See the dead letters", "inbox", Right.VIEW),
    Action.LIST_CONSUMERS: ("See the consumers", "inbox", Right.VIEW),
}
"""There is none for what only a command can do, such as to start a relay."""


def button_of(remedy: Remedy) -> Button | None:
    """The button; None for what only a command can do."""
    if remedy.action not in _BUTTONS:
        return None
    label, path, right = _BUTTONS[remedy.action]
    about = {name: getattr(remedy, name) for name in ("sink", "key", "id", "state")}
    return Button(label, path, {name: str(value) for name, value in about.items() if value is not None}, right)
