"""Checks that a handler left its transaction open and intact: a commit that fails silently would lose the message.

PostgreSQL answers the COMMIT of a transaction in which a statement has failed with a rollback, and drivers don't treat
that as an error. So after the handler the consumer checks that the transaction is still the one in which the inbox row
was written, and that it can be committed.
"""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from postroad.consumer.errors import TransactionAborted, TransactionEnded, TransactionLost
from postroad.errors import ConnectionClosed, NoTransaction
from postroad.stores.connections import State, query_at_once
from postroad.stores.connections.errors import is_aborted

if TYPE_CHECKING:
    from postroad.consumer.transactions import Steps

__all__ = ["ENDED", "check_transaction"]

ABORTED: Final = (
    "the handler returned, but its transaction can't be committed: a statement in it failed and the error was caught; "
    "let the error out, or catch it around a savepoint"
)
ENDED: Final = (
    "the handler has committed or rolled back its transaction, or closed its connection, by itself; the consumer "
    "commits when the handler returns, and rolls back when it raises an error"
)
LOST: Final = "the connection was lost while the handler ran"
_NO_SAVEPOINT: Final = "no such savepoint"


def check_transaction(schema: str, tx: Any, state: State, transaction: Any) -> Steps:
    """Check the handler's transaction before it is committed. `state` is what the driver knows, `transaction` what the
    inbox row's transaction is known by. The database is asked only where the driver can't tell.

    Raises TransactionAborted, TransactionEnded or TransactionLost.
    """
    match state:
        case State.KEPT:
            return
        case State.ABORTED:
            raise TransactionAborted(ABORTED)
        case State.ENDED:
            raise TransactionEnded(ENDED)
        case State.LOST:
            raise TransactionLost(LOST)
    try:
        same = yield query_at_once(tx, schema, methodcaller("same_transaction", transaction))
    except (NoTransaction, ConnectionClosed) as error:
        raise TransactionEnded(ENDED) from error
    except Exception as error:
        if _NO_SAVEPOINT in str(error):
            raise TransactionEnded(ENDED) from error
        if is_aborted(error):
            raise TransactionAborted(ABORTED) from error
        raise
    if not same:
        raise TransactionEnded(ENDED)
