"""The application: tickets in PostgreSQL, and their events in the same transactions. Plain functions, psycopg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroad import Outbox

if TYPE_CHECKING:
    from uuid import UUID

    import psycopg

TABLES = """
create table agents (name text primary key);
create table tickets (
    id bigint generated always as identity primary key,
    title text not null, status text not null default 'open', agent text
);
create table notices (
    number bigint generated always as identity primary key,
    message text not null, ticket bigint not null, text text not null
);
"""

outbox = Outbox(source="/ticketflow")


# Without @event, the name of the class gives the type, and the type is the routing key.


@dataclass
class TicketOpenedEvent:  # ticket.opened
    ticket: int
    title: str


@dataclass
class TicketStatusChangedEvent:  # ticket.status.changed
    ticket: int
    before: str
    after: str


@dataclass
class TicketAssignedEvent:  # ticket.assigned
    ticket: int
    agent: str


def open_ticket(connection: psycopg.Connection[Any], title: str) -> int:
    with connection.transaction():
        ((ticket,),) = connection.execute("insert into tickets (title) values (%s) returning id", (title,))
        outbox.add(connection, TicketOpenedEvent(ticket, title), key=ticket)
    return int(ticket)


def change_status(connection: psycopg.Connection[Any], ticket: int, status: str) -> UUID:
    with connection.transaction():
        before = locked(connection, ticket)
        connection.execute("update tickets set status = %s where id = %s", (status, ticket))
        return outbox.add(connection, TicketStatusChangedEvent(ticket, before, status), key=ticket)


def assign(connection: psycopg.Connection[Any], ticket: int, agent: str) -> UUID:
    with connection.transaction():
        locked(connection, ticket)
        connection.execute("update tickets set agent = %s where id = %s", (agent, ticket))
        return outbox.add(connection, TicketAssignedEvent(ticket, agent), key=ticket)


def locked(connection: psycopg.Connection[Any], ticket: int) -> str:
    """Lock the ticket, so that its events are added in the order of its changes; returns its status."""
    ((status,),) = connection.execute("select status from tickets where id = %s for update", (ticket,))
    return str(status)
