"""Django's connection, with a handler of its own: no test here depends on the settings that another has configured."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from django.utils.connection import ConnectionProxy

from tests.adapters.base import OnPostgreSQL, OnSQLite, Trips, asked_over_the_wire

ALIAS = "postroad_contract"


def database_settings(database: OnPostgreSQL | OnSQLite) -> dict[str, Any]:
    if isinstance(database, OnSQLite):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(database.path)}
    url = urlsplit(database.url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.path[1:],
        "HOST": url.hostname,
        "PORT": url.port,
        "USER": url.username,
    }


class Django:
    def __init__(self, database: OnPostgreSQL | OnSQLite, *, proxy: bool = False) -> None:
        if not settings.configured:
            settings.configure()
        django.setup()
        self.settings = database_settings(database)
        self.proxy = proxy

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        connection = ConnectionHandler({"default": self.settings})["default"]
        connection.alias = ALIAS
        connections[ALIAS] = connection  # where transaction.atomic looks
        # The tests run in a loop, where Django would refuse to block.
        with patch.dict(os.environ, DJANGO_ALLOW_ASYNC_UNSAFE="1"):
            try:
                yield ConnectionProxy(connections, ALIAS) if self.proxy else connection
            finally:
                connection.close()
                del connections[ALIAS]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.outside() as connection:
            with transaction.atomic(using=ALIAS):
                yield connection

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        with transaction.atomic(using=ALIAS):
            yield

    async def order(self, connection: Any, number: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute("insert into orders values (%s)", (number,))

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[Any]:
        async with self.outside() as connection:
            with transaction.atomic(using=ALIAS):
                connection.close()
                yield connection

    @asynccontextmanager
    async def trips(self, connection: Any) -> AsyncIterator[Trips]:
        trips = Trips()

        def count(execute: Any, *arguments: Any) -> Any:
            trips.count += 1
            return execute(*arguments)

        with connection.execute_wrapper(count):
            if connection.vendor != "postgresql":
                yield trips
                return
            with asked_over_the_wire(connection.connection.pgconn) as wire:
                yield trips
        assert wire.count == trips.count
