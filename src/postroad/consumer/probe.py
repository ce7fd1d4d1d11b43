"""Checks before the first message that the user's `begin` commits, and that it rolls back after an error.

With a context manager that does not commit (a sessionmaker, `engine.connect`) every message would be handled and acked,
and nothing of it would be in the database. So a consumer writes a probe in a transaction, leaves it, and looks in
another transaction whether the probe was committed; then the same with a transaction that is left by an error.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from postroad.consumer.begin import described
from postroad.consumer.errors import TransactionEnded
from postroad.consumer.transaction_check import check_transaction
from postroad.errors import InvalidSetting, NoTransaction
from postroad.message import new_id
from postroad.stores.connections import State, begin_example

if TYPE_CHECKING:
    from postroad.consumer.transactions import Steps, Transactions

__all__ = ["check_begin"]

_MUST: Final = "it must commit when it is left and roll back when it is left by an error, such as"
_DJANGO: Final = "@contextmanager def begin(): with transaction.atomic(): yield connection"


class _LeftByError(Exception):
    """The error by which the probe leaves a transaction that must be rolled back."""


async def check_begin(transactions: Transactions, begin: Any, consumer: str) -> None:
    """Raises InvalidSetting when `begin` does not commit, or does not roll back; else what the database raises."""
    probe = _Probe(transactions, consumer)
    try:
        await transactions.run(probe.write)
    except NoTransaction as error:
        raise InvalidSetting(f"begin is {described(begin)}: {error}; {_MUST} {probe.idiom}") from error
    if probe.gave_none:
        raise InvalidSetting(f"begin is {described(begin)}, which gives None and no connection; {_MUST} {_DJANGO}")
    if probe.commits_each_statement:
        raise InvalidSetting(
            f"begin is {described(begin)}, which commits each statement by itself; {_MUST} {probe.idiom}"
        )
    if not await transactions.run(probe.was_committed):
        raise InvalidSetting(
            f"begin is {described(begin)}, which does not commit: messages would be acked, and what their handlers "
            f"wrote rolled back; {_MUST} {probe.idiom}"
        )
    with suppress(_LeftByError):
        await transactions.run(probe.write_and_fail)
    if await transactions.run(probe.was_committed):
        raise InvalidSetting(
            f"begin is {described(begin)}, which commits also when it is left by an error: what a failed handler wrote "
            f"would stay, and its message count as processed; {_MUST} {probe.idiom}"
        )


class _Probe:
    """The steps of the check, and what they found out."""

    def __init__(self, transactions: Transactions, consumer: str) -> None:
        self._transactions = transactions
        self._consumer = consumer
        self._id = ""
        self._transaction: Any = None
        self.idiom = ""
        self.gave_none = False
        self.commits_each_statement = False

    def write(self, tx: Any) -> Steps:
        """Write something, and remember the transaction."""
        if tx is None:
            self.gave_none = True
            return
        self.idiom, self._id = begin_example(tx), str(new_id())
        first, last = yield self._transactions.run_query(
            tx, lambda statements: statements.write_probe(consumer=self._consumer, id=self._id)
        )
        self._transaction, self.commits_each_statement = first, first != last

    def write_and_fail(self, tx: Any) -> Steps:
        """The same, and leave the transaction by an error."""
        yield from self.write(tx)
        raise _LeftByError

    def was_committed(self, tx: Any) -> Steps:
        """Look, in another transaction."""
        try:
            yield from check_transaction(self._transactions.schema, tx, State.OPEN, self._transaction)
        except TransactionEnded:
            probe = {"transaction": self._transaction, "consumer": self._consumer, "id": self._id}
            return bool((yield self._transactions.run_query(tx, lambda each: each.read_probe(**probe))))
        return False  # it is still the same one
