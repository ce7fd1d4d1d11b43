"""The processes that `story` starts: `python -m postroad.ops.demo shop|relay|drain PLAN`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading

import msgspec

from postroad.ops.demo.plan import Plan
from postroad.ops.demo.shop import open_shop
from postroad.ops.demo.warehouse import relay_to_warehouse


def main(role: str, plan: str) -> None:
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    known = msgspec.json.decode(plan, type=Plan)
    match role:
        case "shop":
            asyncio.run(open_shop(known))
        case "relay":
            sys.exit(asyncio.run(relay_to_warehouse(known, until_empty=False)))
        case "drain":
            sys.exit(asyncio.run(relay_to_warehouse(known, until_empty=True)))


def _end_with_the_parent() -> None:
    """Standard input is a pipe from the story's process. It closes when that process is gone, however it went."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
