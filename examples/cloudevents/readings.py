"""The application: readings of electricity meters, and their events in the same transactions. Plain functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from postroad import Outbox, event

if TYPE_CHECKING:
    from uuid import UUID

    import psycopg

TABLES = """
create table readings (id bigint generated always as identity primary key, meter text not null, kwh integer not null);
create table tariffs (name text primary key, cents integer not null);
create table bills (reading bigint primary key, cents integer not null);
insert into tariffs values ('day', 30);
"""

outbox = Outbox(source="/meters")


@event("org.example.reading.taken.v1")
class ReadingTaken(msgspec.Struct):
    reading: int
    meter: str
    kwh: int
    tariff: str


def take(connection: psycopg.Connection[Any], meter: str, kwh: int, tariff: str = "day") -> UUID:
    """Store a reading and its event; returns the event's id."""
    with connection.transaction():
        reading = "insert into readings (meter, kwh) values (%s, %s) returning id"
        ((number,),) = connection.execute(reading, (meter, kwh))
        return outbox.add(connection, ReadingTaken(number, meter, kwh, tariff), key=meter)
