"""Checks that make sense for any broker; a broker has those of its own in its module, as `Broker.checks`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.doctor.words import count, short
from postroad.findings import Checks, error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.findings import Facts, Limits, Verdict

__all__ = ["CHECKS"]

CHECKS: Final = Checks("Broker")


@CHECKS.check("broker", "broker_connection")
def broker(facts: Facts, limits: Limits) -> Verdict:
    """The broker can be reached, and accepts the user."""
    found = facts["broker_connection"]
    if found.get("error"):
        fix = found.get("fix", "check the URL (`to`), the network and the broker's log")
        return error(f"{found['place']} can't be used: {found['error']}", fix, **found)
    return ok(f"{found['place']} answers: {found['server']}", **found)


@CHECKS.check("broker-certificate", "broker_certificate")
def broker_certificate(facts: Facts, limits: Limits) -> Verdict:
    """The broker's certificate is valid, for a while."""
    found = facts["broker_certificate"]
    if found.get("error"):
        return error(f"the certificate is not accepted: {found['error']}", found["fix"], **found)
    if not found["verified"]:
        return warning("the certificate is not verified (no_verify_ssl=1)", "use cafile=FILE instead", **found)
    left = found["seconds_left"]
    text = f"the certificate is valid until {found['until']}"
    if left < limits.certificate.total_seconds():
        return warning(f"{text}, for {short(left)}", "renew the broker's certificate", **found)
    return ok(text, **found)


@CHECKS.check("unbound-topics", "blocked_routes")
def unbound_topics(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """The broker takes the messages of every recent topic."""
    for row in facts["blocked_routes"]:
        wait = "waits" if row["messages"] == 1 else "wait"
        yield error(
            f"{count(row['messages'], 'message')} of sink {row['sink']!r} {wait} for the route {row['route']!r}, for "
            f"{short(row['seconds'])}: {row['error'] or 'the broker takes none'}",
            "bind a queue to it, create its topic, grant Write on it, or make room, as the reason says; the messages "
            "then go by themselves. Or drop what no consumer has subscribed to: unroutable = drop",
            **row,
        )
    if not facts["blocked_routes"]:
        yield ok("no message waits for a route")
