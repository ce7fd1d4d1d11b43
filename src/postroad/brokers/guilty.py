"""Finds the message at fault in a batch that failed with an error which names no message. Only `send` does I/O.

The batch is sent again in halves, and those that fail in halves of their own, until each message was taken or has
failed alone: then it is refused. The relay does this for publishers that raise; one whose destination refuses whole
batches can do it itself, for fewer round trips.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

__all__ = ["find_guilty"]

T = TypeVar("T")
Why = TypeVar("Why")


async def find_guilty(
    suspects: Sequence[T],
    why: Why,
    *,
    send: Callable[[Sequence[T], Why], Awaitable[tuple[Sequence[T], Why] | None]],
    refuse: Callable[[T, Why], None],
) -> None:
    """Return when each suspect was taken or refused. `why` is how they failed together, in the caller's own terms.

    `send` sends some of them, and returns those that failed together this time, and why; None when each has its answer.
    `refuse` is called as soon as one is known to be at fault: what `send` raises ends the search, and keeps what was
    found. No two suspects have the same key: what is behind a refused message of its key would be sent.
    """
    if len(suspects) <= 1:
        for only in suspects:
            refuse(only, why)
        return
    half = len(suspects) // 2
    for part in (suspects[:half], suspects[half:]):
        failed = await send(part, why)
        if failed is not None:
            await find_guilty(*failed, send=send, refuse=refuse)
