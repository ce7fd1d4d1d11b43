"""The messages that a test has read, with the assertion `assert_added`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from postroad.message import UNSET, Message, StoredMessage, encode, type_name

if TYPE_CHECKING:
    from uuid import UUID

    from postroad.message import Unset

__all__ = ["Messages"]


class Messages(list[StoredMessage]):
    """A list of messages, in the order of the log."""

    @overload
    def assert_added(
        self, what: Any, *, key: str | int | UUID | Unset | None = ..., topic: str | None = ..., times: Literal[0]
    ) -> None: ...

    @overload
    def assert_added(
        self,
        what: Any,
        *,
        key: str | int | UUID | Unset | None = ...,
        topic: str | None = ...,
        times: int | None = ...,
    ) -> StoredMessage: ...

    def assert_added(
        self,
        what: Any,
        *,
        key: str | int | UUID | Unset | None = UNSET,
        topic: str | None = None,
        times: int | None = None,
    ) -> StoredMessage | None:
        """Fail unless there is such a message, and return the first.

        `what` is the class of an event, the name of a type, or an event, whose payload must be the same. `key=None`
        matches messages without a key; without `key` any matches. With `times` there must be exactly so many matches,
        and none with `times=0`.
        """
        __tracebackhide__ = True
        type, payload = _type_and_payload(what)
        wanted_key = key if key is None or key is UNSET else str(key)
        found = [
            each
            for each in self
            if each.type == type
            and (payload is None or each.payload == payload)
            and (wanted_key is UNSET or each.key == wanted_key)
            and (topic is None or each.topic == topic)
        ]
        if len(found) != times if times is not None else not found:
            wanted = _shown(type, payload, wanted_key, topic)
            there = "\n".join(f"  {_shown(each.type, each.payload, each.key, each.topic)}" for each in self)
            expected = "at least one" if times is None else str(times or "none")
            raise AssertionError(
                f"expected {expected}, found {len(found) or 'none'}: {wanted}\nmessages:\n{there or '  none'}"
            )
        return found[0] if found else None


def _type_and_payload(what: Any) -> tuple[str, bytes | None]:
    if isinstance(what, str):
        return what, None
    if isinstance(what, type):
        return type_name(what), None
    row = encode(Message(what), "postroad.testing")
    return row.type, row.payload


def _shown(type: str, payload: bytes | None, key: object, topic: str | None) -> str:
    parts = [type]
    if key is not UNSET:
        parts.append(f"key={key!r}")
    if topic not in {None, type}:
        parts.append(f"topic={topic!r}")
    if payload is not None:
        parts.append(payload[:200].decode(errors="replace"))
    return " ".join(parts)
