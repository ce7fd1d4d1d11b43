"""Checks of a PostgreSQL server and of the schema in it. Pure: they judge rows of sql/postgresql/doctor.sql."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.doctor.words import identifier
from postroad.findings import Checks, error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.findings import Facts, Limits, Verdict

__all__ = ["CHECKS"]

CHECKS: Final = Checks("PostgreSQL")

_OLDEST: Final = 130_000
_TRIGGERS: Final = (
    ("outbox", "refuse_row"),
    ("outbox", "wake_naps"),
    ("scheduled", "refuse_row"),
    ("scheduled", "wake_scheduled"),
)
_LOG_INDEXES: Final = frozenset({"outbox_pkey", "outbox_id", "outbox_xid"})
_DISABLED: Final = frozenset({"D", "R"})  # off; only on a replica


@CHECKS.check("server", "server", "server_facts")
def server(facts: Facts, limits: Limits) -> Verdict:
    """The server is one on which a relay can read the log."""
    (its,), (found,), name = facts["server"], facts["server_facts"], facts["schema_name"]
    evidence = {"version": its["version"], **{key: found[key] for key in found if key != "started"}}
    problem = _unfit(its, found, name)
    if problem is not None:
        return error(*problem, **evidence)
    if found["moved"] or found["future"]:
        text = "the log came from another cluster; the first relay that is started converts it"
        return warning(text, "postroad relay", **evidence)
    return ok(f"PostgreSQL {its['version']}, a primary, with a log of its own", **evidence)


def _unfit(its: dict[str, Any], found: dict[str, Any], name: str) -> tuple[str, str] | None:
    """Why no relay can read the log, and what to do about it."""
    cache = found["sequence_cache"] or 1
    problems = (
        (its["number"] < _OLDEST, f"this is PostgreSQL {its['version']}", "upgrade to PostgreSQL 13 or newer"),
        (
            found["standby"],
            "the server is a standby, whose snapshots don't show the transactions in progress",
            "connect relays to the primary: add its host and target_session_attrs=primary to the URL",
        ),
        (
            found["subscribed"],
            (
                f"{name}.outbox is filled by a logical replication subscription: its rows have another cluster's "
                "transaction ids"
            ),
            (
                f"run relays on the publisher; or, there: alter publication NAME drop table {name}.outbox, and here: "
                "alter subscription NAME refresh publication"
            ),
        ),
        (
            not found["complete"],
            f"{name}.outbox has no primary key: a restore has failed, or is running",
            "wait for the restore, or restore again",
        ),
        (
            cache > 1,
            f"the sequence of {name}.outbox.position caches {cache} values, so messages could be missed",
            f"alter table {name}.outbox alter position set cache 1; then end the sessions that add messages",
        ),
    )
    return next(((text, fix) for wrong, text, fix in problems if wrong), None)


@CHECKS.check("locks", "blockers")
def locks(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """No other session has locked what relays need."""
    for row in facts["blockers"]:
        yield error(
            f"what relays need is locked by process {row['pid']} of role {row['role']}{_doing(row)}",
            f"select pg_terminate_backend({row['pid']}) -- or end that transaction yourself",
            **row,
        )
    if not facts["blockers"]:
        yield ok("no other session has locked what relays need")


def _doing(row: dict[str, Any]) -> str:
    state = f", {row['state']}" if row["state"] else ""
    transaction = row["transaction_seconds"]
    query = row["query_seconds"]
    age = "" if transaction is None else f", transaction {transaction:.0f} s old"
    return state + age + ("" if query is None else f", query {query:.0f} s")


@CHECKS.check("listen", "listen")
def listen(facts: Facts, limits: Limits) -> Verdict:
    """A notification comes back, so that relays can sleep."""
    found = facts["listen"]
    set_direct = "set direct (POSTROAD_DIRECT) to the URL of the server itself"
    if found["pooled"] and not found["direct"]:
        return warning(
            "a pooler is in between, so relays poll and notice a crash only by the lease", set_direct, **found
        )
    if found["direct"] and not found["same_place"]:
        return error("`direct` leads to another database than `database`", set_direct, **found)
    if found["direct"] and found["direct_pooled"]:
        return warning("`direct` leads to a pooler, too, so relays poll", set_direct, **found)
    if not found["echo"]:
        return warning(
            "a notification did not come back, so relays poll",
            "look for what holds up notifications: select pg_notification_queue_usage()",
            **found,
        )
    return ok("a notification came back", **found)


@CHECKS.check("notification-queue", "notification_queue")
def notification_queue(facts: Facts, limits: Limits) -> Verdict:
    """The server's notification queue is nearly empty."""
    ((usage,),) = [row.values() for row in facts["notification_queue"]]
    fix = (
        "end the oldest transaction of a session that listens: select pid, xact_start, query from pg_stat_activity "
        "where xact_start is not null order by xact_start"
    )
    text = f"the notification queue is {usage:.0%} full"
    if usage > limits.notification_queue_error:
        return error(f"{text}, so relays are not woken any more; a full one would fail commits", fix, usage=usage)
    if usage > limits.notification_queue:
        return warning(f"{text}: a session listens and does not read", fix, usage=usage)
    return ok(text, usage=usage)


@CHECKS.check("triggers", "triggers")
def triggers(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """The log's own triggers are there and enabled, and it has no others."""
    name, found = facts["schema_name"], {(row["table"], row["name"]): row for row in facts["triggers"]}
    well = True
    for table, trigger in _TRIGGERS:
        row = found.pop((table, trigger), None)
        if row is not None and row["enabled"] not in _DISABLED:
            continue
        well = False
        missing = row is None
        fix = (
            f"postroad migrate --sql --schema {name} | psql DATABASE"
            if missing
            else f"alter table {name}.{table} enable trigger {trigger}"
        )
        yield error(
            f"the trigger {trigger} on {name}.{table} is {'missing' if missing else 'disabled'}",
            fix,
            table=table,
            trigger=trigger,
            enabled=None if row is None else row["enabled"],
        )
    for (table, trigger), row in found.items():
        well = False
        yield warning(
            f"{name}.{table} has a trigger {trigger} that is not postroad's; it runs for every message",
            f"drop trigger {identifier(trigger)} on {name}.{table}",
            **row,
        )
    if well:
        yield ok("all triggers are there and enabled", triggers=[trigger for _, trigger in _TRIGGERS])


@CHECKS.check("log-indexes", "indexes")
def log_indexes(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """The log has no index that postroad did not make."""
    name = facts["schema_name"]
    others = [row for row in facts["indexes"] if row["table"] == "outbox" and row["name"] not in _LOG_INDEXES]
    for row in others:
        yield warning(
            f"{name}.outbox has an index {row['name']} that is not postroad's; every message pays for it, and the "
            "planner may choose it for reading",
            f"drop index concurrently {name}.{identifier(row['name'])}",
            **row,
        )
    if not others:
        yield ok("the log has its own indexes only", indexes=sorted(_LOG_INDEXES))


@CHECKS.check("invalid-indexes", "indexes")
def invalid_indexes(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """All indexes of the schema are valid."""
    name = facts["schema_name"]
    broken = [row for row in facts["indexes"] if not row["valid"]]
    for row in broken:
        yield error(
            f"the index {name}.{row['name']} of {row['table']} is invalid, and is not used for reading",
            f"reindex index concurrently {name}.{identifier(row['name'])}",
            **row,
        )
    if not broken:
        yield ok(f"all {len(facts['indexes'])} indexes are valid")
