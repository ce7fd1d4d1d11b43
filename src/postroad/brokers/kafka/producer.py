"""A producer of librdkafka, served by the calls that wait for its answers, and beside them by a thread of its own.

librdkafka calls back for each message, and each of these calls needs the interpreter's lock. In the event loop they
come in a row; in another thread, each would compete with the event loop for the lock, which halves the rate.

A producer that was told to drop its messages is never used again: librdkafka may have sent some of them, and would
number the next ones anew.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer

from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Message

__all__ = [
    "CLOSED",
    "END_SECONDS",
    "SILENT",
    "Answer",
    "Failure",
    "ProducerThread",
    "Retired",
    "Sending",
    "new_producer",
]

POLL_SECONDS: Final = 0.1
"""How often the thread serves a producer: errors, new tokens and what was dropped need no call that waits."""
SHORTEST_PAUSE: Final = 0.002
LONGEST_PAUSE: Final = 0.02
PAUSES_PER_WAIT: Final = 10
"""A call that has waited for some time looks again after this part of it."""
CLOSED: Final = "the publisher was closed"
SILENT: Final = logging.getLogger("postroad.librdkafka")
"""Without a logger, librdkafka prints to stderr. What concerns users, errors say."""
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False
END_SECONDS: Final = 5.0
"""The longest wait until dropped messages have been reported and connections are closed."""


class Retired(Exception):
    """This producer takes nothing more; another one does."""

    def __init__(self) -> None:
        super().__init__(CLOSED)


class Failure(NamedTuple):
    """Why a message was not confirmed, and the partition that it was meant for, if that is known."""

    error: KafkaError
    partition: int | None


class Sending:
    """The messages of one call that were given to a producer, and the answers to them so far.

    Answers are noted in whichever thread serves the producer, all else runs in the event loop.
    """

    def __init__(self, *, together: bool = False) -> None:
        """`together`: they are in a transaction. When one of them fails, it sends no more, and nothing else is answered
        before it is aborted.
        """
        self.confirmed: list[int] = []
        self.failed: dict[int, Failure] = {}
        self._together = together
        self._sent: int | None = None

    def sent(self, count: int) -> None:
        """All messages were given to the producer: so many."""
        self._sent = count

    @property
    def is_complete(self) -> bool:
        """Every message has an answer."""
        return len(self.confirmed) + len(self.failed) == self._sent

    async def wait(self, link: ProducerThread, seconds: float) -> bool:
        """Serve the producer until all is answered, or one of those that go together has failed. Returns False when no
        message was confirmed for so many seconds.
        """
        now = asyncio.get_running_loop().time
        began = last = now()
        confirmed = len(self.confirmed)
        while True:
            link.serve()
            if self.is_complete or (self._together and self.failed):
                return True
            if len(self.confirmed) > confirmed:
                confirmed, last = len(self.confirmed), now()
            elif now() - last >= seconds:
                return False
            pause = (now() - began) / PAUSES_PER_WAIT
            await asyncio.sleep(min(max(pause, SHORTEST_PAUSE), LONGEST_PAUSE))

    def part(self) -> None:
        """The transaction is being aborted: all of them will be answered now."""
        self._together = False


class Answer(msgspec.Struct, gc=False):
    """What a producer calls with the answer to one message. Thousands of them wait at a time, so they are kept from the
    garbage collector, which would look at all of them again and again.
    """

    position: int
    sending: Sending

    def __call__(self, error: KafkaError | None, message: Message[Any, Any]) -> None:
        """Note the answer."""
        if error is None:
            self.sending.confirmed.append(self.position)
        else:
            self.sending.failed[self.position] = Failure(error, message.partition())


class ProducerThread:
    """A Producer, and the thread that serves it while no call does, until it has ended."""

    def __init__(self, config: dict[str, Any], password: Callable[[], str] | None = None) -> None:
        """`password` reads it anew, for when the brokers refuse the one in `config`."""
        self.last_error: KafkaError | None = None
        """The last thing that went wrong with a connection."""
        self.login_refused: KafkaError | None = None
        """The brokers refuse the user or its password, which is the newest one."""
        self.retired = False
        self._denied: KafkaError | None = None
        self._password = password
        self._user, self._last_password = config.get("sasl.username"), config.get("sasl.password")
        self._lock = Lock()
        self._users = 0
        self._ending = Event()
        self._ended: Future[None] = Future()
        self._producer: Producer | None = new_producer(config | {"error_cb": self._on_error})
        self._thread = Thread(target=self._run, name="postroad kafka", daemon=True)
        self._thread.start()

    @contextmanager
    def in_use(self) -> Iterator[Producer]:
        """The producer, which does not end meanwhile. Raises Retired."""
        with self._lock:
            if self._producer is None or self.retired:
                raise Retired
            producer = self._producer
            self._users += 1
        try:
            yield producer
        finally:
            with self._lock:
                self._users -= 1

    def serve(self) -> None:
        """Take the answers that have come. Those of a retired producer come by its thread."""
        with suppress(Retired), self.in_use() as producer:
            self._poll(producer, 0)

    def retire(self) -> None:
        """Drop what was not confirmed, so that it is never sent, and end. Returns at once; what is dropped is reported
        to the calls that it belongs to.
        """
        with self._lock:
            self.retired = True
            if self._producer is not None:
                self._producer.purge(blocking=False)
        self._ending.set()

    async def end(self) -> bool:
        """Retire it, and wait until its connections are closed: until then, what is half written may be completed.

        Returns whether they are; a call that blocks may still use the producer.
        """
        self.retire()
        if not self._ended.done():
            await asyncio.wait((asyncio.wrap_future(self._ended),), timeout=END_SECONDS)
        return self._ended.done()

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._ended.set_result(None)

    def _serve(self) -> None:
        producer = self._producer
        assert producer is not None  # noqa: S101 - only this thread takes it away
        while True:
            ending = self._ending.wait(POLL_SECONDS)
            self._poll(producer, POLL_SECONDS if ending and (self._users or len(producer)) else 0)
            if self._denied is not None:
                denied, self._denied = self._denied, None
                if not self._renew_password(producer):
                    self.login_refused = denied
            if self.retired:
                with self._lock:
                    if not self._users and not len(producer):
                        self._producer = None
                        return  # the producer ends here, because that waits for librdkafka's own threads
                    producer.purge(blocking=False)  # a call may have given it more meanwhile

    def _poll(self, producer: Producer, seconds: float) -> None:
        try:
            producer.poll(seconds)
        except KafkaException as error:  # a fatal error: it takes nothing more
            self.last_error = error.args[0]
            self.retire()

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self.last_error is None:
            self.last_error = error
        if error.code() == KafkaError._AUTHENTICATION:
            self._denied = error  # inside a callback, nothing may be asked of the producer

    def _renew_password(self, producer: Producer) -> bool:
        """Whether there is another password now. librdkafka connects again by itself, with that."""
        if self._password is None or self._user is None:
            return False
        try:
            password = self._password()
        except InvalidSetting:  # the file is being replaced just now
            return True
        if password == self._last_password:
            return False
        self._last_password = password
        producer.set_sasl_credentials(self._user, password)
        return True


def new_producer(config: dict[str, Any]) -> Producer:
    """The producer. Raises InvalidSetting."""
    try:
        return Producer(config | {"logger": SILENT})
    except KafkaException as error:
        raise InvalidSetting(f"librdkafka does not accept these settings: {error.args[0].str()}") from None
