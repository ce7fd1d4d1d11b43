"""The checks of `postroad doctor` on RabbitMQ. Pure: `facts` asks the server. This module imports no driver.

AMQP can't list bindings and queues, nor tell a server's configuration; what it can't know is skipped, with the reason.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from postroad.findings import Checks, error, ok, skipped, warning
from postroad.message import LARGEST_PAYLOAD_OF_ALL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from postroad.findings import Facts, Limits, Verdict

__all__ = ["CHECKS", "DELIVERY_LIMIT", "QUEUE_TYPE", "UNLIMITED", "dead_letter_arguments", "version_of"]

CHECKS: Final = Checks("RabbitMQ")

DEFAULT_LIMIT: Final = 16 * 1024 * 1024
"""The largest message that RabbitMQ 4 takes unless it is configured."""
DEFAULT_DELIVERIES: Final = 20
"""After so many deliveries without an ack, a quorum queue of RabbitMQ 4 drops a message, unless it is configured."""


QUEUE_TYPE: Final = "x-queue-type"
DELIVERY_LIMIT: Final = "x-delivery-limit"
UNLIMITED: Final[dict[str, Any]] = {QUEUE_TYPE: "quorum", DELIVERY_LIMIT: -1}
"""A quorum queue that drops nothing. Only RabbitMQ 4 takes -1 for no limit: 3.x takes it for 0, and has none unless it
is given.
"""


def dead_letter_arguments(arguments: Mapping[str, Any], version: str) -> dict[str, Any]:
    """How a consumer's new dead-letter queue is declared, whose other queues have these arguments.

    It has their type: a classic queue is unavailable while its node is down, and then a consumer of quorum queues could
    not start. It has no limit of deliveries: whenever an operator looks at the letters, each is delivered and returned.
    """
    if arguments.get(QUEUE_TYPE) == "quorum" and version_of(version) >= (4, 0):
        return UNLIMITED
    return {name: value for name, value in arguments.items() if name == QUEUE_TYPE}


def version_of(text: str) -> tuple[int, int]:
    """The first two numbers of a version such as 3.13.7 or 4.0.0-rc.1; zeros if there are none."""
    found = re.match(r"(\d+)(?:\.(\d+))?", text)
    return (0, 0) if found is None else (int(found[1]), int(found[2] or 0))


@CHECKS.check("rabbitmq-exchange", "rabbitmq_exchange")
def exchange(facts: Facts, limits: Limits) -> Verdict:
    """The exchange is there, durable and of type topic."""
    found = facts["rabbitmq_exchange"]
    name = found["exchange"]
    if not found["exists"]:
        if found["declare"] == "create":
            return ok(f"the exchange {name!r} is not there yet; the first relay declares it", **found)
        return error(
            f"there is no exchange {name!r}, and declare is {found['declare']!r}",
            f"set rabbitmq.declare = create; or: rabbitmqadmin declare exchange name={name} type=topic durable=true",
            **found,
        )
    if found["differs"] is None:
        return ok(f"the exchange {name!r} is durable and of type topic", **found)
    if found["declare"] == "create":
        return error(
            f"the exchange {name!r} is not durable or not of type topic, and a relay would declare it so: "
            f"{found['differs']}",
            "use another one: rabbitmq.exchange = NAME; or take it as it is: rabbitmq.declare = check",
            **found,
        )
    return warning(
        f"the exchange {name!r} is not durable or not of type topic: {found['differs']}",
        "make sure that its queues get what they should; a transient exchange is gone after a restart of the broker",
        **found,
    )


@CHECKS.check("rabbitmq-alarms", "rabbitmq_alarm")
def alarms(facts: Facts, limits: Limits) -> Verdict:
    """No alarm of the broker blocks publishers."""
    alarm = facts["rabbitmq_alarm"]
    if alarm is None:
        return ok("the broker takes messages")
    return error(
        alarm,
        "rabbitmqctl status names the alarm: free memory or disk space on the broker, or raise its limit",
        alarm=alarm,
    )


@CHECKS.check("rabbitmq-message-size", "rabbitmq_version", "rabbitmq_size")
def message_size(facts: Facts, limits: Limits) -> Verdict:
    """The broker takes messages as large as those in the log."""
    found, version = facts["rabbitmq_size"], facts["rabbitmq_version"]
    grows = found["envelope"] == "structured" and found["max_message_size"] > DEFAULT_LIMIT
    if found["limit"] is not None:
        largest = max(found["bytes"], LARGEST_PAYLOAD_OF_ALL)
        return error(
            f"the broker takes messages of {found['limit']:,} bytes, and a recent one has {found['bytes']:,}",
            f"in rabbitmq.conf: max_message_size = {largest}; then: postroad dead retry",
            **found,
        )
    if version_of(version) >= (4, 0) and grows:
        return warning(
            f"RabbitMQ {version} takes {DEFAULT_LIMIT:,} bytes unless it is configured; with envelope = structured, a "
            f"payload of {LARGEST_PAYLOAD_OF_ALL:,} bytes becomes larger",
            f"rabbitmq.max_message_size = {DEFAULT_LIMIT}, so that such a message is dead at once; or raise "
            "max_message_size in rabbitmq.conf",
            **found,
            version=version,
        )
    tried = f"a message of {found['bytes']:,} bytes, the largest of the recent ones" if found["bytes"] else "messages"
    return ok(f"the broker takes {tried}", **found, version=version)


@CHECKS.check("rabbitmq-dead-letter-topic", "relay_settings", "refused_dead_letters")
def dead_letter_topic(facts: Facts, limits: Limits) -> Verdict:
    """The dead-letter topic has a queue."""
    topic = facts["relay_settings"].dead_letter_topic
    if topic is None:
        return ok("dead_letter_topic is not set: dead messages stay in the log")
    words = f"; its dead letter for topic {topic!r} was refused: "
    refused = [row for row in facts["refused_dead_letters"] if words in row["error"]]
    if refused:
        reason = refused[0]["error"].partition(words)[2]
        return error(
            f"dead letters for topic {topic!r} were refused, the last of sink {refused[0]['sink']!r}: {reason}",
            f"bind a queue to the exchange with the routing key {topic}; dead messages without a dead letter get one "
            "when they are retried and die again: postroad dead retry",
            topic=topic,
            messages=len(refused),
        )
    return skipped(
        f"AMQP can't list bindings, and no dead letter was refused; see for yourself whether one has the routing key "
        f"{topic!r}: rabbitmqctl list_bindings",
        topic=topic,
    )


@CHECKS.check("rabbitmq-delivery-limit", "rabbitmq_version", "consumers_given", "rabbitmq_dead_letter_queues")
def delivery_limit(facts: Facts, limits: Limits) -> Iterator[Verdict]:
    """A quorum queue does not drop messages after some redeliveries, nor its dead-letter queue letters."""
    version, differing = facts["rabbitmq_version"], facts["rabbitmq_dead_letter_queues"]
    for consumer in facts["consumers_given"]:
        arguments, letters = consumer.queue_arguments, consumer.dead_letter_queue
        limit = arguments.get(DELIVERY_LIMIT)
        if arguments.get(QUEUE_TYPE) != "quorum":
            yield ok(f"the queue of consumer {consumer.name!r} is not declared as a quorum queue", arguments=arguments)
        elif limit is not None and limit < 0 and version_of(version) < (4, 0):
            yield error(
                f"RabbitMQ {version} takes the delivery limit {limit} of consumer {consumer.name!r} for 0, and drops "
                "each message that is to be delivered a second time",
                f"leave {DELIVERY_LIMIT} out of Consumer(..., arguments=...): without it there is no limit before "
                "RabbitMQ 4; then let the queue run empty, and delete it",
                arguments=arguments,
                version=version,
            )
        elif limit is None and version_of(version) >= (4, 0) and "x-dead-letter-exchange" not in arguments:
            yield warning(
                f"RabbitMQ {version} drops a message of consumer {consumer.name!r} after {DEFAULT_DELIVERIES} "
                "deliveries that were not acked, such as those to processes that crashed",
                "Consumer(..., arguments={'x-queue-type': 'quorum', 'x-delivery-limit': -1}) for a new queue; for this "
                "one: rabbitmqctl set_policy no-limit '^QUEUE$' '{\"delivery-limit\": -1}' --apply-to quorum_queues",
                arguments=arguments,
                version=version,
            )
        else:
            yield ok(f"the quorum queue of consumer {consumer.name!r} drops nothing by default", arguments=arguments)
        if version_of(version) >= (4, 0) and letters is not None and differing.get(letters) is not None:
            yield warning(
                f"the dead-letter queue {letters!r} of consumer {consumer.name!r} may drop a letter when operators "
                f"have looked at it some {DEFAULT_DELIVERIES} times: {differing[letters]}",
                f"rabbitmqctl set_policy no-limit '^{re.escape(letters)}$' '{{\"delivery-limit\": -1}}' --apply-to "
                "quorum_queues; or retry or drop its letters and delete it: the consumer declares it without a limit",
                queue=letters,
                version=version,
            )
