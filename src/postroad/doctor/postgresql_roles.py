"""Checks of PostgreSQL's roles, limits, timeouts and clock. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from postroad.doctor.words import identifier, shell, short
from postroad.findings import Checks, error, ok, skipped, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.findings import Facts, Limits, Verdict

__all__ = ["CHECKS"]

CHECKS: Final = Checks("PostgreSQL")

_UNITS: Final = {"us": 0.001, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_VALUE: Final = re.compile(r"\s*([\d.]+)\s*(us|ms|s|min|h|d)?\s*")


def milliseconds(value: str) -> float:
    """A setting of the server as milliseconds: 5000, 5s or 1.5h."""
    found = _VALUE.fullmatch(value)
    return 0.0 if found is None else float(found[1]) * _UNITS[found[2] or "ms"]


@CHECKS.check("timeouts", "timeouts")
def timeouts(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """No timeout of the server ends what a relay does."""
    least = {
        "statement_timeout": (limits.statement_timeout, "cancels statements of"),
        "transaction_timeout": (limits.statement_timeout, "ends transactions of"),
        "idle_session_timeout": (limits.idle_session_timeout, "ends idle sessions of"),
    }
    well = True
    for row in facts["timeouts"]:
        limit, does = least[row["name"]]
        set_to = milliseconds(row["value"]) / 1000
        if 0 < set_to < limit.total_seconds():
            well = False
            yield warning(
                f"{row['name']} = {short(set_to)} {does} role {row['role']}; a relay's may take or wait longer",
                f"alter role {identifier(row['role'])} in database {identifier(row['database'])} set {row['name']} = 0",
                **row,
            )
    if well:
        yield ok("no timeout is too short for a relay", timeouts=facts["timeouts"])


@CHECKS.check("connections", "connections")
def connections(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """There are connections left for another relay."""
    (row,) = facts["connections"]
    kinds = (
        ("the server", row["used"], row["allowed"], "raise max_connections, or put a pooler before the applications"),
        (
            f"database {row['database']}",
            row["used_by_database"],
            row["allowed_for_database"],
            f"alter database {identifier(row['database'])} connection limit -1",
        ),
        (
            f"role {row['role']}",
            row["used_by_role"],
            row["allowed_for_role"],
            f"alter role {identifier(row['role'])} connection limit -1",
        ),
    )
    short_of = [
        (what, used, most, fix) for what, used, most, fix in kinds if 0 <= most < used + limits.free_connections
    ]
    for what, used, most, fix in short_of:
        yield warning(
            f"{what} has {used} of {most} connections in use, and a relay takes up to 8",
            fix,
            used=used,
            allowed=most,
        )
    if not short_of:
        yield ok(f"{row['used']} of {row['allowed']} connections are in use", **row)


@CHECKS.check("clock", "clock")
def clock(facts: Facts, limits: Limits) -> Verdict:
    """The clocks of the server and of this machine agree."""
    found = facts["clock"]
    off = max(0.0, abs(found["difference_seconds"]) - found["uncertainty_seconds"])
    text = f"the server's clock and this machine's differ by {off:.1f} s"
    fix = "synchronize both clocks, with chrony or systemd-timesyncd: timedatectl set-ntp true"
    if off > limits.clock_error.total_seconds():
        return error(f"{text}: scheduled messages and ages are wrong by that", fix, **found)
    if off > limits.clock.total_seconds():
        return warning(text, fix, **found)
    return ok(text, **found)


@CHECKS.check("application-rights", "payload_readers")
def application_rights(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """Roles that add messages can't read the payloads of others."""
    name = facts["schema_name"]
    for row in facts["payload_readers"]:
        role = row["role"]
        yield warning(
            f"role {role} adds messages and can read the payloads of all others",
            f"revoke all on {name}.outbox, {name}.scheduled from {identifier(role)}; then: postroad migrate --grants "
            f"{shell('application=' + role)} | psql DATABASE",
            role=role,
        )
    if not facts["payload_readers"]:
        yield ok("no role that adds messages can read payloads")


@CHECKS.check("relay-rights", "relay_roles")
def relay_rights(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """No relay is a superuser."""
    for row in facts["relay_roles"]:
        if row["superuser"]:
            yield warning(
                f"a relay is connected as the superuser {row['role']}",
                "create role relay login; then: postroad migrate --grants relay=relay | psql DATABASE",
                **row,
            )
    if not facts["relay_roles"]:
        yield skipped("no relay is connected")
    elif not any(row["superuser"] for row in facts["relay_roles"]):
        yield ok("no relay is a superuser", roles=[row["role"] for row in facts["relay_roles"]])
