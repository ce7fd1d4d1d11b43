"""The user's own transactions: begun, used and committed here, in the event loop, or in a thread if `begin` is sync.

What is done inside a transaction is a generator of steps, written once for sync and async connections: it yields what
a connection returned, and is sent the result. On an async connection that is awaited in between.

All statements of a consumer run here, so this is where outages are told apart from failures of the handler.

Where there is at most one transaction at a time (`at_once` is 1), every `begin` may give the same connection. All users
of one Transactions share that limit: handlers, attempts, heartbeats, and the inbox's retention.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NoReturn

from postroad.consumer.begin import described
from postroad.consumer.errors import InboxUnavailable, MessageBusy, TransactionLost
from postroad.errors import InvalidSetting
from postroad.stores.connections import query_at_once
from postroad.stores.connections.errors import is_lock_timeout, is_retryable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from postroad.stores.statements import Query, Statements

__all__ = ["Steps", "Transactions", "run_steps", "run_steps_async"]

Steps = Generator[Any, Any, Any]


class Transactions:
    """Runs steps in transactions. A sync `begin` is entered, used and left in one thread of a pool."""

    def __init__(self, begin: Callable[[], Any], schema: str, at_once: int) -> None:
        """`at_once` is how many handlers may run at once. Where it is 1, so many transactions do; where it is more,
        async transactions of the consumer's own may be begun beside those.
        """
        self._begin = begin
        self.schema = schema
        self._at_once = at_once
        self._turn: AbstractAsyncContextManager[Any] = nullcontext()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._in_threads: set[Future[Any]] = set()
        self.is_async = True

    @property
    def unfinished(self) -> int:
        """How many threads are at work; they can't be interrupted, and go on after their tasks were cancelled."""
        return sum(future.running() for future in tuple(self._in_threads))

    def start(self, *, is_async: bool) -> None:
        """Make transactions of this kind, which is that of the handlers."""
        self.is_async = is_async
        if not is_async and self._threads is None:
            self._threads = ThreadPoolExecutor(self._at_once, thread_name_prefix="postroad-consumer")
        if is_async and self._at_once == 1 and self._loop is not (loop := asyncio.get_running_loop()):
            self._turn, self._loop = asyncio.Lock(), loop  # a lock belongs to the loop in which it was first waited for

    def end(self) -> None:
        """Shut the threads down without waiting for them."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def run(self, steps: Callable[[Any], Steps]) -> Any:
        """Begin, run the steps with the transaction, commit; the result is what the steps return.

        Raises InboxUnavailable when the transaction can't be begun, TransactionLost when it ended with its connection
        or by a conflict, and else what the steps raised; it is rolled back then.
        """
        if not self.is_async:
            # In a context of its own, as a task has one: what a handler sets there must not reach the next message.
            assert self._threads is not None, "start was called"  # noqa: S101
            future = self._threads.submit(copy_context().run, self._run_in_thread, steps)
            self._in_threads.add(future)
            future.add_done_callback(self._in_threads.discard)
            return await asyncio.wrap_future(future)
        progress = _Progress()
        try:
            async with self._turn:
                if not hasattr(manager := self._begin(), "__aenter__"):
                    raise self._wrong_kind(manager, "async", "async def")  # noqa: TRY301
                async with manager as tx:
                    with progress:
                        return await run_steps_async(steps(tx))
        except Exception as error:
            progress.raise_cause(error)
        raise _swallowed()

    def _run_in_thread(self, steps: Callable[[Any], Steps]) -> Any:
        progress = _Progress()
        try:
            if not hasattr(manager := self._begin(), "__enter__"):
                raise self._wrong_kind(manager, "sync", "def")  # noqa: TRY301
            with manager as tx, progress:
                return run_steps(steps(tx))
        except Exception as error:
            progress.raise_cause(error)
        raise _swallowed()

    def _wrong_kind(self, manager: Any, kind: str, handlers: str) -> InvalidSetting:
        return InvalidSetting(
            f"begin is {described(self._begin)}, which gives {described(manager)}; where handlers are `{handlers}`, "
            f"it must give {kind} context managers that begin a transaction, commit at their end and roll back when "
            "they are left by an error, such as Session.begin"
        )

    # -- the consumer's own queries ----------------------------------------------------------------------------------

    async def call(self, work: Callable[[Any], Any]) -> Any:
        """Begin, call `work` with the transaction, commit: `run` with a single step."""

        def steps(tx: Any) -> Steps:
            return (yield work(tx))

        return await self.run(steps)

    async def query_alone(self, name: str, *values: Any, values_for: Callable[[Statements], Any] | None = None) -> Any:
        """Run a named query in a transaction of its own; the result is its rows.

        Raises InboxUnavailable, or MessageBusy when another transaction has locked the row.
        """
        return await self._alone(lambda tx: self.query_within(tx, name, *values, values_for=values_for))

    def query_within(
        self, tx: Any, name: str, *values: Any, values_for: Callable[[Statements], Any] | None = None
    ) -> Any:
        """Run a named query in this transaction; to be awaited where transactions are async."""
        return self.run_query(
            tx, lambda statements: statements.rows(name, *(values_for(statements) if values_for else values))
        )

    async def undo(self, transaction: Any, consumer: str, ids: Sequence[str]) -> None:
        """Delete these messages from the inbox if their handler has committed that transaction by itself.

        Raises InboxUnavailable, or MessageBusy when the database has not yet ended the transaction.
        """
        if not await self._alone(
            lambda tx: self.run_query(
                tx, lambda statements: statements.undo_first_times(transaction, consumer=consumer, ids=ids)
            )
        ):
            raise MessageBusy("the transaction in which the handler failed has not ended yet")

    def run_query(self, tx: Any, query: Callable[[Statements], Query[Any]]) -> Any:
        """Run any query in this transaction; to be awaited where transactions are async."""
        return query_at_once(tx, self.schema, query)

    async def _alone(self, work: Callable[[Any], Any]) -> Any:
        try:
            return await self.call(work)
        except Exception as error:
            raise (MessageBusy if is_lock_timeout(error) else InboxUnavailable)(_reason(error)) from error


class _Progress:
    """Remembers how far a transaction has come, to tell what an error means."""

    def __init__(self) -> None:
        self._begun = False
        self._first: BaseException | None = None

    def __enter__(self) -> None:
        self._begun = True

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._first = error

    def raise_cause(self, error: Exception) -> NoReturn:
        """Raise what the error that ended the transaction means; the handler's own error as it is.

        The first error counts: after a lost connection the rollback fails too.
        """
        first, self._first = self._first or error, None
        if isinstance(first, InvalidSetting | MessageBusy | TransactionLost) or not isinstance(first, Exception):
            raise first
        if not self._begun:
            raise InboxUnavailable(_reason(error)) from error
        if is_retryable(first) or is_retryable(error):
            raise TransactionLost(_reason(first)) from error
        raise first


def run_steps(steps: Steps) -> Any:
    """Run steps that use a sync connection: each result is sent back as it is."""
    result = None
    while True:
        try:
            result = steps.send(result)
        except StopIteration as end:
            return end.value


async def run_steps_async(steps: Steps) -> Any:
    """Run steps that use an async connection: what can be awaited is awaited, and its error raised in the steps."""
    result, failure = None, None
    while True:
        try:
            yielded = steps.send(result) if failure is None else steps.throw(failure)
        except StopIteration as end:
            return end.value
        finally:
            result = failure = None  # a traceback that keeps its own error would keep the connection, too
        try:
            result = await yielded if hasattr(yielded, "__await__") else yielded
        except BaseException as error:  # also a cancellation: the steps look after a handler that was cancelled
            failure = error


def _swallowed() -> InvalidSetting:
    return InvalidSetting(
        "begin gives a context manager that swallows the error by which it is left, so a handler that failed would "
        "count as one that succeeded; let it roll back and raise"
    )


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, InboxUnavailable | TransactionLost) else f"{type(error).__name__}: {error}"
