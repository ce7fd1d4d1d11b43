"""Checks of what a program needs that carries the log by logical replication, such as Debezium. Pure.

They are made for a sink that follows a replication slot, and by `postroad debezium`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from postroad.doctor.words import identifier, literal
from postroad.findings import Checks, error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.findings import Facts, Limits, Verdict

__all__ = ["CHECKS", "Carrier"]

CHECKS: Final = Checks("Logical replication")


class Carrier(msgspec.Struct, frozen=True):
    """What is expected of the program that carries the log: the fact `carrier`."""

    slot: str
    publication: str | None = None
    """None: any that has the log."""
    role: str | None = None
    """None: any that may."""


@CHECKS.check("wal-level", "replication", "carrier")
def wal_level(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """The server writes what logical replication needs, and has a slot and a connection to spare."""
    (its,), wanted = facts["replication"], facts["carrier"]
    exists = any(row["name"] == wanted.slot for row in facts["logical_slots"]) if "logical_slots" in facts else False
    if its["wal_level"] != "logical":
        fix = "alter system set wal_level = logical; then restart the server"
        yield error(f"wal_level is {its['wal_level']!r}; logical replication needs 'logical'", fix, **its)
    if not exists and its["slots_used"] >= its["slots"]:
        fix = f"alter system set max_replication_slots = {its['slots'] + 5}; then restart the server"
        yield error(f"all {its['slots']} replication slots (max_replication_slots) are used", fix, **its)
    if its["senders_used"] >= its["senders"]:
        fix = f"alter system set max_wal_senders = {its['senders'] + 5}; then restart the server"
        yield error(f"all {its['senders']} connections for replication (max_wal_senders) are used", fix, **its)
    if its["wal_level"] == "logical":
        used = f"{its['slots_used']} of {its['slots']} slots and {its['senders_used']} of {its['senders']} connections"
        yield ok(f"wal_level is 'logical'; {used} are used", **its)


@CHECKS.check("publication", "publications", "carrier")
def publication(facts: Facts, limits: Limits) -> Verdict:
    """A publication has the rows that are inserted into the log, whole, and nothing else."""
    wanted, table = facts["carrier"].publication, f"{facts['schema_name']}.outbox"
    name = wanted or "postroad"
    found = [row for row in facts["publications"] if wanted is None or row["name"] == wanted]
    create = f"create publication {identifier(name)} for table {table} with (publish = 'insert')"
    if not found:
        called = "" if wanted is None else f" {wanted!r}"
        return error(f"there is no publication{called} with {table}", create)
    row = next((row for row in found if row["inserts"] and not (row["filtered"] or row["columns"])), None)
    if row is None:
        again = f"drop publication {identifier(found[0]['name'])}; {create}"
        text = f"the publication {found[0]['name']!r} does not publish every inserted row of {table}, with all columns"
        return error(text, again, **found[0])
    if row["more"]:
        return warning(
            f"the publication {row['name']!r} also publishes what retention deletes, which no program needs",
            f"alter publication {identifier(row['name'])} set (publish = 'insert')",
            **row,
        )
    return ok(f"the publication {row['name']!r} has the inserted rows of {table}", **row)


@CHECKS.check("replication-role", "replication_roles", "carrier")
def replication_role(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """A role may read the log by replication."""
    wanted, schema = facts["carrier"].role, facts["schema_name"]
    able = [row for row in facts["replication_roles"] if all(row[right] for right in _RIGHTS)]
    if wanted is None:
        name = able[0]["role"] if able else None
        if name is None:
            yield error("no role may read the log by replication", "postroad debezium --role ROLE says what it needs")
        else:
            yield ok(f"the role {name!r} may read the log by replication", roles=[row["role"] for row in able])
        return
    row = next((row for row in facts["replication_roles"] if row["role"] == wanted), None)
    if row is None:
        yield error(f"there is no role {wanted!r}", f"create role {identifier(wanted)} login replication password '…'")
        return
    for right, (lacks, fix) in _RIGHTS.items():
        if not row[right]:
            yield error(f"the role {wanted!r} {lacks}", fix.format(role=identifier(wanted), schema=schema), **row)
    if row in able:
        yield ok(f"the role {wanted!r} may read the log by replication", **row)


_RIGHTS: Final = {
    "login": ("may not log in", "alter role {role} login"),
    "replication": ("may not replicate", "alter role {role} replication"),
    "usage": ("may not use the schema of the log", "grant usage on schema {schema} to {role}"),
    "reads": ("may not read the log", "grant select on {schema}.outbox to {role}"),
}


@CHECKS.check("followed-slot", "logical_slots", "carrier")
def followed_slot(facts: Facts, limits: Limits) -> Verdict:
    """The replication slot is read, and is the one that its sink follows."""
    name = facts["carrier"].slot
    row = next((row for row in facts["logical_slots"] if row["name"] == name), None)
    dropped = f"select pg_drop_replication_slot({literal(name)})"
    if row is None:
        return ok(f"there is no replication slot {name!r} yet; Debezium creates it when it is started")
    adopt = "have what was not carried carried, then: postroad sink adopt-slot SINK"
    problems = (
        (not row["of_this_database"], f"the replication slot {name!r} belongs to another database", "use another name"),
        (row["plugin"] != "pgoutput", f"the replication slot {name!r} is of {row['plugin']}, not pgoutput", dropped),
        (
            row["wal_status"] == "lost",
            f"the replication slot {name!r} has lost write-ahead log that is needed",
            dropped,
        ),
        (row["lost"], f"a sink is paused, because {row['lost']}", adopt),
    )
    for wrong, text, fix in problems:
        if wrong:
            return error(text, fix, **row)
    if not row["active"]:
        fix = "start Debezium; until then the server keeps all of its write-ahead log"
        return warning(f"no program reads the replication slot {name!r}", fix, **row)
    return ok(f"the replication slot {name!r} is read, and {row['behind_bytes']:,} bytes are not confirmed", **row)
