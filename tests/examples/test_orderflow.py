"""examples/orderflow, end to end on real servers: from an HTTP request to an e-mail (D10 of the requirements)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import pytest
from sqlalchemy import text

from examples.orderflow.setup import engine
from examples.orderflow.world import World, opened
from examples.running import ROOT, until
from tests.conftest import serving
from tests.destinations import rabbitmq_channel
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ

FAILS_AT_COMMIT = """
    create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not today'; end $$;
    create constraint trigger refuse after insert on orders deferrable initially deferred
        for each row when (new.email = 'ian@example.org') execute function refuse();
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitMQ]:
    """One of its own, because it goes away."""
    with serving(RabbitMQ) as server:
        yield server


@pytest.fixture(scope="module")
def world(postgresql15: PostgreSQL, server: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    postgresql15.start()
    with opened(postgresql15, server.create_vhost(), tmp_path_factory.mktemp("orderflow")) as world:
        yield world


def arrived(world: World, email: str) -> list[str]:
    return until(lambda: world.mailbox.subjects(email), world.running)


def test_an_order_is_published_reserved_and_confirmed_by_e_mail(world: World) -> None:
    placed = world.place("ann@example.org", quantity=3)
    assert placed.status_code == 201
    number = placed.json()["order"]
    assert arrived(world, "ann@example.org") == [f"Order {number}: your kettle is on its way"]
    assert world.ask("inventory", f'select quantity from reservations where "order" = {number}') == [(3,)]
    (mail,) = [mail for mail in world.mailbox.mails if mail["To"] == "ann@example.org"]
    assert mail["X-Correlation-Id"] == "ann@example.org", "from the request to the e-mail"
    until(lambda: world.ask("mail", "select message from sent"), world.running)
    assert (mail["X-Idempotency-Key"],) in world.ask("mail", "select message from sent")


def test_what_is_out_of_stock_is_reported(world: World) -> None:
    number = world.place("bob@example.org", "teapot").json()["order"]
    assert arrived(world, "bob@example.org") == [f"Order {number}: we have no teapot left"]


async def test_duplicates_have_one_effect(world: World) -> None:
    number = world.place("cid@example.org").json()["order"]
    arrived(world, "cid@example.org")
    id = world.ask("orders", f"select id from postroad.outbox where key = '{number}'")[0][0]
    body = b'{"order": %d, "email": "cid@example.org", "product": "kettle", "quantity": 1}' % number
    async with rabbitmq_channel(world.broker) as channel:
        exchange = await channel.get_exchange("postroad")
        headers = {"ce-id": str(id), "ce-source": "/orders", "ce-type": "order.created.v1", "ce-specversion": "1.0"}
        for _ in range(20):
            await exchange.publish(aio_pika.Message(body, headers=dict(headers)), "order.created.v1")
    until(lambda: world.running.log("inventory").count(f"{id} was processed before") == 20, world.running)
    assert world.mailbox.subjects("cid@example.org") == [f"Order {number}: your kettle is on its way"]
    assert len(world.ask("inventory", f'select from reservations where "order" = {number}')) == 1


def test_a_roll_back_loses_and_sends_nothing(world: World) -> None:
    before = world.ask("orders", "select count(*) from orders")
    declined = world.place("eve@example.org", card="declined")
    assert declined.status_code == 402
    assert world.ask("orders", "select count(*) from orders") == before
    assert world.ask("orders", "select from postroad.outbox where convert_from(payload, 'utf8') like '%eve@%'") == []
    world.place("fay@example.org")
    arrived(world, "fay@example.org")
    assert world.mailbox.subjects("eve@example.org") == []


def test_the_client_gets_an_error_when_the_commit_fails(world: World) -> None:
    with engine(world.databases["orders"]).begin() as connection:
        connection.execute(text(FAILS_AT_COMMIT))
    assert world.place("ian@example.org").status_code == 500
    assert world.ask("orders", "select from orders where email = 'ian@example.org'") == []
    assert world.ask("orders", "select from postroad.outbox where convert_from(payload, 'utf8') like '%ian@%'") == []
    assert world.place("joe@example.org").status_code == 201


def test_what_can_t_be_published_is_published_later(world: World, server: RabbitMQ) -> None:
    server.stop()
    placed = world.place("gus@example.org")
    assert placed.status_code == 201, "the request does not wait for the broker"
    server.start()
    assert len(arrived(world, "gus@example.org")) == 1


def test_a_killed_service_goes_on_where_it_was(world: World) -> None:
    customers = [f"hal{number}@example.org" for number in range(10)]
    for number, customer in enumerate(customers):
        world.place(customer)
        if number == 3:
            world.running.kill("inventory")
            world.start_consumer("inventory")
        if number == 6:
            world.running.kill("relay of orders")
            world.start_relay("orders")
    for customer in customers:
        assert len(arrived(world, customer)) == 1
    orders = {row[0] for row in world.ask("orders", "select id from orders where email like 'hal%'")}
    reserved = [row[0] for row in world.ask("inventory", 'select "order" from reservations')]
    assert all(reserved.count(order) == 1 for order in orders)


def test_the_one_command(postgresql15: PostgreSQL, rabbitmq: RabbitMQ) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.orderflow"], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "20 orders placed, 20 rolled back (HTTP 402)" in done.stdout
    for line in (" 20 orders", " 16 reservations", " 20 sent"):
        assert line in done.stdout


def test_the_readme_names_every_file() -> None:
    folder = ROOT / "examples/orderflow"
    readme = (folder / "README.md").read_text()
    for file in Path(folder).glob("*.py"):
        assert f"`{file.name}`" in readme
