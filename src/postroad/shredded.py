"""The event of a message whose payload was erased with its key. Pure.

A payload that was encrypted with a key of its own for each person or tenant can't be read any more once that key is
erased, wherever copies of it are: in the log, in a broker, in a backup. The message still arrives.
"""

from __future__ import annotations

from typing import final

__all__ = ["ShreddedPayload"]


@final
class ShreddedPayload:
    """What a handler gets that is registered for it: `@consumer.on(ShreddedPayload, type="customer.created")`.

    Without such a handler, the message becomes a dead letter.
    """

    __slots__ = ("key_id",)

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        """The id of the erased key."""

    def __repr__(self) -> str:
        return f"ShreddedPayload({self.key_id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShreddedPayload) and other.key_id == self.key_id

    def __hash__(self) -> int:
        return hash((ShreddedPayload, self.key_id))
