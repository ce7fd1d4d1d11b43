"""Applies an outbox's codecs to rows, and undoes them for a consumer. The headers say what was done."""

from __future__ import annotations

import asyncio
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from postroad.codecs.base import STAGES, About, KeyErased, checked_codecs
from postroad.codecs.claim_check import ClaimCheck, Put, id_in
from postroad.codecs.compression import Zlib, Zstd
from postroad.errors import InvalidSetting, MissingExtra
from postroad.message import CODEC_HEADERS, CONTENT_ENCODING, DATAREF, ENCRYPTION, check_headers, check_payload
from postroad.received import Received, Unreadable, received

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from postroad.codecs.base import Codec
    from postroad.message import NewRow, StoredMessage

__all__ = ["Decoder", "Encoder", "Undone", "decoded"]

_NEEDED = {ENCRYPTION: "Encrypt(keys)", DATAREF: "ClaimCheck(store)"}


class Encoder:
    """The codecs of an outbox."""

    def __init__(self, codecs: Iterable[Codec]) -> None:
        self._codecs = checked_codecs(codecs)
        for one, other in pairwise(self._codecs):
            if one.header == other.header:
                raise InvalidSetting(
                    f"codecs has {type(one).__name__} and {type(other).__name__}; an outbox can use one of them "
                    "(a consumer may have both)"
                )

    def encode(self, row: NewRow, largest: int) -> tuple[NewRow, Put | None]:
        """The row as it is written, and the payload to store elsewhere afterwards. Raises InvalidMessage.

        `largest` is the most that the row's payload may have then.
        """
        if not row.content_type:  # a tombstone has no content to change
            return row, None
        payload, done, put = row.payload, dict[str, str](), None
        about = About(str(row.id), row.type, row.key, row.headers)
        for codec in self._codecs:
            changed = codec.encode(payload, about)
            if changed is None:
                continue
            before = payload
            payload, done[codec.header] = changed
            if codec.header == CONTENT_ENCODING:
                about = about._replace(encoding=changed[1])
            if isinstance(codec, ClaimCheck):
                put = Put(codec.store, changed[1], before)
        check_payload(row.type, payload, largest)
        if not done:
            return row, None
        headers = f"{row.headers[:-1]},{msgspec.json.encode(done).decode()[1:]}"
        check_headers(headers)
        return row._replace(payload=payload, headers=headers), put


class Undone(NamedTuple):
    """Messages with their payloads as the application wrote them."""

    messages: Sequence[Received]
    failures: Mapping[str, Exception]
    """By identity: why a payload can't be had. It is Unreadable, PayloadsUnavailable, or what `Keys` raised."""


class Decoder:
    """The codecs of a consumer. Compression is undone without any, because it needs no settings."""

    def __init__(self, codecs: Iterable[Codec] = ()) -> None:
        self._given = checked_codecs(codecs)

    @cached_property
    def _codecs(self) -> dict[str, list[Codec]]:
        found: dict[str, list[Codec]] = {header: [] for header in STAGES}
        for codec in self._given:
            found[codec.header].append(codec)
        forms = {codec.form for codec in found[CONTENT_ENCODING]}
        for compression in (Zlib, Zstd):
            if compression.form not in forms:
                try:
                    found[CONTENT_ENCODING].append(compression())
                except MissingExtra:
                    continue
        return found

    async def undo(self, messages: Sequence[Received]) -> Undone:
        """Undo what the headers of these messages say. Errors are collected, because a duplicate needs no payload."""
        if all(CODEC_HEADERS.isdisjoint(message.headers) for message in messages):
            return Undone(messages, {})
        found = await asyncio.gather(*map(self.undo_one, messages), return_exceptions=True)
        undone, failures = list(messages), dict[str, Exception]()
        for at, each in enumerate(found):
            if isinstance(each, Received):
                undone[at] = each
            elif isinstance(each, Exception):
                failures[messages[at].identity] = each
            else:
                raise each
        return Undone(undone, failures)

    async def undo_one(self, message: Received) -> Received:
        """The message with its payload as the application wrote it. Raises Unreadable or PayloadsUnavailable."""
        said = {header: message.headers[header] for header in STAGES if header in message.headers}
        if DATAREF in said and (message.payload or id_in(said[DATAREF]) is None):
            del said[DATAREF]  # CloudEvents' own attribute: another producer's, and its handler knows what it means
        if not said:
            return message
        about = About(message.id, message.type, message.key, "{}", encoding=said.get(CONTENT_ENCODING, ""))
        changes: dict[str, Any] = {"payload": message.payload}
        try:
            for header in reversed(said):
                codec = self._for(header, said[header])
                changes["payload"] = await codec.decode(changes["payload"], said[header], about)
        except KeyErased as erased:
            changes = {"payload": b"", "erased_key": erased.key_id}
        own = {name: value for name, value in message.headers.items() if name not in said}
        return msgspec.structs.replace(message, headers=own, **changes)

    def _for(self, header: str, value: str) -> Codec:
        for codec in self._codecs[header]:
            if header != CONTENT_ENCODING or codec.form == value:
                return codec
        if header == CONTENT_ENCODING:
            hint = ": pip install 'postroad[zstd]'" if value == Zstd.form else ""
            raise Unreadable(f"its payload is compressed ({value!r:.40}), which this consumer can't undo{hint}")
        what = "encrypted" if header == ENCRYPTION else "stored elsewhere"
        raise Unreadable(f"its payload is {what}, and this consumer has no codec for it: codecs=[{_NEEDED[header]}]")


async def decoded(message: Received | StoredMessage, codecs: Iterable[Codec] = ()) -> Received:
    """The message with its payload as the application wrote it, for a receive loop or a publisher of your own.

    Raises Unreadable, or PayloadsUnavailable. If the key was erased, `is_shredded` is true and the payload empty.
    """
    given = message if isinstance(message, Received) else received(message)
    return await Decoder(codecs).undo_one(given)
