"""Inbox: the consumers, whether they are alive, what they have done, and their dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.admin import By, DeadLetterFilter
from postroad.codecs.description import by_codecs
from postroad.console.pages.change import given_to
from postroad.console.pages.message import shown_payload

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroad.admin import DeadLetterRow
    from postroad.console.context import Context
    from postroad.dead_letters import DeadLetter

__all__ = ["inbox", "letter", "payload"]

SHOWN: Final = 100


async def inbox(context: Context) -> Response:
    """The page."""
    admin, given = await context.database.admin(), given_to(context)
    which = DeadLetterFilter(consumer=given.text("consumer"), type=given.text("type"), error=given.text("error"))
    return context.page(
        "inbox.html",
        consumers=await admin.consumers(),
        letters=await admin.dead_letters(which, SHOWN),
        given=given,
        known=context.shared.consumers,
    )


async def letter(context: Context) -> Response:
    """One dead letter, with its headers if the console knows its consumer."""
    values, _ = await _view(context)
    return context.page("letter.html", **values, shown=None)


async def payload(context: Context) -> Response:
    """The same with its payload. That it was looked at is written into the audit first."""
    values, found = await _view(context)
    row: DeadLetterRow = values["row"]
    reason = context.form.get("reason", "").strip() or None
    admin = await context.database.admin()
    await admin.record_view(row.id, By(context.user.name, reason), consumer=row.consumer)
    context.database.forget()
    return context.page("letter.html", **values, shown=_payload(context, found))


async def _view(context: Context) -> tuple[dict[str, Any], DeadLetter | None]:
    admin, given = await context.database.admin(), given_to(context)
    row = await admin.find_dead_letter(given.needed("id"), given.needed("consumer"))
    consumer = context.shared.consumers.get(row.consumer)
    found = None if consumer is None else await admin.read_dead_letter(consumer.dead_letters(), row)
    headers = {} if found is None else context.shared.redaction.headers(found.headers)
    return {"row": row, "known": consumer is not None, "there": found is not None, "headers": headers}, found


def _payload(context: Context, found: DeadLetter | None) -> dict[str, Any]:
    if found is None:
        return {"why_not": "the consumer's broker does not have this letter, or the console does not know the consumer"}
    if codecs := by_codecs(found.headers):
        return {"why_not": f"it is {codecs}, and the console has no key and no store"}
    return shown_payload(context, found.body, found.content_type, len(found.body))
