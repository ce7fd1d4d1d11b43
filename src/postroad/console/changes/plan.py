"""How a change is declared: a plan says what would change, how many, how it is done and undone. It changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad.admin import Count, Filter, State
from postroad.errors import InvalidSetting
from postroad.kinds import duration
from postroad.stores.admin.names import suggestion
from postroad.wording import count

if TYPE_CHECKING:
    from postroad.admin import Admin, By, Done, MessageRow
    from postroad.console.access import Right
    from postroad.consumer import Consumer

__all__ = ["Change", "Given", "Link", "Plan", "about", "command", "parse_time"]


@dataclass(frozen=True, slots=True)
class Link:
    """A page of the same database."""

    label: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a change would do, and how."""

    would: str
    """One sentence: "3 dead messages would be retried"."""
    number: Count
    """How many things it would change. If that is none, there is nothing to confirm."""
    grows: bool = False
    """More of them are no reason to ask again: they become more by themselves while relays run, or `fixed` keeps what
    has come since the preview out.
    """
    fixed: Mapping[str, str] = field(default_factory=dict)
    """What the form adds to the query, so that the change is about what the preview was about."""
    thing: str
    """What is counted, such as "dead message"."""
    nothing: str = "there is nothing to change"
    act: Callable[[By, int | None], Awaitable[Done]]
    """Makes the change, if it is not about more things than this. None: however many there are."""
    done: Callable[[str], str]
    """What is said afterwards, given such as "3 dead messages"."""
    command: str
    """The command that does the same."""
    warning: str = ""
    """What can't be undone, or what is lost."""
    sample: Sequence[MessageRow] = ()
    undo: Link | None = None
    back: Link

    @property
    def expected(self) -> int | None:
        """What the form sends back: the number that the change must not exceed. None: there is no such number."""
        return self.number.number if self.number.exact and not self.grows else None


Planning = Callable[["Admin", "Given"], Awaitable[Plan]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change, as its page and its buttons know it."""

    name: str
    title: str
    right: Right
    plan: Planning
    reason_required: bool = True


class Given:
    """What a change was opened with: the query of its page. Raises InvalidSetting for what can't be understood."""

    def __init__(self, query: Sequence[tuple[str, str]], consumers: Mapping[str, Consumer[Any]] | None = None) -> None:
        self._query = list(query)
        if any("\x00" in name + value for name, value in self._query):
            raise InvalidSetting("a text contains the character NUL, which no message has; leave it out")
        self.consumers = consumers or {}

    def text(self, name: str) -> str | None:
        """A text; None if it was not given, or is empty."""
        return next((value for each, value in self._query if each == name), None) or None

    def texts(self, name: str) -> list[str]:
        """All texts of this name."""
        return [value for each, value in self._query if each == name and value]

    def needed(self, name: str) -> str:
        """A text that must be given."""
        value = self.text(name)
        if value is None:
            raise InvalidSetting(f"{name} is missing; it must be given")
        return value

    def flag(self, name: str) -> bool:
        """Whether a box is checked."""
        return self.text(name) is not None

    def ids(self) -> tuple[UUID, ...]:
        """The ids of messages."""
        return tuple(_uuid(text) for text in self.texts("id"))

    def id(self) -> UUID:
        """The id of one message."""
        return _uuid(self.needed("id"))

    def time(self, name: str) -> datetime | None:
        """A time in ISO form; without a zone it is UTC."""
        text = self.text(name)
        return None if text is None else parse_time(name, text)

    def position(self, name: str) -> int | None:
        """A position in the log."""
        text = self.text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise InvalidSetting(f"{name} is {text!r}; it must be a position in the log, such as 1000")
        return int(text)

    def duration(self, name: str) -> timedelta:
        """A length of time, such as 14d."""
        return duration(name, self.needed(name))

    def state(self) -> State | None:
        """A state of messages."""
        text = self.text("state")
        if text is not None and text not in set(State):
            raise InvalidSetting(f"state is {text!r}; it must be {', '.join(State)}")
        return None if text is None else State(text)

    def filter(self, **more: Any) -> Filter:
        """The messages that were chosen."""
        names = ("sink", "key", "type", "topic", "error", "error_pattern")
        chosen: dict[str, Any] = {name: self.text(name) for name in names}
        chosen |= {"ids": self.ids(), "since": self.time("since"), "before": self.time("before")}
        return Filter(**(chosen | {"state": self.state(), "all": self.flag("all")} | more))

    async def sink(self, admin: Admin) -> str:
        """The sink that was given, or else the only one."""
        sink = self.text("sink")
        if sink is not None:
            return sink
        sinks = await admin.sinks()
        if len(sinks) != 1:
            raise InvalidSetting(f"sink is missing; {suggestion('', sinks)}")
        return sinks[0]

    def query(self) -> list[tuple[str, str]]:
        """Everything that was given, for a link."""
        return self._query


def about(number: Count, thing: str, *, lower_bound: bool = False) -> str:
    """A number of things; one that is not exact is an estimate, or at least so many."""
    if number.exact:
        return count(number.number, thing)
    if not number.number:
        return f"an unknown number of {thing}s"
    return f"{'at least' if lower_bound else 'about'} {count(number.number, thing)}"


def command(*words: str, **options: Any) -> str:
    """A command of the command line, quoted for a shell. Options that are None or False are left out."""
    shown = [word for word in words if word]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            shown.append(option)
        elif value is not None and value is not False:
            shown += [option, str(value)]
    return f"postroad {shlex.join(shown)}"


_LATEST: Final = "such as 2026-03-01T12:00 or 2026-03-01T12:00:00Z"


def parse_time(name: str, text: str) -> datetime:
    """A time in ISO form; without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidSetting(f"{name} is {text!r}; it must be a time {_LATEST}") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidSetting(f"id is {text!r}; it must be the whole id of a message") from None
