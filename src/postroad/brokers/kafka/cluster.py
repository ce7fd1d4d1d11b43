"""What is asked of a cluster apart from publishing: whether it can be reached, what a confirm means there, and what is
wrong with a partition that does not confirm.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from postroad.brokers.base import Durability
from postroad.brokers.kafka.producer import Retired
from postroad.errors import BrokerUnavailable, LoginRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from concurrent.futures import Future

    from confluent_kafka.admin import ClusterMetadata

    from postroad.brokers.kafka.producer import ProducerThread

__all__ = [
    "ADMIN_SECONDS",
    "MIN_ISR",
    "UNCLEAN",
    "Unreachable",
    "answered",
    "durability",
    "metadata",
    "settings_of",
    "trouble_with",
]

ASK_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 0.1
ADMIN_SECONDS: Final = 5.0

MIN_ISR: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"


class Unreachable(Exception):
    """No broker has answered."""

    def __init__(self, reason: str, *, login: bool = False) -> None:
        super().__init__(reason)
        self.login = login

    def outage(self, name: str) -> BrokerUnavailable:
        """The error for the caller of `open`."""
        return (LoginRefused if self.login else BrokerUnavailable)(f"{name}: {self}", suspicious=False)


async def metadata(link: ProducerThread, topic: str | None, seconds: float) -> ClusterMetadata:
    """What the brokers know of a topic, or of all. Raises Unreachable."""
    deadline = time.monotonic() + seconds
    link.login_refused = None
    while True:
        try:
            return await asyncio.to_thread(_list_topics, link, topic)
        except KafkaException as error:
            if link.login_refused is not None:
                raise Unreachable(link.login_refused.str(), login=True) from error
            if time.monotonic() > deadline:
                found = f"no broker has answered within {seconds:g} seconds"
                raise Unreachable(f"{found}: {(link.last_error or error.args[0]).str()}") from error
        except Retired as error:
            raise Unreachable(str(error)) from error
        await asyncio.sleep(PAUSE_SECONDS)


def _list_topics(link: ProducerThread, topic: str | None) -> ClusterMetadata:
    with link.in_use() as producer:
        found: ClusterMetadata = producer.list_topics(topic, timeout=ASK_SECONDS)
    return found


def trouble_with(found: ClusterMetadata, topic: str, partition: int | None) -> tuple[KafkaError | None, str]:
    """What is wrong with a topic, if anything is; and what is known of the partition."""
    known = found.topics[topic]
    if known.error is not None:
        return known.error, f"{topic}: {known.error.str()}"
    state = known.partitions.get(-1 if partition is None else partition)
    if state is None:
        return None, f"{topic} has no such partition"
    if state.leader < 0:
        return None, f"{topic}[{partition}] has no leader"
    return None, f"{topic}[{partition}] has {len(state.isrs)} of {len(state.replicas)} replicas in sync"


# -- what a confirm means --------------------------------------------------------------------------------------------


def durability(config: dict[str, Any], found: ClusterMetadata, topic: str | None) -> Durability:
    """What a confirm means, as far as this user may know it: of the topic, or the brokers' defaults. It blocks."""
    known = found.topics.get(topic) if topic is not None else None
    copies = None
    if known is not None and known.error is None and known.partitions:
        copies = min(len(each.replicas) for each in known.partitions.values())
    elif known is None and len(found.brokers) == 1:
        copies = 1
    admin, settings = AdminClient(config), dict[str, str]()
    if topic is not None:
        settings = settings_of(admin, ConfigResource.Type.TOPIC, [topic]).get(topic, {})
    if not settings and found.brokers:
        broker = str(min(found.brokers))
        settings = settings_of(admin, ConfigResource.Type.BROKER, [broker]).get(broker, {})
    in_sync = settings.get(MIN_ISR)
    what = "written by all in-sync replicas"
    meaning = f"{what}, at least {in_sync} ({MIN_ISR})" if in_sync else f"{what} ({MIN_ISR} is not known)"
    whose = f"topic {topic!r}" if topic is not None else "the brokers' default"
    return Durability(meaning, tuple(_warnings(whose, copies, in_sync, settings.get(UNCLEAN))))


def _warnings(whose: str, copies: int | None, in_sync: str | None, unclean: str | None) -> Iterator[str]:
    if copies == 1:
        yield f"{whose}: the replication factor is 1, so a broker that is lost takes confirmed messages with it; use 3"
    elif in_sync == "1":
        yield f"{whose}: {MIN_ISR} is 1, so a message may be confirmed by one broker alone; set {MIN_ISR}=2"
    if unclean == "true":
        yield f"{whose}: {UNCLEAN} is true, so a broker that lacks confirmed messages may take over; set it to false"


def settings_of(admin: AdminClient, kind: Any, names: Collection[str]) -> dict[str, dict[str, str]]:
    """The settings of topics or brokers; those that are not there, or that this user may not read, are left out. It
    blocks.
    """
    asked = {name: ConfigResource(kind, name) for name in names}
    try:
        answers = admin.describe_configs(list(asked.values()), request_timeout=ADMIN_SECONDS)
    except KafkaException:
        return {}
    found = {name: answered(admin, answers[resource]) for name, resource in asked.items()}
    return {
        name: {entry.name: str(entry.value) for entry in entries.values()}
        for name, entries in found.items()
        if isinstance(entries, dict)
    }


def answered(admin: AdminClient, answer: Future[Any]) -> Any:
    """What a request of this client resulted in: a value, or the error. It blocks."""
    deadline = time.monotonic() + 2 * ADMIN_SECONDS
    while not answer.done() and time.monotonic() < deadline:
        admin.poll(0)  # it gets its token while it is polled
        wait((answer,), PAUSE_SECONDS)
    try:
        return answer.result(0)
    except KafkaException as error:
        return error.args[0]
    except TimeoutError:
        return KafkaError(KafkaError._TIMED_OUT, "no answer")
