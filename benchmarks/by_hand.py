"""The INSERT that a careful person would write instead of calling `Outbox.add`: the same row, the same driver.

An id, the event as JSON, the slot of the key, headers; and a repeated id is no error. Ids begin with the time, as ours
do: random ones would spread over the whole index, and that would be measured too.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

from benchmarks.payload import PAYLOAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

TYPE = "order.placed"
SOURCE = "/benchmarks"
HEADERS = json.dumps({"source": SOURCE})

_COLUMNS = "id, topic, key, slot, type, payload, content_type, headers"
INSERT = f"""
insert into postroad.outbox ({_COLUMNS}) values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (id) do nothing
"""
INSERT_MANY = f"""
insert into postroad.outbox ({_COLUMNS})
select * from unnest(
    $1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::text[], $6::bytea[], $7::text[], $8::json[])
on conflict (id) do nothing
"""
INSERT_SQLITE = f"""
insert into postroad_outbox ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)
on conflict (id) do nothing
"""


def with_percent(sql: str) -> str:
    """The same for drivers that write %s."""
    return re.sub(r"\$\d+|\?", "%s", sql)


@dataclass(frozen=True, slots=True)
class OrderPlaced:
    """An event whose JSON has about 170 bytes."""

    order: str
    customer: str
    note: str


def order_placed(n: int) -> OrderPlaced:
    return OrderPlaced(f"{n:012}", f"customer-{n % 10_000}", "x" * (PAYLOAD_BYTES - 64))


def uuid7() -> UUID:
    value = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big")
    return UUID(int=value & ~(0xF << 76 | 0b11 << 62) | 0x7 << 76 | 0b10 << 62)


def row(event: OrderPlaced) -> tuple[Any, ...]:
    payload = json.dumps({"order": event.order, "customer": event.customer, "note": event.note}).encode()
    slot = int.from_bytes(sha256(event.customer.encode()).digest()[:2], "big") % 1024
    return (uuid7(), TYPE, event.customer, slot, TYPE, payload, "application/json", HEADERS)


def columns(events: Sequence[OrderPlaced]) -> tuple[list[Any], ...]:
    """What INSERT_MANY takes."""
    return tuple(map(list, zip(*map(row, events), strict=True)))


def row_sqlite(event: OrderPlaced) -> tuple[Any, ...]:
    message_id, *others = row(event)
    return (str(message_id), *others)
