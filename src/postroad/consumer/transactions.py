"""The user's own transactions: begun, used and committed here, in the loop or in a thread, as the user's `begin` wants.

Everything that a consumer asks a database goes through here, so errors are told apart here: failures of the handler,
and outages. A transaction that looks committed and is not would lose a message, so that is looked for.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from postroad.consumer.begin import described
from postroad.errors import ConnectionClosed, InvalidSetting, NoTransaction
from postroad.stores.connections import State, query_through, reported_through, state_through
from postroad.stores.connections.errors import is_aborted, is_lock_timeout, is_retryable
from postroad.stores.connections.pending import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.stores.statements import Query, Statements

__all__ = ["ENDED", "Busy", "Lost", "StoreOut", "TransactionAborted", "TransactionEnded", "Transactions"]

T = TypeVar("T")

_ASK = Call("what a consumer asks", undone="the inbox was not asked about")
_ABORTED = (
    "the handler returned, but its transaction can't be committed: a statement in it failed and the error was caught; "
    "let the error out, or catch it around a savepoint"
)
ENDED: Final = (
    "the handler has committed or rolled back its transaction, or closed its connection, by itself; the consumer "
    "commits when the handler returns, and rolls back when it raises an error"
)
_GONE = "the connection was lost while the handler ran"
_NO_SAVEPOINT = "no such savepoint"


class StoreOut(Exception):
    """A transaction could not be begun, or what the consumer keeps could not be written: wait."""


class Busy(Exception):
    """Nothing can be done with this message now: another transaction is about to process it, or the connection was lost
    before its handler was called.
    """


class Lost(Exception):
    """The transaction was lost, and not by the handler's fault: with its connection, or to another's transaction."""


class TransactionAborted(Exception):
    """The handler returned, but nothing of it can be committed."""


class TransactionEnded(Exception):
    """The handler has ended its transaction: what it did afterwards would never take effect."""


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
        course = _Course()
        try:
            async with self._made("__aenter__", "async", "async def") as tx:
                with course:
                    return await work(tx)
        except Exception as error:
            course.fail(error)
        raise _swallowed()

    def _run(self, work: Callable[[Any], Any]) -> Any:
        course = _Course()
        try:
            with self._made("__enter__", "sync", "def") as tx, course:
                return work(tx)
        except Exception as error:
            course.fail(error)
        raise _swallowed()

    def _made(self, needed: str, kind: str, handlers: str) -> Any:
        manager = self._begin()
        if not hasattr(manager, needed):
            raise InvalidSetting(
                f"begin is {described(self._begin)}, which gives {described(manager)}; where handlers are "
                f"`{handlers}`, it must give {kind} context managers that begin a transaction, commit at their end and "
                "roll back when they are left by an error, such as Session.begin"
            )
        return manager

    async def ask(
        self, name: str, subject: str, *values: Any, values_for: Callable[[Statements], Any] | None = None
    ) -> Any:
        """Run one of our own queries in a transaction of its own, and give its rows.

        Raises StoreOut, or Busy when another transaction has locked what is asked for.
        """
        return await self._alone(lambda tx: self.within(tx, name, subject, *values, values_for=values_for))

    def within(
        self, tx: Any, name: str, subject: str, *values: Any, values_for: Callable[[Statements], Any] | None = None
    ) -> Any:
        """Run one of our own queries in this transaction; to be awaited where transactions are async."""
        return self.answer(
            tx,
            lambda statements: statements.rows(name, *(values_for(statements) if values_for else values)),
            subject,
        )

    async def undo(self, transaction: Any, consumer: str, ids: Sequence[str]) -> None:
        """Take these messages out of the inbox if their handler has committed that transaction by itself.

        Raises StoreOut, or Busy when the database has not yet ended the transaction.
        """
        subject = ids[0] if len(ids) == 1 else f"{len(ids)} messages"
        if not await self._alone(
            lambda tx: self.answer(
                tx,
                lambda statements: statements.undo_first_times(transaction, consumer=consumer, ids=ids),
                subject,
            )
        ):
            raise Busy("the transaction in which the handler failed has not ended yet")

    async def _alone(self, work: Callable[[Any], Any]) -> Any:
        try:
            return await self.run(work)
        except Exception as error:
            raise (Busy if is_lock_timeout(error) else StoreOut)(_said(error)) from error

    def answer(self, tx: Any, query: Callable[[Statements], Query[Any]], subject: str) -> Any:
        """What the database answers in this transaction; to be awaited where transactions are async."""
        return query_through(tx, self._schema, query, _ASK, subject)

    def reported(self, tx: Any) -> Any:
        """For `check`, from before the inbox is asked; on some async connections it must be awaited."""
        return reported_through(tx)

    def state(self, tx: Any, reported: bool | None) -> State:
        """What the driver knows of the transaction; also after an error."""
        return state_through(tx, reported)

    def check(self, tx: Any, reported: bool | None, transaction: Any) -> Any:
        """Make sure, after the handler, that its transaction is the one in which the inbox was asked, and can be
        committed: PostgreSQL answers the COMMIT of a transaction in which a statement has failed with a roll-back, and
        drivers don't call that an error.

        Raises TransactionAborted, TransactionEnded or Lost. Gives None, or what has to be awaited where the driver
        can't tell and transactions are async.
        """
        match self.state(tx, reported):
            case State.KEPT:
                return None
            case State.ABORTED:
                raise TransactionAborted(_ABORTED)
            case State.ENDED:
                raise TransactionEnded(ENDED)
            case State.LOST:
                raise Lost(_GONE)
        return self.check_same(tx, transaction)

    def check_same(self, tx: Any, transaction: Any) -> Any:
        """Ask the database whether this is the transaction in which the inbox was asked; to be awaited where
        transactions are async. Raises TransactionAborted or TransactionEnded.
        """
        return self._look_async(tx, transaction) if self.is_async else self._look(tx, transaction)

    async def _look_async(self, tx: Any, transaction: Any) -> None:
        try:
            same = await self._same(tx, transaction)
        except Exception as error:
            if (why := _why_not_same(error)) is error:
                raise
            raise why from error
        if not same:
            raise TransactionEnded(ENDED)

    def _look(self, tx: Any, transaction: Any) -> None:
        try:
            same = self._same(tx, transaction)
        except Exception as error:
            if (why := _why_not_same(error)) is error:
                raise
            raise why from error
        if not same:
            raise TransactionEnded(ENDED)

    def _same(self, tx: Any, transaction: Any) -> Any:
        return self.answer(tx, lambda statements: statements.same_transaction(transaction), "a transaction")


class _Course:
    """How far a transaction has come, around what is done in it, to tell what an error means."""

    def __init__(self) -> None:
        self._begun = False
        self._failed: BaseException | None = None

    def __enter__(self) -> None:
        self._begun = True

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._failed = error

    def fail(self, error: Exception) -> NoReturn:
        """Raise what an error means by which the transaction ended; if it is the handler's own, that.

        What went wrong first counts: after a lost connection the roll-back fails too.
        """
        first, self._failed = self._failed or error, None
        if isinstance(first, InvalidSetting | Busy | Lost) or not isinstance(first, Exception):
            raise first
        if not self._begun:
            raise StoreOut(_said(error)) from error
        if is_retryable(first) or is_retryable(error):
            raise Lost(_said(first)) from error
        raise first


def _why_not_same(error: Exception) -> Exception:
    """What it means that the transaction could not be asked whether it is the same."""
    if isinstance(error, NoTransaction | ConnectionClosed) or _NO_SAVEPOINT in str(error):
        return TransactionEnded(ENDED)
    return TransactionAborted(_ABORTED) if is_aborted(error) else error


def _swallowed() -> InvalidSetting:
    return InvalidSetting(
        "begin gives a context manager that swallows the error by which it is left, so nobody would know that a "
        "handler has failed; let it roll back and raise"
    )


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, StoreOut | Lost) else f"{type(error).__name__}: {error}"
