"""The transactional outbox and inbox for Python: a row and its event never part ways."""

from __future__ import annotations

import logging

from postroad.conflicts import AlreadyDone, retry_on_conflict
from postroad.errors import (
    BrokerUnavailable,
    ClientTooOld,
    ConnectionClosed,
    InvalidMessage,
    InvalidSetting,
    LaneChanged,
    LeaseLost,
    LogNotReadable,
    MissingExtra,
    NothingMatches,
    NotMigrated,
    NoTransaction,
    PostroadError,
    Refusal,
    StoreUnavailable,
    UnknownConnection,
)
from postroad.message import Message, StoredMessage, correlated, correlation_id, event
from postroad.outbox import Outbox
from postroad.schedule import Cancellation

__all__ = [
    "AlreadyDone",
    "BrokerUnavailable",
    "Cancellation",
    "ClientTooOld",
    "ConnectionClosed",
    "InvalidMessage",
    "InvalidSetting",
    "LaneChanged",
    "LeaseLost",
    "LogNotReadable",
    "Message",
    "MissingExtra",
    "NoTransaction",
    "NotMigrated",
    "NothingMatches",
    "Outbox",
    "PostroadError",
    "Refusal",
    "StoreUnavailable",
    "StoredMessage",
    "UnknownConnection",
    "correlated",
    "correlation_id",
    "event",
    "retry_on_conflict",
]

__version__ = "0.1.0"

logging.getLogger("postroad").addHandler(logging.NullHandler())
