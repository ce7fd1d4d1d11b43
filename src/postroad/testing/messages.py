"""The messages that a test has read, with assertions about what was added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from postroad.codecs.chain import Decoder
from postroad.errors import PayloadsUnavailable
from postroad.message import (
    CODEC_HEADERS,
    CONTENT_ENCODING,
    ENCRYPTION,
    UNSET,
    Message,
    StoredMessage,
    encode,
    type_name,
)
from postroad.received import Unreadable, received
from postroad.testing.running import run_in_thread
from postroad.tombstone import Tombstone

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from postroad.message import Unset

__all__ = ["Messages"]


class Messages(list[StoredMessage]):
    """A list of messages, in the order of the log. Payloads are as they were written, so codecs may have changed them;
    assertions compare what was meant.
    """

    def __init__(self, messages: Iterable[StoredMessage] = (), *, decoders: Sequence[Decoder] = (Decoder(),)) -> None:
        """`decoders` undo what codecs did to a payload, for comparisons."""
        super().__init__(messages)
        self._decoders = decoders

    @overload
    def assert_added(
        self,
        what: Any,
        *,
        type: str | None = ...,
        key: str | int | UUID | Unset | None = ...,
        topic: str | None = ...,
        times: Literal[0],
    ) -> None: ...

    @overload
    def assert_added(
        self,
        what: Any,
        *,
        type: str | None = ...,
        key: str | int | UUID | Unset | None = ...,
        topic: str | None = ...,
        times: int | None = ...,
    ) -> StoredMessage: ...

    def assert_added(
        self,
        what: Any,
        *,
        type: str | None = None,
        key: str | int | UUID | Unset | None = UNSET,
        topic: str | None = None,
        times: int | None = None,
    ) -> StoredMessage | None:
        """Fail unless there is such a message, and return the first.

        `what` is the class of an event, the name of a type, or an event, whose payload must be the same; or a
        `Message`, whose key and topic must be the same, too. `type` is for what was added with one: a dict, a str,
        bytes, or a Tombstone. `key=None` matches messages without a key; without `key` any matches. With `times` there
        must be exactly so many matches, and none with `times=0`.
        """
        __tracebackhide__ = True
        wanted = _wanted(what, type, key, topic)
        found = [each for each in self if self._matches(each, wanted)]
        if len(found) != times if times is not None else not found:
            expected = "at least one" if times is None else str(times or "none")
            raise AssertionError(f"expected {expected}, found {len(found) or 'none'}: {wanted}\n{self._listed(wanted)}")
        return found[0] if found else None

    def refute_added(
        self,
        what: Any,
        *,
        type: str | None = None,
        key: str | int | UUID | Unset | None = UNSET,
        topic: str | None = None,
    ) -> None:
        """Fail if there is such a message; the arguments are those of `assert_added`."""
        __tracebackhide__ = True
        self.assert_added(what, type=type, key=key, topic=topic, times=0)

    def assert_only(self, *whats: Any) -> list[StoredMessage]:
        """Fail unless these are all messages, each once, in any order; and return them in the order given here.

        Each is a class, the name of a type, an event or a `Message`, as for `assert_added`. Without any, there must be
        no message.
        """
        __tracebackhide__ = True
        wanted = [_wanted(what, None, UNSET, None) for what in whats]
        left, found = list(self), dict[int, StoredMessage]()
        # What says most comes first: a class must not take the only message that equals an event.
        for at in sorted(range(len(wanted)), key=lambda each: wanted[each].vagueness):
            matching = next((each for each in left if self._matches(each, wanted[at])), None)
            if matching is not None:
                found[at] = matching
                left.remove(matching)
        missing = [str(each) for at, each in enumerate(wanted) if at not in found]
        if missing or left:
            unexpected = [self._shown(each) for each in left]
            lines = [f"missing: {each}" for each in missing] + [f"not expected: {each}" for each in unexpected]
            raise AssertionError("\n".join([*lines, self._listed(*wanted)]))
        return [found[at] for at in range(len(wanted))]

    def _matches(self, message: StoredMessage, wanted: _Wanted) -> bool:
        return (
            (wanted.type is None or message.type == wanted.type)
            and (not wanted.tombstone or message.is_tombstone)
            and (wanted.key is UNSET or message.key == wanted.key)
            and (wanted.topic is None or message.topic == wanted.topic)
            and (wanted.payload is None or self._payload(message) == wanted.payload)
        )

    def _payload(self, message: StoredMessage) -> bytes | None:
        """The payload as the application wrote it; None if that can't be known here."""
        if message.is_unread or CODEC_HEADERS.isdisjoint(message.all_headers):
            return message.payload
        for decoder in self._decoders:
            try:
                undone = run_in_thread(decoder.undo_one(received(message)))
            except (Unreadable, PayloadsUnavailable):
                continue
            return None if undone.is_shredded else undone.payload
        return None

    def _listed(self, *wanted: _Wanted) -> str:
        there = "\n".join(f"  {self._shown(each)}" for each in self)
        compared = {each.type for each in wanted if each.payload is not None}
        unknown = [each for each in self if each.type in compared and self._payload(each) is None]
        note = ""
        if unknown:
            note = (
                f"\n{len(unknown)} of them could not be compared, because codecs have changed the payload; give those "
                "of the outbox: outbox_messages(connection, codecs=[...]). Or compare the type and the key alone"
            )
        return f"messages:\n{there or '  none'}{note}"

    def _shown(self, message: StoredMessage) -> str:
        payload = None if message.is_tombstone else self._payload(message)
        wanted = _Wanted(message.type, payload, message.key, message.topic, message.is_tombstone)
        return f"{wanted}{'' if payload is not None or message.is_tombstone else f' ({_encoding(message)})'}"


class _Wanted(NamedTuple):
    """What to look for."""

    type: str | None
    payload: bytes | None
    key: object
    topic: str | None
    tombstone: bool

    @property
    def vagueness(self) -> int:
        return (self.payload is None) * 4 + (self.key is UNSET) * 2 + (self.topic is None)

    def __str__(self) -> str:
        parts = [self.type or "any type", *["tombstone"] * self.tombstone]
        if self.key is not UNSET:
            parts.append(f"key={self.key!r}")
        if self.topic not in {None, self.type}:
            parts.append(f"topic={self.topic!r}")
        if self.payload is not None:
            parts.append(self.payload[:200].decode(errors="replace"))
        return " ".join(parts)


def _wanted(what: Any, given: str | None, key: Any, topic: str | None) -> _Wanted:
    if isinstance(what, Message):
        key = what.key if key is UNSET else key
        return _wanted(what.event, given or what.type, key, what.topic if topic is None else topic)
    key = key if key is None or key is UNSET else str(key)
    if what is Tombstone or isinstance(what, Tombstone):
        return _Wanted(given, None, key, topic, tombstone=True)
    if isinstance(what, str) and given is None:
        return _Wanted(what, None, key, topic, tombstone=False)
    if isinstance(what, type):
        return _Wanted(given or type_name(what), None, key, topic, tombstone=False)
    row = encode(Message(what, type=given), "postroad.testing")
    return _Wanted(row.type, row.payload, key, topic, tombstone=False)


def _encoding(message: StoredMessage) -> str:
    headers = message.all_headers
    if ENCRYPTION in headers:
        return "its payload is encrypted"
    return "its payload is compressed" if CONTENT_ENCODING in headers else "its payload is stored elsewhere"
