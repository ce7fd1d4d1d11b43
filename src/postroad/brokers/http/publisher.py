"""Endpoints as a destination: each message is a request, and a 2xx answer is its confirm.

All messages of a call have different keys, so their requests may be under way together (`delivery`). What an answer
means is in `answers`, and whose fault a failure is in `endpoint`:

- With one URL, an endpoint that takes nothing is an outage: messages wait in the log.
- With a template, it blocks its route: its messages are held, and those for other endpoints go on.
- A host that can't be connected to is an outage with both.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from postroad.brokers.base import Confirmed, Durability
from postroad.brokers.cloudevents import CannotEncode
from postroad.brokers.http.address import Address
from postroad.brokers.http.client import Client, Unreachable
from postroad.brokers.http.delivery import Call, Delivery, LimitedEndpoint, Sender
from postroad.brokers.http.requests import Requests
from postroad.brokers.http.secrets import SecretsFile
from postroad.brokers.http.settings import PublisherSettings
from postroad.brokers.http.signatures import keys_for_signing
from postroad.errors import BrokerUnavailable
from postroad.listeners import LogListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from postroad.brokers.http.requests import Part
    from postroad.brokers.http.signatures import Key
    from postroad.errors import Refusal
    from postroad.message import StoredMessage

__all__ = ["HTTPPublisher"]

DURABLE: Final = "answered with 2xx by the endpoint, which says by that that it has taken it"
MOST_ENDPOINTS: Final = 10_000
"""Of a template. When there are more, what is known of those that work is forgotten."""


class HTTPPublisher:
    """Sends messages to the endpoints that a URL names."""

    in_order = False
    """A message that an endpoint refuses does not keep it from taking the next one."""

    def __init__(self, url: str, settings: PublisherSettings = PublisherSettings()) -> None:  # noqa: B008 - it is frozen
        self._address = address = Address(url, settings)
        self.name = self.destination = address.destination
        self._requests = Requests(settings.envelope, settings.max_message_size, settings.batch_messages)
        self._client = Client(address.origin, settings, address.allowed)
        self._sender = Sender(
            self._client,
            self._requests,
            _keys(settings),
            asyncio.Semaphore(settings.concurrency),
            holds_routes=address.is_template,
        )
        # One that hangs must leave some to the others.
        self._at_once = max(1, settings.concurrency // 2) if address.is_template else settings.concurrency
        self._endpoints: dict[str, LimitedEndpoint] = {}

    def __repr__(self) -> str:
        return f"HTTPPublisher({self.name!r})"

    # -- the contract ------------------------------------------------------------------------------------------------

    async def open(self) -> Durability:
        """Connect to the host, unless the endpoint asks to be left alone. See `Publisher`."""
        if not self._address.is_template:
            reason = self._endpoint(self.destination).takes_nothing(time.monotonic())
            if reason is not None:
                raise self._outage(reason)
        try:
            await self._client.connect()
        except Unreachable as error:
            raise self._outage(str(error)) from error
        return Durability(DURABLE)

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Send the messages, and wait until each is answered. See `Publisher`."""
        call = Call(messages, self._client.closings)
        deliveries = [self._delivery(path, parts, call) for path, parts in self._by_path(messages, call).items()]
        try:
            if len(deliveries) == 1:
                await deliveries[0].run()
            elif deliveries:
                async with asyncio.TaskGroup() as group:
                    for each in deliveries:
                        group.create_task(each.run())
        except asyncio.CancelledError as cancelled:
            raise asyncio.CancelledError(Confirmed(frozenset(call.confirmed))) from cancelled
        if call.outage is not None:
            raise self._outage(call.outage, call)
        return call.refusals()

    async def close(self) -> None:
        """Close the connections. A `publish` that still waits raises BrokerUnavailable."""
        await self._client.close()

    def _outage(self, reason: str, call: Call | None = None) -> BrokerUnavailable:
        confirmed, refusals = (frozenset[int](), []) if call is None else (call.confirmed, call.refusals())
        return BrokerUnavailable(f"{self.name}: {reason}", confirmed=confirmed, refusals=refusals, suspicious=False)

    # -- endpoints ---------------------------------------------------------------------------------------------------

    def _by_path(self, messages: Iterable[StoredMessage], call: Call) -> dict[str, list[Part]]:
        """The messages of each endpoint. What can't be a request is refused."""
        found: dict[str, list[Part]] = {}
        for message in messages:
            try:
                path, part = self._address.path_of(message), self._requests.part(message)
            except CannotEncode as error:
                call.refuse(message, str(error), permanent=True)
            else:
                found.setdefault(path, []).append(part)
        return found

    def _delivery(self, path: str, parts: Sequence[Part], call: Call) -> Delivery:
        name = f"{self._address.origin}{path}" if self._address.is_template else self.destination
        requests = self._requests.together(parts)
        return Delivery(self._sender, self._endpoint(name), self._address.target(path), requests, call)

    def _endpoint(self, name: str) -> LimitedEndpoint:
        found = self._endpoints.get(name)
        if found is None:
            if len(self._endpoints) >= MOST_ENDPOINTS:
                failing = [each for each in self._endpoints.values() if each.failing is not None]
                self._endpoints = {each.name: each for each in failing[-MOST_ENDPOINTS // 2 :]}
            found = self._endpoints[name] = LimitedEndpoint(name, self._at_once)
        return found


def _keys(settings: PublisherSettings) -> Callable[[], Sequence[Key]]:
    if settings.secrets_file is not None:
        return SecretsFile("secrets_file", settings.secrets_file, keys_for_signing, LogListener().on_event).keys
    given = None if settings.secrets is None else settings.secrets.replace(",", " ").split()
    keys = () if given is None else keys_for_signing("secrets", given)
    return lambda: keys
