"""A subscriber's session: one connection, on which it asks for messages, holds them, and acks them.

It always has a request for messages open, because that is what keeps it the active process; how many it gets is limited
by what it has not acked. What it holds it reports as being in progress, so that the server gives it to no other
process. `window` decides what may be handed out.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroad import events
from postroad.brokers.nats import frames
from postroad.brokers.nats.connection import LinkLost
from postroad.brokers.nats.deliveries import Received, delivery_of, place_of, type_of
from postroad.brokers.nats.jetstream import ApiError
from postroad.brokers.nats.reading import header_in, status_of
from postroad.brokers.nats.topology import GROUP, NS, not_pinned
from postroad.brokers.nats.window import Arrived, Window
from postroad.brokers.skipped_types import SkippedTypes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from postroad.brokers.base import Delivery
    from postroad.brokers.nats.connection import Connection
    from postroad.brokers.nats.jetstream import ConsumerInfo, JetStream
    from postroad.brokers.nats.reading import Arrival
    from postroad.brokers.nats.subscriber_settings import SubscriberSettings
    from postroad.events import Event

__all__ = ["Session"]

COLLECT_SECONDS: Final = 0.1
"""How often a session that collects asks whether it has all, while nothing arrives."""
LONG: Final = 2
"""So many times `takeover_after` is reported: what a dead process had has usually come by then."""
MOST_ABOUT_IT: Final = 8192  # bytes of subjects that a server counts with a message
_PIN: Final = b"Nats-Pin-Id"
_MESSAGE: Final = b"NATS/1.0\r\n"
_BAD_REQUEST: Final = 400
_WRONG_PIN: Final = 423
_NO_CONSUMER: Final = 503


class Session:
    """What was received in it and not acked before its end is delivered again."""

    def __init__(
        self,
        connection: Connection,
        jetstream: JetStream,
        stream: str,
        settings: SubscriberSettings,
        *,
        in_order: bool,
        types: frozenset[str],
        pin: str | None,
        consumer: str,
        report: Callable[[Event], None],
    ) -> None:
        """`pin` is the server's word for this process being the active one, from an earlier session."""
        self.connection, self.jetstream, self.stream = connection, jetstream, stream
        self.pin = pin
        self.arrived: deque[Delivery] = deque()
        """What is to be received."""
        self._settings, self._in_order, self._types = settings, in_order, types
        self._consumer, self._report, self._skipped = consumer, report, SkippedTypes(consumer, report)
        self._durable, self._prefetch = settings.durable or "", settings.prefetch or 1
        self._interval = settings.seconds("takeover_after") / 3
        self._window: Window[Received] = Window(in_order=in_order)
        self._bytes = 0
        self._lost: LinkLost | None = None
        self._asking = True
        self._pulls: dict[bytes, int] = {}
        """The requests that are open, and how many messages each may still bring."""
        self._last_pull = 0
        self._too_large = False
        self._acks: list[bytes] = []
        self._changed: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._collecting: asyncio.Task[None] | None = None
        self._sid = connection.subscribe(f"{connection.inbox}.m.*", self._on_arrival)

    def start(self, again: Iterable[bytes]) -> None:
        """Begin to receive. `again`: the reply subjects of what an earlier session of this process held."""
        for reply in again:
            self.connection.write(frames.ack(reply, b"-NAK"))
        self._pull()
        self._run(self._tend)

    # -- receiving ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise LinkLost if the session has ended."""
        if self._lost is not None:
            raise self._lost
        self.connection.check()

    async def change(self) -> None:
        """Return when something has arrived or the session has ended."""
        self._changed = self.connection.closed.get_loop().create_future()
        await asyncio.wait((self._changed, self.connection.closed), return_when=asyncio.FIRST_COMPLETED)

    async def info(self) -> ConsumerInfo:
        """How far the consumer has come. Raises LinkLost."""
        try:
            return await self.jetstream.consumer(self.stream, self._durable)
        except ApiError as error:
            raise LinkLost(f"the consumer {self._durable!r} of the stream {self.stream!r}: {error}") from error

    async def waiting(self) -> int:
        """How many messages wait to be received."""
        info = await self.info()
        if self._window.collecting:
            return info.num_pending + info.num_ack_pending
        return info.num_pending + len(self.arrived)

    def _on_arrival(self, arrival: Arrival) -> None:
        if arrival.headers and not arrival.headers.startswith(_MESSAGE):
            self._on_status(arrival)
        elif (place := place_of(arrival.reply)) is not None:
            self._count_delivery()
            if self._in_order and not self._is_pinned(arrival):
                return
            self._on_message(Received(arrival, place))
        self._pull()

    def _on_message(self, received: Received) -> None:
        reply, number = received.arrival.reply, received.place.number
        match self._window.arrive(number, received):
            case Arrived.NEW:
                self._bytes += _size(received)
                self._hand_out(received)
            case Arrived.KEPT:
                self._bytes += _size(received)
                if self._collecting is None and self._asking:
                    self._collecting = self._run(self._collect)
            case Arrived.ACKED:
                self._send(frames.ack(reply, b"+ACK"))
            case Arrived.BEHIND:
                self._end(LinkLost(f"message {number} of {self.stream!r} comes after later ones; collecting all again"))
            case Arrived.HELD:
                pass

    def _hand_out(self, received: Received) -> None:
        delivery = delivery_of(received, self, foreign=self._settings.foreign == "deliver")
        type = type_of(delivery) if self._types else None
        if type is not None and type not in self._types:
            self._skipped.note(type, self.stream)
            self.ack([delivery])
            return
        if self._asking:
            self.arrived.append(delivery)
            self._wake()

    async def _collect(self) -> None:
        """Hand out what has arrived as soon as it is all that was delivered and not acked.

        Nothing is acked before that, so nothing makes room: what is missing is asked for, however large it is.
        """
        begin, reported = time.monotonic(), False
        while True:
            before = len(self._window)
            info = await self.info()
            if self._window.is_complete(info.num_ack_pending, before):
                break
            missing = info.num_ack_pending - len(self._window)
            if self._too_large and missing > 0 and self._asking and not self._pulls:
                self._ask(missing)
            waited_s = time.monotonic() - begin
            if not reported and waited_s > LONG * self._settings.seconds("takeover_after"):
                reported = True
                self._report(
                    events.CollectingTakesLong(self._consumer, stream=self.stream, missing=missing, waited_s=waited_s)
                )
            await asyncio.sleep(COLLECT_SECONDS)
        for received in self._window.hand_out():
            self._hand_out(received)

    def _is_pinned(self, arrival: Arrival) -> bool:
        """Whether the message comes because this process is the active one.

        If it is that anew, another process may have been active meanwhile: all that it has left is collected first.
        """
        pin = header_in(arrival.headers, _PIN)
        if pin is None:
            self._end(LinkLost(not_pinned(self._durable)))
            return False
        if pin == self.pin:
            return True
        if self.pin is not None and len(self._window):
            self._end(LinkLost("this process was made the active one anew; collecting all again"))
            return False
        if not self._window.collecting:
            self._window, self._collecting = Window(in_order=True), None
        self.pin = pin
        return True

    # -- asking ------------------------------------------------------------------------------------------------------

    def _pull(self) -> None:
        """Ask for more messages, if that is due."""
        open_pulls = len(self._pulls)
        if not self._asking or self._lost is not None or self.connection.lost is not None or self._too_large:
            return
        if open_pulls and (self._in_order and self.pin is None):
            return
        asked = sum(self._pulls.values())
        batch = self._prefetch if self._in_order else self._prefetch - len(self._window) - asked
        if asked > self._prefetch // 2 or batch <= 0:
            return
        largest = self.connection.info.max_payload + MOST_ABOUT_IT
        room = self._settings.max_held_bytes - self._bytes
        self._ask(batch, max_bytes=max(room, 1 if len(self._window) else largest))

    def _ask(self, batch: int, *, max_bytes: int | None = None) -> None:
        request: dict[str, Any] = {"batch": batch, "expires": int(self._interval * NS)}
        if max_bytes is not None:
            request["max_bytes"] = max_bytes
        if self._in_order:
            request |= {"group": GROUP} if self.pin is None else {"group": GROUP, "id": self.pin}
        self._last_pull += 1
        name = b"%d" % self._last_pull
        self._pulls[name] = batch
        self.connection.write(
            frames.publish(
                f"{self.jetstream.prefix}.CONSUMER.MSG.NEXT.{self.stream}.{self._durable}",
                msgspec.json.encode(request),
                reply=f"{self.connection.inbox}.m.{name.decode()}",
            )
        )

    def _count_delivery(self) -> None:
        """Requests are served in the order in which they were made."""
        for name, left in self._pulls.items():
            if left > 1:
                self._pulls[name] = left - 1
            else:
                del self._pulls[name]
            return

    def _on_status(self, arrival: Arrival) -> None:
        code, text = status_of(arrival.headers)
        if code == 100:
            return
        self._pulls.pop(arrival.subject.rpartition(b".")[2], None)
        if code == _WRONG_PIN:
            self.pin = None
            if len(self._window):
                self._end(LinkLost("another process is the active one now"))
        elif code == _NO_CONSUMER or "eleted" in text:
            self._end(
                LinkLost(f"the consumer {self._durable!r} of the stream {self.stream!r} is gone, or has no leader")
            )
        elif code == _BAD_REQUEST or text.startswith("Exceeded"):  # to ask again at once would be answered the same
            self._end(
                LinkLost(f"the consumer {self._durable!r} of the stream {self.stream!r} refuses to deliver: {text}")
            )
        elif "axBytes" in text:
            self._too_large = True

    async def _tend(self) -> None:
        """Three times in `takeover_after`: report what is held as being in progress, and ask anew."""
        while True:
            await asyncio.sleep(self._interval)
            before = set(self._pulls)
            self._send(*(frames.ack(held.arrival.reply, b"+WPI") for held in self._window.held()))
            self._window.forget((await self.info()).ack_floor.stream_seq)
            for name in before & set(self._pulls):  # by now the server has ended them, or lost them
                del self._pulls[name]
            self._too_large = False
            self._pull()

    # -- acking ------------------------------------------------------------------------------------------------------

    def ack(self, deliveries: Collection[Delivery]) -> None:
        """Ack these, in the next iteration of the loop."""
        for delivery in deliveries:
            if self._window.ack(delivery.tag):
                self._bytes -= _size(delivery.original)
                self._send(frames.ack(delivery.original.arrival.reply, b"+ACK"))
        self._too_large = False
        self._pull()

    def _send(self, *sent: bytes) -> None:
        if not self._acks:
            self.connection.closed.get_loop().call_soon(self._flush)
        self._acks += sent

    def _flush(self) -> None:
        acks, self._acks = self._acks, []
        if acks and self.connection.lost is None:
            self.connection.write(b"".join(acks))

    # -- ending ------------------------------------------------------------------------------------------------------

    def stop_asking(self) -> None:
        """Hand out nothing more; what is held can still be acked. What is on its way is held, too, and given back."""
        if self._asking and self.connection.lost is None:
            self.connection.unsubscribe(self._sid)
        self._asking = False
        self.arrived.clear()

    async def close(self) -> list[bytes]:
        """Send the acks that are due, give back what is held, in order, and let another process become the active one.

        Returns the reply subjects of what could not be given back.
        """
        self.stop_asking()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._flush()
        try:
            await self.connection.flush()  # when that is answered, what was on its way has come
        except LinkLost as lost:
            self.connection.abort(str(lost))
        held = [each.arrival.reply for each in self._window.held()]
        self._window = Window(in_order=self._in_order)
        try:
            self.connection.write(b"".join(frames.ack(reply, b"-NAK") for reply in held))
            await self.connection.flush()
        except LinkLost:
            return held
        if self.pin is not None:
            with suppress(LinkLost, ApiError):
                await self.jetstream.unpin(self.stream, self._durable, GROUP)
            self.pin = None
        await self.connection.close()
        return []

    def _run(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._ending_with(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ending_with(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except LinkLost as lost:
            self._end(lost)
        except Exception as error:  # nothing else would tell the consumer that this has ended
            self._end(LinkLost(f"{type(error).__name__}: {error}"))

    def _end(self, lost: LinkLost) -> None:
        self._lost = self._lost or lost
        self.arrived.clear()
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


def _size(received: Received) -> int:
    return len(received.arrival.body) + len(received.arrival.headers)
