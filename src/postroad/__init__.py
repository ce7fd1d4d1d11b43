"""The transactional outbox and inbox for Python: a row and its event never part ways."""

from __future__ import annotations

import importlib
import typing

from postroad.config import RelaySettings
from postroad.conflicts import retry_on_conflict
from postroad.errors import (
    BrokerUnavailable,
    ClientTooOld,
    ConnectionClosed,
    CountGrown,
    IdTaken,
    InvalidMessage,
    InvalidSetting,
    LoginRefused,
    LogNotReadable,
    LogReset,
    MissingExtra,
    NotFound,
    NotMigrated,
    NotOwner,
    NoTransaction,
    PayloadsUnavailable,
    PostroadError,
    Refusal,
    StoreUnavailable,
    UnsupportedConnection,
)
from postroad.inbox import Inbox
from postroad.listeners import Listener, LogListener
from postroad.message import Message, StoredMessage, correlated, correlation_id, event
from postroad.outbox import Outbox
from postroad.received import Received
from postroad.retry import Backoff
from postroad.schedule import Cancellation
from postroad.shredded import ShreddedPayload
from postroad.sink_filter import SinkFilter
from postroad.stores import migrate, store_for
from postroad.tombstone import Tombstone
from postroad.version import __version__

if typing.TYPE_CHECKING:
    from postroad.brokers.local import LocalPublisher
    from postroad.consumer import Consumer
    from postroad.consumer.upcasts import upcast
    from postroad.relay import Relay, RelayGroup

__all__ = [
    "Backoff",
    "BrokerUnavailable",
    "Cancellation",
    "ClientTooOld",
    "ConnectionClosed",
    "Consumer",
    "CountGrown",
    "IdTaken",
    "Inbox",
    "InvalidMessage",
    "InvalidSetting",
    "Listener",
    "LocalPublisher",
    "LogListener",
    "LogNotReadable",
    "LogReset",
    "LoginRefused",
    "Message",
    "MissingExtra",
    "NoTransaction",
    "NotFound",
    "NotMigrated",
    "NotOwner",
    "Outbox",
    "PayloadsUnavailable",
    "PostroadError",
    "Received",
    "Refusal",
    "Relay",
    "RelayGroup",
    "RelaySettings",
    "ShreddedPayload",
    "SinkFilter",
    "StoreUnavailable",
    "StoredMessage",
    "Tombstone",
    "UnsupportedConnection",
    "__version__",
    "correlated",
    "correlation_id",
    "event",
    "migrate",
    "retry_on_conflict",
    "store_for",
    "upcast",
]

# The logger "postroad" gets no NullHandler, which libraries often add: where an application has not set logging up,
# Python then writes warnings and errors to stderr (`logging.lastResort`). With a NullHandler, an embedded relay that
# can't reach its broker would say nothing at all.

# Imported at their first use: an application that only writes messages needs neither a relay nor a consumer, which are
# half of the modules.
_AT_FIRST_USE = {
    "Consumer": "postroad.consumer",
    "LocalPublisher": "postroad.brokers.local",
    "Relay": "postroad.relay",
    "RelayGroup": "postroad.relay",
    "upcast": "postroad.consumer.upcasts",
}

if not typing.TYPE_CHECKING:  # a type checker would take every name for one of the module's

    def __getattr__(name: str) -> object:
        if name not in _AT_FIRST_USE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(_AT_FIRST_USE[name]), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_AT_FIRST_USE})
