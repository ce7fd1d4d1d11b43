"""See it work: `python -m examples.cloudevents`, on servers of its own, which end with it."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from examples.cloudevents.reader import Batch, endpoint, read, subscribe
from examples.cloudevents.readings import take
from examples.cloudevents.world import World, opened
from examples.printing import expect, postroad, quote, run, say, title
from examples.running import until
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from uuid import UUID

    from cloudevents.core.base import BaseCloudEvent as CloudEvent

FORMS = ("binary", "structured")
READINGS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=5, metavar="N", help="how often an event is tried")
    asked = parser.parse_args()
    say("starting PostgreSQL and RabbitMQ ...")
    with (
        PostgreSQL(15) as postgresql,
        RabbitMQ() as rabbitmq,
        tempfile.TemporaryDirectory() as folder,
        opened(postgresql.create_database(), rabbitmq.create_vhost(), Path(folder)) as world,
    ):
        show(world, asked.attempts)


def show(world: World, attempts: int) -> None:
    forms(world)
    failing = a_failing_event(world, attempts)
    a_poisoned_event(world)
    mended(world, failing)


def forms(world: World) -> None:
    ids = {str(take(world.connection, f"meter-{number}", 100 + number)) for number in range(READINGS)}
    events: dict[str, dict[str, CloudEvent]] = {}
    for form in FORMS:
        title(f"{READINGS} events in {form} mode, read with the SDK of CloudEvents")
        exchange = f"readings.{form}"
        asyncio.run(subscribe(world.broker, exchange))
        to = ("--rabbitmq-exchange", exchange, "--rabbitmq-envelope", form, "--log-level", "warning")
        postroad("relay", "--until-empty", "--sink", form, *to, POSTROAD_TO=world.broker, **world.environment)
        found = asyncio.run(read(world.broker, exchange))
        message, event = min(found, key=lambda each: str(each[1].get_subject()))
        quote("content type", str(message.content_type))
        quote("headers", *(f"{name}: {message.headers[name]}" for name in sorted(message.headers)))
        quote("body", *json.dumps(json.loads(message.body), indent=2).splitlines())
        quote("the SDK", f"{event.get_type()} of {event.get_subject()}: {event.get_data()!r}")
        events[form] = checked(form, ids, [each for _, each in found])
        postroad("sink", "remove", form, "--reason", "it was read", "--yes", **world.environment)
    events["batched"] = checked("batched", ids, a_batch(world))
    first, *others = events.values()
    same = all(facts(first[id]) == facts(other[id]) for other in others for id in ids)
    expect(same, "an event is the same in every mode")
    say("The events are the same in every mode: attributes, extensions and data.")


def a_batch(world: World) -> list[CloudEvent]:
    title(f"{READINGS} events in batched mode, by HTTP")
    batches: list[Batch] = []
    with endpoint(batches) as url:
        to = ("--http-envelope", "batched", "--http-allow-plaintext", "true", "--http-allow-networks", "127.0.0.1")
        one_lane = ("--lanes", "1", "--log-level", "warning")
        postroad("relay", "--until-empty", "--sink", "batched", *to, *one_lane, POSTROAD_TO=url, **world.environment)
    events = [event for batch in batches for event in batch.events()]
    quote("content type", batches[0].content_type)
    quote("requests", f"{len(batches)}, with {len(events)} events")
    event = min(events, key=lambda each: str(each.get_subject()))
    quote("the SDK", f"{event.get_type()} of {event.get_subject()}: {event.get_data()!r}")
    postroad("sink", "remove", "batched", "--reason", "it was read", "--yes", **world.environment)
    return events


def checked(form: str, ids: set[str], events: list[CloudEvent]) -> dict[str, CloudEvent]:
    """The events by id; there must be all of them."""
    found = sorted(each.get_id() for each in events)
    expect(found == sorted(ids), f"all {READINGS} events are read in {form} mode, each once")
    return {each.get_id(): each for each in events}


def facts(event: CloudEvent) -> tuple[object, object]:
    return event.get_attributes() | {"datacontenttype": "application/json"}, event.get_data()


def a_failing_event(world: World, attempts: int) -> UUID:
    title(f"Billing: one event fails, with growing pauses, {attempts} times")
    failing = take(world.connection, "meter-9", 900, "night")
    world.start_billing(attempts)
    world.until_billed(READINGS)
    say(f"The other {READINGS} events are billed at once.")
    for attempt in range(1, attempts):
        line = world.until_logged(f"{failing} was refused, attempt {attempt} of {attempts}")
        quote("billing", line.partition("WARNING")[2].strip())
    quote("billing", world.until_logged(f"{failing} is dead").partition("ERROR")[2].strip())
    postroad("why", short(failing), **world.environment)
    return failing


def a_poisoned_event(world: World) -> None:
    title("An event that must not go out is poisoned by hand, with a reason")
    postroad("pause", "billing", "--reason", "a wrong reading", **world.environment)
    wrong = take(world.connection, "meter-3", -7)
    postroad("message", "poison", short(wrong), "--reason", "the meter ran backwards", **world.environment)
    postroad("resume", "billing", "--reason", "it is poisoned", **world.environment)
    take(world.connection, "meter-3", 200)
    world.until_billed(READINGS + 1)
    postroad("why", short(wrong), **world.environment)
    expect(not world.ask("select from bills where cents < 0"), "a poisoned event is not delivered")


def mended(world: World, failing: UUID) -> None:
    title("Mended by hand: the tariff is added, and the event is retried")
    world.connection.execute("insert into tariffs values ('night', 20)")
    postroad("dead", "retry", short(failing), "--reason", "there is a night tariff now", "--yes", **world.environment)
    world.until_billed(READINGS + 2)
    until(lambda: world.ask(STATE, failing) == [("published",)], world.running)
    postroad("message", "show", short(failing), **world.environment)
    ((cents,),) = world.ask("select cents from bills join readings on id = reading where meter = 'meter-9'")
    quote("bills", f"meter-9: {cents / 100:.2f}")


STATE = "select state from postroad.outbox_status where id = %s and sink = 'billing'"


def short(message: UUID) -> str:
    """The last digits of an id are enough for a command."""
    return str(message)[-6:]


if __name__ == "__main__":
    run(main)
