"""`postroad rewind`: re-publish delivered messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.admin import Rewind
from postroad.ops.parsing import AtSink, OfKey, OfType, parse_time_or_position
from postroad.ops.rendering.text import time_text
from postroad.ops.runner import Plan, Planning, about, changes, resolve_sink

if TYPE_CHECKING:
    from postroad.admin import Admin
    from postroad.ops.settings import Settings

__all__ = ["rewind"]


@changes(reason_required=True)
def rewind(
    *,
    settings: Settings,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TIME|POSITION", help="From here on: a time, an age such as 2h, or a position in the log."
        ),
    ],
    sink: AtSink = None,
    key: OfKey = None,
    type: OfType = None,
    new_ids: Annotated[
        bool, typer.Option("--new-ids", help="Give them new ids, so that inboxes process them again.")
    ] = False,
) -> Planning:
    """Re-publish retained messages that were already delivered to this sink, with a header that marks them."""
    place = parse_time_or_position("--to", to, datetime.now(UTC))

    async def plan(admin: Admin) -> Plan:
        which = Rewind(sink=await resolve_sink(admin, sink), to=place, key=key, type=type, new_ids=new_ids)
        number = await admin.preview_rewind(which)
        since = f"position {place:,}" if isinstance(place, int) else time_text(place)
        selected = (
            f"{about(number, 'message')} to sink {which.sink!r}, from {since} on, "
            f"with {'new' if new_ids else 'the same'} ids"
        )
        return Plan(
            changes=number,
            nothing=f"no retained message that was delivered to sink {which.sink!r} matches",
            would=f"would re-publish {selected}",
            question=f"Re-publish {selected}?",
            act=lambda admin, by, on_progress: admin.rewind(which, by, on_progress=on_progress),
            thing="message",
            done="{} will be re-published".format,
            progress="rewinding",
        )

    return plan
