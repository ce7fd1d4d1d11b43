"""How a payload looks: its content, or what codecs did to it. What they made of it is never shown as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from postroad.codecs.description import by_codecs
from postroad.payload_view import payload_view

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["show_payload"]


def show_payload(payload: bytes, content_type: str, headers: Mapping[str, str], *, size: int | None = None) -> None:
    """Print it, indented, up to a limit. `size` is that of the whole payload."""
    if done := by_codecs(headers):
        typer.echo(f"  | not shown: it is {done}")
        return
    view = payload_view(payload, content_type, size=size)
    for line in view.lines:
        typer.echo(f"  | {line}")
    if view.shown < view.size:
        typer.echo(f"  | ... cut: {view.shown:,} of {view.size:,} bytes shown; --json has all of it, in Base64")
