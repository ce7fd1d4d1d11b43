"""`postroad payloads`: payloads that are stored elsewhere than in the log (ClaimCheck)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.codecs.payload_store import payload_store
from postroad.kinds import duration_text
from postroad.ops.parsing import parse_age
from postroad.ops.runner import Plan, Planning, about, changes
from postroad.ops.terminal import Command, Group

if TYPE_CHECKING:
    from postroad.admin import Admin
    from postroad.ops.settings import Settings

__all__ = ["payloads"]

payloads = typer.Typer(cls=Group, no_args_is_help=True, help="Payloads that are stored elsewhere than in the log.")


@payloads.command("sweep", cls=Command)
@changes(reason_required=False)
def sweep(
    *,
    settings: Settings,
    store: Annotated[
        str,
        typer.Option(
            "--store", metavar="URL", help="Where the payloads are, as ClaimCheck has it, such as s3://bucket/payloads."
        ),
    ],
    older: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Delete payloads that were stored this long ago.")
    ] = "14d",
) -> Planning:
    """Delete stored payloads that no message in the log refers to: delivered and deleted, or never committed.

    Consumers may read a payload as long as their broker keeps its message, so choose a time that is longer than that.
    """
    span, objects = parse_age(older), payload_store(store)

    async def plan(admin: Admin) -> Plan:
        number = await admin.preview_sweep_payloads(objects, span)
        selected = f"{about(number, 'payload')} older than {duration_text(span)}"
        return Plan(
            changes=number,
            nothing=f"no payload in {objects!r} is older than {duration_text(span)} and without a message",
            routine=True,
            would=f"{selected} would be deleted from {objects!r}",
            question=f"Delete {selected} from {objects!r}? No message in the log refers to them.",
            act=lambda admin, by, on_progress: admin.sweep_payloads(objects, span, by, on_progress=on_progress),
            thing="payload",
            done="deleted {}".format,
            progress="deleting",
        )

    return plan
