"""See it work: `python -m examples.ticketflow`, on servers of its own, which end with it."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aio_pika import DeliveryMode

from examples.printing import expect, postroad, quote, run, say, title
from examples.running import until
from examples.ticketflow.tickets import assign, change_status, open_ticket
from examples.ticketflow.world import World, opened
from postroad import correlated
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from uuid import UUID

TICKETS = 40


def main() -> None:
    say("starting PostgreSQL, RabbitMQ, the help desk and two workers ...")
    with (
        PostgreSQL(15) as postgresql,
        RabbitMQ() as rabbitmq,
        tempfile.TemporaryDirectory() as folder,
        opened(postgresql.create_database(), rabbitmq.create_vhost(), Path(folder)) as world,
    ):
        show(world)


def show(world: World) -> None:
    one_at_a_time(world)
    tickets_and_a_kill(world)
    in_the_queue(world)
    retried(world)
    poisoned(world)
    skipped(world)
    figures(world)
    summary(world)


def one_at_a_time(world: World) -> None:
    title("Two workers, and one of them publishes")
    quote("worker 1", *world.running.lines("worker 1", "acquired the lock"))
    quote("worker 2", *world.running.lines("worker 2", "the lock 42 is held by")[:1])


def tickets_and_a_kill(world: World) -> None:
    title(f"{TICKETS} tickets are opened and closed; worker 1 is killed in between")
    for number in range(TICKETS):
        with correlated(f"request-{number}"):
            ticket = open_ticket(world.connection, f"printer {number} is on fire")
            if number == TICKETS // 2:
                world.running.kill("worker 1")
            change_status(world.connection, ticket, "closed")
    with suppress(RolledBack), world.connection.transaction():
        open_ticket(world.connection, "on second thoughts, no")
        raise RolledBack
    until(lambda: world.ask("select count(*) from notices") == [(2 * TICKETS,)], world.running)
    quote("worker 2", *world.running.lines("worker 2", "acquired the lock"))
    for words in (": read a page", ": published"):
        quote("worker 2", *world.running.lines("worker 2", words)[:1])
    twice = world.ask("select message from notices group by 1 having count(*) > 1")
    late = world.ask("select ticket from notices group by 1 having (array_agg(text order by number))[1] !~ '^new'")
    expect(not twice, "each event has one effect")
    expect(not late, "the events of a ticket are handled in order")
    say(f"The desk has {2 * TICKETS} notices: each event once, in order, and none of a roll-back.")


class RolledBack(Exception):
    pass


def in_the_queue(world: World) -> None:
    title("What RabbitMQ has got")
    of_ticket_1 = [each for each in world.queued("archive") if each.correlation_id == "request-0"]
    message = next(each for each in of_ticket_1 if each.routing_key == "ticket.status.changed")
    quote("exchange", "ticketflow.events: durable, of type topic")
    quote("routing key", str(message.routing_key))
    quote(
        "properties",
        f"type {message.type}, correlation id {message.correlation_id},",
        f"timestamp {message.timestamp:%Y-%m-%d %H:%M:%S}Z, delivery mode 2 (persistent)",
    )
    quote("headers", *(f"{name}: {value!s}" for name, value in sorted(message.headers.items())))
    quote("body", message.body.decode())
    expect(message.delivery_mode == DeliveryMode.PERSISTENT, "messages are persistent")


def retried(world: World) -> None:
    title("A message that fails, and is retried")
    ticket = open_ticket(world.connection, "no keyboard")
    message = assign(world.connection, ticket, "kim")
    until(lambda: world.running.lines("worker 2", f"{message} was refused, attempt 1 of 3"), world.running)
    other = open_ticket(world.connection, "no coffee")
    until(lambda: world.notices(other), world.running)
    world.connection.execute("insert into agents values ('kim')")
    until(lambda: "for kim" in world.notices(ticket), world.running)
    quote("worker 2", *world.running.lines("worker 2", f"{message} was refused"))
    quote("desk", f"ticket {other}, which was opened meanwhile: {', '.join(world.notices(other))}")
    quote("directory", "now has kim")
    quote("desk", f"ticket {ticket}: {', '.join(world.notices(ticket))}")


def poisoned(world: World) -> None:
    title("A message that fails every time")
    ticket = open_ticket(world.connection, "who can help?")
    message = assign(world.connection, ticket, "zoe")
    change_status(world.connection, ticket, "waiting")
    until(lambda: world.running.lines("worker 2", f"{message} is dead"), world.running)
    quote("worker 2", *world.running.lines("worker 2", f"{message} was refused", f"{message} is dead"))
    until(lambda: "open -> waiting" in world.notices(ticket), world.running)
    say("The later message of its ticket went on without it. It is kept for a person:")
    postroad("why", short(message), **world.environment)
    (letter,) = until(lambda: world.queued("dead_letters"), world.running)
    say("A copy waits in RabbitMQ, with the reason:")
    notes = {name: str(value) for name, value in letter.headers.items() if name.startswith("postroad-dead-")}
    quote("dead letter", *(f"{name}: {notes[name]}" for name in sorted(notes)))
    expect(notes["postroad-dead-reason"] == "agent 'zoe' is not in the directory", "the copy has the reason")


def skipped(world: World) -> None:
    title("A message that was delivered by other means")
    postroad("pause", "default", "--reason", "a look at ticket 1", **world.environment)
    message = assign(world.connection, 1, "kim")
    postroad("message", "skip", short(message), "--reason", "told Kim by phone", "--yes", **world.environment)
    postroad("resume", "default", "--reason", "done", **world.environment)
    change_status(world.connection, 1, "solved")
    until(lambda: "closed -> solved" in world.notices(1), world.running)
    quote("desk", f"ticket 1: {', '.join(world.notices(1))}")
    expect("for kim" not in world.notices(1), "a skipped message is not published")


def figures(world: World) -> None:
    title("Figures")
    notices = world.ask("select count(*) from notices")[0][0]
    expected = {"pending": 0, "failing": 0, "dead": 1, "processed": notices}
    until(lambda: world.figures("now") == [expected], world.running)
    quote("figures.sql", ", ".join(f"{name} {value}" for name, value in expected.items()))
    minutes = world.figures("per_minute")
    quote("", *(f"{each['minute']}  {each['processed']} processed" for each in minutes))
    expect(sum(each["processed"] for each in minutes) == notices, f"all {notices} are counted in {minutes}")
    postroad("status", **world.environment)
    say(
        "'last hour' is what the workers have recorded. Each lane does so once a second, and worker 1 was killed: "
        "what it had not recorded is missing."
    )


def summary(world: World) -> None:
    title("SIGTERM: the lock is free, and a summary")
    world.running.stop("worker 2")
    last = world.running.lines("worker 2", "released the lock", "ended; ")
    quote("worker 2", *last)
    expect(any("released the lock 42" in line for line in last), "the lock is released")
    expect(any("1 dead, 1 skipped" in line for line in last), "the dead and the skipped message are counted")


def short(message: UUID) -> str:
    """The last digits of an id are enough for a command."""
    return str(message)[-6:]


if __name__ == "__main__":
    run(main)
