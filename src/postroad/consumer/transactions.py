"""The user's own transactions: begun, used and committed here, in the loop or in a thread, as the user's `begin` wants.

Everything that a consumer asks a database goes through here, so errors are told apart here: what is the handler's, and
what is nobody's fault. A transaction that looks committed and is not would lose a message, so that is looked for.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from postroad.errors import InvalidSetting
from postroad.stores.connections import ask_through, can_commit_through, omen_through
from postroad.stores.connections.passing import is_lock_timeout, is_passing
from postroad.stores.connections.pending import Call
from postroad.stores.statements import Question, named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.stores.connections.hand import Tongue
    from postroad.stores.statements import Rows

__all__ = ["Busy", "Lost", "Spoilt", "StoreOut", "Transactions"]

T = TypeVar("T")

_ASK = Call("what a consumer asks", undone="the inbox was not asked about")
_SPOILT = (
    "the handler returned, but its transaction can't be committed: a statement in it failed and the error was caught, "
    "or the handler has ended it; let the error out, or catch it around a savepoint"
)


class StoreOut(Exception):
    """A transaction could not be begun, or what the consumer keeps could not be written: wait."""


class Busy(Exception):
    """The inbox could not be asked about this message: another is about to process it, or the connection was lost."""


class Lost(Exception):
    """The transaction was lost, and not by the handler's fault: with its connection, or to another's transaction."""


class Spoilt(Exception):
    """The handler returned, but nothing of it can be committed."""


class Transactions:
    """Runs functions in transactions. A sync `begin` is entered, used and left in one thread of a few."""

    def __init__(self, begin: Callable[[], Any], schema: str, threads: int) -> None:
        self._begin = begin
        self._schema = schema
        self._most_threads = threads
        self._threads: ThreadPoolExecutor | None = None
        self._in_threads: set[Future[Any]] = set()
        self.is_async = True

    @property
    def unfinished(self) -> int:
        """How many threads are at work; they can't be interrupted, and go on after their tasks were cancelled."""
        return sum(future.running() for future in tuple(self._in_threads))

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
        # In a context of its own, as a task has one: what a handler sets there is not for the thread's next message.
        assert self._threads is not None, "start was called"  # noqa: S101
        future = self._threads.submit(copy_context().run, self._run, work)
        self._in_threads.add(future)
        future.add_done_callback(self._in_threads.discard)
        return await asyncio.wrap_future(future)

    async def _run_async(self, work: Callable[[Any], Any]) -> Any:
        begun = False
        try:
            async with self._made("__aenter__", "async", "async def") as tx:
                begun = True
                return await work(tx)
        except Exception as error:
            if (other := _instead_of(error, begun=begun)) is not None:
                raise other from error
            raise
        raise _swallowed()

    def _run(self, work: Callable[[Any], Any]) -> Any:
        begun = False
        try:
            with self._made("__enter__", "sync", "def") as tx:
                begun = True
                return work(tx)
        except Exception as error:
            if (other := _instead_of(error, begun=begun)) is not None:
                raise other from error
            raise
        raise _swallowed()

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
        """Run one of our own queries in a transaction of its own, and give its rows.

        Raises StoreOut, or Busy when somebody else has locked what is asked for.
        """
        try:
            return await self.run(lambda tx: self.within(tx, name, subject, *values, values_for=values_for))
        except Exception as error:
            raise (Busy if is_lock_timeout(error) else StoreOut)(_said(error)) from error

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

    def omen(self, tx: Any) -> bool | None:
        """For `check`, from before the inbox is asked."""
        return omen_through(tx)

    def check(self, tx: Any, omen: bool | None) -> Any:
        """Make sure, after the handler, that its transaction can be committed: PostgreSQL answers the COMMIT of a
        transaction in which a statement has failed with a roll-back, and drivers don't call that an error.

        Raises Spoilt. Gives None, or what has to be awaited where the driver can't tell and transactions are async.
        """
        can_commit = can_commit_through(tx, omen)
        if can_commit is None:
            return self._look_async(tx) if self.is_async else self._look(tx)
        if not can_commit:
            raise Spoilt(_SPOILT)
        return None

    async def _look_async(self, tx: Any) -> None:
        try:
            await self.within(tx, "still_good", "a transaction")
        except Exception as error:
            raise Spoilt(_SPOILT) from error

    def _look(self, tx: Any) -> None:
        try:
            self.within(tx, "still_good", "a transaction")
        except Exception as error:
            raise Spoilt(_SPOILT) from error


def _instead_of(error: Exception, *, begun: bool) -> Exception | None:
    """What is raised for an error; None: it stays what it is, for it is the handler's."""
    if isinstance(error, InvalidSetting | Busy):
        return None
    if not begun:
        return StoreOut(_said(error))
    return Lost(_said(error)) if is_passing(error) else None


def _swallowed() -> InvalidSetting:
    return InvalidSetting(
        "begin gives a context manager that swallows the error by which it is left, so nobody would know that a "
        "handler has failed; let it roll back and raise"
    )


def _only(answered: Sequence[Rows]) -> Rows:
    [rows] = answered
    return rows


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, StoreOut | Lost) else f"{type(error).__name__}: {error}"
