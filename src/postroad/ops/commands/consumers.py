"""`postroad consumers`: list the consumers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import AsJson  # noqa: TC001 - options are read from annotations
from postroad.ops.rendering.tables import Column, Row, show_rows
from postroad.ops.rendering.text import age, one_line, without_secrets
from postroad.ops.runner import with_admin
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from postroad.admin import ConsumerStatus
    from postroad.ops.settings import Settings

__all__ = ["consumers"]

_CONSUMERS = (
    Column("consumer"),
    Column("state", whole=True),
    Column("host"),
    *(Column(name, right=True, whole=True) for name in ("pid", "heartbeat", "handled", "again", "failed", "dead")),
)


@takes(*FOR_ANY_DATABASE)
def consumers(*, settings: Settings, as_json: AsJson = False) -> None:
    """List the consumers: state, host, process id, heartbeat, what they have done since their start, and source."""
    found = with_admin(settings, lambda admin: admin.consumers())
    if as_json:
        typer.echo(in_json({"consumers": found}))
    elif found:
        now = datetime.now(UTC)
        show_rows(_CONSUMERS, [Row(_cells(each), _note(each, now), _style(each)) for each in found], note="source")
    else:
        typer.echo("No consumer is running on this database: start one with `postroad consume`.")


def _cells(consumer: ConsumerStatus) -> list[str]:
    numbers = (consumer.handled, consumer.duplicates, consumer.failed, consumer.dead)
    place = [one_line(consumer.consumer), consumer.state, one_line(consumer.host), str(consumer.pid)]
    return [*place, f"{age(consumer.heartbeat_seconds)} ago", *(f"{number:,}" for number in numbers)]


def _note(consumer: ConsumerStatus, now: datetime) -> str:
    return f"from {without_secrets(consumer.source)}, started {age(now - consumer.started_at)} ago"


def _style(consumer: ConsumerStatus) -> str:
    return "red" if consumer.state == "dead" else ""
