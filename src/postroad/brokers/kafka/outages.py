"""What an error of the brokers means for a consumer, with a text that says what to do. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError

from postroad.errors import BrokerUnavailable, LoginRefused

if TYPE_CHECKING:
    from confluent_kafka import KafkaException

__all__ = ["LATER", "error_of", "is_login", "outage"]

LATER: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._WAIT_COORD,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._NO_OFFSET,
        KafkaError._DESTROY,
        KafkaError._RETRY,
        KafkaError._STATE,
        KafkaError._IN_PROGRESS,
        KafkaError._PREV_IN_PROGRESS,
    }
)
"""The client deals with these by itself: the group rebalances, a broker is gone, the coordinator moves."""

_LOGIN: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})


def error_of(exception: KafkaException) -> KafkaError:
    """The error in an exception."""
    found = exception.args[0] if exception.args else None
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(exception))


def is_login(error: KafkaError) -> bool:
    """Whether the brokers refuse the user or the password."""
    return error.code() in _LOGIN


def outage(
    name: str, error: KafkaError, *, topic: str | None = None, group: str | None = None, user: str | None = None
) -> BrokerUnavailable:
    """The error as an outage of the source with this name."""
    if is_login(error):
        return LoginRefused(f"{name}: the brokers refuse the user {user!r} or its password: {error.str()}")
    return BrokerUnavailable(f"{name}: {_reason(error, topic, group, user)}", suspicious=False)


def _reason(error: KafkaError, topic: str | None, group: str | None, user: str | None) -> str:
    who = "this client" if user is None else f"user {user!r}"
    match error.name().lstrip("_"):
        case "UNKNOWN_TOPIC_OR_PART" | "UNKNOWN_TOPIC" | "UNKNOWN_PARTITION":
            reason = f"the topic {topic!r} is missing; create it, or set declare='create'"
        case "TOPIC_AUTHORIZATION_FAILED":
            reason = f"{who} may not read the topic {topic!r}; grant it Read and Describe"
        case "GROUP_AUTHORIZATION_FAILED":
            reason = f"{who} may not use the group {group!r}; grant it Read on the group"
        case "FENCED_INSTANCE_ID":
            reason = f"another process of the group {group!r} has the same instance; give each its own"
        case "INVALID_SESSION_TIMEOUT":
            reason = "the brokers do not allow this session_timeout; see their group.min.session.timeout.ms"
        case "INCONSISTENT_GROUP_PROTOCOL":
            reason = (
                f"the group {group!r} has members that share partitions in another way than cooperative-sticky; stop "
                "them, or set another group"
            )
        case name:
            reason = name
    return f"{reason} ({error.str()})"
