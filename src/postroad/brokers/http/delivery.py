"""Sends the messages of one call to one endpoint, and decides about those that it does not take.

- While the endpoint works, as many requests are under way as it may have at once; as soon as one fails, no other is
  begun until those have ended.
- While it is failing, messages are sent one by one: the first that it takes shows that it works. As soon as it takes
  none, the call ends.
- A batch that is refused is sent again in halves, until the message at fault is alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from postroad.brokers.http.answers import Verdict, seconds_to_wait, verdict_on
from postroad.brokers.http.client import CLOSED, NoAnswer, Unreachable
from postroad.brokers.http.endpoint import Endpoint, Fault
from postroad.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from postroad.brokers.http.answers import Answer
    from postroad.brokers.http.client import Client
    from postroad.brokers.http.requests import Part, Requests
    from postroad.brokers.http.signatures import Key
    from postroad.message import StoredMessage

__all__ = ["Call", "Delivery", "LimitedEndpoint", "Sender"]

NEVER: Final = -1
"""Before the endpoint has taken anything."""


class Sender(NamedTuple):
    """What all calls of a publisher share."""

    client: Client
    requests: Requests
    keys: Callable[[], Sequence[Key]]
    """The secrets to sign with, as they are now."""
    slots: asyncio.Semaphore
    holds_routes: bool
    """There are several endpoints: the messages of one that takes nothing are held. With one, they stay in the log."""


class LimitedEndpoint(Endpoint):
    """An endpoint, and how many requests to it may be under way, of all calls."""

    def __init__(self, name: str, at_once: int) -> None:
        super().__init__(name)
        self.at_once = at_once
        self.slots = asyncio.Semaphore(at_once)


class Route(NamedTuple):
    """What a message waits for: an endpoint that takes nothing, or the message's own next try."""

    name: str | None
    """None: the refusal counts an attempt."""
    retry_in: float | None


class Pending(NamedTuple):
    """Messages that go together in one request."""

    parts: Sequence[Part]
    is_at_fault: bool = False
    """They failed as a part of more messages while the endpoint took others, so one of all these is at fault."""


class Failed(NamedTuple):
    """A request that the endpoint did not take, for a reason that may concern the endpoint or the message."""

    parts: Sequence[Part]
    reason: str
    confirmed_before: int
    took: float
    """Seconds."""
    unavailable: bool
    """It may be neither's fault, but that of a part of the endpoint, or of what is before it."""

    @property
    def id(self) -> UUID:
        return self.parts[0].message.id


class Call:
    """The answers to the messages of one call."""

    def __init__(self, messages: Sequence[StoredMessage], closings: int) -> None:
        self._messages = messages
        self.closings = closings
        """How often the client was closed before."""
        self.confirmed: set[int] = set()
        self._refusals: dict[int, Refusal] = {}
        self.outage: str | None = None
        """Why some messages have no answer."""
        self.unreachable: str | None = None
        """Why the host can't be connected to."""

    def refuse(
        self, message: StoredMessage, reason: str, *, permanent: bool = False, route: Route | None = None
    ) -> None:
        """Refuse a message: for a reason of its own, or because its route takes nothing."""
        name, retry_in = (None, None) if route is None else route
        self._refusals[message.position] = Refusal(message.position, reason, permanent, name, retry_in=retry_in)

    def refusals(self) -> list[Refusal]:
        """In the order of the call."""
        return [each for message in self._messages if (each := self._refusals.get(message.position)) is not None]


class Delivery:
    """The messages of one call for one endpoint."""

    def __init__(
        self, sender: Sender, endpoint: LimitedEndpoint, target: str, requests: Iterable[Sequence[Part]], call: Call
    ) -> None:
        """`requests` are the messages that go together in one request each."""
        self._sender = sender
        self._endpoint = endpoint
        self._target = target
        self._pending = deque(map(Pending, requests))
        self._failed: list[Failed] = []
        self._call = call

    async def run(self) -> None:
        """Send until each message has its answer, or the endpoint takes nothing."""
        while self._pending and not self._is_over() and not self._waits_for_probe():
            before = self._endpoint.confirmed
            await self._round()
            self._blame_messages()
            if self._endpoint.failing is not None and self._endpoint.confirmed == before:
                break
        if self._pending or self._failed:
            self._give_up()

    def _is_over(self) -> bool:
        if self._sender.client.closings != self._call.closings:
            self._call.unreachable = CLOSED
        return self._call.unreachable is not None or self._endpoint.takes_nothing(time.monotonic()) is not None

    def _waits_for_probe(self) -> bool:
        """Another call finds out whether the endpoint works again, which may take long: this one does not wait."""
        return self._sender.holds_routes and self._endpoint.is_being_probed

    async def _round(self) -> None:
        """Send one if the endpoint is failing; else until nothing is pending, or one has failed."""
        if self._endpoint.failing is not None or len(self._pending) == 1:
            await self._send(self._pending.popleft())
            return
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._endpoint.at_once, len(self._pending))):
                group.create_task(self._work())

    async def _work(self) -> None:
        while self._pending and self._endpoint.failing is None:
            await self._send(self._pending.popleft())

    async def _send(self, pending: Pending) -> None:
        """Send one request, and note what its answer means; nothing, if one has failed while this waited for a slot."""
        sender, endpoint, parts = self._sender, self._endpoint, pending.parts
        failures = endpoint.failures
        async with endpoint.slots, sender.slots:
            if endpoint.failing is not None and endpoint.failures != failures:
                self._pending.appendleft(pending)
                return
            confirmed_before = NEVER if pending.is_at_fault else endpoint.confirmed
            body, headers = sender.requests.request(parts, sender.keys(), time.time())
            began = time.monotonic()
            endpoint.under_way += 1
            try:
                answer = await sender.client.post(self._target, body, headers)
            except Unreachable as error:
                endpoint.fail(str(error))
                self._call.unreachable = str(error)
                self._pending.appendleft(pending)
                return
            except NoAnswer as error:
                took = time.monotonic() - began
                self._fail(Failed(parts, str(error), confirmed_before, took, unavailable=True))
                return
            finally:
                endpoint.under_way -= 1
        self._note(pending, answer, confirmed_before, time.monotonic() - began)

    def _note(self, pending: Pending, answer: Answer, confirmed_before: int, took: float) -> None:
        parts, verdict = pending.parts, verdict_on(answer)
        match verdict:
            case Verdict.CONFIRMED:
                self._endpoint.confirm(parts[0].message.id, len(parts))
                self._call.confirmed.update([part.message.position for part in parts])
            case Verdict.REFUSED | Verdict.TOO_LARGE:
                self._refuse(pending, answer.reason, permanent=verdict is Verdict.TOO_LARGE)
            case Verdict.FAILING | Verdict.UNAVAILABLE:
                unavailable = verdict is Verdict.UNAVAILABLE
                self._fail(Failed(parts, answer.reason, confirmed_before, took, unavailable))
            case Verdict.WAIT:
                seconds = seconds_to_wait(answer.retry_after, time.time())
                self._endpoint.wait(answer.reason, time.monotonic() + seconds)
                self._pending.appendleft(pending)
            case Verdict.GONE:
                self._endpoint.leave(
                    f"{answer.reason}: the receiver wants nothing any more, so nothing is sent to it until the relay "
                    "is started again; if that is right, remove the sink"
                )
                self._pending.appendleft(pending)

    def _fail(self, failed: Failed) -> None:
        self._endpoint.fail(failed.reason, unavailable=failed.unavailable)
        self._failed.append(failed)

    # -- what is not taken -------------------------------------------------------------------------------------------

    def _refuse(self, pending: Pending, reason: str, *, permanent: bool = False) -> None:
        """Refuse a message; of several, one is at fault, so they are sent again in halves."""
        parts = pending.parts
        if len(parts) == 1:
            self._call.refuse(parts[0].message, reason, permanent=permanent)
        else:
            self._halve(pending)

    def _halve(self, pending: Pending) -> None:
        parts, half = pending.parts, len(pending.parts) // 2
        self._pending.extendleft((pending._replace(parts=parts[half:]), pending._replace(parts=parts[:half])))

    def _blame_messages(self) -> None:
        """Refuse or set aside what failed while others were taken. If that is all that failed, the endpoint works."""
        failed, self._failed = self._failed, []
        for each in failed:
            fault = self._endpoint.fault(each.id, each.confirmed_before, unavailable=each.unavailable)
            if fault is Fault.ENDPOINT:
                self._failed.append(each)
            elif len(each.parts) > 1:
                self._halve(Pending(each.parts, is_at_fault=True))
            else:
                self._set_aside(each, counted=fault is Fault.MESSAGE)
        if failed and not self._failed and not self._is_over():
            self._endpoint.works()

    def _set_aside(self, failed: Failed, *, counted: bool) -> None:
        """Refuse a message that failed while others were taken. If that is not counted, it waits as a route of its own,
        so that it holds back only its key, and does not stand for others that wait for the endpoint.
        """
        endpoint, message = self._endpoint, failed.parts[0].message
        route = None
        if failed.unavailable:
            retry_in = endpoint.retry_in(message.id, failed.took, counted=counted)
            route = Route(None if counted else f"{endpoint.name} (message {message.id})", retry_in)
        self._call.refuse(message, failed.reason, route=route)

    def _give_up(self) -> None:
        """The endpoint takes nothing for now. Decide what becomes of the messages that it did not take."""
        endpoint, call, now = self._endpoint, self._call, time.monotonic()
        if self._failed and self._sender.holds_routes:
            endpoint.pause(now, max(each.took for each in self._failed))
        route = Route(endpoint.name, endpoint.waits(now) or None)
        for each in self._failed:
            if endpoint.is_hopeless(each.id) or self._sender.holds_routes:
                for part in each.parts:
                    call.refuse(part.message, each.reason, route=route)
        reason = call.unreachable or endpoint.takes_nothing(now) or endpoint.failing or "it takes nothing"
        if call.unreachable is not None or not self._sender.holds_routes:
            call.outage = reason
            return
        for pending in self._pending:
            for part in pending.parts:
                call.refuse(part.message, reason, route=route)
