"""A program that carries the log by a replication slot, as Debezium does; tests decide what it confirms, and when."""

from __future__ import annotations

import select
import struct
import time
from types import TracebackType
from typing import Self

from psycopg import pq

SECONDS = 60

PUBLISH = "create publication postroad for table postroad.outbox with (publish = 'insert')"


class Carrier:
    """A reader of a slot that is there, connected from the beginning of the block to its end."""

    def __init__(self, url: str, slot: str) -> None:
        self._url = url
        self._slot = slot
        self.carried: list[int] = []
        """The positions that were received, in order."""
        self.end = 0
        """The LSN after the last commit that was received."""

    def __enter__(self) -> Self:
        self._connection = pq.PGconn.connect(f"{self._url}?replication=database".encode())
        assert self._connection.status == pq.ConnStatus.OK, self._connection.error_message
        options = "proto_version '1', publication_names 'postroad'"
        started = self._connection.exec_(f"START_REPLICATION SLOT {self._slot} LOGICAL 0/0 ({options})".encode())
        assert started.status == pq.ExecStatus.COPY_BOTH, started.error_message
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.finish()

    def carry(self, *positions: int) -> None:
        """Receive until these have arrived, with their commits. Nothing is confirmed."""
        deadline = time.monotonic() + SECONDS
        while not set(positions) <= set(self.carried) or self._in_transaction:
            size, data = self._connection.get_copy_data(1)
            if size > 0:
                self._receive(bytes(data))
            elif not select.select([self._connection.socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"of {positions}, only {self.carried} arrived")
            else:
                self._connection.consume_input()

    def confirm(self, lsn: int | None = None) -> None:
        """Confirm what was received, or everything before this LSN."""
        flushed = self.end if lsn is None else lsn
        message = struct.pack("!cQQQqb", b"r", flushed, flushed, flushed, 0, 0)
        assert self._connection.put_copy_data(message) == 1
        assert self._connection.flush() == 0

    _in_transaction = False

    def _receive(self, data: bytes) -> None:
        if data[:1] != b"w":
            return  # a keepalive
        change = data[25:]
        match change[:1]:
            case b"B":
                self._in_transaction = True
            case b"C":
                self._in_transaction = False
                self.end = struct.unpack_from("!Q", change, 10)[0]
            case b"I":
                self.carried.append(_position(change))


def _position(insert: bytes) -> int:
    """The second column of a new row, as text."""
    place = 8  # I, the relation, N, the number of columns
    (size,) = struct.unpack_from("!I", insert, place + 1)
    place += 5 + size
    (size,) = struct.unpack_from("!I", insert, place + 1)
    return int(insert[place + 5 : place + 5 + size])
