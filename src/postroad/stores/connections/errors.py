"""What an error of a database, a driver or a layer around it means; each dialect knows its own errors.

A driver's connection does not always tell which database is behind it, so every dialect is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.causes import chain
from postroad.stores.dialects import DIALECTS

if TYPE_CHECKING:
    from postroad.errors import PostroadError

__all__ = ["as_ours", "is_aborted", "is_lock_timeout", "is_retryable", "is_transient"]

_ALL: Final = [dialect.errors for dialect in DIALECTS.values()]


def is_retryable(error: BaseException) -> bool:
    """The transaction was lost, with its connection or to a conflict; the same work may well succeed if repeated."""
    return any(errors.is_retryable(each) for each in chain(error, contexts=True) for errors in _ALL)


def is_lock_timeout(error: BaseException) -> bool:
    """Another transaction has locked a row for longer than the statement may wait."""
    return any(errors.is_lock_timeout(each) for each in chain(error, contexts=True) for errors in _ALL)


def is_aborted(error: BaseException) -> bool:
    """A statement has failed earlier in the transaction."""
    return any(errors.is_aborted(each) for each in chain(error, contexts=True) for errors in _ALL)


def is_transient(error: BaseException) -> bool:
    """A database that could not be reached is worth waiting for: it is starting, or the network is not up yet.

    Wrong credentials, a missing database or a certificate that is not trusted need a change first.
    """
    for each in chain(error, contexts=True):
        if any(errors.is_final(each) for errors in _ALL):
            return False
        if any(errors.is_transient(each) for errors in _ALL):
            return True
    return False


def as_ours(error: BaseException, schema: str) -> PostroadError | None:
    """The error of postroad to raise instead, if there is one: a missing table, an id that is taken, another owner."""
    found = (errors.as_ours(each, schema) for each in chain(error) for errors in _ALL)
    return next((ours for ours in found if ours is not None), None)
