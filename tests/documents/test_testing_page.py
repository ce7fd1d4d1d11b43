"""docs/testing.md says what works: its tests pass on PostgreSQL, and its TestCase in a Django of its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from postroad.testing import MemorySink, deliver
from tests.integrations.test_django import Site, site
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL

__all__ = ["site"]

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ORDERS = (
    "drop table if exists orders; create table orders (id int, shipped bool default false, reminded bool default false)"
)
IN_DJANGO = [each for each in BLOCKS if "django" in each]
TESTS = re.findall(
    r"^(?:async )?def (test_\w+)\((\w+)", "".join(each for each in BLOCKS if each not in IN_DJANGO), re.MULTILINE
)


class Shop:
    """The page's application and its tests, with a database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = create_engine(url.replace("postgresql", "postgresql+psycopg", 1), poolclass=NullPool)
        self.names: dict[str, Any] = {"__name__": "shop", "begin": sessionmaker(self.engine).begin}
        for block in BLOCKS:
            if block not in IN_DJANGO:
                exec(compile(block, "testing.md", "exec", dont_inherit=True), self.names)


@pytest.fixture
def shop(postgresql15: PostgreSQL) -> Iterator[Shop]:
    url = asyncio.run(PostgreSQLLog.fresh(postgresql15)).url
    postgresql15.execute(url, ORDERS)
    yield Shop(url)
    postgresql15.execute(url, "drop table orders")


@pytest.mark.parametrize(("name", "fixture"), TESTS, ids=lambda each: each)
def test_a_test_of_the_page(shop: Shop, name: str, fixture: str) -> None:
    test = shop.names[name]
    if fixture == "deliver":
        test(deliver)
    elif fixture == "session":
        with shop.engine.connect() as connection, connection.begin() as outer:
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                test(session)
            outer.rollback()
    else:
        with Session(shop.engine) as session, session.begin():
            shop.names["place_order"](session, 1)
        asyncio.run(test(shop.url, MemorySink()))


def test_the_page_has_tests_of_every_kind() -> None:
    assert {fixture for _, fixture in TESTS} == {"session", "deliver", "database_url"}
    assert len(IN_DJANGO) == 1


def test_the_testcase_of_the_page(site: Site) -> None:
    application = BLOCKS[0].replace('Consumer(name="stock", begin=begin)', 'Consumer(name="stock", begin=lambda: None)')
    application = application.replace("begin=begin", "begin=lambda: None")
    (site.folder / "shop.py").write_text(application)
    (site.folder / "tests.py").write_text(f"from shop import *\n{IN_DJANGO[0]}")
    assert "Ran 1 test" in site.manage("test", "tests", "--noinput")
