"""Our tables in PostgreSQL, as SQLAlchemy sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import (
    BIGINT,
    BOOLEAN,
    INTEGER,
    SMALLINT,
    TEXT,
    TIMESTAMP,
    UUID,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Table,
    UniqueConstraint,
    text,
)  # fmt: skip
from sqlalchemy.dialects.postgresql import BYTEA, JSON

from postroad.sqlalchemy.checks import BLOCKS, DUE, EPOCH, STATES
from postroad.sqlalchemy.types import XID8, PGSnapshot

if TYPE_CHECKING:
    from sqlalchemy import MetaData

__all__ = ["postgresql_tables"]


def postgresql_tables(metadata: MetaData, schema: str) -> list[Table]:
    """All of them, in the order of the migrations that make them."""
    return [
        *_log(metadata, schema),
        *_trouble(metadata, schema),
        *_operations(metadata, schema),
        _naps(metadata, schema),
        *_leases(metadata, schema),
        *_inbox(metadata, schema),
        Table("locks", metadata, Column("name", TEXT, primary_key=True), schema=schema),
    ]


def _log(metadata: MetaData, schema: str) -> list[Table]:
    now = text("now()")
    migrations = Table(
        "migrations", metadata,
        Column("version", INTEGER, primary_key=True, autoincrement=False),
        Column("applied_at", TIMESTAMP(timezone=True), nullable=False, server_default=now),
        schema=schema,
    )  # fmt: skip
    installation = Table(
        "installation", metadata,
        Column("only_row", BOOLEAN, primary_key=True, server_default=text("true")),
        Column("min_client", INTEGER, nullable=False),
        Column("system_identifier", BIGINT, nullable=False),
        CheckConstraint("only_row", name="installation_only_row_check"),
        schema=schema,
    )  # fmt: skip
    outbox = Table(
        "outbox", metadata,
        Column("xid", XID8, nullable=False, server_default=text("pg_current_xact_id()")),
        Column("position", BIGINT, Identity(always=True), primary_key=True),
        Column("created_at", TIMESTAMP(timezone=True), nullable=False, server_default=now),
        Column("id", UUID, nullable=False),
        Column("slot", SMALLINT, nullable=False),
        Column("topic", TEXT, nullable=False),
        Column("type", TEXT, nullable=False),
        Column("key", TEXT),
        Column("content_type", TEXT, nullable=False),
        Column("headers", JSON, nullable=False),
        Column("payload", BYTEA, nullable=False),
        CheckConstraint("slot between 0 and 1023", name="outbox_slot_check"),
        CheckConstraint("octet_length(topic) between 1 and 255", name="outbox_topic_check"),
        CheckConstraint("octet_length(type) between 1 and 255", name="outbox_type_check"),
        CheckConstraint("octet_length(key) between 1 and 1024", name="outbox_key_check"),
        CheckConstraint("json_typeof(headers) = 'object'", name="outbox_headers_check"),
        UniqueConstraint("id", name="outbox_id"),
        Index("outbox_xid", "xid"),
        schema=schema,
    )  # fmt: skip
    lanes = Table(
        "lanes", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("lane", SMALLINT, primary_key=True, autoincrement=False),
        Column("first_slot", SMALLINT, nullable=False),
        Column("last_slot", SMALLINT, nullable=False),
        Column("position", BIGINT, nullable=False),
        Column("snapshot", PGSnapshot, nullable=False),
        Column("late_position", BIGINT),
        Column("late_snapshot", PGSnapshot),
        Column("owner", UUID),
        Column("epoch", BIGINT, nullable=False, server_default=text("0")),
        Column("version", BIGINT, nullable=False, server_default=text("0")),
        Column("lease_until", TIMESTAMP(timezone=True)),
        CheckConstraint("(late_position is null) = (late_snapshot is null)", name="lanes_check"),
        schema=schema,
    )  # fmt: skip
    return [migrations, installation, outbox, lanes]


def _trouble(metadata: MetaData, schema: str) -> list[Table]:
    now = text("now()")
    deferred = Table(
        "deferred", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("position", BIGINT, primary_key=True, autoincrement=False),
        Column("lane", SMALLINT, nullable=False),
        Column("attempts", INTEGER, nullable=False, server_default=text("0")),
        Column("due_at", TIMESTAMP(timezone=True)),
        Column("epoch", BIGINT),
        Column("blocks", BOOLEAN, nullable=False),
        Column("unsure", BOOLEAN, nullable=False, server_default=text("false")),
        Column("state", TEXT, nullable=False),
        Column("key", TEXT),
        Column("route", TEXT),
        Column("error", TEXT),
        Column("deferred_at", TIMESTAMP(timezone=True), nullable=False, server_default=now),
        Column("first_failed_at", TIMESTAMP(timezone=True)),
        Column("last_failed_at", TIMESTAMP(timezone=True)),
        CheckConstraint("attempts >= 0", name="deferred_attempts_check"),
        CheckConstraint("length(error) <= 2000", name="deferred_error_check"),
        CheckConstraint(STATES, name="deferred_state"),
        CheckConstraint(BLOCKS, name="deferred_blocks"),
        CheckConstraint(DUE, name="deferred_due"),
        CheckConstraint(EPOCH, name="deferred_epoch"),
        Index("deferred_due", "sink", "lane", "due_at", postgresql_where=text("due_at is not null")),
        Index("deferred_key", "sink", "lane", "key", "position", postgresql_where=text("blocks and key is not null")),
        Index("deferred_sending", "sink", "lane", postgresql_where=text("epoch is not null")),
        Index("deferred_route", "sink", "lane", "route", "position", postgresql_where=text("route is not null")),
        schema=schema,
    )  # fmt: skip
    attempts = Table(
        "attempts", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("position", BIGINT, primary_key=True, autoincrement=False),
        Column("attempt", INTEGER, primary_key=True, autoincrement=False),
        Column("failed_at", TIMESTAMP(timezone=True), primary_key=True, server_default=text("clock_timestamp()")),
        Column("error", TEXT, nullable=False),
        CheckConstraint("length(error) <= 2000", name="attempts_error_check"),
        schema=schema,
    )  # fmt: skip
    scheduled = Table(
        "scheduled", metadata,
        Column("number", BIGINT, Identity(always=True), nullable=False),
        Column("due_at", TIMESTAMP(timezone=True), nullable=False),
        Column("created_at", TIMESTAMP(timezone=True), nullable=False, server_default=now),
        Column("id", UUID, primary_key=True),
        Column("slot", SMALLINT, nullable=False),
        Column("topic", TEXT, nullable=False),
        Column("type", TEXT, nullable=False),
        Column("key", TEXT),
        Column("content_type", TEXT, nullable=False),
        Column("headers", JSON, nullable=False),
        Column("payload", BYTEA, nullable=False),
        CheckConstraint("slot between 0 and 1023", name="scheduled_slot_check"),
        CheckConstraint("octet_length(topic) between 1 and 255", name="scheduled_topic_check"),
        CheckConstraint("octet_length(type) between 1 and 255", name="scheduled_type_check"),
        CheckConstraint("octet_length(key) between 1 and 1024", name="scheduled_key_check"),
        CheckConstraint("json_typeof(headers) = 'object'", name="scheduled_headers_check"),
        CheckConstraint(
            "due_at >= timestamptz '1900-01-01 00:00:00+00' and due_at < timestamptz '9999-01-01 00:00:00+00'",
            name="scheduled_due_at_check",
        ),
        Index("scheduled_due", "due_at", "number"),
        schema=schema,
    )  # fmt: skip
    return [deferred, attempts, scheduled]


def _operations(metadata: MetaData, schema: str) -> list[Table]:
    now = text("now()")
    progress = Table(
        "progress", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("lane", SMALLINT, primary_key=True, autoincrement=False),
        Column("position", BIGINT, primary_key=True, autoincrement=False),
        Column("at", TIMESTAMP(timezone=True), primary_key=True, server_default=text("clock_timestamp()")),
        Column("snapshot", PGSnapshot, nullable=False),
        Column("published", INTEGER, nullable=False),
        Column("refused", INTEGER, nullable=False),
        Index("progress_at", "at"),
        schema=schema,
    )  # fmt: skip
    delivered = Table(
        "delivered", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("position", BIGINT, primary_key=True, autoincrement=False),
        Column("delivered_at", TIMESTAMP(timezone=True), nullable=False, server_default=now),
        schema=schema,
    )  # fmt: skip
    holds = Table(
        "holds", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("key", TEXT, primary_key=True),
        Column("slot", SMALLINT, nullable=False),
        Column("since", TIMESTAMP(timezone=True), nullable=False, server_default=now),
        Column("who", TEXT, nullable=False),
        Column("reason", TEXT),
        schema=schema,
    )  # fmt: skip
    pauses = Table(
        "pauses", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("since", TIMESTAMP(timezone=True), nullable=False, server_default=now),
        Column("who", TEXT, nullable=False),
        Column("reason", TEXT),
        schema=schema,
    )  # fmt: skip
    ahead = Table(
        "ahead", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("lane", SMALLINT, primary_key=True, autoincrement=False),
        Column("position", BIGINT, primary_key=True, autoincrement=False),
        schema=schema,
    )  # fmt: skip
    rewound = Table(
        "rewound", metadata,
        Column("sink", TEXT, primary_key=True),
        Column("position", BIGINT, primary_key=True, autoincrement=False),
        Column("rewind", TEXT, nullable=False),
        Column("new_id", UUID),
        schema=schema,
    )  # fmt: skip
    audit = Table(
        "audit", metadata,
        Column("number", BIGINT, Identity(always=True), primary_key=True),
        Column("at", TIMESTAMP(timezone=True), nullable=False, server_default=now),
        Column("who", TEXT, nullable=False),
        Column("command", TEXT, nullable=False),
        Column("arguments", JSON, nullable=False),
        Column("reason", TEXT),
        Column("changed", BIGINT, nullable=False),
        Column("role", TEXT, server_default=text("SESSION_USER")),
        Column("continues", BIGINT),
        Index("audit_continues", "continues", postgresql_where=text("continues is not null")),
        schema=schema,
    )  # fmt: skip
    return [progress, delivered, holds, pauses, ahead, rewound, audit]


def _naps(metadata: MetaData, schema: str) -> Table:
    return Table(
        "naps", metadata,
        Column("id", BIGINT, Identity(always=True), primary_key=True),
        Column("until", TIMESTAMP(timezone=True), nullable=False),
        Column("first_slot", SMALLINT, nullable=False),
        Column("last_slot", SMALLINT, nullable=False),
        Column("marks", BIGINT, nullable=False),
        Column("channel", TEXT, nullable=False),
        Column("listener", INTEGER),
        Index("naps_until", "until"),
        prefixes=["unlogged"],
        schema=schema,
    )  # fmt: skip


def _leases(metadata: MetaData, schema: str) -> list[Table]:
    clock = text("clock_timestamp()")
    relays = Table(
        "relays", metadata,
        Column("owner", UUID, primary_key=True),
        Column("pid", INTEGER, nullable=False),
        Column("beats", BIGINT, nullable=False, server_default=text("1")),
        Column("started_at", TIMESTAMP(timezone=True), nullable=False, server_default=clock),
        Column("heartbeat_at", TIMESTAMP(timezone=True), nullable=False, server_default=clock),
        Column("alive_until", TIMESTAMP(timezone=True), nullable=False),
        Column("lock_key", BIGINT),
        Column("server_started", TEXT),
        Column("sink", TEXT, nullable=False),
        Column("host", TEXT, nullable=False),
        Column("version", TEXT, nullable=False),
        Column("lock_pid", INTEGER),
        CheckConstraint("(lock_key is null) = (server_started is null)", name="relays_lock"),
        schema=schema,
    )  # fmt: skip
    sinks = Table(
        "sinks", metadata,
        Column("served_at", TIMESTAMP(timezone=True), nullable=False, server_default=clock),
        Column("sink", TEXT, primary_key=True),
        Column("destination", TEXT),
        schema=schema,
    )  # fmt: skip
    return [relays, sinks]


def _inbox(metadata: MetaData, schema: str) -> list[Table]:
    text_c = TEXT(collation="C")
    inbox = Table(
        "inbox", metadata,
        Column("processed_at", TIMESTAMP(timezone=True), nullable=False, server_default=text("now()")),
        Column("consumer", text_c, primary_key=True),
        Column("id", text_c, primary_key=True),
        Column("type", TEXT, nullable=False),
        CheckConstraint("octet_length(consumer) between 1 and 255", name="inbox_consumer_check"),
        CheckConstraint("octet_length(id) between 1 and 1024", name="inbox_id_check"),
        CheckConstraint("octet_length(type) <= 255", name="inbox_type_check"),
        Index("inbox_processed_at", "consumer", "processed_at"),
        schema=schema,
    )  # fmt: skip
    attempts = Table(
        "inbox_attempts", metadata,
        Column("attempts", INTEGER, nullable=False, server_default=text("0")),
        Column("crashes", INTEGER, nullable=False, server_default=text("0")),
        Column("running", BOOLEAN, nullable=False, server_default=text("false")),
        Column("changed_at", TIMESTAMP(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
        Column("dead_at", TIMESTAMP(timezone=True)),
        Column("consumer", text_c, primary_key=True),
        Column("id", text_c, primary_key=True),
        Column("type", TEXT, nullable=False),
        Column("error", TEXT),
        CheckConstraint("attempts >= 0", name="inbox_attempts_attempts_check"),
        CheckConstraint("crashes >= 0", name="inbox_attempts_crashes_check"),
        CheckConstraint("octet_length(consumer) between 1 and 255", name="inbox_attempts_consumer_check"),
        CheckConstraint("octet_length(id) between 1 and 1024", name="inbox_attempts_id_check"),
        CheckConstraint("octet_length(type) <= 255", name="inbox_attempts_type_check"),
        CheckConstraint("length(error) <= 2000", name="inbox_attempts_error_check"),
        schema=schema,
    )  # fmt: skip
    return [inbox, attempts]
