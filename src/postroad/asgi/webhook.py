"""An endpoint that receives messages and calls a consumer's handlers, so that two services need no broker.

    app.mount("/hooks", webhook(consumer, secrets=Path("/run/secrets/webhook")))

For each request: **verify → begin → first_time → decode → handler → commit → answer.** It is answered with 2xx only
after the commit, and a message that comes again has no second effect.

| answer | when |
|---|---|
| 204 | every message in it is handled, was handled before, or is of a type that no handler takes |
| 400, 422 | it is no request of this kind; a message in it can't be read |
| 401 | it is not signed with one of the secrets, or its time is too far from this machine's |
| 405, 413 | it is no POST; its body is larger than `max_size` |
| 500 | a handler failed |
| 503 | the database is unavailable, or another request is handling the message now |
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from postroad import events
from postroad.brokers.http.receiving import messages_in
from postroad.brokers.http.secrets import SecretsFile
from postroad.brokers.http.settings import LARGEST_BODY
from postroad.brokers.http.signatures import NotVerified, keys_for_verifying, verified
from postroad.errors import BrokerUnavailable, InvalidSetting, Refusal
from postroad.events import PasswordFileReadable
from postroad.kinds import duration, whole_number
from postroad.permissions import all_may_read
from postroad.received import Unreadable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping, Sequence

    from postroad.brokers.http.signatures import Key
    from postroad.consumer import Consumer
    from postroad.kinds import Duration
    from postroad.received import Received

    Scope = MutableMapping[str, Any]
    Event = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Event]]
    Send = Callable[[Event], Awaitable[None]]

    Secrets = str | Iterable[str] | Path
    Keys = Callable[[], Sequence[Key]]

__all__ = ["Webhook", "webhook"]

REPORT_SECONDS: Final = 10.0
"""How often refused requests are reported at most: anyone can send them."""
RETRY_AFTER: Final = "1"
"""Seconds after which a sender may try again when the database is unavailable."""
_WRONG_SECRETS: Final = "{} must be texts, whsec_… or whpk_…, or a Path of a file with them"
_MAX_SIZE: Final = whole_number(1, 1 << 30)


class Answer(NamedTuple):
    """What a request is answered with."""

    status: int
    text: str = ""
    headers: tuple[tuple[bytes, bytes], ...] = ()


class _Refused(Exception):
    """The request is not handled at all."""

    def __init__(self, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(text)
        self.answer = Answer(status, text, headers)


def webhook(
    consumer: Consumer[Any],
    *,
    secrets: Secrets | Mapping[str, Secrets],
    tolerance: Duration = "5m",
    max_size: int = LARGEST_BODY,
) -> Webhook:
    """The endpoint, as an ASGI application to mount. It takes every path under which it is mounted.

    `secrets` are those of the senders, `whsec_…` or `whpk_…`: one, several, or the path of a file with one in a line,
    which is read anew when it changes. A mapping has the secrets of each source, `{"/shop": "whsec_…"}`: then what is
    signed with the secret of one can't have the source of another. Senders that do not trust each other need that, or
    an endpoint and a consumer of its own for each. `tolerance` is how far the time of a request may be from this
    machine's. `max_size` is the most bytes of a body.

    A mounted application has no lifespan: enter `async with` it in that of the application that it is mounted in, so
    that the consumer's database is checked at the start, and its tasks end. Without that, the first request does it.
    """
    return Webhook(consumer, secrets, duration("tolerance", tolerance).total_seconds(), max_size)


class Webhook:
    """See `webhook`."""

    def __init__(
        self,
        consumer: Consumer[Any],
        secrets: Secrets | Mapping[str, Secrets],
        tolerance: float,
        max_size: int,
    ) -> None:
        self._consumer = consumer
        self._secrets = _secrets(consumer, secrets)
        self._tolerance = tolerance
        self._max_size: int = _MAX_SIZE.check("max_size", max_size)
        self._handler = consumer.for_requests()
        self._refused = 0
        self._reported = float("-inf")

    async def __aenter__(self) -> Self:
        await self._handler.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._handler.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"webhook serves HTTP only, not {scope['type']!r}")
        try:
            answer = await self._answer(scope, receive)
        except _Refused as refused:
            answer = refused.answer
            self._report(answer)
        if answer is not None:
            await _respond(answer, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """The lifespan, where this is the whole application."""
        while True:
            event = await receive()
            try:
                await (self._handler.start if event["type"] == "lifespan.startup" else self._handler.end)()
            except Exception as error:
                await send({"type": f"{event['type']}.failed", "message": f"{type(error).__name__}: {error}"})
                return
            await send({"type": f"{event['type']}.complete"})
            if event["type"] == "lifespan.shutdown":
                return

    # -- one request -------------------------------------------------------------------------------------------------

    async def _answer(self, scope: Scope, receive: Receive) -> Answer | None:
        """The answer to a request; None if it was broken off. Raises _Refused."""
        if scope["method"] != "POST":
            raise _Refused(405, "send messages with POST", (b"allow", b"POST"))
        headers = _headers(scope)
        body = await self._body(headers, receive)
        if body is None:
            return None
        try:
            secrets = {source: keys() for source, keys in self._secrets.items()}
            found = verified(secrets, headers, body, now=time.time(), tolerance=self._tolerance)
            messages = messages_in(found, headers, body)
        except NotVerified as error:
            raise _Refused(401, str(error)) from None
        except Unreadable as error:
            raise _Refused(422, str(error)) from None
        return await self._handle(messages)

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes | None:
        """The body; None if the sender has gone. Raises _Refused when it is too large."""
        announced = headers.get("content-length", "0")
        too_large = _Refused(413, f"a body may have {self._max_size:,} bytes", (b"connection", b"close"))
        if not announced.isdecimal() or len(announced) > 12:
            raise _Refused(400, "content-length is no number")
        if int(announced) > self._max_size:
            raise too_large
        pieces: list[bytes] = []
        size = 0
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return None
            pieces.append(event.get("body", b""))
            size += len(pieces[-1])
            if size > self._max_size:
                raise too_large
            if not event.get("more_body", False):
                return b"".join(pieces)

    async def _handle(self, messages: Sequence[Received]) -> Answer:
        try:
            failures = await self._handler.handle_received(messages)
        except BrokerUnavailable as outage:
            failures = [outage]
        if not failures:
            return Answer(204)
        refusals = [each for each in failures if isinstance(each, Refusal)]
        if len(refusals) < len(failures):
            return Answer(503, "the consumer's database is unavailable, or the message is being handled", _LATER)
        status = 422 if all(each.permanent for each in refusals) else 500
        for each in refusals:
            message = messages[each.position]
            event = events.RequestFailed(
                self._consumer.name, message.id, message.type, status=status, reason=each.reason
            )
            self._consumer.emit(event.caused_by(each.error))
        # What a handler raised is for this side's log only: it may hold personal data.
        return Answer(status, "a message can't be read by its handler" if status == 422 else "a handler failed")

    def _report(self, answer: Answer) -> None:
        self._refused += 1
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._consumer.emit(
                events.RequestRefused(
                    self._consumer.name, requests=self._refused, status=answer.status, reason=answer.text
                )
            )
            self._reported, self._refused = now, 0


_LATER: Final = ((b"retry-after", RETRY_AFTER.encode()),)


def _secrets(consumer: Consumer[Any], given: Secrets | Mapping[str, Secrets]) -> Mapping[str | None, Keys]:
    """The secrets of each source, or under None those of all."""
    if not isinstance(given, Mapping):
        return {None: _keys(consumer, "secrets", given)}
    if not given or not all(isinstance(source, str) and source for source in given):
        raise InvalidSetting("secrets is a mapping, so it must have a secret for each source: {'/shop': 'whsec_…'}")
    return {source: _keys(consumer, f"secrets[{source!r}]", each) for source, each in given.items()}


def _keys(consumer: Consumer[Any], name: str, secrets: Secrets) -> Keys:
    if isinstance(secrets, Path):
        if all_may_read(secrets):
            consumer.emit(PasswordFileReadable(setting=name, file=str(secrets)))
        return SecretsFile(name, secrets, keys_for_verifying, consumer.emit).keys
    if not isinstance(secrets, Iterable):
        raise InvalidSetting(_WRONG_SECRETS.format(name))
    given = secrets.split() if isinstance(secrets, str) else list(secrets)
    if not all(isinstance(each, str) for each in given):
        raise InvalidSetting(_WRONG_SECRETS.format(name))
    keys = keys_for_verifying(name, given)
    return lambda: keys


def _headers(scope: Scope) -> dict[str, str]:
    """The headers, with names in lower case; several of one name are a list, as HTTP reads them."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = bytes(raw_name).decode("latin-1").lower(), bytes(raw_value).decode("latin-1")
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


async def _respond(answer: Answer, send: Send) -> None:
    body = answer.text.encode()
    headers = list(answer.headers)
    if body:
        headers.append((b"content-type", b"text/plain; charset=utf-8"))
    if answer.status != 204:
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
