"""`postroad forget`: erase the delivered messages of a key, which may name a person."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.admin import Count
from postroad.ops.parsing import parse_text
from postroad.ops.rendering.text import count
from postroad.ops.runner import Plan, Planning, changes

if TYPE_CHECKING:
    from postroad.admin import Admin
    from postroad.ops.settings import Settings

__all__ = ["forget"]


@changes(reason_required=True)
def forget(
    *,
    settings: Settings,
    key: Annotated[
        str, typer.Option("--key", metavar="KEY", help="The key of the messages. - reads it from standard input.")
    ],
) -> Planning:
    """Erase the delivered messages of a key: payloads, headers, errors, and the key in the audit.

    Undelivered messages stay. The audit shows that messages were erased, but not whose.
    """
    key = parse_text("--key", sys.stdin.readline().rstrip("\n") if key == "-" else key)

    async def plan(admin: Admin) -> Plan:
        found = await admin.preview_forget(key)
        left = found.undelivered + found.scheduled
        rest = f"; {count(left, 'undelivered message')} will stay, to be erased later" if left else ""
        selected = f"{count(found.delivered, 'delivered message')} of this key"
        return Plan(
            changes=Count(found.delivered),
            nothing=f"no delivered message of this key is in the log{rest}",
            would=f"{selected} would be erased{rest}",
            question=f"Erase {selected}{rest}? This can't be undone.",
            act=lambda admin, by, on_progress: admin.forget(key, by, on_progress=on_progress),
            thing="message",
            done=lambda messages: f"erased {messages}{rest}",
            progress="erasing",
        )

    return plan
