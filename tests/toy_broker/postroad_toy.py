"""A broker in a package of its own, as a third party would write one: `toy:///folder` keeps messages as files.

Everything that postroad needs to know is here and in `postroad_toy-1.0.dist-info/entry_points.txt`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from postroad.brokers import Broker, Subscription
from postroad.brokers.base import Delivery, Durability
from postroad.brokers.cloudevents import wrap
from postroad.errors import BrokerUnavailable, Refusal
from postroad.kinds import NAME, SECRET, whole_number
from postroad.message import StoredMessage
from postroad.setting import SettingsGroup, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyPublisherSettings(SettingsGroup):
    """Where messages go."""

    shelf: str = setting("main", NAME, "The shelf that messages are put on.")
    token: str | None = setting(None, SECRET, "What the broker would ask for, if it asked.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToySubscriberSettings(SettingsGroup):
    """Where messages come from."""

    shelf: str = setting("main", NAME, "The shelf that messages are taken from.")
    limit: int = setting(100, whole_number(1, 1000), "The most messages that are received at once.")


class Stored(msgspec.Struct):
    """A message in its file."""

    body: bytes
    headers: dict[str, str]
    content_type: str


class ToyPublisher:
    """Writes each message to a file, whose name sorts as the message's position."""

    def __init__(self, url: str, settings: ToyPublisherSettings) -> None:
        self.name = self.destination = f"{url}#{settings.shelf}"
        self._folder = _folder(url, settings.shelf)

    async def open(self) -> Durability:
        self._folder.mkdir(parents=True, exist_ok=True)
        return Durability("written to a file", warnings=["the file is not synced: it may be lost in a power failure"])

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        await self.open()
        for message in messages:
            wire = wrap(message)
            stored = Stored(wire.body, wire.headers, wire.content_type)
            (self._folder / f"{message.position:012}.json").write_bytes(msgspec.json.encode(stored))
        return ()

    async def close(self) -> None: ...


class ToySubscriber:
    """Reads the files, and deletes those that are acked."""

    def __init__(self, url: str, settings: ToySubscriberSettings, subscription: Subscription) -> None:
        self.name = f"{url}#{settings.shelf} for {subscription.consumer}"
        self._folder = _folder(url, settings.shelf)
        self._limit = settings.limit
        self._taken: set[str] = set()
        self._session: object | None = None

    async def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._taken.clear()
        self._session = object()

    async def receive(self) -> Sequence[Delivery]:
        while self._session is not None:
            if found := self._files()[: self._limit]:
                self._taken.update(file.name for file in found)
                return [self._delivery(file) for file in found]
            await asyncio.sleep(0.01)
        raise BrokerUnavailable(f"{self.name}: the session has ended")

    def ack(self, deliveries: Collection[Delivery]) -> None:
        for each in deliveries:
            if each.session is self._session:
                each.original.unlink()

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        self._taken.difference_update(each.original.name for each in deliveries if each.session is self._session)

    async def dead_letter(self, delivery: Delivery, notes: Mapping[str, str]) -> None:
        dead = self._folder / "dead"
        dead.mkdir(exist_ok=True)
        (dead / delivery.original.name).write_bytes(msgspec.json.encode([delivery.body, notes]))

    async def waiting(self) -> int:
        return len(self._files())

    async def pause(self) -> None: ...

    async def close(self) -> None:
        self._session = None

    def _files(self) -> list[Path]:
        return [file for file in sorted(self._folder.glob("*.json")) if file.name not in self._taken]

    def _delivery(self, file: Path) -> Delivery:
        stored = msgspec.json.decode(file.read_bytes(), type=Stored)
        fields: dict[str, Any] = msgspec.structs.asdict(stored)
        # A file does not tell whether it was delivered before.
        return Delivery(session=self._session, tag=int(file.stem), original=file, redelivered=None, **fields)


def _folder(url: str, shelf: str) -> Path:
    return Path(url.removeprefix("toy://")) / shelf


BROKER = Broker(
    name="toy",
    title="the toy broker",
    url="toy:///folder",
    publisher=ToyPublisher,
    publisher_settings=ToyPublisherSettings,
    subscriber=ToySubscriber,
    subscriber_settings=ToySubscriberSettings,
)
