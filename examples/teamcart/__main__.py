"""See it work: `python -m examples.teamcart`, on servers of its own, which end with it.

It idles for a while, creates a team cart, and says how long its view model took to stand in Redis.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from examples.running import until
from examples.teamcart.carts import add_item, create_cart
from examples.teamcart.world import World, world_on
from tests.services.postgresql import PostgreSQL
from tests.services.redis import Redis


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=float, default=20, metavar="SECONDS", help="how long to idle first")
    parser.add_argument("--times", type=int, default=3, metavar="N", help="how often")
    parser.add_argument("--stream", action="store_true", help="through a Redis Stream, to a consumer of its own")
    asked = parser.parse_args()
    way = (
        "a relay and a consumer, with a Redis Stream between them"
        if asked.stream
        else "a relay with the handlers in it"
    )
    print(f"starting PostgreSQL, Redis, {way} ...")
    with (
        PostgreSQL(15) as postgresql,
        Redis() as redis,
        tempfile.TemporaryDirectory() as folder,
        world_on(postgresql.create_database(), redis.url, Path(folder), stream=asked.stream) as world,
    ):
        asyncio.run(show(world, asked.idle, asked.times))


async def show(world: World, idle: float, times: int) -> None:
    await world.open()
    for number in range(times):
        print(f"idling for {idle:g} seconds ...")
        await asyncio.sleep(idle)
        seconds = await world.seconds_until_seen(f"host {number}")
        print(f"a team cart was created; its view model stood in Redis after {seconds * 1000:.0f} ms")
    connection = await world.connect()
    cart = await create_cart(connection, "Ann")
    for dish, price in (("pho", 9), ("banh mi", 6)):
        await add_item(connection, cart, dish, price)
    await connection.close()
    until(lambda: len(world.view(cart)) == 3, world.running)
    until(lambda: world.running.lines(world.handlers, " handled "), world.running)
    print(f"\na cart as readers see it: {world.view(cart)}")
    handled = [line for line in world.running.log(world.handlers).splitlines() if " handled " in line]
    print(f"\nthe {world.handlers}'s log has {len(handled)} lines such as\n  {handled[0]}")


if __name__ == "__main__":
    main()
