"""See it work: `python -m examples.parcels`, on a server of its own, which ends with it."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.orm.exc import StaleDataError

from examples.parcels.parcels import Parcel, Session, change, outbox, post
from examples.parcels.world import INSTANCES, World, opened
from examples.printing import NotShown, expect, postroad, quote, run, say, title
from examples.running import until
from postroad import Cancellation
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

BACKLOG = 300


def main() -> None:
    say("starting PostgreSQL ...")
    with (
        PostgreSQL(15) as postgresql,
        tempfile.TemporaryDirectory() as folder,
        opened(postgresql.create_database(), Path(folder)) as world,
    ):
        show(world)


def show(world: World) -> None:
    one_backlog(world)
    what_becomes_of_a_message(world)
    a_stale_instance(world)
    conflicts(world)


def one_backlog(world: World) -> None:
    title(f"Three instances, one backlog of {BACKLOG} messages")
    world.start_instances()
    world.until_shared()
    postroad("pause", "texts", "--reason", "a backlog is wanted", POSTROAD_DATABASE=world.database)
    for number in range(BACKLOG):
        post(f"+00 {number:04}")
    postroad("resume", "texts", "--reason", "here it is", POSTROAD_DATABASE=world.database)
    world.until_sent(BACKLOG)
    for name, calls in world.calls().items():
        quote(name, f"{calls} texts sent")
    expect(len(world.calls()) == len(INSTANCES), "each instance sends some of them")
    once(world, BACKLOG)


def once(world: World, number: int) -> None:
    sent = world.ask("select count(*), count(distinct message) from texts")
    expect(sent == [(number, number)], f"{number} messages are sent, each once; sent, and different ones: {sent}")
    say(f"{number} messages, {number} texts: each was sent once.")


def what_becomes_of_a_message(world: World) -> None:
    title("Completed, canceled, failed")
    _, completed = post("+00 1000")
    until(lambda: world.state(completed) == "published", world.running)
    shown(world, "sent", completed, Cancellation.TOO_LATE)
    _, later = post("+00 1001", deliver_in="1h")
    shown(world, "in an hour", later, Cancellation.CANCELED)
    _, failing = post(None)
    until(lambda: world.state(failing) == "retrying", world.running)
    shown(world, "refused 1x", failing, Cancellation.CANCELED)
    _, failed = post(None)
    until(lambda: world.state(failed) == "dead", world.running)
    quote("refused 2x", f"it is {world.state(failed)}, and waits for a person")


def shown(world: World, which: str, message: UUID, expected: Cancellation) -> None:
    """Cancel a message, and print the answer."""
    with Session.begin() as session:
        answer = outbox.cancel(session, message)
    expect(answer is expected, f"the answer for the message that was {which} is {expected.name}, not {answer.name}")
    quote(which, f"outbox.cancel(session, id) -> {answer.name}; now it is {world.state(message) or 'gone'}")


def a_stale_instance(world: World) -> None:
    title("An instance that was frozen, and does not know that it lost its lanes")
    before = sum(world.calls().values())
    frozen, others = INSTANCES[0], INSTANCES[1:]
    world.running.freeze(frozen)
    for number in range(BACKLOG):
        post(f"+00 {number:04}")
    world.until_sent(before + BACKLOG)
    world.running.thaw(frozen)
    lost = until(lambda: world.running.lines(frozen, ": lost: "), world.running)
    quote(frozen, *lost)
    world.until_shared()
    say(f"The others ({', '.join(others)}) had taken its lanes. It logs that, changes nothing, and goes on.")
    once(world, before + BACKLOG)


def conflicts(world: World) -> None:
    title("Two changes of one parcel at the same time")
    say("A rival changes the parcel between our load and our commit.")
    notes = Notes()
    again, _ = post("+00 2000")
    expect(change(again, "delivered", before_commit=rival(again, times=1)) is not None, "the second try succeeds")
    outcome("try again", again, "done at the second try")
    logged, _ = post("+00 2001")
    expect(change(logged, "delivered", give_up="log", before_commit=rival(logged)) is None, "None is returned")
    outcome("log, go on", logged, "None")
    quote("the log", *notes.lines)
    expect(len(notes.lines) == 1, "the conflict is logged once")
    raised, _ = post("+00 2002")
    try:
        change(raised, "delivered", before_commit=rival(raised))
    except StaleDataError as conflict:
        outcome("raise", raised, type(conflict).__name__)
    else:
        raise NotShown("the last conflict is raised")
    expect(change(again, "delivered") is None, "what is done already is not done again")
    outcome("already done", again, "None, and nothing is logged")
    expect(len(notes.lines) == 1, "what was done already is not logged")
    counted(world, again, "delivered", 1)
    counted(world, logged, "delivered", 0)


def rival(number: int, times: int = 1000) -> Callable[[], None]:
    """Changes the parcel before we do, so many times."""
    left = iter(range(times))

    def change_it() -> None:
        if next(left, None) is not None:
            with Session.begin() as session:
                parcel = session.get_one(Parcel, number)
                parcel.state = f"at depot {parcel.version}"

    return change_it


def outcome(choice: str, number: int, text: str) -> None:
    with Session() as session:
        parcel = session.get_one(Parcel, number)
    quote(choice, f"{text}; the parcel is '{parcel.state}', version {parcel.version}")


def counted(world: World, number: int, state: str, times: int) -> None:
    """An event stands in the log only if its change was committed."""
    written = f"""select count(*) from postroad.outbox
                  where key = '{number}' and convert_from(payload, 'utf8') like '%{state}%'"""  # noqa: S608 - our own
    expect(world.ask(written) == [(times,)], f"parcel {number} has {times} events '{state}'")


class Notes(logging.Handler):
    """What `retry_on_conflict` logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("postroad.conflicts").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


if __name__ == "__main__":
    run(main)
