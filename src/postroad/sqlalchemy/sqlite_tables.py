"""Our tables in SQLite, as SQLAlchemy sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    BLOB,
    INTEGER,
    TEXT,
    CheckConstraint,
    Column,
    Index,
    Table,
    text,
)  # fmt: skip

from postroad.sqlalchemy.checks import BLOCKS, DUE, EPOCH, STATES

if TYPE_CHECKING:
    from sqlalchemy import MetaData

__all__ = ["sqlite_tables"]

_NOW: Final = "(cast((julianday('now') - 2440587.5) * 86400000000 as integer))"


def sqlite_tables(metadata: MetaData, schema: str) -> list[Table]:
    """All of them, in the order of the migrations that make them."""
    return [
        *_log(metadata, schema),
        *_trouble(metadata, schema),
        *_operations(metadata, schema),
        *_leases(metadata, schema),
        *_inbox(metadata, schema),
    ]


def _log(metadata: MetaData, schema: str) -> list[Table]:
    # An `integer primary key` can't be null, but SQLite does not say so of its column.
    migrations = Table(
        f"{schema}_migrations", metadata,
        Column("version", INTEGER, primary_key=True, nullable=True),
        Column("applied_at", TEXT, nullable=False, server_default=text("current_timestamp")),
    )  # fmt: skip
    installation = Table(
        f"{schema}_installation", metadata,
        Column("only_row", INTEGER, primary_key=True, nullable=True, server_default=text("1")),
        Column("min_client", INTEGER, nullable=False),
        CheckConstraint("only_row = 1"),
    )  # fmt: skip
    outbox = Table(
        f"{schema}_outbox", metadata,
        Column("position", INTEGER, primary_key=True, nullable=True),
        Column("id", TEXT, nullable=False, unique=True),
        Column("topic", TEXT, nullable=False),
        Column("key", TEXT),
        Column("slot", INTEGER, nullable=False),
        Column("type", TEXT, nullable=False),
        Column("payload", BLOB, nullable=False),
        Column("content_type", TEXT, nullable=False),
        Column("headers", TEXT, nullable=False),
        Column("created_at", INTEGER, nullable=False, server_default=text(_NOW)),
        CheckConstraint("length(cast(topic as blob)) between 1 and 255"),
        CheckConstraint("length(cast(key as blob)) between 1 and 1024"),
        CheckConstraint("slot between 0 and 1023"),
        CheckConstraint("length(cast(type as blob)) between 1 and 255"),
        sqlite_autoincrement=True,
    )  # fmt: skip
    lanes = Table(
        f"{schema}_lanes", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("lane", INTEGER, primary_key=True),
        Column("first_slot", INTEGER, nullable=False),
        Column("last_slot", INTEGER, nullable=False),
        Column("position", INTEGER, nullable=False),
        Column("owner", TEXT),
        Column("epoch", INTEGER, nullable=False, server_default=text("0")),
        Column("version", INTEGER, nullable=False, server_default=text("0")),
        sqlite_with_rowid=False,
    )  # fmt: skip
    return [migrations, installation, outbox, lanes]


def _trouble(metadata: MetaData, schema: str) -> list[Table]:
    deferred = Table(
        f"{schema}_deferred", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("position", INTEGER, primary_key=True),
        Column("lane", INTEGER, nullable=False),
        Column("attempts", INTEGER, nullable=False, server_default=text("0")),
        Column("due_at", INTEGER),
        Column("epoch", INTEGER),
        Column("blocks", INTEGER, nullable=False),
        Column("unsure", INTEGER, nullable=False, server_default=text("0")),
        Column("state", TEXT, nullable=False),
        Column("key", TEXT),
        Column("route", TEXT),
        Column("error", TEXT),
        Column("deferred_at", INTEGER, nullable=False, server_default=text(_NOW)),
        Column("first_failed_at", INTEGER),
        Column("last_failed_at", INTEGER),
        CheckConstraint("attempts >= 0"),
        CheckConstraint("length(error) <= 2000"),
        CheckConstraint(STATES, name="deferred_state"),
        CheckConstraint(BLOCKS, name="deferred_blocks"),
        CheckConstraint(DUE, name="deferred_due"),
        CheckConstraint(EPOCH, name="deferred_epoch"),
        Index(f"{schema}_deferred_due", "sink", "lane", "due_at", sqlite_where=text("due_at is not null")),
        Index(
            f"{schema}_deferred_key", "sink", "lane", "key", "position", sqlite_where=text("blocks and key is not null")
        ),
        Index(f"{schema}_deferred_sending", "sink", "lane", sqlite_where=text("epoch is not null")),
        Index(f"{schema}_deferred_route", "sink", "lane", "route", "position", sqlite_where=text("route is not null")),
        sqlite_with_rowid=False,
    )  # fmt: skip
    attempts = Table(
        f"{schema}_attempts", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("position", INTEGER, primary_key=True),
        Column("attempt", INTEGER, primary_key=True),
        Column("failed_at", INTEGER, primary_key=True, server_default=text(_NOW)),
        Column("error", TEXT, nullable=False),
        CheckConstraint("length(error) <= 2000"),
        sqlite_with_rowid=False,
    )  # fmt: skip
    scheduled = Table(
        f"{schema}_scheduled", metadata,
        Column("number", INTEGER, primary_key=True, nullable=True),
        Column("due_at", INTEGER, nullable=False),
        Column("created_at", INTEGER, nullable=False, server_default=text(_NOW)),
        Column("id", TEXT, nullable=False, unique=True),
        Column("slot", INTEGER, nullable=False),
        Column("topic", TEXT, nullable=False),
        Column("type", TEXT, nullable=False),
        Column("key", TEXT),
        Column("content_type", TEXT, nullable=False),
        Column("headers", TEXT, nullable=False),
        Column("payload", BLOB, nullable=False),
        CheckConstraint("slot between 0 and 1023"),
        CheckConstraint("length(cast(topic as blob)) between 1 and 255"),
        CheckConstraint("length(cast(type as blob)) between 1 and 255"),
        CheckConstraint("length(cast(key as blob)) between 1 and 1024"),
        Index(f"{schema}_scheduled_due", "due_at", "number"),
    )  # fmt: skip
    return [deferred, attempts, scheduled]


def _operations(metadata: MetaData, schema: str) -> list[Table]:
    now = text(_NOW)
    progress = Table(
        f"{schema}_progress", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("lane", INTEGER, primary_key=True),
        Column("position", INTEGER, primary_key=True),
        Column("at", INTEGER, primary_key=True, server_default=now),
        Column("published", INTEGER, nullable=False),
        Column("refused", INTEGER, nullable=False),
        Index(f"{schema}_progress_at", "at"),
        sqlite_with_rowid=False,
    )  # fmt: skip
    delivered = Table(
        f"{schema}_delivered", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("position", INTEGER, primary_key=True),
        Column("delivered_at", INTEGER, nullable=False),
        sqlite_with_rowid=False,
    )  # fmt: skip
    holds = Table(
        f"{schema}_holds", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("key", TEXT, primary_key=True),
        Column("slot", INTEGER, nullable=False),
        Column("since", INTEGER, nullable=False, server_default=now),
        Column("who", TEXT, nullable=False),
        Column("reason", TEXT),
        sqlite_with_rowid=False,
    )  # fmt: skip
    pauses = Table(
        f"{schema}_pauses", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("since", INTEGER, nullable=False, server_default=now),
        Column("who", TEXT, nullable=False),
        Column("reason", TEXT),
        sqlite_with_rowid=False,
    )  # fmt: skip
    ahead = Table(
        f"{schema}_ahead", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("lane", INTEGER, primary_key=True),
        Column("position", INTEGER, primary_key=True),
        sqlite_with_rowid=False,
    )  # fmt: skip
    rewound = Table(
        f"{schema}_rewound", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("position", INTEGER, primary_key=True),
        Column("rewind", TEXT, nullable=False),
        Column("new_id", TEXT),
        sqlite_with_rowid=False,
    )  # fmt: skip
    audit = Table(
        f"{schema}_audit", metadata,
        Column("number", INTEGER, primary_key=True, nullable=True),
        Column("at", INTEGER, nullable=False, server_default=now),
        Column("who", TEXT, nullable=False),
        Column("command", TEXT, nullable=False),
        Column("arguments", TEXT, nullable=False),
        Column("reason", TEXT),
        Column("changed", INTEGER, nullable=False),
        sqlite_autoincrement=True,
    )  # fmt: skip
    return [progress, delivered, holds, pauses, ahead, rewound, audit]


def _leases(metadata: MetaData, schema: str) -> list[Table]:
    leases = Table(
        f"{schema}_leases", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("lane", INTEGER, primary_key=True),
        Column("lease_until", INTEGER, nullable=False),
        sqlite_with_rowid=False,
    )  # fmt: skip
    relays = Table(
        f"{schema}_relays", metadata,
        Column("owner", TEXT, primary_key=True),
        Column("pid", INTEGER, nullable=False),
        Column("beats", INTEGER, nullable=False, server_default=text("1")),
        Column("started_at", INTEGER, nullable=False, server_default=text(_NOW)),
        Column("heartbeat_at", INTEGER, nullable=False, server_default=text(_NOW)),
        Column("alive_until", INTEGER, nullable=False),
        Column("sink", TEXT, nullable=False),
        Column("host", TEXT, nullable=False),
        Column("version", TEXT, nullable=False),
        sqlite_with_rowid=False,
    )  # fmt: skip
    sinks = Table(
        f"{schema}_sinks", metadata,
        Column("served_at", INTEGER, nullable=False, server_default=text(_NOW)),
        Column("sink", TEXT, primary_key=True),
        Column("destination", TEXT),
        sqlite_with_rowid=False,
    )  # fmt: skip
    return [leases, relays, sinks]


def _inbox(metadata: MetaData, schema: str) -> list[Table]:
    inbox = Table(
        f"{schema}_inbox", metadata,
        Column("processed_at", INTEGER, nullable=False, server_default=text(_NOW)),
        Column("consumer", TEXT, primary_key=True),
        Column("id", TEXT, primary_key=True),
        Column("type", TEXT, nullable=False),
        CheckConstraint("length(cast(consumer as blob)) between 1 and 255"),
        CheckConstraint("length(cast(id as blob)) between 1 and 1024"),
        CheckConstraint("length(cast(type as blob)) <= 255"),
        Index(f"{schema}_inbox_processed_at", "consumer", "processed_at"),
    )  # fmt: skip
    attempts = Table(
        f"{schema}_inbox_attempts", metadata,
        Column("attempts", INTEGER, nullable=False, server_default=text("0")),
        Column("crashes", INTEGER, nullable=False, server_default=text("0")),
        Column("running", INTEGER, nullable=False, server_default=text("0")),
        Column("changed_at", INTEGER, nullable=False, server_default=text(_NOW)),
        Column("dead_at", INTEGER),
        Column("consumer", TEXT, primary_key=True),
        Column("id", TEXT, primary_key=True),
        Column("type", TEXT, nullable=False),
        Column("error", TEXT),
        CheckConstraint("attempts >= 0"),
        CheckConstraint("crashes >= 0"),
        CheckConstraint("length(cast(consumer as blob)) between 1 and 255"),
        CheckConstraint("length(cast(id as blob)) between 1 and 1024"),
        CheckConstraint("length(cast(type as blob)) <= 255"),
        CheckConstraint("length(error) <= 2000"),
    )  # fmt: skip
    return [inbox, attempts]
