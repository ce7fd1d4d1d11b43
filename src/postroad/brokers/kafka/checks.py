"""The checks of `postroad doctor` on Kafka. Pure: `facts` asks the cluster. This module imports no driver.

They judge the topics that the newest messages of the log go to.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from postroad.findings import Checks, error, ok, skipped, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.findings import Facts, Limits, Verdict

__all__ = ["CHECKS"]

CHECKS: Final = Checks("Kafka")

GOOD_COPIES: Final = 3


@CHECKS.check("kafka-topics", "kafka_topics", "kafka_place")
def topics(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """The topics that recent messages go to exist."""
    rows = facts["kafka_topics"]
    for row in rows:
        if row["state"] in {"missing", "unknown"}:
            yield _missing(row, facts, "its messages wait")
    if all(row["state"] == "hidden" for row in rows) and rows:
        yield skipped("this user may not see the topics; see kafka-write-rights")
    elif not any(row["state"] in {"missing", "unknown"} for row in rows):
        names = [row["topic"] for row in _there(facts)]
        yield ok(f"there are {', '.join(names)}" if names else "no recent message goes to a topic", topics=names)


@CHECKS.check("kafka-dead-letter-topic", "relay_settings", "kafka_dead_letters", "kafka_place")
def dead_letter_topic(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """The dead-letter topic exists."""
    if facts["relay_settings"].dead_letter_topic is None:
        yield ok("dead_letter_topic is not set: dead messages stay in the log")
        return
    for row in facts["kafka_dead_letters"]:
        if row["state"] == "hidden" or row.get("may_write") is False:
            yield _no_right(row, facts)
        elif row["state"] != "there":
            yield _missing(row, facts, "copies of dead messages are not published")
        else:
            yield ok(f"the dead-letter topic {row['topic']!r} exists", **row)


@CHECKS.check("kafka-write-rights", "kafka_topics", "kafka_place")
def write_rights(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """The user may write to these topics."""
    denied = [row for row in facts["kafka_topics"] if row["state"] == "hidden" or row.get("may_write") is False]
    for row in denied:
        yield _no_right(row, facts)
    if not denied:
        unknown = [
            row["topic"] for row in facts["kafka_topics"] if row["state"] == "there" and row["may_write"] is None
        ]
        yield skipped("the brokers do not tell what a user may do") if unknown else ok("the user may write to them")


@CHECKS.check("kafka-replicas", "kafka_topics")
def replicas(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """Every partition has a leader and enough replicas in sync."""
    rows = _there(facts)
    ill = False
    for row in rows:
        name, needed = row["topic"], row["min_in_sync"] or 1
        short = f"a partition of topic {name!r} has {row['in_sync']} of {row['copies']} replicas in sync"
        if row["leaderless"]:
            text = f"{row['leaderless']} of {row['partitions']} partitions of topic {name!r} have no leader"
            yield error(f"{text}: their messages wait", "start the brokers that have these partitions", **row)
        elif row["in_sync"] < needed <= row["copies"]:
            text = f"{short}, and min.insync.replicas is {needed}: its messages wait"
            yield error(text, "start the brokers that are down, or wait until they have caught up", **row)
        elif row["in_sync"] < row["copies"]:
            yield warning(short, "start the brokers that are down; if all run, look at their logs", **row)
        else:
            continue
        ill = True
    if not ill:
        yield ok("all replicas are in sync" if rows else "no topic to check")


@CHECKS.check("kafka-replication", "kafka_topics", "kafka_place")
def replication(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """A confirmed message is on several brokers, and one of them may stop."""
    rows, ill = _there(facts), False
    for row in rows:
        name, copies, needed = row["topic"], row["copies"], row["min_in_sync"]
        if needed is not None and needed > copies:
            text = f"topic {name!r} has min.insync.replicas {needed} and {copies} replicas: it takes no message"
            yield error(text, _set(facts, name, "min.insync.replicas", max(1, copies - 1)), **row)
        elif copies == 1:
            text = f"topic {name!r} has one replica: a broker that is lost takes confirmed messages with it"
            yield warning(text, _more_copies(facts, name), **row)
        elif needed == 1:
            text = f"topic {name!r} has min.insync.replicas 1: a message may be confirmed by one broker alone"
            yield warning(text, _set(facts, name, "min.insync.replicas", 2), **row)
        elif needed == copies:
            text = f"topic {name!r} has {copies} replicas, all of which must confirm (min.insync.replicas {needed})"
            yield warning(f"{text}: its messages wait while one broker is down", _more_copies(facts, name), **row)
        else:
            continue
        ill = True
    if not ill:
        yield _well("each has several replicas, and min.insync.replicas of them confirm", rows, "min_in_sync")


@CHECKS.check("kafka-unclean-election", "kafka_topics", "kafka_place")
def unclean_election(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """No broker that lacks confirmed messages can become a partition's leader."""
    rows = _there(facts)
    unclean = [row for row in rows if row["unclean"]]
    for row in unclean:
        yield warning(
            f"topic {row['topic']!r} has unclean.leader.election.enable true: a broker that lacks confirmed messages "
            "may take over, and they are lost",
            _set(facts, row["topic"], "unclean.leader.election.enable", "false"),
            **row,
        )
    if not unclean:
        yield _well("unclean.leader.election.enable is false", rows, "unclean")


@CHECKS.check("kafka-message-size", "kafka_topics", "kafka_size", "kafka_place")
def message_size(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """The topics take messages as large as the relay sends."""
    size, rows, ill = facts["kafka_size"], _there(facts), False
    largest, most = size["bytes"] or 0, size["max_message_size"]
    if largest > most:
        ill = True
        yield error(
            f"a recent message has {largest:,} bytes, and kafka.max_message_size is {most:,}: it is dead",
            f"kafka.max_message_size = {2 * largest}, and the topic's max.message.bytes as large; then: "
            "postroad dead retry",
            **size,
        )
    for row in rows:
        limit = row["max_message_bytes"]
        if limit is None or limit >= most:
            continue
        ill = True
        fix = f"{_set(facts, row['topic'], 'max.message.bytes', most)}; or: kafka.max_message_size = {limit}"
        text = f"topic {row['topic']!r} takes {limit:,} bytes (max.message.bytes)"
        if limit < largest <= most and size["compression"] == "none":
            yield error(f"{text}, and a recent message has {largest:,}: it is dead", fix, **row, **size)
        else:
            yield warning(
                f"{text}, less than kafka.max_message_size, {most:,}: a batch that is larger is refused, and its "
                "messages are sent again, one by one",
                fix,
                **row,
                **size,
            )
    if not ill:
        yield _well(f"each takes {most:,} bytes", rows, "max_message_bytes")


# -- words -----------------------------------------------------------------------------------------------------------


def _there(facts: Facts) -> list[dict[str, Any]]:
    return [row for row in facts["kafka_topics"] if row["state"] == "there"]


def _well(text: str, rows: list[dict[str, Any]], setting: str) -> Verdict:
    """All is well, as far as the user may read the setting."""
    if not rows:
        return ok("no topic to check")
    if any(row[setting] is None for row in rows):
        return skipped("this user may not read the topics' settings (the right DescribeConfigs)")
    return ok(text, topics=[row["topic"] for row in rows])


def _missing(row: dict[str, Any], facts: Facts, consequence: str) -> Verdict:
    place, name = facts["kafka_place"], row["topic"]
    copies = min(GOOD_COPIES, place["brokers"])
    create = f"{_tool('topics', facts)} --create --topic {name} --partitions 6 --replication-factor {copies}"
    if row["state"] == "unknown":
        return error(f"topic {name!r} can't be asked for: {row['error']}", "look at the brokers' logs", **row)
    if place["creates"]:
        text = (
            f"topic {name!r} does not exist; the brokers create it with their own defaults (auto.create.topics.enable)"
        )
        return warning(text, create, **row)
    return error(f"topic {name!r} does not exist: {consequence}", create, **row)


def _no_right(row: dict[str, Any], facts: Facts) -> Verdict:
    user, name = facts["kafka_place"]["user"], row["topic"]
    who = "the client" if user is None else f"user {user!r}"
    principal = shlex.quote(f"User:{user or 'ANONYMOUS'}")
    hidden = ", or it does not exist" if row["state"] == "hidden" else ""
    return error(
        f"{who} may not write to topic {name!r}{hidden}",
        f"{_tool('acls', facts)} --add --allow-principal {principal} --producer --topic {name}",
        **row,
    )


def _more_copies(facts: Facts, topic: str) -> str:
    if facts["kafka_place"]["brokers"] < GOOD_COPIES:
        return f"run {GOOD_COPIES} brokers, and give topic {topic} {GOOD_COPIES} replicas: kafka-reassign-partitions.sh"
    return f"give topic {topic} {GOOD_COPIES} replicas: kafka-reassign-partitions.sh"


def _set(facts: Facts, topic: str, setting: str, value: Any) -> str:
    return (
        f"{_tool('configs', facts)} --alter --entity-type topics --entity-name {topic} --add-config {setting}={value}"
    )


def _tool(name: str, facts: Facts) -> str:
    return f"kafka-{name}.sh --bootstrap-server {facts['kafka_place']['hosts']}"
