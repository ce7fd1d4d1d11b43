"""Which publisher a lane uses: that of the epoch in which it was loaded last."""

from __future__ import annotations

from uuid import UUID

from postroad.brokers.base import LaneEpoch
from postroad.brokers.memory import MemoryBroker
from postroad.listeners import Listeners
from postroad.relay.epochs import EpochPublisher
from postroad.stores.base import Lease
from postroad.stores.cursor import Cursor

LEASE = Lease("s", 3, 0, 1023, UUID(int=1), 1, 1, Cursor(0))


class Noting(MemoryBroker):
    def __init__(self, noted: list[str], name: str = "sink's") -> None:
        super().__init__()
        self._noted = noted
        self.name = name

    def for_lane(self, lane: LaneEpoch) -> MemoryBroker:
        self._noted.append(f"made {lane.sink}/{lane.lane} {lane.epoch}")
        return Noting(self._noted, f"epoch {lane.epoch}")

    async def close(self) -> None:
        self._noted.append(f"closed {self.name}")


async def test_it_is_made_anew_for_a_new_epoch_and_the_one_before_is_closed_first() -> None:
    noted: list[str] = []
    epochs = EpochPublisher(Noting(noted), LEASE, Listeners([]))
    await epochs.begin(4)
    await epochs.begin(4)  # loaded again, as after an outage of the database
    assert epochs.publisher.name == "epoch 4"
    await epochs.begin(6)
    assert epochs.publisher.name == "epoch 6"
    await epochs.end()
    await epochs.end()
    assert noted == ["made s/3 4", "closed epoch 4", "made s/3 6", "closed epoch 6"]
    assert epochs.publisher.name == "sink's"


async def test_a_publisher_that_can_t_fence_is_used_as_it_is_and_not_closed() -> None:
    broker = MemoryBroker()
    epochs = EpochPublisher(broker, LEASE, Listeners([]))
    await epochs.begin(4)
    assert epochs.publisher is broker
    await epochs.end()
    assert epochs.publisher is broker
