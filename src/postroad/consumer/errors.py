"""Errors inside a consumer, and what the consumer does about each. None of them is raised to the user's code.

| error | what happened | what the consumer does |
|---|---|---|
| `InboxUnavailable` | no transaction can be begun, or the inbox's tables can't be written | all messages wait; nothing is counted |
| `MessageBusy` | this message can't be processed now, usually because another transaction processes it | this message waits; nothing is counted |
| `PayloadUnavailable` | the store of this message's payload is unavailable | this message waits; nothing is counted |
| `TransactionLost` | the connection, or a conflict, ended the transaction | retry without counting, five times; then a failed attempt |
| `TransactionAborted` | the handler hid an error that aborted its transaction | a failed attempt |
| `TransactionEnded` | the handler committed or rolled back by itself | a failed attempt |
| `HandlerTimedOut` | the handler ran longer than `handler_timeout` | a failed attempt |

Any other exception of a handler is a failed attempt too; `Unreadable` (received.py) makes a dead letter at once. In a
group, each of these but `InboxUnavailable` has its messages processed one by one, and counts then.
"""  # noqa: E501

from __future__ import annotations

__all__ = [
    "HandlerTimedOut",
    "InboxUnavailable",
    "MessageBusy",
    "PayloadUnavailable",
    "TransactionAborted",
    "TransactionEnded",
    "TransactionLost",
]


class InboxUnavailable(Exception):
    """A transaction could not be begun, or the inbox's tables could not be written."""


class MessageBusy(Exception):
    """This message can't be processed now: another transaction holds its row in the inbox, or the connection was lost
    before the handler was called.
    """


class PayloadUnavailable(MessageBusy):
    """This message's payload is stored elsewhere, and can't be read from there now."""


class TransactionLost(Exception):
    """The transaction ended through no fault of the handler: with its connection, or by a conflict with another one."""


class TransactionAborted(Exception):
    """The handler returned, but its transaction can only be rolled back."""


class TransactionEnded(Exception):
    """The handler ended its transaction by itself: what it did afterwards would not be committed."""


class HandlerTimedOut(Exception):
    """The handler ran longer than `handler_timeout`."""
