"""The user's own transactions: begun, used and committed here, in the loop or in a thread, as the user's `begin` wants.

Everything that a consumer asks a database goes through here, so errors are told apart here: what is the handler's, and
what is nobody's fault.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from postroad.errors import InvalidSetting
from postroad.stores.connections import ask_through
from postroad.stores.connections.pending import Call
from postroad.stores.statements import Question, named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.stores.connections.hand import Tongue
    from postroad.stores.statements import Rows

__all__ = ["Busy", "StoreOut", "Transactions"]

T = TypeVar("T")

_ASK = Call("what a consumer asks", undone="the inbox was not asked about")


class StoreOut(Exception):
    """A transaction could not be begun, or what the consumer keeps could not be written: wait."""


class Busy(Exception):
    """The inbox could not be asked about this message: another is about to process it, or the connection was lost."""


class Transactions:
    """Runs functions in transactions. A sync `begin` is entered, used and left in one thread of a few."""

    def __init__(self, begin: Callable[[], Any], schema: str, threads: int) -> None:
        self._begin = begin
        self._schema = schema
        self._most_threads = threads
        self._threads: ThreadPoolExecutor | None = None
        self.is_async = True

    def start(self, *, is_async: bool) -> None:
        """Transactions will be of this kind, because the handlers are."""
        self.is_async = is_async
        if not is_async and self._threads is None:
            self._threads = ThreadPoolExecutor(self._most_threads, thread_name_prefix="postroad-consumer")

    def end(self) -> None:
        """Let go of the threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def run(self, work: Callable[[Any], Any]) -> Any:
        """Begin, call `work` with the transaction, commit. What an async transaction's work gives is awaited."""
        if self.is_async:
            return await self._run_async(work)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    async def _run_async(self, work: Callable[[Any], Any]) -> Any:
        begun = False
        try:
            async with self._made("__aenter__", "async", "async def") as tx:
                begun = True
                return await work(tx)
        except Exception as error:
            if begun or isinstance(error, InvalidSetting):
                raise
            raise StoreOut(_said(error)) from error

    def _run(self, work: Callable[[Any], Any]) -> Any:
        begun = False
        try:
            with self._made("__enter__", "sync", "def") as tx:
                begun = True
                return work(tx)
        except Exception as error:
            if begun or isinstance(error, InvalidSetting):
                raise
            raise StoreOut(_said(error)) from error

    def _made(self, needed: str, kind: str, handlers: str) -> Any:
        manager = self._begin()
        if not hasattr(manager, needed):
            raise InvalidSetting(
                f"begin gives {manager!r}; where handlers are `{handlers}`, it must give {kind} context managers that "
                "begin a transaction, commit at their end and roll back when they are left by an error, such as "
                "Session.begin"
            )
        return manager

    async def ask(
        self, name: str, subject: str, *values: Any, values_for: Callable[[Tongue], Any] | None = None
    ) -> Any:
        """Run one of our own queries in a transaction of its own, and give its rows. Raises StoreOut."""
        try:
            return await self.run(lambda tx: self.within(tx, name, subject, *values, values_for=values_for))
        except Exception as error:
            raise StoreOut(_said(error)) from error

    def within(
        self, tx: Any, name: str, subject: str, *values: Any, values_for: Callable[[Tongue], Any] | None = None
    ) -> Any:
        """Run one of our own queries in this transaction; to be awaited where transactions are async."""
        return ask_through(
            tx,
            self._schema,
            lambda tongue: Question(
                [named(*tongue, self._schema, name, *(values_for(tongue) if values_for else values))], _only
            ),
            _ASK,
            subject,
        )


def _only(answered: Sequence[Rows]) -> Rows:
    [rows] = answered
    return rows


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if not isinstance(error, StoreOut) else str(error)
