"""The messages in a request, whose signature was verified. Pure.

| form | recognized by | a message's identity is |
|---|---|---|
| batched | `application/cloudevents-batch+json` | source and id, which are in the signed body |
| structured | `application/cloudevents+json` | the same |
| binary | the header `ce-id` | `webhook-id` alone: no other header is signed. The source is the header `ce-source` |
| other webhooks | none of these | `webhook-id`; the type is the member `type` of the JSON body |

Where secrets belong to sources, a signed source must be one of those whose secret has signed the request, and a message
without a signed source has the first of them.

The content type is not signed. So a body that is a CloudEvent, or an array of them, is read as that or not at all:
otherwise a request that was recorded could come again as another message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from postroad.brokers.base import Delivery
from postroad.brokers.cloudevents import STRUCTURED_TYPE, percent_decoded, unwrap
from postroad.brokers.http.requests import is_taken
from postroad.brokers.http.signatures import NotVerified
from postroad.received import Received, Unreadable, identity_of

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from postroad.brokers.http.signatures import Verified

__all__ = ["messages_in"]

MOST_MESSAGES: Final = 10_000
_BATCH: Final = "application/cloudevents-batch+json"
_STRUCTURED: Final = "application/cloudevents+json"


class _Document(msgspec.Struct):
    """What every CloudEvent has."""

    specversion: str
    id: str
    source: str
    type: str


_decode_document: Final = msgspec.json.Decoder(
    _Document | Annotated[list[_Document], msgspec.Meta(min_length=1)]
).decode


def messages_in(verified: Verified, headers: Mapping[str, str], body: bytes) -> list[Received]:
    """The messages in a request; names of headers are in lower case. Raises Unreadable, and NotVerified when one has a
    source for which the request was not signed.
    """
    id, sources = verified
    content_type = headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == _BATCH:
        return _checked([_read(each, STRUCTURED_TYPE, {}) for each in _elements(body)], sources)
    own = percent_decoded({name: value for name, value in headers.items() if not is_taken(name)})
    if media_type == _STRUCTURED:
        return _checked([_read(body, content_type, own)], sources)
    if _is_document(body):
        raise Unreadable("its body is a CloudEvent, or an array of them, which its content type does not say")
    attributes = percent_decoded({name: value for name, value in headers.items() if name.startswith("ce-")})
    given = attributes.setdefault("ce-id", id)
    if given != id:
        raise Unreadable(f"its ce-id is {given[:60]!r}, and must be its webhook-id, which is signed")
    if len(attributes) == 1:
        attributes["ce-type"] = _type_in(body)
    unsigned = {name: attributes.pop(name) for name in ("ce-source",) if name in attributes}
    found = _read(body, content_type, own | attributes)
    source, headers = sources[0], {**found.headers, **unsigned}
    return [msgspec.structs.replace(found, headers=headers, source=source, identity=identity_of(found.id, source))]


def _checked(messages: list[Received], sources: Container[str | None]) -> list[Received]:
    """The messages, whose sources are signed."""
    if None not in sources:
        for each in messages:
            if each.source not in sources:
                raise NotVerified(f"its source is {(each.source or '')[:60]!r}, which has another secret")
    return messages


def _read(body: bytes, content_type: str, headers: Mapping[str, str]) -> Received:
    return unwrap(Delivery(session=None, tag=0, body=body, content_type=content_type, headers=headers))


def _is_document(body: bytes) -> bool:
    try:
        _decode_document(body)
    except (ValueError, RecursionError):  # ValueError: another JSON, or none
        return False
    return True


def _elements(body: bytes) -> list[bytes]:
    try:
        found = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unreadable(f"its body is no JSON array: {error}") from None
    if len(found) > MOST_MESSAGES:
        raise Unreadable(f"it has {len(found):,} messages, and the most are {MOST_MESSAGES:,}")
    return [bytes(each) for each in found]


def _type_in(body: bytes) -> str:
    """The type that Standard Webhooks suggests to put into the payload; empty if there is none."""
    try:
        found: Any = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get("type")
        return "" if found is None else msgspec.json.decode(found, type=str)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return ""
