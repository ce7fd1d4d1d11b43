"""`postroad pause`, `resume`, `cleanup` and `rewind`: a whole sink, or the whole log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.kinds import duration_text
from postroad.ops.asking import DryRun, Reason, Who, Yes, actor, given_reason, needed_reason, progress, sure
from postroad.ops.commands import LOOK_AND_ACT
from postroad.ops.commands.choosing import AsJson, AtSink, OfKey, OfType, ask
from postroad.ops.commands.showing_done import show_done, show_plan
from postroad.ops.given import older_than, read_place
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.showing import count, when
from postroad.ops.terminal import Command
from postroad.stores.operating import By, Rewind

if TYPE_CHECKING:
    from postroad.ops.insights import Insights
    from postroad.ops.settings import Settings
    from postroad.stores.operating import Count

__all__ = ["steering"]

steering = typer.Typer()

Sink = Annotated[str, typer.Argument(metavar="SINK", help="The sink's name.")]


@steering.command(cls=Command, rich_help_panel=LOOK_AND_ACT)
@takes(*FOR_ANY_DATABASE)
def pause(*, settings: Settings, sink: Sink, reason: Reason = None, who: Who = None, as_json: AsJson = False) -> None:
    """Let a sink stand still until `postroad resume`. Messages wait; a running relay stays and publishes nothing."""
    by = By(actor(who), given_reason(reason))
    done = ask(settings, lambda insights: insights.pause(sink, by))
    show_done(done, "lane", lambda many: f"sink {sink!r} is paused, with {many}", as_json=as_json)


@steering.command(cls=Command, rich_help_panel=LOOK_AND_ACT)
@takes(*FOR_ANY_DATABASE)
def resume(*, settings: Settings, sink: Sink, reason: Reason = None, who: Who = None, as_json: AsJson = False) -> None:
    """Let a paused sink go on."""
    by = By(actor(who), given_reason(reason))
    done = ask(settings, lambda insights: insights.resume(sink, by))
    show_done(done, "lane", lambda many: f"sink {sink!r} goes on, with {many}", as_json=as_json)


@steering.command(cls=Command, rich_help_panel=LOOK_AND_ACT)
@takes(*FOR_ANY_DATABASE)
def cleanup(
    *,
    settings: Settings,
    older: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="TIME", help="Delete what was added so long ago. Otherwise the setting retain."
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Delete old messages that every sink has had, in small batches. What was not delivered stays, whatever its age."""
    span = timedelta(seconds=settings.relay.seconds("retain")) if older is None else older_than(older)
    number = ask(settings, lambda insights: insights.would_clean_up(span))
    meant = f"{_about(number)} older than {duration_text(span)}"
    if dry_run:
        show_plan(f"{meant} would be deleted", number.number, as_json=as_json)
        return
    by = By(actor(who), given_reason(reason))
    sure(f"Delete {meant}?", yes=yes)
    with progress("deleting", number.number) as told:
        done = ask(settings, lambda insights: insights.cleanup(span, by, told))
    show_done(done, "message", "deleted {}".format, as_json=as_json)


@steering.command(cls=Command, rich_help_panel=LOOK_AND_ACT)
@takes(*FOR_ANY_DATABASE)
def rewind(
    *,
    settings: Settings,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TIME|POSITION",
            help="From there on: a time, how long ago, such as 2h, or a position in the log.",
        ),
    ],
    sink: AtSink = None,
    key: OfKey = None,
    type: OfType = None,
    new_ids: Annotated[
        bool, typer.Option("--new-ids", help="Give them new ids, so that inboxes take them for new messages.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Publish again what a sink has had and is still in the log, with a header that says so."""
    place = read_place("--to", to, datetime.now(UTC))

    async def look(insights: Insights) -> tuple[Rewind, Count]:
        again = Rewind(sink=await insights.sink(sink), to=place, key=key, type=type, new_ids=new_ids)
        return again, await insights.would_rewind(again)

    again, number = ask(settings, look)
    since = f"position {place:,}" if isinstance(place, int) else when(place)
    meant = (
        f"{_about(number)} to sink {again.sink!r} again, from {since} on, with {'new' if new_ids else 'the same'} ids"
    )
    if dry_run:
        show_plan(f"would publish {meant}", number.number, as_json=as_json)
        return
    by = By(actor(who), needed_reason(reason))
    sure(f"Publish {meant}?", yes=yes)
    with progress("rewinding", number.number) as told:
        done = ask(settings, lambda insights: insights.rewind(again, by, told))
    show_done(done, "message", "{} will be published again".format, as_json=as_json)


def _about(number: Count) -> str:
    return f"{'' if number.exact else 'about '}{count(number.number, 'message')}"
