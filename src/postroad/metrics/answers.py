"""What is answered to `/metrics`, `/livez` and `/readyz`, whichever server asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from postroad.events import MetricsFailed
from postroad.listeners import tell
from postroad.metrics.exposition import CONTENT_TYPE, exposition
from postroad.metrics.probes import live, ready

if TYPE_CHECKING:
    from postroad.metrics.collect import Metrics
    from postroad.metrics.probes import Health

__all__ = ["PATHS", "Answer", "answer"]

PATHS: Final = ("/metrics", "/livez", "/readyz")
_TEXT: Final = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    content_type: str
    body: bytes


async def answer(metrics: Metrics, method: str, path: str) -> Answer:
    """Answer a request. Never raises: what goes wrong is logged, and must not disturb the relay beside it."""
    if path not in PATHS:
        return Answer(404, _TEXT, f"there is {', '.join(PATHS)}\n".encode())
    if method not in {"GET", "HEAD"}:
        return Answer(405, _TEXT, b"only GET and HEAD\n")
    try:
        if path == "/livez":
            return _probe(live(metrics.relays(), metrics.consumers()))
        if path == "/readyz":
            return _probe(ready(metrics.relays(), metrics.consumers()))
        if metrics.database is not None:
            await metrics.database.refresh()
        return Answer(200, CONTENT_TYPE, exposition(metrics.read()))
    except Exception as error:
        tell(MetricsFailed(path=path, reason=repr(error)))
        return Answer(500, _TEXT, b"the log has the error\n")


def _probe(health: Health) -> Answer:
    return Answer(200 if health.ok else 503, "application/json", msgspec.json.encode(health) + b"\n")
