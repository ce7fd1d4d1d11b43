"""The command for what an operator can do about something. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroad.admin import Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.admin import Remedy

__all__ = ["command_of", "with_command"]

_OF_A_SINK: Final = {
    Action.RESUME: ("resume",),
    Action.ADOPT_SLOT: ("sink", "adopt-slot"),
    Action.REMOVE_SINK: ("sink", "remove"),
}
"""Commands whose argument is a sink."""


def command_of(remedy: Remedy) -> str:
    """The command, quoted for a shell."""
    return f"postroad {shlex.join(_words(remedy))}"


def with_command(value: Any, remedy: Remedy | None) -> dict[str, Any]:
    """A value for JSON, with the command of its remedy."""
    shown: dict[str, Any] = msgspec.to_builtins(value)
    return shown | {"command": None if remedy is None else command_of(remedy)}


def _words(remedy: Remedy) -> Iterator[str]:
    match remedy.action:
        case Action.RESUME | Action.ADOPT_SLOT | Action.REMOVE_SINK:
            yield from (*_OF_A_SINK[remedy.action], remedy.sink or "")
            return
        case Action.RELEASE:
            yield from ("key", "release", remedy.key or "")
        case Action.RETRY:
            yield from ("dead", "retry", str(remedy.id))
        case Action.START_RELAY:
            yield "relay"
        case Action.LIST_RELAYS:
            yield "relays"
        case Action.LIST_CONSUMERS:
            yield "consumers"
        case Action.LIST_DEAD:
            yield from ("dead", "list")
        case Action.LIST_DEAD_LETTERS:
            yield from ("inbox", "dead", "list")
        case Action.LIST_MESSAGES:
            yield "messages"
    if remedy.state is not None:
        yield from ("--state", remedy.state)
    if remedy.sink is not None:
        yield from ("--sink", remedy.sink)
