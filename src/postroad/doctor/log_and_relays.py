"""Checks of the database and its schema, the log, its sinks and their relays. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from postroad.doctor.words import count, shell, short
from postroad.findings import SCHEMA_MISSING, Checks, error, ok, skipped, warning
from postroad.stores.migrations import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.findings import Facts, Limits, Verdict

__all__ = ["CHECKS"]

CHECKS: Final = Checks("Log and relays")

_HOUR: Final = 3600.0


@CHECKS.check("database", "database")
def database(facts: Facts, limits: Limits) -> Verdict:
    """The database can be reached."""
    found = facts["database"]
    if found["error"] is not None:
        return error(found["error"], "check the URL (`database`); of a server also the network and its log", **found)
    return ok("the database can be reached")


@CHECKS.check("schema", "schema_name")
def schema(facts: Facts, limits: Limits) -> Verdict:
    """The schema's version fits this postroad."""
    name = facts["schema_name"]
    if facts.why_not("schema_version") == SCHEMA_MISSING:
        return error(f"schema {name!r} is not there", f"postroad migrate --schema {name}", needed=SCHEMA_VERSION)
    (row,) = facts["schema_version"]
    version, min_client = row["version"] or 0, row["min_client"] or 0
    evidence = {"version": version, "min_client": min_client, "needed": SCHEMA_VERSION}
    if version < SCHEMA_VERSION:
        return error(
            f"schema {name!r} is at version {version}, and this postroad needs {SCHEMA_VERSION}",
            f"postroad migrate --schema {name}",
            **evidence,
        )
    if min_client > SCHEMA_VERSION:
        return error(
            f"schema {name!r} asks for a client of version {min_client}, and this postroad knows {SCHEMA_VERSION}",
            "pip install --upgrade postroad",
            **evidence,
        )
    return ok(f"schema {name!r} is at version {version}", **evidence)


@CHECKS.check("forgotten-sink", "sinks")
def forgotten_sink(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """Every sink has been served lately: retention keeps all messages for one that has not."""
    forgotten = [row for row in facts["sinks"] if row["unserved_seconds"] >= limits.unserved.total_seconds()]
    for row in forgotten:
        yield error(
            f"no relay has served sink {row['sink']!r} for {short(row['unserved_seconds'])}, so no message is deleted "
            "for any sink",
            f"start a relay: postroad relay --sink {shell(row['sink'])}; or: postroad sink remove {shell(row['sink'])}",
            sink=row["sink"],
            unserved_seconds=row["unserved_seconds"],
        )
    if not facts["sinks"]:
        yield skipped("there is no sink yet; the first relay creates one")
    elif not forgotten:
        yield ok(f"{count(len(facts['sinks']), 'sink')}, each served lately", sinks=[r["sink"] for r in facts["sinks"]])


@CHECKS.check("log-age", "log_age", "relay_settings")
def log_age(facts: Facts, limits: Limits) -> Verdict:
    """The oldest message is not much older than `retain`."""
    retain = facts["relay_settings"].seconds("retain")
    if not facts["log_age"]:
        return ok("the log is empty", retain_seconds=retain)
    (row,) = facts["log_age"]
    text = f"the oldest message is {short(row['seconds'])} old, and retain is {short(retain)}"
    if row["seconds"] <= max(limits.retain_factor * retain, _HOUR):
        return ok(text, **row, retain_seconds=retain)
    if row["deferred"]:
        why, fix = "a deferred message keeps it", "postroad dead list; postroad messages --state held"
    elif row["slowest"] is None:
        why, fix = "no sink exists yet, so all messages are kept", "postroad relay"
    elif row["slowest_position"] < row["position"]:
        why, fix = (
            f"sink {row['slowest']!r} is behind",
            f"postroad status; postroad relay --sink {shell(row['slowest'])}",
        )
    else:
        why, fix = "every sink has passed it, and nothing deletes it", "start a relay, or: postroad cleanup"
    return warning(f"{text}: {why}", fix, **row, retain_seconds=retain)


@CHECKS.check("spare-relays", "sinks")
def spare_relays(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """No sink with several lanes has more relays than lanes."""
    spare = [row for row in facts["sinks"] if row["relays"] > row["lanes"] > 1]
    for row in spare:
        yield warning(
            f"sink {row['sink']!r} has {row['relays']} relays and {row['lanes']} lanes: "
            f"{row['relays'] - row['lanes']} of them only stand by",
            "stop the spare relays; a sink's lanes are fixed, so for more of them create another sink with --lanes",
            sink=row["sink"],
            relays=row["relays"],
            lanes=row["lanes"],
        )
    if not spare:
        yield ok("no sink has more relays than lanes", relays={row["sink"]: row["relays"] for row in facts["sinks"]})


@CHECKS.check("versions", "relays")
def versions(facts: Facts, limits: Limits) -> Verdict:
    """All relays run the same version."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in facts["relays"]:
        if row["alive"]:
            found[row["version"]].append(f"{row['host']} ({row['pid']})")
    if len(found) > 1:
        return warning(
            f"relays run {len(found)} versions: {', '.join(sorted(found))}",
            "finish the deploy: restart the relays of the older version",
            versions=dict(found),
        )
    return ok(f"all relays run {next(iter(found))}" if found else "no relay is running", versions=dict(found))


@CHECKS.check("flapping-leases", "relays", "epoch_samples")
def flapping_leases(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """Lanes keep their owners."""
    before, after = facts["epoch_samples"]
    taken = {
        f"{sink}/{lane}": after[sink, lane] - epoch for (sink, lane), epoch in before.items() if (sink, lane) in after
    }
    often = {lane: times for lane, times in taken.items() if times >= limits.taken}
    died = [row for row in facts["relays"] if not row["alive"] and row["heartbeat_seconds"] < _HOUR]
    if often:
        yield warning(
            f"{count(len(often), 'lane')} changed owners {max(often.values())} times within a second or two",
            "read the relays' logs for lane_lost; a longer lease helps slow machines: lease = 30s",
            taken=often,
        )
    if len(died) >= limits.died_relays:
        yield warning(
            f"{len(died)} relays died within the last hour",
            "postroad relays; read their logs and the kernel's for the reason (out of memory, kill -9)",
            died=[f"{row['host']} ({row['pid']})" for row in died],
        )
    if not often and len(died) < limits.died_relays:
        yield ok("lanes keep their owners", died=len(died))


@CHECKS.check("paused", "sinks")
def paused(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """No sink has been paused for long."""
    limit = limits.paused.total_seconds()
    long = [row for row in facts["sinks"] if row["paused_seconds"] is not None and row["paused_seconds"] >= limit]
    for row in long:
        yield warning(
            f"sink {row['sink']!r} has been paused for {short(row['paused_seconds'])}, by {row['paused_by']}",
            f"postroad resume {shell(row['sink'])}",
            sink=row["sink"],
            paused_seconds=row["paused_seconds"],
            who=row["paused_by"],
        )
    if not long:
        yield ok("no sink has been paused for long")


@CHECKS.check("held-keys", "holds")
def held_keys(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """No key has been held for long."""
    long = [row for row in facts["holds"] if row["seconds"] >= limits.held.total_seconds()]
    for row in long[:10]:
        yield warning(
            f"key {row['key']!r} has been held at sink {row['sink']!r} for {short(row['seconds'])}, by {row['who']}",
            f"postroad key release {shell(row['key'])} --sink {shell(row['sink'])}",
            **row,
        )
    if not long:
        yield ok("no key has been held for long", held=len(facts["holds"]))
