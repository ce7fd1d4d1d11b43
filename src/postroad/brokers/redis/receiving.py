"""Receives from the streams that this process has leases on, and keeps the leases, while a subscriber is open.

A consumer group hands entries to any process that asks, in any mix. So one process at a time has the lease on a stream,
and each read checks it on the server (`read.lua`). Once a second, leases are renewed, free ones taken, and those beyond
the process's share given up: nothing more is read, what is under way ends and is acked, and then the lease is released.

One connection reads, and may wait there for new entries; the other one is for leases, acks and questions.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from postroad import events
from postroad.brokers.base import Revoked
from postroad.brokers.redis.connection import LinkLost, ReplyError
from postroad.brokers.redis.resp import command
from postroad.brokers.redis.scripts import READ
from postroad.brokers.redis.session import StreamSession
from postroad.brokers.skipped_types import SkippedTypes
from postroad.waiting import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from postroad.brokers.base import Delivery
    from postroad.brokers.redis.connection import Connection
    from postroad.brokers.redis.leases import Leases
    from postroad.brokers.redis.reading import Reader
    from postroad.brokers.redis.subscriber_settings import SubscriberSettings
    from postroad.events import Event

__all__ = ["Receiver"]

EVERY_SECONDS: Final = 1.0
"""How often leases are renewed."""
CHECK_SECONDS: Final = 10.0
"""How often it is checked that the relay does not divide streams in another way."""
BLOCK_SECONDS: Final = 1.0
"""How long a read waits for new entries: so long it takes until a stream that was taken over is read."""
FULL_SECONDS: Final = 0.05
"""How often streams are looked at while another one has as many open deliveries as it may."""
CLOSE_SECONDS: Final = 1.0


class Receiver:
    """One open session of a subscriber."""

    def __init__(
        self,
        reading: Connection,
        control: Connection,
        leases: Leases,
        settings: SubscriberSettings,
        reader: Reader,
        *,
        consumer: str,
        report: Callable[[Event], None],
        check: Callable[[], Awaitable[None]],
    ) -> None:
        """`check` raises LinkLost if there are streams that would have to be received from, too."""
        self._reading = reading
        self.control = control
        self.leases = leases
        self._settings = settings
        self._group = settings.group or ""
        self._reader = reader
        self._consumer = consumer
        self._report = report
        self._check = check
        self._seconds = settings.seconds("connect_timeout")
        self.sessions: dict[str, StreamSession] = {}
        """By stream, in the order in which the leases were taken."""
        self.arrived: list[Delivery] = []
        """What was not received yet."""
        self.revoked: list[Revoked] = []
        self.ended: LinkLost | None = None
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._acks: dict[str, list[str]] = defaultdict(list)
        self._flushing: asyncio.Handle | None = None
        self._skipped = SkippedTypes(consumer, report)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Take leases, and begin to read. Raises LinkLost."""
        await self.run_once()
        self._tasks = [asyncio.create_task(self._guarded(work)) for work in (self._keep, self._read, self._watch)]

    async def receive(self) -> Sequence[Delivery] | Revoked:
        """What comes next. Raises LinkLost."""
        while True:
            if self.ended is not None:
                raise self.ended
            if self.revoked:
                return self.revoked.pop(0)
            if self.arrived:
                arrived, self.arrived = self.arrived, []
                return arrived
            self._changed.clear()
            await self._changed.wait()

    async def pause(self) -> None:
        """Read no more; leases and acks go on."""
        await cancel_and_wait(*self._tasks[1:], seconds=CLOSE_SECONDS)
        self.arrived.clear()

    async def close(self) -> None:
        """Send the acks that are due, release the leases, and close both connections."""
        await cancel_and_wait(*self._tasks, seconds=CLOSE_SECONDS)
        self._reading.abort("the subscriber was closed")
        self.flush()
        try:
            if self.control.lost is None:
                await self.control.ask(*self.leases.release(self.sessions, leaves=True), seconds=CLOSE_SECONDS)
        except LinkLost:
            pass  # the leases expire, and what was not acked is delivered again
        self.sessions.clear()
        await self.control.close()

    async def _guarded(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except LinkLost as lost:
            self._fail(lost)
        except Exception as error:  # nothing else would tell the consumer that this has ended
            self._fail(LinkLost(f"{type(error).__name__}: {error}"))

    def _fail(self, lost: LinkLost) -> None:
        self.ended = self.ended or lost
        self._changed.set()

    # -- leases ------------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.run_once()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self._check()

    async def run_once(self) -> None:
        """Renew leases, take free ones, and give up those beyond the share. Raises LinkLost."""
        share, owned = self.leases.of_reply(await self.control.ask(*self.leases.renew(), seconds=self._seconds))
        for stream in [each for each in self.sessions if not owned.get(each)]:
            self._lose(self.sessions[stream])  # if the lease was taken again, what others have left is read first
        new = [stream for stream in owned if stream not in self.sessions]
        for stream in new:
            prefetch = self._settings.prefetch or 1
            self.sessions[stream] = StreamSession(stream, prefetch=prefetch, max_bytes=self._settings.max_held_bytes)
        if new:
            self._room.set()
            self._report(events.PartitionsAssigned(self._consumer, partitions=", ".join(new)))
        for session in list(self.sessions.values())[share:]:
            if not session.ending:
                self._end(session, partial(self._released, session))

    def _lose(self, session: StreamSession) -> None:
        """The lease has expired, as while this process was frozen: another process has the stream by now, or had it."""
        if self.sessions.get(session.stream) is session:
            del self.sessions[session.stream]
            self._end(session, _nothing)

    def _end(self, session: StreamSession, released: Callable[[], None]) -> None:
        session.ending = True
        self.arrived = [each for each in self.arrived if each.session is not session]
        self.revoked.append(Revoked(frozenset((session,)), released))
        self._changed.set()

    def _released(self, session: StreamSession) -> None:
        if self.sessions.get(session.stream) is session:
            self.flush()
            del self.sessions[session.stream]
            self._send([command(*self.leases.release([session.stream]))])

    # -- acks --------------------------------------------------------------------------------------------------------

    def ack(self, deliveries: Collection[Delivery]) -> None:
        """Ack these, in the next iteration of the loop. Those of sessions that have ended are left alone."""
        for each in deliveries:
            session = each.session
            if isinstance(session, StreamSession) and self.sessions.get(session.stream) is session:
                id = session.finish(each.tag)
                if id is not None:
                    self._acks[session.stream].append(id)
        self._room.set()
        if self._acks and self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send the acks that are due."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        acks, self._acks = self._acks, defaultdict(list)
        if acks:
            self._send([command("XACK", stream, self._group, *ids) for stream, ids in acks.items()])

    def _send(self, commands: list[bytes]) -> None:
        """Without waiting for the answers: if the connection is lost, entries are delivered again."""
        if self.control.lost is None:
            self.control.begin(len(commands))
            self.control.write(b"".join(commands))

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            self._room.clear()
            reading = [each for each in self.sessions.values() if not each.ending]
            ready = [each for each in reading if each.hungry and each.room]
            if ready:
                self._take(ready, await self._reading.ask_all(map(self._read_command, ready), self._seconds))
                continue
            idle = [each for each in reading if not each.hungry]
            if idle and len(idle) == len(reading):
                await self._wait_for_entries(idle)
                continue
            try:
                async with asyncio.timeout(FULL_SECONDS if idle else BLOCK_SECONDS):
                    await self._room.wait()
            except TimeoutError:
                for session in idle:
                    session.hungry = True

    def _read_command(self, session: StreamSession) -> bytes:
        lease = self.leases.key(session.stream)
        where = (lease, session.stream, self.leases.process, self._group, session.room, session.cursor)
        return command("EVAL", READ, 2, *where)

    def _take(self, sessions: Sequence[StreamSession], replies: Sequence[Any]) -> None:
        for session, reply in zip(sessions, replies, strict=True):
            if isinstance(reply, ReplyError):
                raise LinkLost(str(reply))
            if reply is None:
                self._lose(session)
                continue
            self._report_deleted(session.stream, len(reply[2]) + sum(1 for each in reply[1] if not each or not each[1]))
            found = session.deliver(reply, self._reader)
            if not session.ending:
                self.arrived += [each for each in found if not self._skips(each)]
        if self.arrived:
            self._changed.set()

    def _skips(self, delivery: Delivery) -> bool:
        skipped = self._reader.skipped_type(delivery)
        if skipped is None:
            return False
        self._skipped.note(skipped, delivery.original.stream)
        self.ack([delivery])
        return True

    def _report_deleted(self, stream: str, count: int) -> None:
        if count:
            self._report(events.EntriesDeleted(self._consumer, stream=stream, entries=count))

    async def _wait_for_entries(self, sessions: Sequence[StreamSession]) -> None:
        """Until one of the streams has an entry that the group has not read, or for BLOCK_SECONDS."""
        names, ids = [each.stream for each in sessions], [each.last_id for each in sessions]
        block = int(BLOCK_SECONDS * 1000)
        found = await self._reading.ask(
            "XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", *names, *ids, seconds=BLOCK_SECONDS + self._seconds
        )
        woken = {stream.decode() for stream, _ in found or ()}
        for session in sessions:
            session.hungry = session.stream in woken


def _nothing() -> None:
    """A lease that is lost needs no release."""
