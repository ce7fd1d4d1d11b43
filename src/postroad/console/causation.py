"""The causation graph of a message across all databases of the console: walks from message to message, up to a bound.

Each message is looked up in the database that has it, and then by its identity in the inboxes of the others. A database
that can't be asked, or does not answer in time, is left out of the rest of the walk, and named.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from postroad.admin import join
from postroad.errors import PostroadError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from postroad.admin import Causation, CausationGraph
    from postroad.console.database import Database

__all__ = ["Walk", "walk"]

MOST: Final = 12
"""How many messages are looked up."""


class Walk(NamedTuple):
    """What was found."""

    graph: CausationGraph
    complete: bool
    """False: there are more messages than were looked up, or a log was searched only in part."""
    unavailable: Sequence[str]
    """The databases that could not be asked."""


async def walk(databases: Mapping[str, Database], id: UUID) -> Walk:
    """Look up the message, what caused it, what it caused, and so on."""
    answers: list[tuple[str, Causation]] = []
    unavailable: set[str] = set()
    waiting, seen = deque([str(id)]), {str(id)}
    looked_up = 0
    while waiting and looked_up < MOST:
        found = await _everywhere(databases, waiting.popleft(), unavailable)
        looked_up += 1
        answers += found
        for neighbour in _neighbours(answer for _, answer in found):
            if neighbour not in seen:
                seen.add(neighbour)
                waiting.append(neighbour)
    complete = not waiting and all(answer.searched_all for _, answer in answers)
    return Walk(join(answers), complete, sorted(unavailable))


async def _everywhere(databases: Mapping[str, Database], id: str, unavailable: set[str]) -> list[tuple[str, Causation]]:
    """What all databases know of a message; its identity, once it is known, finds it in the inboxes."""
    first = await _ask(databases, id, None, unavailable)
    identity = next((answer.identity for _, answer in first if answer.identity is not None), None)
    if identity is None:
        return first
    unknowing = {name: databases[name] for name, answer in first if answer.message is None and not answer.handled}
    again = dict(await _ask(unknowing, id, identity, unavailable))
    return [(name, again.get(name, answer)) for name, answer in first]


async def _ask(
    databases: Mapping[str, Database], id: str, identity: str | None, unavailable: set[str]
) -> list[tuple[str, Causation]]:
    async def causation(database: Database) -> Causation:
        return await (await database.admin()).causation(UUID(id), identity=identity)

    async def one(name: str, database: Database) -> tuple[str, Causation] | None:
        try:
            return name, await database.in_time(partial(causation, database))
        except PostroadError:
            unavailable.add(name)
        except ValueError:  # the cause is no message of postroad
            pass
        return None

    found = await asyncio.gather(*(one(name, each) for name, each in databases.items() if name not in unavailable))
    return [each for each in found if each is not None]


def _neighbours(answers: Iterable[Causation]) -> Iterable[str]:
    for answer in answers:
        if answer.cause is not None:
            yield answer.cause
        yield from (message.id for message in answer.caused)
