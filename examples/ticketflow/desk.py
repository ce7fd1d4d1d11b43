"""The help desk: a consumer of the published events, which writes a notice for each.

postroad consume --app examples.ticketflow.desk:consumer
"""

from __future__ import annotations

from typing import Any

import psycopg

from examples.ticketflow.tickets import TicketAssignedEvent, TicketOpenedEvent, TicketStatusChangedEvent
from examples.ticketflow.worker import BROKER, DATABASE, EXCHANGE
from postroad import Consumer, Received

Transaction = psycopg.Connection[Any]


def begin() -> Transaction:
    """A connection: its `with` block is a transaction."""
    return psycopg.connect(DATABASE)


consumer = Consumer(BROKER, name="desk", begin=begin, exchange=EXCHANGE, bindings=["ticket.#"])


@consumer.on(TicketOpenedEvent)
def opened(event: TicketOpenedEvent, tx: Transaction, message: Received) -> None:
    write(tx, message, event.ticket, f"new: {event.title}")


@consumer.on(TicketStatusChangedEvent)
def changed(event: TicketStatusChangedEvent, tx: Transaction, message: Received) -> None:
    write(tx, message, event.ticket, f"{event.before} -> {event.after}")


@consumer.on(TicketAssignedEvent)
def assigned(event: TicketAssignedEvent, tx: Transaction, message: Received) -> None:
    write(tx, message, event.ticket, f"for {event.agent}")


def write(tx: Transaction, message: Received, ticket: int, text: str) -> None:
    tx.execute("insert into notices (message, ticket, text) values (%s, %s, %s)", (message.id, ticket, text))
