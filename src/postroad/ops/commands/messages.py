"""`postroad messages`: list messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.admin import Count
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import (
    AsJson,
    Limit,
    OfKey,
    OfSink,
    OfTopic,
    OfType,
    WithError,
    parse_filter,
    parse_state,
)
from postroad.ops.rendering.messages import Listing, show_listing
from postroad.ops.runner import with_admin

if TYPE_CHECKING:
    from postroad.admin import Admin, Filter
    from postroad.ops.settings import Settings

__all__ = ["list_messages", "messages"]


@takes(*FOR_ANY_DATABASE)
def messages(
    *,
    settings: Settings,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", metavar="STATE", help="Only in this state: waiting, published, retrying, held, dead and so on."
        ),
    ] = None,
    key: OfKey = None,
    type: OfType = None,
    topic: OfTopic = None,
    error: WithError = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only messages added since a time, or an age such as 2h."),
    ] = None,
    sink: OfSink = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List messages, newest first, one line per sink."""
    in_state = None if state is None else parse_state(state)
    which = parse_filter(state=in_state, key=key, type=type, topic=topic, error=error, since=since, sink=sink)
    listing = with_admin(settings, lambda admin: list_messages(admin, which, limit))
    show_listing(listing, "message", as_json=as_json)


async def list_messages(admin: Admin, which: Filter, limit: int) -> Listing:
    """The newest messages that match, and how many match in all."""
    sinks = await admin.sinks()
    page = await admin.messages(which, limit)
    complete = len(page.messages) < limit and page.looked_back_to is None
    return Listing(page, Count(len(page.messages)) if complete else await admin.count(which), sinks)
