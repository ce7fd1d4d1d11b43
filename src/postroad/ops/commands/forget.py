"""`postroad forget`: what the log knows of a person, once it is delivered."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.ops.asking import DryRun, Reason, Who, Yes, actor, needed_reason, progress, sure
from postroad.ops.commands.choosing import AsJson, ask
from postroad.ops.commands.showing_done import show_done, show_plan
from postroad.ops.given import read_text
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.showing import count
from postroad.stores.operating import By

if TYPE_CHECKING:
    from postroad.ops.settings import Settings
    from postroad.stores.operating import KeyCount

__all__ = ["forget"]


@takes(*FOR_ANY_DATABASE)
def forget(
    *,
    settings: Settings,
    key: Annotated[
        str, typer.Option("--key", metavar="KEY", help="Whose messages. - reads the key from standard input.")
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Erase the delivered messages of a key: payloads, headers, errors, and the key in the audit.

    What is not delivered yet stays. The audit says that something was forgotten, and not what.
    """
    key = read_text("--key", sys.stdin.readline().rstrip("\n") if key == "-" else key)
    found = ask(settings, lambda insights: insights.of_key(key))
    meant = f"{count(found.delivered, 'delivered message')} of this key"
    if dry_run:
        show_plan(f"{meant} would be erased{_left(found)}", found.delivered, as_json=as_json)
        return
    by = By(actor(who), needed_reason(reason))
    sure(f"Erase {meant}{_left(found)}? This can't be undone.", yes=yes)
    with progress("erasing", found.delivered) as told:
        done = ask(settings, lambda insights: insights.forget(key, by, told))
    show_done(done, "message", lambda many: f"erased {many}{_left(found)}", as_json=as_json)


def _left(found: KeyCount) -> str:
    left = found.undelivered + found.scheduled
    return f"; {count(left, 'message')} not delivered yet will stay, to be forgotten later" if left else ""
