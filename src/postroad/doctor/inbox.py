"""Checks of consumers and their inbox, and of files with secrets. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.doctor.words import count, literal, shell, short
from postroad.findings import Checks, error, ok, skipped, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.findings import Facts, Limits, Verdict

__all__ = ["CHECKS"]

CHECKS: Final = Checks("Inbox and files")


@CHECKS.check("inbox-retention", "consumers_given")
def inbox_retention(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """An inbox remembers messages for as long as they can be delivered again."""
    for each in facts["consumers_given"]:
        evidence = {"consumer": each.name, "retain_seconds": each.retain, "needed_seconds": each.needed}
        if each.retain is None or each.retain >= each.needed:
            remembers = "for ever" if each.retain is None else f"for {short(each.retain)}"
            yield ok(f"consumer {each.name!r} remembers {remembers}", **evidence)
        else:
            yield warning(
                f"consumer {each.name!r} remembers for {short(each.retain)}, and a message can be delivered again for "
                f"{short(each.needed)} (retain, retries and the broker's redelivery): it would take effect twice",
                f"Consumer(..., retain='{each.needed / 86400 + 1:.0f}d')",
                **evidence,
            )


@CHECKS.check("consumers", "consumers")
def consumers(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """Every consumer that was started and has not ended is alive."""
    dead = [row for row in facts["consumers"] if not row["alive"]]
    for row in dead:
        yield error(
            f"consumer {row['consumer']!r} is not alive: {row['last']} was last seen "
            f"{short(row['heartbeat_seconds'])} ago",
            "start it: postroad consume --app MODULE:NAME; and read its log for the reason of its end",
            **row,
        )
    if not facts["consumers"]:
        yield skipped("no consumer is running, or was killed within the last week")
    elif not dead:
        yield ok("every consumer is alive", alive={row["consumer"]: row["alive"] for row in facts["consumers"]})


@CHECKS.check("running-attempts", "running_attempts")
def running_attempts(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """No attempt of a handler was left behind as running."""
    limit, name = limits.running_attempt.total_seconds(), facts["schema_name"]
    old = [row for row in facts["running_attempts"] if row["seconds"] >= limit]
    for row in old:
        yield warning(
            f"consumer {row['consumer']!r} has {count(row['messages'], 'attempt')} that began up to "
            f"{short(row['seconds'])} ago and did not end: its process died, and the broker has not delivered again",
            f"start the consumer; if its queue is gone: delete from {name}.inbox_attempts where consumer = "  # noqa: S608 - shown, not run
            f"{literal(row['consumer'])} and running",
            **row,
        )
    if not old:
        yield ok("no attempt was left behind", running=sum(row["messages"] for row in facts["running_attempts"]))


@CHECKS.check("secret-files", "secret_files")
def secret_files(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """Files with secrets can be read by their owner and group only."""
    open_to_all = [each for each in facts["secret_files"] if each.readable_by_all]
    for each in open_to_all:
        yield warning(
            f"every user of this machine can read {each.path} ({each.what})",
            f"chmod o-rwx {shell(each.path)}",
            file=each.path,
            what=each.what,
        )
    if not open_to_all:
        files = [each.path for each in facts["secret_files"]]
        yield ok(
            "no file with a secret can be read by all" if files else "the settings name no file with a secret",
            files=files,
        )
