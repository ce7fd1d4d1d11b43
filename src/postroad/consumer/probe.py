"""Before the first message: does `begin` commit, and does it roll back?

With a context manager that does not commit (a sessionmaker, `engine.connect`) every message would be handled and acked,
and the database would know of none. So a consumer writes a probe in a transaction, leaves it, and looks in another one
whether the probe was committed; and once more, leaving it by an error.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from postroad.consumer.begin import described
from postroad.consumer.transactions import TransactionEnded
from postroad.errors import InvalidSetting, NoTransaction
from postroad.message import new_id
from postroad.stores.connections import begin_example

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from postroad.consumer.transactions import Transactions

__all__ = ["check_begin"]

_MUST: Final = "it must commit when it is left and roll back when it is left by an error, such as"
_DJANGO: Final = "@contextmanager def begin(): with transaction.atomic(): yield connection"


class _LeftByError(Exception):
    """By which a transaction is left that must be rolled back."""


async def check_begin(transactions: Transactions, begin: Any, consumer: str) -> None:
    """Raises InvalidSetting when `begin` does not commit, or does not roll back; else what the database raises."""
    probe = _Probe(transactions, consumer)
    try:
        await probe.run(probe.write)
    except NoTransaction as error:
        raise InvalidSetting(f"begin is {described(begin)}: {error}; {_MUST} {probe.idiom}") from error
    if probe.gave_none:
        raise InvalidSetting(f"begin is {described(begin)}, which gives None and no connection; {_MUST} {_DJANGO}")
    if probe.commits_each_statement:
        raise InvalidSetting(
            f"begin is {described(begin)}, which commits each statement by itself; {_MUST} {probe.idiom}"
        )
    if not await probe.run(probe.was_committed):
        raise InvalidSetting(
            f"begin is {described(begin)}, which does not commit: messages would be acked, and what their handlers "
            f"wrote rolled back; {_MUST} {probe.idiom}"
        )
    with suppress(_LeftByError):
        await probe.run(probe.write, leave_by=_LeftByError())
    if await probe.run(probe.was_committed):
        raise InvalidSetting(
            f"begin is {described(begin)}, which commits also when it is left by an error: what a failed handler wrote "
            f"would stay, and its message count as processed; {_MUST} {probe.idiom}"
        )


class _Probe:
    """What is done in the transactions: generators that give what has to be answered, and are sent the answer, so that
    they are written once for sync and async transactions.
    """

    def __init__(self, transactions: Transactions, consumer: str) -> None:
        self._transactions = transactions
        self._consumer = consumer
        self._id = ""
        self._transaction: Any = None
        self.idiom = ""
        self.gave_none = False
        self.commits_each_statement = False

    def write(self, tx: Any) -> Generator[Any, Any, None]:
        """Write something, and note the transaction."""
        if tx is None:
            self.gave_none = True
            return
        self.idiom, self._id = begin_example(tx), str(new_id())
        first, last = yield self._transactions.answer(
            tx, lambda statements: statements.write_probe(consumer=self._consumer, id=self._id), "a probe"
        )
        self._transaction, self.commits_each_statement = first, first != last

    def was_committed(self, tx: Any) -> Generator[Any, Any, bool]:
        """Look, in another transaction."""
        try:
            yield self._transactions.check_same(tx, self._transaction)
        except TransactionEnded:
            probe = {"transaction": self._transaction, "consumer": self._consumer, "id": self._id}
            return bool((yield self._transactions.answer(tx, lambda each: each.read_probe(**probe), "a probe")))
        return False  # it is still the same one

    async def run(self, steps: Callable[[Any], Generator[Any, Any, Any]], leave_by: Exception | None = None) -> Any:
        drive = _drive_async if self._transactions.is_async else _drive
        return await self._transactions.run(partial(drive, steps, leave_by))


def _drive(steps: Callable[[Any], Generator[Any, Any, Any]], leave_by: Exception | None, tx: Any) -> Any:
    generator, answer = steps(tx), None
    while True:
        try:
            answer = generator.send(answer)
        except StopIteration as end:
            if leave_by is not None:
                raise leave_by from None
            return end.value


async def _drive_async(steps: Callable[[Any], Generator[Any, Any, Any]], leave_by: Exception | None, tx: Any) -> Any:
    generator = steps(tx)
    step = partial(generator.send, None)
    while True:
        try:
            asked = step()
        except StopIteration as end:
            if leave_by is not None:
                raise leave_by from None
            return end.value
        try:
            step = partial(generator.send, await asked)
        except Exception as error:
            step = partial(generator.throw, error)
