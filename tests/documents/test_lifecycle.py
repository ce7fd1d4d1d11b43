"""docs/lifecycle.md, the table in `lifecycle` and the CHECK constraints of both databases say the same.

When the diagram differs, the right one is in the failure.
"""

from __future__ import annotations

import inspect
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from postroad import lifecycle
from postroad.lifecycle import BLOCKING, FINAL, STORED, TRANSITIONS, State, diagram
from postroad.stores.dialects import DIALECTS, SQLDialect
from postroad.stores.sqlite import migrate_sqlite
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL

PAGE = (Path(__file__).parents[2] / "docs" / "lifecycle.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)


def test_the_diagram_is_made_of_the_table() -> None:
    (drawn,) = re.findall(r"^```mermaid\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
    assert drawn == diagram(), f"the diagram should be:\n\n{diagram()}"


def test_every_state_is_explained_in_the_same_words() -> None:
    comments = dict(
        re.findall(r'^    (\w+) = "\w+"\n    """(.+?)"""$', inspect.getsource(lifecycle.State), re.MULTILINE)
    )
    assert [(name, what) for name, what, _ in ROWS] == [(state.value, comments[state.name]) for state in State]


@pytest.mark.parametrize(("name", "who"), [(name, who) for name, _, who in ROWS])
def test_a_message_is_moved_by_the_mover_in_the_table(name: str, who: str) -> None:
    movers = {arrow.mover for arrow in TRANSITIONS if arrow.before == name}
    named = {mover for mover in lifecycle.Mover if mover in who}
    assert named == movers
    assert (who == "final") == (not movers)
    assert who.startswith("final") == (State(name) in FINAL)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_the_constraint_lists_the_states_that_are_stored(dialect: SQLDialect) -> None:
    migration = dialect.sql_file("0001_initial.sql", "postroad")
    (listed,) = re.findall(r"constraint deferred_state check \(\s*state in \((.+?)\)\)", migration)
    assert re.findall(r"'(\w+)'", listed) == [state.value for state in STORED]
    (blocking,) = re.findall(r"blocks = \(state in \((.+?)\)\)", migration)
    assert set(re.findall(r"'(\w+)'", blocking)) == set(BLOCKING)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_retention_keeps_what_is_not_over(dialect: SQLDialect) -> None:
    query = dialect.queries("postroad")["delete_passed"]
    (listed,) = re.findall(r"d\.state in \((.+?)\)", query)
    assert set(re.findall(r"'(\w+)'", listed)) == set(STORED) - FINAL


# -- what the databases take -----------------------------------------------------------------------------------------

WORDS = [*State, "nonsense", "Dead", ""]
INSERT = """
    insert into {table} (sink, position, lane, blocks, state, due_at, epoch)
    values ('s', 1, 0, {blocks}, '{state}', {due_at}, {epoch})
"""


def insert(table: str, state: str, now: str) -> str:
    """A row in which nothing but the state can be wrong."""
    blocks = "true" if state in set(BLOCKING) else "false"
    due_at = now if state == State.RETRYING else "null"
    return INSERT.format(
        table=table, state=state, blocks=blocks, due_at=due_at, epoch="1" if state == State.SENDING else "null"
    )


@pytest.mark.parametrize("state", WORDS)
def test_sqlite_takes_what_is_stored_and_nothing_else(tmp_path: Path, state: str) -> None:
    migrate_sqlite(tmp_path / "log.sqlite")
    with closing(sqlite3.connect(tmp_path / "log.sqlite")) as connection:
        if state in STORED:
            connection.execute(insert("postroad_deferred", state, "1"))
        else:
            with pytest.raises(sqlite3.IntegrityError, match="deferred_state"):
                connection.execute(insert("postroad_deferred", state, "1"))


async def test_postgresql_takes_what_is_stored_and_nothing_else(postgresql: PostgreSQL) -> None:
    log = await PostgreSQLLog.fresh(postgresql)
    for state in WORDS:
        if state in STORED:
            await log.execute(insert("postroad.deferred", state, "now()"))
            await log.execute("truncate postroad.deferred")
        else:
            with pytest.raises(asyncpg.CheckViolationError, match="deferred_state"):
                await log.execute(insert("postroad.deferred", state, "now()"))
