"""What happens while messages are carried, as values. `tell` is the only way from here into the log.

An event's fields are what programs read (`extra` of the log record, keys of a JSON line); its text is what people read.
docs/logging.md lists every event and field. An event below the log's level costs a comparison if its maker asks
`is_wanted` before making it, which only events of every page need.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

__all__ = [
    "BrokerBack",
    "BrokerOut",
    "BrokerOutAtStart",
    "CommandFailed",
    "Event",
    "FileReadable",
    "LaneLost",
    "LaneReloaded",
    "LaneStopped",
    "LanesDiffer",
    "LanesTaken",
    "MessageRefused",
    "MessagesDeleted",
    "PagePublished",
    "PageTaken",
    "PasswordInArguments",
    "Progress",
    "RelayEnded",
    "RelayStarted",
    "Stopping",
    "StoreOut",
    "is_wanted",
    "tell",
]


class Event(msgspec.Struct, frozen=True):
    """Something that happened."""

    level: ClassVar[int] = logging.INFO
    logger: ClassVar[logging.Logger] = logging.getLogger("postroad.relay")
    text: ClassVar[str]
    """What people read; `{e}` is the event."""

    def __str__(self) -> str:
        return self.text.format(e=self)

    @classmethod
    def name(cls) -> str:
        """What programs call this event: the class's name in small letters."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


def is_wanted(event: type[Event]) -> bool:
    """Whether anybody would read such an event."""
    return event.logger.isEnabledFor(event.level)


def tell(event: Event) -> None:
    """Write the event into the log."""
    if is_wanted(type(event)):
        # Without arguments logging leaves percent signs alone, and a broker's words may hold some.
        extra = {"event": event.name()} | msgspec.structs.asdict(event)
        event.logger.log(event.level, str(event), extra=extra, stacklevel=2)


class _OfSink(Event, frozen=True):
    sink: str


class _OfLane(_OfSink, frozen=True):
    lane: int


# -- the relay -------------------------------------------------------------------------------------------------------


class RelayStarted(_OfSink, frozen=True, kw_only=True):
    """A relay has reached its database and goes on to the broker."""

    text = "relay {e.sink}: started, to {e.to}"
    to: str


class BrokerOutAtStart(_OfSink, frozen=True, kw_only=True):
    """The broker could not be reached at the start; messages wait."""

    level = logging.WARNING
    text = "relay {e.sink}: {e.reason}; messages wait until it can be reached"
    reason: str


class LanesDiffer(_OfSink, frozen=True, kw_only=True):
    """The setting `lanes` is not what the sink was created with, which counts."""

    text = "relay {e.sink}: lanes is {e.wanted}, but the sink was created with {e.lanes}"
    wanted: int
    lanes: int


class LanesTaken(_OfSink, frozen=True, kw_only=True):
    """The relay has the sink's lanes. Each taking raises a lane's epoch."""

    text = "relay {e.sink}: took {e.lanes} lanes"
    owner: UUID
    lanes: int
    epochs: Sequence[int]


class Progress(_OfSink, frozen=True, kw_only=True):
    """Messages moved since the last report."""

    text = (
        "relay {e.sink}: {e.published:,} messages since the last report, in {e.pages:,} pages ({e.per_second:,.0f}/s)"
    )
    published: int
    pages: int
    per_second: float
    duration_ms: float


class RelayEnded(_OfSink, frozen=True, kw_only=True):
    """The summary of a relay that has ended."""

    text = (
        "relay {e.sink}: published {e.published:,} messages in {e.pages:,} pages, {e.refused} refused, "
        "{e.lanes_lost} lanes lost; ended"
    )
    published: int
    pages: int
    refused: int
    lanes_lost: int
    duration_ms: float


# -- a lane ----------------------------------------------------------------------------------------------------------


class PageTaken(_OfLane, frozen=True, kw_only=True):
    """A page was read and is about to be published."""

    level = logging.DEBUG
    text = "lane {e.sink}/{e.lane}: took a page of {e.size}"
    size: int
    position: int


class PagePublished(_OfLane, frozen=True, kw_only=True):
    """A page was published as far as it could be."""

    level = logging.DEBUG
    text = "lane {e.sink}/{e.lane}: published {e.published}, refused {e.refused}, in {e.duration_ms:.1f} ms"
    published: int
    refused: int
    duration_ms: float
    position: int


class MessageRefused(_OfLane, frozen=True, kw_only=True):
    """The broker said no to a message, or the publisher broke on it: the lane stands still."""

    level = logging.ERROR
    text = (
        "lane {e.sink}/{e.lane}: the message at position {e.position} was refused: {e.reason}; "
        "this lane stands still so that nothing is skipped, the others go on"
    )
    position: int
    reason: str
    permanent: bool


class LaneStopped(_OfLane, frozen=True, kw_only=True):
    """A lane was stopped in the middle of a page."""

    text = "lane {e.sink}/{e.lane}: {e.reason}"
    reason: str


class BrokerOut(_OfLane, frozen=True, kw_only=True):
    """The broker could not be asked; the lane tries again."""

    level = logging.WARNING
    text = "lane {e.sink}/{e.lane}: {e.reason}; {e.waiting} wait, trying again in {e.retry_ms:,.0f} ms"
    reason: str
    waiting: int
    retry_ms: float


class BrokerBack(_OfLane, frozen=True, kw_only=True):
    """After an outage the broker has answered."""

    text = "lane {e.sink}/{e.lane}: the broker is back, after {e.attempts} attempts"
    attempts: int


class StoreOut(_OfLane, frozen=True, kw_only=True):
    """The database could not be asked; the lane forgets what it knows and tries again."""

    level = logging.WARNING
    text = "lane {e.sink}/{e.lane}: {e.reason}; trying again in {e.retry_ms:,.0f} ms"
    reason: str
    retry_ms: float


class LaneReloaded(_OfLane, frozen=True, kw_only=True):
    """Somebody changed the lane since it was loaded, so it is loaded again."""

    level = logging.WARNING
    text = "lane {e.sink}/{e.lane}: {e.reason}; loading it again"
    reason: str


class LaneLost(_OfLane, frozen=True, kw_only=True):
    """Another relay has taken the lane."""

    level = logging.WARNING
    text = "lane {e.sink}/{e.lane}: {e.reason}; leaving it to the other"
    reason: str


# -- chores and operations -------------------------------------------------------------------------------------------


class MessagesDeleted(Event, frozen=True, kw_only=True):
    """Retention has deleted what every sink has had."""

    logger = logging.getLogger("postroad.retention")
    text = "deleted {e.deleted:,} delivered messages older than {e.retain_s:g} s"
    deleted: int
    retain_s: float


class Stopping(Event, frozen=True, kw_only=True):
    """A first signal asks the relay to stop."""

    logger = logging.getLogger("postroad.ops")
    text = "stopping: {e.signal}; waiting for the confirms under way; a second signal ends it at once"
    signal: str


class PasswordInArguments(Event, frozen=True, kw_only=True):
    """An option has a password in it."""

    level = logging.WARNING
    logger = logging.getLogger("postroad.ops")
    text = (
        "{e.option} has a password in it, and the command line is visible to every user of this machine; "
        "use {e.instead}"
    )
    option: str
    instead: str


class FileReadable(Event, frozen=True, kw_only=True):
    """The file with the settings has a password in it, and everybody may read it."""

    level = logging.WARNING
    logger = logging.getLogger("postroad.ops")
    text = "{e.file} has a password in it, and every user of this machine may read it; run: chmod o-r {e.file}"
    file: str


class CommandFailed(Event, frozen=True, kw_only=True):
    """A command ends with an error. Only with `log_format` json; otherwise it is a line of its own."""

    level = logging.ERROR
    logger = logging.getLogger("postroad.ops")
    text = "{e.reason}"
    reason: str
    exit_code: int
