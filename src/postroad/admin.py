"""Inspect and change what relays work on, from Python: the API under the command line.

    async with open_admin("postgresql://operator@db.example/shop") as admin:
        report = await admin.status()
        await admin.retry(Filter(state=State.DEAD, type="order.placed"), By("anna", "the warehouse is back"))

Calls return values and may run concurrently. See `Admin` for what each call does.
"""

from __future__ import annotations

from postroad.lifecycle import State
from postroad.stores import open_admin
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import (
    AuditEntry,
    By,
    Count,
    Done,
    FailedAttempt,
    Filter,
    HeldKey,
    KeyCount,
    KeyPreview,
    LaneReport,
    MessageAtSink,
    MessageHistory,
    MessagePage,
    MessageRow,
    OnProgress,
    Rewind,
    SinkReport,
    StatusReport,
    Totals,
    totals,
)
from postroad.stores.leases import RelayStatus

__all__ = [
    "Admin",
    "AuditEntry",
    "By",
    "Count",
    "Done",
    "FailedAttempt",
    "Filter",
    "HeldKey",
    "KeyCount",
    "KeyPreview",
    "LaneReport",
    "MessageAtSink",
    "MessageHistory",
    "MessagePage",
    "MessageRow",
    "OnProgress",
    "RelayStatus",
    "Rewind",
    "SinkReport",
    "State",
    "StatusReport",
    "Totals",
    "open_admin",
    "totals",
]
