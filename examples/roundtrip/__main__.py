"""See it work: `python -m examples.roundtrip`, on servers of its own, which end with it."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from examples.printing import expect, quote, run, say, title
from examples.roundtrip.shop import place
from examples.roundtrip.world import World, opened
from tests.services.nats import NATS
from tests.services.postgresql import PostgreSQL

CUSTOMERS = ("ada", "ben", "cleo", "dan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=200, metavar="N", help="how many orders each part places")
    asked = parser.parse_args()
    say("starting PostgreSQL and NATS ...")
    with PostgreSQL(15) as postgresql, NATS() as nats, tempfile.TemporaryDirectory() as folder:
        databases = {name: postgresql.create_database() for name in ("shop", "warehouse")}
        with opened(databases, nats.url(), Path(folder)) as world:
            show(world, asked.orders)


def show(world: World, orders: int) -> None:
    title("Two services, each with its own database; NATS is between them")
    for name in ("shop", "warehouse"):
        world.start_relay(name)
    for name, process in (("shop", "shop"), ("warehouse", "warehouse 1"), ("warehouse", "warehouse 2")):
        world.start_consumer(name, process)
    put(world, orders)
    world.until_shipped(orders)
    say(f"{orders} orders were placed, shipped, and noted by the shop as shipped.")

    title("The warehouse's active process is killed; the one that stood by takes over")
    put(world, orders)
    world.running.kill("warehouse 1")
    world.running.kill("shop's relay")
    say("kill -9: warehouse 1, and the shop's relay")
    world.start_relay("shop")
    put(world, orders)
    world.until_shipped(3 * orders)
    say(f"all {3 * orders} orders are shipped")

    title("What the tables say")
    parcels = world.ask("warehouse", 'select "order", customer from parcels order by id')
    shipped = world.ask("shop", 'select "order", customer from shipped order by id')
    for name, found in (("warehouse", parcels), ("shop", shipped)):
        numbers = [order for order, _ in found]
        expect(sorted(numbers) == list(range(1, 3 * orders + 1)), f"{name}: each order once")
        for customer in CUSTOMERS:
            of_customer = [order for order, each in found if each == customer]
            expect(of_customer == sorted(of_customer), f"{name}: {customer}'s orders in order")
        quote(name, f"{len(numbers)} orders, each once, each customer's in order")


def put(world: World, orders: int) -> None:
    for number in range(orders):
        place(world.connections["shop"], CUSTOMERS[number % len(CUSTOMERS)])


if __name__ == "__main__":
    run(main)
