"""What can happen to three Kafka brokers and a topic of theirs. Each fault ends when the topic is whole again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.services.kafka import ASK_SECONDS, Broker, Kafka, done

__all__ = ["BrokerFaults"]

LIMIT_SECONDS = 240
FROZEN_SECONDS = 8.0
"""Longer than a broker's session lasts: others lead its partitions, and it does not know."""
DOWN_SECONDS = 6.0


class BrokerFaults:
    """Faults, one at a time. The brokers are taken in turn."""

    def __init__(self, kafka: Kafka, topic: str, partitions: int, dice: random.Random) -> None:
        self._kafka = kafka
        self._topic = topic
        self._partitions = range(partitions)
        self._dice = dice
        self.refused: list[tuple[float, float]] = []
        """From when to when the topic had too few replicas, and accepted nothing."""
        self._turn = count(dice.randrange(len(kafka.brokers)))

    async def kill_broker(self) -> None:
        """Others lead its partitions before it comes back."""
        broker = self._next()
        broker.kill()
        await self._until_others_lead(broker)
        await self._whole_again()

    async def stop_broker(self) -> None:
        """In good order: it hands over its partitions first."""
        broker = self._next()
        await asyncio.to_thread(broker.stop)
        await self._until_others_lead(broker)
        await self._whole_again()

    async def freeze_broker(self) -> None:
        broker = self._next()
        await asyncio.to_thread(broker.freeze)
        await asyncio.sleep(FROZEN_SECONDS)
        await self._whole_again()

    async def elect_leaders(self) -> None:
        """Those that lead the most go back to the first of each partition's replicas."""
        partitions = [TopicPartition(self._topic, each) for each in self._partitions]
        await asyncio.to_thread(self._kafka.admin.elect_leaders(ElectionType.PREFERRED, partitions).result, ASK_SECONDS)
        await self._whole_again()

    async def restart_cluster(self) -> None:
        await asyncio.to_thread(self._kafka.restart)
        await self._whole_again()

    async def kill_cluster(self) -> None:
        self._kafka.kill()
        await self._whole_again()

    async def kill_two_brokers(self) -> None:
        """Neither a partition nor the cluster's own log has a majority."""
        for broker in (self._next(), self._next()):
            broker.kill()
        await asyncio.sleep(DOWN_SECONDS * self._dice.random())
        await self._whole_again()

    async def too_few_replicas(self) -> None:
        """A broker is killed, and the topic asks for more replicas than are left: nothing is accepted for a while.

        Two killed brokers would not do it: the cluster can't agree then that the replicas are gone.
        """
        broker = self._next()
        broker.kill()
        await self._until_others_lead(broker)
        await self._until(lambda: not any(broker.node in each for each in self._in_sync()), "replicas are gone")
        await self._ask_for_replicas(len(self._kafka.brokers))
        await self._until(self._stands_still, "the topic stands still")
        began = time.time()
        await asyncio.sleep(1 + DOWN_SECONDS * self._dice.random())
        self.refused.append((began, time.time()))
        await self._ask_for_replicas(2)
        await self._whole_again()

    # -- what a fault waits for --------------------------------------------------------------------------------------

    def _next(self) -> Broker:
        return self._kafka.brokers[next(self._turn) % len(self._kafka.brokers)]

    async def _whole_again(self) -> None:
        await asyncio.to_thread(self._kafka.start)
        everything = {broker.node for broker in self._kafka.brokers}
        await self._until(lambda: all(each == everything for each in self._in_sync()), "all replicas are in sync")

    async def _until_others_lead(self, broker: Broker) -> None:
        def others_lead() -> bool:
            leaders = {each.leader for each in self._state()}
            return broker.node not in leaders and -1 not in leaders

        await self._until(others_lead, f"others lead the partitions of broker {broker.node}")

    def _stands_still(self) -> bool:
        before = self._end()
        time.sleep(1)
        return self._end() == before

    def _end(self) -> int | None:
        """How many records the topic has; None while a new leader can't tell, because too few replicas confirm."""
        try:
            return self._kafka.size(self._topic)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.OFFSET_NOT_AVAILABLE:
                raise
            return None

    def _in_sync(self) -> list[set[int]]:
        return [set(each.isrs) for each in self._state()]

    def _state(self) -> list[Any]:
        return list(self._kafka.admin.list_topics(self._topic, timeout=5).topics[self._topic].partitions.values())

    async def _ask_for_replicas(self, replicas: int) -> None:
        entry = ConfigEntry("min.insync.replicas", str(replicas), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, self._topic, incremental_configs=[entry])
        await asyncio.to_thread(done, self._kafka.admin.incremental_alter_configs([resource]))

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline, reason = time.monotonic() + LIMIT_SECONDS, "the condition was false"
        while True:
            try:
                if await asyncio.to_thread(condition):
                    return
            except KafkaException as error:  # brokers that are down, or that start
                reason = str(error)
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {LIMIT_SECONDS} seconds: {what}; at last, {reason}")
            await asyncio.sleep(0.2)
