"""Our tables as SQLAlchemy sees them, so that Alembic's autogenerate finds nothing to add, drop or change.

They describe what the migrations in stores/sql make; they don't replace them. tests/integrations/test_alembic.py
migrates real databases and compares: a migration that changes a table changes it here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from sqlalchemy import (
    BIGINT,
    BLOB,
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
    event,
    text,
)  # fmt: skip
from sqlalchemy.dialects.postgresql import BYTEA, JSON

from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.errors import InvalidSetting
from postroad.sqlalchemy.types import XID8, PGSnapshot

if TYPE_CHECKING:
    from sqlalchemy import MetaData

__all__ = ["tables"]

_STATES: Final = "state in ('retrying', 'sending', 'held', 'dead', 'canceled', 'dropped', 'skipped')"
_BLOCKS: Final = "state = 'dead' or blocks = (state in ('retrying', 'sending', 'held'))"
_DUE: Final = "case state when 'retrying' then due_at is not null when 'held' then true else due_at is null end"
_EPOCH: Final = "(epoch is not null) = (state = 'sending')"
_SQLITE_NOW: Final = "(cast((julianday('now') - 2440587.5) * 86400000000 as integer))"


def tables(
    metadata: MetaData, *, dialect: Literal["postgresql", "sqlite"] = "postgresql", schema: str = DEFAULT_SCHEMA
) -> list[Table]:
    """Describe our tables in your metadata, as they are in one kind of database, and give them.

    `metadata.create_all` refuses to make them, because it would make half of what is needed: migrate instead.
    """
    schema = checked_schema(schema)
    match dialect:
        case "postgresql":
            made = [
                *_postgresql(metadata, schema),
                *_postgresql_trouble(metadata, schema),
                *_postgresql_operations(metadata, schema),
                _postgresql_naps(metadata, schema),
                *_postgresql_leases(metadata, schema),
                *_postgresql_inbox(metadata, schema),
            ]
        case "sqlite":
            made = [
                *_sqlite(metadata, schema),
                *_sqlite_trouble(metadata, schema),
                *_sqlite_operations(metadata, schema),
                *_sqlite_leases(metadata, schema),
                *_sqlite_inbox(metadata, schema),
            ]
        case _:
            raise InvalidSetting(f"dialect is {dialect!r}; postroad's tables can be in 'postgresql' or 'sqlite'")
    for table in made:
        event.listen(table, "before_create", _refuse)
    return made


def _refuse(table: Table, *_: object, **__: object) -> None:
    raise InvalidSetting(
        f"{table.fullname} can't be made by create_all, which makes no functions and notes no version; "
        "run postroad's own migrations first: op.postroad_migrate(), or postroad migrate"
    )


def _postgresql(metadata: MetaData, schema: str) -> list[Table]:
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


def _postgresql_trouble(metadata: MetaData, schema: str) -> list[Table]:
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
        CheckConstraint(_STATES, name="deferred_state"),
        CheckConstraint(_BLOCKS, name="deferred_blocks"),
        CheckConstraint(_DUE, name="deferred_due"),
        CheckConstraint(_EPOCH, name="deferred_epoch"),
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
        Index("scheduled_due", "due_at", "number"),
        schema=schema,
    )  # fmt: skip
    return [deferred, attempts, scheduled]


def _postgresql_operations(metadata: MetaData, schema: str) -> list[Table]:
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
        schema=schema,
    )  # fmt: skip
    return [progress, delivered, holds, pauses, ahead, rewound, audit]


def _postgresql_naps(metadata: MetaData, schema: str) -> Table:
    return Table(
        "naps", metadata,
        Column("id", BIGINT, Identity(always=True), primary_key=True),
        Column("until", TIMESTAMP(timezone=True), nullable=False),
        Column("first_slot", SMALLINT, nullable=False),
        Column("last_slot", SMALLINT, nullable=False),
        Column("channel", TEXT, nullable=False),
        Column("listener", INTEGER),
        Index("naps_until", "until"),
        prefixes=["unlogged"],
        schema=schema,
    )  # fmt: skip


def _postgresql_leases(metadata: MetaData, schema: str) -> list[Table]:
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
        Column("server_started", TIMESTAMP(timezone=True)),
        Column("sink", TEXT, nullable=False),
        Column("host", TEXT, nullable=False),
        Column("version", TEXT, nullable=False),
        CheckConstraint("(lock_key is null) = (server_started is null)", name="relays_lock"),
        schema=schema,
    )  # fmt: skip
    return [relays]


def _postgresql_inbox(metadata: MetaData, schema: str) -> list[Table]:
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


def _sqlite(metadata: MetaData, schema: str) -> list[Table]:
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
        Column("created_at", INTEGER, nullable=False, server_default=text(_SQLITE_NOW)),
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


def _sqlite_trouble(metadata: MetaData, schema: str) -> list[Table]:
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
        Column("deferred_at", INTEGER, nullable=False, server_default=text(_SQLITE_NOW)),
        Column("first_failed_at", INTEGER),
        Column("last_failed_at", INTEGER),
        CheckConstraint("attempts >= 0"),
        CheckConstraint("length(error) <= 2000"),
        CheckConstraint(_STATES, name="deferred_state"),
        CheckConstraint(_BLOCKS, name="deferred_blocks"),
        CheckConstraint(_DUE, name="deferred_due"),
        CheckConstraint(_EPOCH, name="deferred_epoch"),
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
        Column("failed_at", INTEGER, primary_key=True, server_default=text(_SQLITE_NOW)),
        Column("error", TEXT, nullable=False),
        CheckConstraint("length(error) <= 2000"),
        sqlite_with_rowid=False,
    )  # fmt: skip
    scheduled = Table(
        f"{schema}_scheduled", metadata,
        Column("number", INTEGER, primary_key=True, nullable=True),
        Column("due_at", INTEGER, nullable=False),
        Column("created_at", INTEGER, nullable=False, server_default=text(_SQLITE_NOW)),
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


def _sqlite_operations(metadata: MetaData, schema: str) -> list[Table]:
    now = text(_SQLITE_NOW)
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


def _sqlite_leases(metadata: MetaData, schema: str) -> list[Table]:
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
        Column("started_at", INTEGER, nullable=False, server_default=text(_SQLITE_NOW)),
        Column("heartbeat_at", INTEGER, nullable=False, server_default=text(_SQLITE_NOW)),
        Column("alive_until", INTEGER, nullable=False),
        Column("sink", TEXT, nullable=False),
        Column("host", TEXT, nullable=False),
        Column("version", TEXT, nullable=False),
        sqlite_with_rowid=False,
    )  # fmt: skip
    return [leases, relays]


def _sqlite_inbox(metadata: MetaData, schema: str) -> list[Table]:
    inbox = Table(
        f"{schema}_inbox", metadata,
        Column("processed_at", INTEGER, nullable=False, server_default=text(_SQLITE_NOW)),
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
        Column("changed_at", INTEGER, nullable=False, server_default=text(_SQLITE_NOW)),
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
