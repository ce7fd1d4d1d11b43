"""SQLAlchemy's four, each on its drivers. Every driver's connection is counted by SQLAlchemy's own hook."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import Engine, create_engine, event, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.adapters.base import OnPostgreSQL, OnSQLite, Trips, asked_over_the_wire


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


def address(database: OnPostgreSQL | OnSQLite, driver: str) -> str:
    if isinstance(database, OnSQLite):
        return f"sqlite+{driver}:///{database.path}"
    return database.url.replace("postgresql://", f"postgresql+{driver}://")


@contextmanager
def counted(engine: Engine, connection: Any) -> Iterator[Trips]:
    """What SQLAlchemy executes and, where libpq can be asked, what goes over the wire."""
    trips = Trips()

    def count(*_: Any) -> None:
        trips.count += 1

    event.listen(engine, "before_cursor_execute", count)
    try:
        driver = connection.connection.driver_connection
        if hasattr(driver, "pgconn"):
            with asked_over_the_wire(driver.pgconn) as wire:
                yield trips
            assert wire.count == trips.count
        else:
            yield trips
    finally:
        event.remove(engine, "before_cursor_execute", count)


class SyncEngine:
    def __init__(self, database: OnPostgreSQL | OnSQLite, driver: str) -> None:
        self.address = address(database, driver)

    @contextmanager
    def engine(self, **options: Any) -> Iterator[Engine]:
        engine = create_engine(self.address, **options)
        try:
            yield engine
        finally:
            engine.dispose()


class OnConnection(SyncEngine):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with self.engine() as engine, engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        with connection.begin_nested():
            yield

    async def order(self, connection: Any, number: int) -> None:
        connection.execute(insert(Order).values(id=number))

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        with self.engine(isolation_level="AUTOCOMMIT") as engine, engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[Any]:
        with self.engine() as engine:
            with engine.connect() as connection:
                pass
            yield connection

    @asynccontextmanager
    async def trips(self, connection: Any) -> AsyncIterator[Trips]:
        with counted(connection.engine, connection) as trips:
            yield trips


class OnSession(SyncEngine):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with self.engine() as engine, Session(engine) as session, session.begin():
            yield session

    @asynccontextmanager
    async def savepoint(self, session: Any) -> AsyncIterator[None]:
        with session.begin_nested():
            yield

    async def order(self, session: Any, number: int) -> None:
        session.add(Order(id=number))

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        with self.engine(isolation_level="AUTOCOMMIT") as engine, Session(engine) as session:
            yield session

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[Any]:
        with self.engine() as engine:
            with Session(engine, close_resets_only=False) as session:
                pass
            yield session

    @asynccontextmanager
    async def trips(self, session: Any) -> AsyncIterator[Trips]:
        with counted(session.get_bind(), session.connection()) as trips:
            yield trips


class AnAsyncEngine:
    def __init__(self, database: OnPostgreSQL | OnSQLite, driver: str) -> None:
        self.address = address(database, driver)

    @asynccontextmanager
    async def engine(self, **options: Any) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(self.address, **options)
        try:
            yield engine
        finally:
            await engine.dispose()


class OnAsyncConnection(AnAsyncEngine):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.engine() as engine, engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        async with connection.begin_nested():
            yield

    async def order(self, connection: Any, number: int) -> None:
        await connection.execute(insert(Order).values(id=number))

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        async with self.engine(isolation_level="AUTOCOMMIT") as engine, engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[Any]:
        async with self.engine() as engine:
            async with engine.connect() as connection:
                pass
            yield connection

    @asynccontextmanager
    async def trips(self, connection: Any) -> AsyncIterator[Trips]:
        with counted(connection.engine.sync_engine, connection.sync_connection) as trips:
            yield trips


class OnAsyncSession(AnAsyncEngine):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.engine() as engine, AsyncSession(engine) as session, session.begin():
            yield session

    @asynccontextmanager
    async def savepoint(self, session: Any) -> AsyncIterator[None]:
        async with session.begin_nested():
            yield

    async def order(self, session: Any, number: int) -> None:
        session.add(Order(id=number))

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        async with self.engine(isolation_level="AUTOCOMMIT") as engine, AsyncSession(engine) as session:
            yield session

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[Any]:
        async with self.engine() as engine:
            async with AsyncSession(engine, close_resets_only=False) as session:
                pass
            yield session

    @asynccontextmanager
    async def trips(self, session: Any) -> AsyncIterator[Trips]:
        connection = await session.connection()
        with counted(session.get_bind(), connection.sync_connection) as trips:
            yield trips
