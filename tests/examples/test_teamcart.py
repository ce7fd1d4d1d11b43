"""examples/teamcart, end to end on real servers: from a commit in PostgreSQL to a view model in Redis."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from examples.running import ROOT, until
from examples.teamcart.carts import add_item, create_cart
from examples.teamcart.world import World, world_on
from tests.services.postgresql import PostgreSQL
from tests.services.redis import Redis

LANES = 4


@pytest.fixture(params=[False, True], ids=["handlers in the relay", "through a stream"])
async def world(
    request: pytest.FixtureRequest, postgresql15: PostgreSQL, redis: Redis, tmp_path: Path
) -> AsyncIterator[World]:
    postgresql15.start()
    with world_on(postgresql15.create_database(), redis.url, tmp_path, stream=request.param) as world:
        await world.open()
        yield world


async def test_a_cart_stands_in_redis_after_idling(world: World) -> None:
    """How long it takes is printed by the example and by `pytest -rP`; here it must only happen."""
    connection = await world.connect()
    async with asyncio.timeout(60):
        while await connection.fetchval("select count(*) from postroad.naps where until > now()") < LANES:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await connection.close()
    seconds = await world.seconds_until_seen("Ann")
    print(f"{seconds * 1000:.0f} ms from the commit to the view model")  # noqa: T201
    until(lambda: world.running.lines(world.handlers, "-view: handled teamcart.created.v1"), world.running)


async def test_a_cart_and_its_items_survive_kills(world: World) -> None:
    connection = await world.connect()
    carts = [await create_cart(connection, f"host {number}") for number in range(10)]
    for number in range(5):
        for cart in carts:
            await add_item(connection, cart, f"dish {number}", number)
        if number == 2:
            for name in world.running.names():
                world.running.kill(name)
            world.start_relay()
            if world.handlers == "consumer":
                world.start_consumer()
    await connection.close()
    for cart in carts:
        until(lambda cart=cart: len(world.view(cart)) == 6, world.running)  # type: ignore[misc]
        assert world.view(cart)["host"].startswith("host ")


@pytest.mark.parametrize("options", [(), ("--stream",)])
def test_the_one_command(options: tuple[str, ...], postgresql15: PostgreSQL, redis: Redis) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.teamcart", "--idle", "0.1", "--times", "2", *options],
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"its view model stood in Redis after \d+ ms", done.stdout)) == 2
    assert "a cart as readers see it: {'host': 'Ann'" in done.stdout
    assert "handled teamcart.created.v1" in done.stdout


def test_the_readme_names_every_file() -> None:
    folder = ROOT / "examples/teamcart"
    readme = (folder / "README.md").read_text()
    for file in folder.glob("*.py"):
        assert f"`{file.name}`" in readme
