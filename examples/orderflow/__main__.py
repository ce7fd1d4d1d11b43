"""See it work: `python -m examples.orderflow`, on servers of its own, which end with it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from examples.orderflow.world import World, opened
from examples.running import until
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ

CUSTOMERS = [f"customer{number}@example.org" for number in range(1, 21)]


def main() -> None:
    print("starting PostgreSQL, RabbitMQ, a mail server, the web service, two relays and two consumers ...")
    with (
        PostgreSQL(15) as postgresql,
        RabbitMQ() as rabbitmq,
        tempfile.TemporaryDirectory() as folder,
        opened(postgresql, rabbitmq.create_vhost(), Path(folder)) as world,
    ):
        show(world)


def show(world: World) -> None:
    statuses = set()
    for number, customer in enumerate(CUSTOMERS):
        world.place(customer, "teapot" if number % 5 == 4 else "kettle")
        statuses.add(world.place(f"declined-{customer}", card="declined").status_code)
        if number == 5:
            print("kill -9: the inventory service; and it is started again")
            world.running.kill("inventory")
            world.start_consumer("inventory")
    print(f"{len(CUSTOMERS)} orders placed, {len(CUSTOMERS)} rolled back (HTTP {', '.join(map(str, statuses))})")
    until(lambda: len(world.ask("mail", "select from sent")) == len(CUSTOMERS), world.running)
    print(f"\nthe mail server has {len(world.mailbox.mails)} e-mails, such as")
    for mail in world.mailbox.mails[:5]:
        print(f"  to {mail['To']}: {mail['Subject']}  (idempotency key {mail['X-Idempotency-Key']})")
    print("\nfrom the services' own tables:")
    for name, table in (("orders", "orders"), ("inventory", "reservations"), ("mail", "sent")):
        ((count,),) = world.ask(name, f"select count(*) from {table}")  # noqa: S608 - one of three names
        print(f"  {count:3} {table}")


if __name__ == "__main__":
    main()
