"""Inspect and change what relays work on, from Python: the API under the command line.

    async with open_admin("postgresql://operator@db.example/shop") as admin:
        report = await admin.status()
        await admin.retry(Filter(state=State.DEAD, type="order.placed"), By("anna", "the warehouse is back"))

Calls return values and may run concurrently. See `Admin` for what each call does.

    findings = await examine("postgresql://operator@db.example/shop", to="amqp://rabbit.example")

`examine` makes the checks of `postroad doctor`. It needs no `Admin`, which refuses a database whose log can't be read.
"""

from __future__ import annotations

from postroad.doctor import (
    Carrier,
    Check,
    ConsumerFacts,
    Finding,
    Level,
    Limits,
    SecretFile,
    all_checks,
    examine,
    examine_carrier,
)
from postroad.lifecycle import State
from postroad.stores import open_admin
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.answers import Action, Answer, Explanation, KeyExplanation, KeyWindow, Reason, Remedy
from postroad.stores.admin.causation import Causation, CausationGraph, Edge, Handled, KnownMessage, Node, join
from postroad.stores.admin.contract import (
    AuditEntry,
    AuditFilter,
    BlockedRoutes,
    By,
    ConsumerReport,
    ConsumerStatus,
    Count,
    DatabaseNumbers,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterRow,
    Done,
    FailedAttempt,
    Filter,
    FilterPreview,
    FollowedSlot,
    HeldKey,
    KeyCount,
    KeyPreview,
    LaneNumbers,
    LaneReport,
    LatencyMatrix,
    MessageAtSink,
    MessageHistory,
    MessagePage,
    MessageRow,
    OnProgress,
    Pause,
    Rewind,
    RewindPreview,
    SinkNumbers,
    SinkReport,
    StatusReport,
    Totals,
    TroubleGroup,
    totals,
)
from postroad.stores.admin.error_patterns import normalise_error
from postroad.stores.admin.notices import Notice, NoticeKind, notices
from postroad.stores.leases import RelayStatus

__all__ = [
    "Action",
    "Admin",
    "Answer",
    "AuditEntry",
    "AuditFilter",
    "BlockedRoutes",
    "By",
    "Carrier",
    "Causation",
    "CausationGraph",
    "Check",
    "ConsumerFacts",
    "ConsumerReport",
    "ConsumerStatus",
    "Count",
    "DatabaseNumbers",
    "DeadLetterFilter",
    "DeadLetterPage",
    "DeadLetterRow",
    "Done",
    "Edge",
    "Explanation",
    "FailedAttempt",
    "Filter",
    "FilterPreview",
    "Finding",
    "FollowedSlot",
    "Handled",
    "HeldKey",
    "KeyCount",
    "KeyExplanation",
    "KeyPreview",
    "KeyWindow",
    "KnownMessage",
    "LaneNumbers",
    "LaneReport",
    "LatencyMatrix",
    "Level",
    "Limits",
    "MessageAtSink",
    "MessageHistory",
    "MessagePage",
    "MessageRow",
    "Node",
    "Notice",
    "NoticeKind",
    "OnProgress",
    "Pause",
    "Reason",
    "RelayStatus",
    "Remedy",
    "Rewind",
    "RewindPreview",
    "SecretFile",
    "SinkNumbers",
    "SinkReport",
    "State",
    "StatusReport",
    "Totals",
    "TroubleGroup",
    "all_checks",
    "examine",
    "examine_carrier",
    "join",
    "normalise_error",
    "notices",
    "open_admin",
    "totals",
]
