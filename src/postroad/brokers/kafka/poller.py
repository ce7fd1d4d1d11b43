"""The thread that owns the client of a consumer group. Nothing else calls the client.

It never stops polling, however slow handlers are: partitions of which too many records wait are paused. Records go to
the event loop in batches.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from postroad.brokers.kafka.commits import Commits
from postroad.brokers.kafka.outages import LATER, error_of, is_login, outage
from postroad.brokers.kafka.positions import ends_of_new, waiting, wake_up
from postroad.brokers.kafka.rebalances import Rebalances
from postroad.brokers.kafka.topics import Topics
from postroad.brokers.skipped_types import SkippedTypes
from postroad.errors import BrokerUnavailable, InvalidSetting, PostroadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.brokers.base import Delivery
    from postroad.brokers.kafka.mailbox import Mailbox
    from postroad.brokers.kafka.reading import Reader
    from postroad.brokers.kafka.sessions import Sessions
    from postroad.brokers.kafka.subscriber_settings import SubscriberSettings
    from postroad.events import Event

__all__ = ["Poller"]

BATCH: Final = 500
POLL_SECONDS: Final = 0.1
BLOCKED_SECONDS: Final = 0.02
"""How long a record of another partition may wait while one partition waits for acks."""
REST_SECONDS: Final = 0.002
"""Acks that come within this time are dealt with at once: the thread takes its time from the handlers."""
ANSWER_SECONDS: Final = 0.002
"""How often to look for the answer to a commit. Records do not wait for it, unless no room is left."""


class Poller:
    """One membership in a group, from its start until it ends. The methods without an underscore are for the loop."""

    def __init__(
        self,
        name: str,
        config: dict[str, Any],
        admin_config: dict[str, Any],
        settings: SubscriberSettings,
        *,
        consumer: str,
        user: str | None,
        sessions: Sessions,
        reader: Reader,
        mailbox: Mailbox,
        report: Callable[[Event], None],
    ) -> None:
        self._name = name
        self._admin_config = admin_config
        self._settings = settings
        self._topics: tuple[str, ...] = tuple(settings.topics or ())
        self._user = user
        self._sessions = sessions
        self._reader = reader
        self._mailbox = mailbox
        self._report = report
        self._client: Any = None
        self._wake = threading.Event()
        self._closing = False
        self._requests: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._last_error: KafkaError | None = None
        self._doubt = False
        self._problem: BrokerUnavailable | None = None
        """What a callback has found: an error raised there would leave the client in the middle of its work."""
        self._skipped = SkippedTypes(consumer, self._say)
        self._commits = Commits(sessions, settings.seconds("commit_interval"), self._fail_later)
        self._rebalances = Rebalances(settings, sessions, self._commits, mailbox, consumer=consumer, say=self._say)
        self._config = config | {"error_cb": self._on_error, "on_commit": self._commits.on_commit}
        self.opened: Future[Any] = _future()
        self.ended: Future[Any] = _future()
        threading.Thread(target=self._run, name=f"postroad kafka {consumer}", daemon=True).start()

    # -- the event loop ----------------------------------------------------------------------------------------------

    def acked(self) -> None:
        """There may be room for more."""
        self._wake.set()

    def pause(self) -> Future[Any]:
        """Deliver nothing more, and stay in the group."""
        return self._ask(self._pause)

    def waiting(self) -> Future[Any]:
        """How many records there are that were not received yet."""
        return self._ask(self._waiting)

    def close(self) -> None:
        """End: commit, and leave the group. `ended` says when that is done."""
        self._closing = True
        self._wake.set()
        self._rebalances.close()

    def _ask(self, question: Callable[[], Any]) -> Future[Any]:
        future = _future()
        self._requests.append((question, future))
        self._wake.set()
        if self.ended.done():
            self._refuse_requests()
        return future

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._open()
            while not self._closing:
                self._turn()
            self._commits.send(self._client, self._sessions.last(self._sessions.by_place.values()))
            self._mailbox.end(BrokerUnavailable(f"{self._name}: the subscriber is closed"))
        except PostroadError as problem:
            self._fail(problem)
        except KafkaException as failure:
            self._fail(self._outage(error_of(failure)))
        except BaseException as error:  # nothing else would ever tell the consumer that this thread has ended
            self._fail(BrokerUnavailable(f"{self._name}: {type(error).__name__}: {error}"))
            raise
        finally:
            self._sessions.end(list(self._sessions.by_place.values()))
            self._closing = True
            self._rebalances.close()
            self._leave()

    def _open(self) -> None:
        """Reach the brokers, check the topics, and join the group. Raises BrokerUnavailable or InvalidSetting."""
        try:
            self._client = Consumer(self._config)
        except KafkaException as failure:
            if is_login(error := error_of(failure)):
                raise self._outage(error) from None
            raise InvalidSetting(f"librdkafka does not accept these settings: {error.str()}") from None
        topics = self._asking_topics()
        cluster = topics.ask(lambda seconds: self._client.list_topics(self._topics[0], timeout=seconds))
        self._reader.cluster = cluster.cluster_id or ""
        topics.ensure(self._settings, self._admin_config)
        rebalances = self._rebalances
        if self._settings.start == "latest":
            rebalances.ends = ends_of_new(self._client, self._topics)
        self._client.subscribe(
            list(self._topics),
            on_assign=rebalances.on_assign,
            on_revoke=rebalances.on_revoke,
            on_lost=rebalances.on_lost,
        )
        self.opened.set_result(None)

    def _turn(self) -> None:
        """Answer, deliver, commit, poll."""
        while self._requests:
            _answer(*self._requests.popleft())
        self._deliver()
        self._commits.send_due(self._client, time.monotonic())
        self._pause_and_resume()
        self._check()
        if not self._sessions.blocked:
            self._poll(POLL_SECONDS, 1)
        elif not self._commits.under_way:
            self._wake.wait(BLOCKED_SECONDS)
            time.sleep(REST_SECONDS)
            self._wake.clear()
        self._poll(ANSWER_SECONDS if self._commits.under_way else 0)

    def _poll(self, seconds: float, most: int = BATCH) -> None:
        """Poll, and keep what came: the client does not give a record twice."""
        for record in self._client.consume(most, seconds):
            place, error = (record.topic(), record.partition()), record.error()
            if error is None:
                self._sessions.arrive(place, record.offset(), record)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._sessions.reach(place, record.offset())
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._rebalances.start_over(self._client, place, error)
            elif error.code() not in LATER and not error.retriable():
                raise self._outage(error, record.topic())

    def _deliver(self) -> None:
        if self._rebalances.paused:
            return
        deliveries: list[Delivery] = []
        for session in self._sessions.by_place.values():
            with self._sessions.lock:
                taken = session.window.take()
            for _, record, redelivered in taken:
                delivery = self._reader.delivery(record, session, redelivered=redelivered)
                skipped = self._reader.skipped_type(delivery)
                if skipped is None:
                    deliveries.append(delivery)
                else:
                    self._sessions.ack([delivery])
                    self._skipped.note(skipped, repr(session))
        if deliveries:
            self._mailbox.put(deliveries)

    def _pause_and_resume(self) -> None:
        """Pause partitions of which too much waits, and resume others."""
        for sessions, act, paused in (
            (self._sessions.to_pause(), self._client.pause, True),
            (() if self._rebalances.paused else self._sessions.to_resume(), self._resume, False),
        ):
            if sessions:
                act([TopicPartition(*session.place) for session in sessions])
                for session in sessions:
                    session.paused = paused

    def _resume(self, partitions: list[TopicPartition]) -> None:
        self._client.resume(partitions)
        wake_up(self._client, partitions)

    def _pause(self) -> None:
        self._rebalances.paused = True
        self._rebalances.pause_if_asked(self._client)

    def _waiting(self) -> int:
        behind = waiting(self._client, self._topics, self._sessions, self._rebalances.ends)
        return behind + self._mailbox.waiting

    # -- errors ------------------------------------------------------------------------------------------------------

    def _on_error(self, error: KafkaError) -> None:
        """Called by the client."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._doubt = True
        else:
            self._last_error = error
        if error.fatal():
            self._fail_later(error, None)

    def _fail_later(self, error: KafkaError, topic: str | None) -> None:
        self._problem = self._problem or self._outage(error, topic)

    def _check(self) -> None:
        """Raises BrokerUnavailable: a callback has found a reason, or there was no connection and still is none."""
        if self._problem is not None:
            raise self._problem
        if self._doubt:
            self._doubt = False
            try:
                self._asking_topics().find(self._topics[0])
            except BrokerUnavailable:
                if self._last_error is None:
                    raise
                raise self._outage(self._last_error) from None
            self._last_error = None

    def _check_login(self) -> None:
        if self._last_error is not None and is_login(self._last_error):
            raise self._outage(self._last_error)

    def _asking_topics(self) -> Topics:
        seconds = self._settings.seconds("connect_timeout")
        return Topics(
            self._name,
            self._client,
            user=self._user,
            seconds=seconds,
            serve=self._poll,
            check=self._check_login,
            last_error=lambda: self._last_error,
        )

    def _outage(self, error: KafkaError, topic: str | None = None) -> BrokerUnavailable:
        return outage(self._name, error, topic=topic, group=self._settings.group, user=self._user)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _fail(self, problem: PostroadError) -> None:
        self._mailbox.end(problem)
        if not self.opened.done():
            self.opened.set_exception(problem)
        self.ended.set_result(None)

    def _leave(self) -> None:
        """Leave the group. Without brokers, that takes long, and the next session does not wait for it."""
        try:
            if self._client is not None:
                self._client.close()
        except KafkaException:
            pass  # the brokers will notice that it is gone
        finally:
            if not self.opened.done():
                self.opened.set_exception(BrokerUnavailable(f"{self._name}: the subscriber is closed"))
            if not self.ended.done():
                self.ended.set_result(None)
            self._refuse_requests()

    def _refuse_requests(self) -> None:
        while self._requests:
            _, future = self._requests.popleft()
            future.set_exception(BrokerUnavailable(f"{self._name}: the session has ended", suspicious=False))

    def _say(self, event: Event) -> None:
        self._mailbox.call(self._report, event)


def _future() -> Future[Any]:
    """One that can't be cancelled: the thread sets its result, whether something waits for it or not."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def _answer(question: Callable[[], Any], future: Future[Any]) -> None:
    try:
        result = question()
    except KafkaException as failure:
        error = error_of(failure)
        future.set_exception(BrokerUnavailable(f"{error.name()}: {error.str()}", suspicious=False))
    else:
        future.set_result(result)
