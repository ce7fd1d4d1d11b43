"""The configuration of Debezium's connector for PostgreSQL, for one database and schema. Pure.

Each setting is there for a reason that docs/debezium.md gives; the connector runs as it is, but for the password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from postroad.doctor import Carrier

__all__ = ["PASSWORD", "connector"]

PASSWORD: Final = "PASSWORD"  # noqa: S105 - what stands in its place
"""What is printed instead of the password of Debezium's role."""

_HEADERS: Final = {
    "id": "ce_id",
    "type": "ce_type",
    "created_at": "ce_time",
    "content_type": "content-type",
    "headers": "postroad_headers",
    "position": "position",
}
"""The columns that become headers of a record."""

_ROUTER: Final = {
    "type": "io.debezium.transforms.outbox.EventRouter",
    "table.op.invalid.behavior": "warn",
    "table.field.event.id": "id",
    "table.field.event.key": "key",
    "table.field.event.type": "type",
    "table.field.event.payload": "payload",
    "table.expand.json.payload": "false",
    "table.fields.additional.placement": ",".join(f"{column}:header:{name}" for column, name in _HEADERS.items()),
    "route.by.field": "topic",
    "route.topic.replacement": "${routedByValue}",
    "route.tombstone.on.empty.payload": "false",
}
_CONVERTERS: Final = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "io.debezium.converters.BinaryDataConverter",
    "value.converter.delegate.converter.type": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.delegate.converter.type.schemas.enable": "false",
    "header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter",
}


def connector(url: str, schema: str, carrier: Carrier, *, source: str | None = None) -> dict[str, str]:
    """The settings of the connector. The `source` of the application's messages becomes a header of each record."""
    transforms = {"outbox": _ROUTER}
    if source is not None:
        inserts = "org.apache.kafka.connect.transforms.InsertHeader"
        transforms["source"] = {"type": inserts, "header": "ce_source", "value.literal": source}
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "topic.prefix": carrier.slot,
        **_server(url),
        "database.user": carrier.role or "",
        "database.password": PASSWORD,
        "plugin.name": "pgoutput",
        "slot.name": carrier.slot,
        "slot.drop.on.stop": "false",
        "publication.name": carrier.publication or "",
        "publication.autocreate.mode": "disabled",
        "table.include.list": f"{schema}.outbox",
        "column.exclude.list": f"{schema}.outbox.xid",
        "snapshot.mode": "when_needed",
        "snapshot.select.statement.overrides": f"{schema}.outbox",
        f"snapshot.select.statement.overrides.{schema}.outbox": (
            f"select * from {schema}.outbox order by position"  # noqa: S608 - the schema's name is checked
        ),
        "offset.mismatch.strategy": "trust_offset",
        "tombstones.on.delete": "false",
        "skipped.operations": "u,d,t",
        "binary.handling.mode": "bytes",
        "extended.headers.enabled": "false",
        "heartbeat.interval.ms": "1000",
        "heartbeat.action.query": "select pg_logical_emit_message(true, 'postroad', '')",
        "message.prefix.exclude.list": "postroad",
        **_CONVERTERS,
        "transforms": ",".join(transforms),
        **{f"transforms.{name}.{key}": value for name, its in transforms.items() for key, value in its.items()},
    }


def _server(url: str) -> dict[str, str]:
    """Where the server is, from a database URL. Debezium connects by TCP, to one host."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    hosts = parts.netloc.rpartition("@")[2] or options.get("host", "")
    if "," in hosts or hosts.startswith("/"):
        raise InvalidSetting(
            "database names several hosts, or a socket; Debezium connects to the primary by TCP: set direct "
            "(POSTROAD_DIRECT) to its URL",
            settings=("database",),
        )
    host, _, port = hosts.rpartition(":") if hosts.rpartition(":")[2].isdigit() else (hosts, "", "")
    place = {
        "database.hostname": host.strip("[]") or "localhost",
        "database.port": port or options.get("port", "5432"),
        "database.dbname": unquote(parts.path.removeprefix("/")) or options.get("dbname", ""),
    }
    sslmode = options.get("sslmode") or options.get("ssl")
    return place if sslmode is None else place | {"database.sslmode": sslmode}
