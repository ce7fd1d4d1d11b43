"""`postroad cleanup`: delete delivered messages by age."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.kinds import duration_text
from postroad.ops.parsing import parse_age
from postroad.ops.runner import Plan, Planning, about, changes

if TYPE_CHECKING:
    from postroad.admin import Admin
    from postroad.ops.settings import Settings

__all__ = ["cleanup"]


@changes(reason_required=False)
def cleanup(
    *,
    settings: Settings,
    older: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="TIME", help="Delete messages added this long ago; default: the setting retain."
        ),
    ] = None,
) -> Planning:
    """Delete old messages that every sink has had, in small batches. Undelivered messages stay, whatever their age."""
    span = timedelta(seconds=settings.relay.seconds("retain")) if older is None else parse_age(older)

    async def plan(admin: Admin) -> Plan:
        number = await admin.preview_cleanup(span)
        selected = f"{about(number, 'message')} older than {duration_text(span)}"
        return Plan(
            changes=number,
            nothing=f"no message is older than {duration_text(span)} and delivered to every sink",
            would=f"{selected} would be deleted",
            question=f"Delete {selected}?",
            act=lambda admin, by, on_progress: admin.cleanup(span, by, on_progress=on_progress),
            thing="message",
            done="deleted {}".format,
            progress="deleting",
        )

    return plan
