"""The command line on a real PostgreSQL: an owner migrates, an application's role adds, a relay delivers."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import asyncpg

from postroad import Outbox


def postroad(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "postroad", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_an_application_with_no_more_than_its_grants_is_carried(database: str) -> None:
    role = f"shop-{uuid.uuid4().hex[:8]}"  # roles belong to the server, which other tests share
    assert postroad("migrate", "--database", database).endswith("\nschema 'postroad' is ready\n")
    assert "already up to date" in postroad("migrate", "--database", database)
    grants = postroad("migrate", "--database", database, "--grants", role)

    connection = await asyncpg.connect(database)
    try:
        await connection.execute(f'create role "{role}"')
        await connection.execute(grants)
        outbox = Outbox(source="/shop")
        async with connection.transaction():
            await connection.execute(f'set local role "{role}"')
            for number in range(10):
                await outbox.add(connection, {"number": number}, type="order.placed", key=number)
        # SQLAlchemy's names of the same database
        by_asyncpg, by_psycopg = (database.replace(":", f"+{name}:", 1) for name in ("asyncpg", "psycopg"))
        assert "already up to date" in postroad("migrate", "--database", by_psycopg)
        relayed = postroad("relay", "--database", by_asyncpg, "--to", "null://", "--until-empty")
        report = json.loads(postroad("status", "--database", by_psycopg, "--json"))
    finally:
        await connection.execute(f'drop owned by "{role}"; drop role "{role}"')
        await connection.close()

    assert relayed.startswith("10 published in ")
    assert (report["totals"]["lanes"], report["totals"]["pending"]) == (4, 0)
