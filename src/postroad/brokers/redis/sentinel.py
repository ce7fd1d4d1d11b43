"""Asks Redis Sentinels which server is the master now. Each new connection asks, so a failover is followed.

The first sentinel that answers decides. What it names may be a server that a failover has just replaced; the caller
makes sure that it is a master (`check_master`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.redis.connection import LinkLost, ReplyError
from postroad.brokers.redis.resp import command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from postroad.brokers.redis.connection import Connection

__all__ = ["SENTINEL_PORT", "Place", "check_master", "find_master"]

SENTINEL_PORT: Final = 26379

Place = tuple[str, int]
"""A host and a port."""


async def find_master(
    sentinels: Sequence[Place], name: str, connect: Callable[[Place], Awaitable[Connection]], seconds: float
) -> Place:
    """Where the master of this name is. Raises LinkLost, with the reason of each sentinel."""
    reasons = []
    for sentinel in sentinels:
        try:
            answer = await _ask(await connect(sentinel), name, seconds)
        except LinkLost as lost:
            reasons.append(f"{sentinel[0]}:{sentinel[1]}: {lost}")
            continue
        if isinstance(answer, list) and len(answer) == 2:
            return answer[0].decode(), int(answer[1])
        said = "it knows no such master" if answer is None else str(answer)
        reasons.append(f"{sentinel[0]}:{sentinel[1]}: {said}")
    raise LinkLost(f"no sentinel names the master {name!r}; {'; '.join(reasons)}")


async def check_master(connection: Connection, seconds: float) -> None:
    """Raises LinkLost if the server is not a master, as far as the user may ask."""
    (role,) = await connection.ask_all([command("ROLE")], seconds)
    if not isinstance(role, ReplyError) and role[0] != b"master":
        raise LinkLost(f"the sentinels name a server that is not the master: it is a {role[0].decode()}")


async def _ask(connection: Connection, name: str, seconds: float) -> Any:
    try:
        (answer,) = await connection.ask_all([command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)], seconds)
        return answer
    finally:
        await connection.close()
