"""Checks of what keeps PostgreSQL's VACUUM from removing dead rows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.doctor.words import count, identifier, literal, short
from postroad.findings import Checks, error, ok, skipped, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.findings import Facts, Limits, Verdict

__all__ = ["CHECKS"]

CHECKS: Final = Checks("PostgreSQL")


@CHECKS.check("oldest-transaction", "transactions", "server")
def oldest_transaction(facts: Facts, limits: Limits) -> Verdict:
    """No transaction has been open for long."""
    rows, role = facts["transactions"], facts["server"][0]["role"]
    old = [row for row in rows if row["seconds"] is not None and row["seconds"] >= limits.transaction.total_seconds()]
    if old:
        first = old[0]
        return warning(
            f"process {first['pid']} of role {first['role']} has had a transaction open for {short(first['seconds'])}: "
            "dead rows can't be removed, and relays go through all rows that were added since",
            f"select pg_terminate_backend({first['pid']}) -- or end that transaction yourself",
            transactions=old,
        )
    hidden = sum(row["seconds"] is None for row in rows)
    if hidden:
        return skipped(
            f"role {role} can't see the age of {count(hidden, 'transaction')}; grant pg_read_all_stats to {role}",
            hidden=hidden,
        )
    oldest = max((row["seconds"] for row in rows), default=0.0)
    return ok(f"the oldest transaction is {short(oldest)} old", seconds=oldest)


@CHECKS.check("prepared-transactions", "prepared_transactions")
def prepared_transactions(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """No prepared transaction was left behind."""
    old = [
        row for row in facts["prepared_transactions"] if row["seconds"] >= limits.prepared_transaction.total_seconds()
    ]
    for row in old:
        gid = literal(row["gid"])
        yield warning(
            f"the prepared transaction {row['gid']!r} of role {row['role']} is {short(row['seconds'])} old: it keeps "
            "its locks, and dead rows can't be removed",
            f"rollback prepared {gid} -- or commit prepared {gid}",
            **row,
        )
    if not old:
        yield ok("no prepared transaction is old", prepared=len(facts["prepared_transactions"]))


@CHECKS.check("replication-slots", "replication_slots")
def replication_slots(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """No replication slot is unused."""
    for row in facts["replication_slots"]:
        kept = "" if row["bytes"] is None else f" and keeps {row['bytes']:,} bytes of WAL"
        yield warning(
            f"nothing receives from the replication slot {row['name']}{kept}: the disk may fill up, and dead rows stay",
            f"select pg_drop_replication_slot({literal(row['name'])}) -- if its receiver does not come back",
            **row,
        )
    if not facts["replication_slots"]:
        yield ok("no replication slot is unused")


@CHECKS.check("transaction-ids", "transaction_ids")
def transaction_ids(facts: Facts, limits: Limits) -> Verdict:
    """The oldest transaction id is young enough."""
    (row,) = facts["transaction_ids"]
    text = f"the oldest transaction id is {row['age']:,} transactions old"
    fix = "vacuum (freeze, verbose) -- after ending what holds it up: oldest-transaction, prepared-transactions"
    if row["age"] >= limits.transaction_ids_error:
        return error(f"{text}; at 2,000,000,000 the server accepts no more writes", fix, **row)
    if row["age"] >= limits.transaction_ids:
        return warning(f"{text}; autovacuum should have frozen it at {row['freeze_max_age']:,}", fix, **row)
    return ok(text, **row)


@CHECKS.check("autovacuum", "autovacuum")
def autovacuum(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """Autovacuum is on, for the server and for each table."""
    (row,), name = facts["autovacuum"], facts["schema_name"]
    for setting, on in (("autovacuum", row["running"]), ("track_counts", row["counting"])):
        if not on:
            fix = f"alter system set {setting} = on; select pg_reload_conf()"
            yield error(f"the server has {setting} = off, so dead rows are never removed", fix, **row)
    for table in row["disabled"]:
        yield error(
            f"autovacuum is off for {name}.{table}, so its dead rows are never removed",
            f"alter table {name}.{table} reset (autovacuum_enabled)",
            table=table,
        )
    if row["running"] and row["counting"] and not row["disabled"]:
        yield ok("autovacuum is on", **row)


@CHECKS.check("dead-rows", "dead_rows")
def dead_rows(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """No table consists of dead rows."""
    name = facts["schema_name"]
    bad = [
        row
        for row in facts["dead_rows"]
        if row["dead"] > limits.dead_rows and row["dead"] > limits.dead_share * (row["live"] + row["dead"])
    ]
    for row in bad:
        vacuumed = row["vacuumed_seconds"]
        last = "never vacuumed" if vacuumed is None else f"last vacuumed {short(vacuumed)} ago"
        yield warning(
            f"{name}.{row['table']} has {row['dead']:,} dead rows beside {row['live']:,} live ones, {last}",
            f"vacuum (verbose) {name}.{row['table']}",
            **row,
        )
    if not bad:
        yield ok("no table has many dead rows", most=max((row["dead"] for row in facts["dead_rows"]), default=0))


@CHECKS.check("hot-updates", "hot_updates", "indexes")
def hot_updates(facts: Facts, limits: Limits) -> Verdict:
    """Updates of `lanes` stay on their page (HOT)."""
    name, rows = facts["schema_name"], facts["hot_updates"]
    updates, hot = (rows[0]["updates"], rows[0]["hot"]) if rows else (0, 0)
    share = hot / updates if updates else 1.0
    evidence = {"updates": updates, "hot": hot}
    if updates < limits.hot_updates:
        return ok(f"{count(updates, 'update')} of lanes so far, too few to judge", **evidence)
    if share >= limits.hot_share:
        return ok(f"{share:.0%} of {updates:,} updates of lanes are HOT", **evidence)
    others = [row["name"] for row in facts["indexes"] if row["table"] == "lanes" and row["name"] != "lanes_pkey"]
    fix = (
        "; ".join(f"drop index concurrently {name}.{identifier(each)}" for each in others)
        or f"end old transactions (oldest-transaction), then: alter table {name}.lanes set (fillfactor = 10); "
        f"vacuum full {name}.lanes"
    )
    return warning(
        f"only {share:.0%} of {updates:,} updates of lanes are HOT, so the table and its index grow",
        f"{fix}; select pg_stat_reset_single_table_counters('{name}.lanes'::regclass)",
        **evidence,
        other_indexes=others,
    )
