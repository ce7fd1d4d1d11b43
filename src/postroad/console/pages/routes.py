"""Every page of a database: its path, its method, the right that it needs, and the function that answers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from postroad.console.access import Right
from postroad.console.changes import CHANGES
from postroad.console.pages import (
    audit,
    change,
    doctor,
    find,
    inbox,
    key,
    lanes,
    latency,
    live,
    message,
    messages,
    now,
    time_machine,
    trouble,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response

    from postroad.console.context import Context

__all__ = ["ROUTES", "PageRoute"]


class PageRoute(NamedTuple):
    """A page of a database."""

    path: str
    method: str
    right: Right
    answer: Callable[[Context], Awaitable[Response]]


ROUTES: Final = (
    PageRoute("/", "GET", Right.VIEW, now.now),
    PageRoute("/live/{view}", "GET", Right.VIEW, live.live),
    PageRoute("/find", "GET", Right.VIEW, find.find),
    PageRoute("/trouble", "GET", Right.VIEW, trouble.trouble),
    PageRoute("/messages", "GET", Right.VIEW, messages.messages),
    PageRoute("/message/{id}", "GET", Right.VIEW, message.message),
    PageRoute("/message/{id}/payload", "POST", Right.READ_PAYLOADS, message.payload),
    PageRoute("/key", "GET", Right.VIEW, key.key),
    PageRoute("/lanes", "GET", Right.VIEW, lanes.lanes),
    PageRoute("/latency", "GET", Right.VIEW, latency.latency),
    PageRoute("/time-machine", "GET", Right.VIEW, time_machine.time_machine),
    PageRoute("/inbox", "GET", Right.VIEW, inbox.inbox),
    PageRoute("/inbox/letter", "GET", Right.VIEW, inbox.letter),
    PageRoute("/inbox/letter/payload", "POST", Right.READ_PAYLOADS, inbox.payload),
    PageRoute("/audit", "GET", Right.VIEW, audit.audit),
    PageRoute("/audit.csv", "GET", Right.VIEW, audit.as_csv),
    PageRoute("/audit.json", "GET", Right.VIEW, audit.as_json),
    PageRoute("/doctor", "GET", Right.VIEW, doctor.doctor),
    PageRoute("/done", "GET", Right.VIEW, change.done),
    *(PageRoute(f"/do/{name}", "GET", each.right, partial(change.preview, each)) for name, each in CHANGES.items()),
    *(PageRoute(f"/do/{name}", "POST", each.right, partial(change.perform, each)) for name, each in CHANGES.items()),
)
