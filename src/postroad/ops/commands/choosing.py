"""The options that choose messages, and the database that is asked about them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar
from uuid import UUID

import typer

from postroad.errors import InvalidSetting
from postroad.lifecycle import State
from postroad.ops.given import did_you_mean, older_than, read_digits, read_moment, read_text
from postroad.ops.insights import Insights
from postroad.stores import operating_for
from postroad.stores.operating import Filter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from postroad.ops.settings import Settings

__all__ = [
    "AsJson",
    "AtSink",
    "Limit",
    "OfKey",
    "OfSink",
    "OfTopic",
    "OfType",
    "OlderThan",
    "OneId",
    "WithError",
    "ask",
    "chosen",
    "named",
    "read_state",
]

T = TypeVar("T")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="Show so many at most.")]
OneId = Annotated[str, typer.Argument(metavar="ID", help="The message's id, or its last digits.")]
OfSink = Annotated[
    str | None, typer.Option("--sink", metavar="NAME", help="Only at this sink. Otherwise at all of them.")
]
AtSink = Annotated[
    str | None, typer.Option("--sink", metavar="NAME", help="At this sink. May be left out where there is only one.")
]
OfKey = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only messages of this key.")]
OfType = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only messages of this type.")]
OfTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only messages of this topic.")]
WithError = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", help="Only messages whose last error has this in it; case is ignored."),
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="TIME", help="Only messages that were added so long ago.")
]


def ask(settings: Settings, work: Callable[[Insights], Awaitable[T]]) -> T:
    """Connect to the database, and do this. Nobody is asked anything meanwhile, so that Ctrl-C ends a question."""

    async def connected() -> T:
        database, schema = settings.needed("database"), settings.command.schema
        async with operating_for(database, schema=schema) as operating:
            return await work(Insights(operating))

    return asyncio.run(connected())


def named(settings: Settings, id: str) -> UUID:
    """The message that an id, or a part of one, means."""
    digits = read_digits(id)
    return UUID(digits) if len(digits) == 32 else ask(settings, lambda insights: insights.named(digits))


def chosen(
    *,
    sink: str | None = None,
    state: str | None = None,
    ids: Sequence[UUID] = (),
    key: str | None = None,
    type: str | None = None,
    topic: str | None = None,
    error: str | None = None,
    since: str | None = None,
    older: str | None = None,
    all: bool = False,
) -> Filter:
    """The filter that these options mean."""
    for option, value in {"--key": key, "--type": type, "--topic": topic, "--error": error}.items():
        if value is not None:
            read_text(option, value)
    now = datetime.now(UTC)
    which = Filter(
        sink=sink,
        state=None if state is None else read_state(state),
        ids=tuple(ids),
        key=key,
        type=type,
        topic=topic,
        error=error,
        since=None if since is None else read_moment("--since", since, now),
        before=None if older is None else now - older_than(older),
        all=all,
    )
    if all and not which.is_empty:
        raise InvalidSetting("--all means every one; leave it out, or leave out what narrows the choice")
    return which


def read_state(text: str) -> State:
    """A state, by its name."""
    try:
        return State(text.strip().lower())
    except ValueError:
        raise InvalidSetting(
            f"--state is {text!r}; {did_you_mean(text.lower(), [state.value for state in State])}"
        ) from None
