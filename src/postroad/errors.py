"""The errors of postroad in one tree; each line says who must act.

Those of decoding are apart, in `received.py` and `codecs/base.py`.

    PostroadError
    ├── InvalidMessage          the caller: this message cannot be added as it is
    ├── InvalidSetting          the caller: this setting or argument is wrong
    ├── MissingExtra            the caller: an optional dependency is not installed
    ├── UnsupportedConnection   the caller: that object is not a supported connection
    ├── NoTransaction           the caller: the message would be committed by itself
    ├── ConnectionClosed        the caller: the connection can't be used any more
    ├── IdTaken                 the caller: another message has this id already
    ├── NotOwner                the caller, or the operator: it belongs to another role of the database
    ├── NotMigrated             the operator: run `postroad migrate`
    ├── ClientTooOld            the operator: upgrade postroad
    ├── LogNotReadable          the operator: this server's log must not be read from
    │   └── LogReset            the operator: the log was emptied and its positions begin anew, and cursors were kept
    ├── NotFound                the operator: there is no such message or key, or none with which that can be done
    ├── CountGrown              the operator: more would be changed than was confirmed; look again
    ├── StoreUnavailable        wait: the database is unavailable
    ├── BrokerUnavailable       wait: the broker is unavailable
    │   └── LoginRefused        the operator: the broker refuses this user or its password
    ├── PayloadsUnavailable     wait: the store of large payloads is unavailable
    ├── LaneChanged             reload: the lane's row has changed since it was loaded
    └── LeaseLost               stop: the lane belongs to another relay

An error's text names the thing, its value, and what would be right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = [
    "BrokerUnavailable",
    "ClientTooOld",
    "ConnectionClosed",
    "CountGrown",
    "IdTaken",
    "InvalidMessage",
    "InvalidSetting",
    "LaneChanged",
    "LeaseLost",
    "LogNotReadable",
    "LogReset",
    "LoginRefused",
    "MissingExtra",
    "NoTransaction",
    "NotFound",
    "NotMigrated",
    "NotOwner",
    "PayloadsUnavailable",
    "PostroadError",
    "Refusal",
    "StoreUnavailable",
    "UnsupportedConnection",
]


class PostroadError(Exception):
    """What all errors of postroad have in common."""


class InvalidMessage(PostroadError):
    """This message cannot be added as it is; nothing was written."""


class InvalidSetting(PostroadError):
    """A setting or an argument is wrong. `settings` names those that the command line can say how to set."""

    def __init__(self, text: str, *, settings: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.settings = tuple(settings)


class MissingExtra(PostroadError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs a package that is not installed; install it with: pip install 'postroad[{extra}]'"
        )
        self.extra = extra


class UnsupportedConnection(PostroadError):
    """The object given is not a connection that postroad supports."""


class NoTransaction(PostroadError):
    """The connection is in no transaction, so the message would be committed apart from its data."""


class ConnectionClosed(PostroadError):
    """The connection given is closed."""


class IdTaken(PostroadError):
    """Another message has this id already, so this one was not added. Roll back, or add it with an id of its own."""


class NotOwner(PostroadError):
    """The message was added, or the consumer's name is used, by another role of the database."""


class NotMigrated(PostroadError):
    """The database has no postroad schema, or an older one than this version needs."""


class ClientTooOld(PostroadError):
    """The database's schema asks for a newer postroad than this one."""


class LogNotReadable(PostroadError):
    """Reading the log from this server would lose rows, so it is refused."""


class LogReset(LogNotReadable):
    """The log's positions have begun anew and a lane's cursor has not: what is added would be passed over."""


class NotFound(PostroadError):
    """There is no such message or key, or none with which that can be done; nothing was changed."""


class CountGrown(PostroadError):
    """More would be changed than `expected`, namely `number` at least: it has grown since it was shown.

    Nothing was changed.
    """

    def __init__(self, expected: int, number: int) -> None:
        super().__init__(
            f"{number:,} would be changed now, and {expected:,} were expected; nothing was changed. Look at the "
            "preview again, then confirm the new number"
        )
        self.expected = expected
        self.number = number


class StoreUnavailable(PostroadError):
    """The database is unavailable.

    `transient`: it may be reached a little later by itself, because it is starting, for example. A relay or a consumer
    that is started waits for that, and for nothing else.
    """

    def __init__(self, reason: str, *, transient: bool = False) -> None:
        super().__init__(reason)
        self.transient = transient


class Refusal(NamedTuple):
    """The broker refused one message. Not an exception: the other messages of its page go on."""

    position: int
    reason: str
    permanent: bool = False
    """Another attempt can't help: too large, cannot be encoded."""
    route: str | None = None
    """The name of the route, if the route is at fault and not the message: a binding is missing, a queue is full. Such
    a refusal counts no attempt; the message waits until the route works again.
    """
    unroutable: bool = False
    """The route leads to no consumer at all: none has subscribed. With unroutable = "drop" the message is dropped."""
    retry_in: float | None = None
    """Seconds until the next try, as the destination asks: of this message, or of its route."""
    error: BaseException | None = None
    """What a handler or the publisher raised, if it was that: its traceback goes to the log."""


class BrokerUnavailable(PostroadError):
    """The broker is unavailable. The answers that came before are kept, so that those messages are not sent again.

    `confirmed` are the positions that it confirmed before, `refusals` what it refused before.
    `suspicious`: a message may have caused it. If `open` works and the same messages fail again and again, they are
    sent one by one. A publisher that knows better (a timeout, an alarm, a shutdown) says False.
    """

    def __init__(
        self,
        reason: str,
        *,
        confirmed: Collection[int] = frozenset(),
        refusals: Collection[Refusal] = (),
        suspicious: bool = True,
    ) -> None:
        super().__init__(reason)
        self.confirmed = frozenset(confirmed)
        self.refusals = tuple(refusals)
        self.suspicious = suspicious


class LoginRefused(BrokerUnavailable):
    """The broker refuses the user or its password. That ends a relay or a consumer that is being started.

    For one that has run it is an outage like any other: an operator changes a password, or the broker can't ask its own
    directory of users for a while.
    """


class PayloadsUnavailable(PostroadError):
    """A payload can't be stored elsewhere, or read from there, now. What was to be added was not added."""


class LaneChanged(PostroadError):
    """The lane's row is not as it was loaded: an operator changed it, or the database was restored."""


class LeaseLost(PostroadError):
    """The lane belongs to another relay now."""
