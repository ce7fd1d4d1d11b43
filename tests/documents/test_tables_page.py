"""docs/tables.md has every table of PostgreSQL's schema, with the comments of the migrations."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from postroad import migrate
from tests.documents.reader import ROOT
from tests.documents.schema import document, read, tables
from tests.services.postgresql import PostgreSQL

PAGE = ROOT / "docs" / "tables.md"


def test_the_page_is_made_of_the_schema() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.endswith(document()), f"from the first section on, it should be:\n\n{document()}"


@pytest.mark.parametrize("table", tables(), ids=lambda table: str(table.name))
def test_every_table_has_a_comment(table: object) -> None:
    assert getattr(table, "comment", "")


def test_the_columns_are_those_of_the_database(postgresql15: PostgreSQL) -> None:
    postgresql15.start()
    url = postgresql15.create_database()

    async def columns() -> list[asyncpg.Record]:
        await migrate(url)
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetch(
                "select c.relname, a.attname, not a.attnotnull from pg_attribute a join pg_class c on c.oid = attrelid "
                "where c.relnamespace = 'postroad'::regnamespace and c.relkind = 'r' and attnum > 0"
            )
        finally:
            await connection.close()

    real = {tuple(row) for row in asyncio.run(columns())}
    assert {(table.name, each.name, each.null) for table in tables() for each in table.columns} == real


def test_comments_are_read() -> None:
    lines = [
        "-- == A part ====",
        "",
        "-- What it is.",
        "create table if not exists postroad.a (",
        "    -- Above.",
        "    b text not null, -- beside",
        "    c xid8,",
        "    primary key (b)",
        ");",
    ]
    (table,) = read(lines)
    assert (table.section, table.name, table.comment) == ("A part", "a", "What it is.")
    assert [tuple(each) for each in table.columns] == [("b", "text", False, "Above. beside"), ("c", "xid8", True, "")]
