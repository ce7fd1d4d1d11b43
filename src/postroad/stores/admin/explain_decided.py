"""What became of a message: published, dead, skipped, dropped or canceled; and by the audit, who decided it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.lifecycle import State
from postroad.stores.admin.answers import Action, Reason
from postroad.stores.admin.error_patterns import normalise_error
from postroad.stores.admin.explain_answer import advise, answer_of, quoted, why
from postroad.wording import count, moment, one_line, time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from postroad.stores.admin.answers import Answer, DeferredFacts, MessageFacts, SinkFacts
    from postroad.stores.admin.contract import AuditEntry

__all__ = ["DECIDED", "by_line", "first_line", "published"]


def published(message: MessageFacts, there: SinkFacts) -> Answer:
    """When it was published, as far as the lane's progress tells."""
    times = there.published
    before = None if times is None else times.before
    if times is None or before is None:
        text = "it was published; when is not recorded any more"
        return answer_of(there.lane, Reason.PUBLISHED, text, position=message.position)
    after = max((each for each in (times.after, message.created_at) if each is not None), default=before)
    when = f"at {moment(before, message.at)}"
    if (before - after).total_seconds() >= 1:
        when = f"between {time_text(after)} and {moment(before, message.at)}"
    return answer_of(there.lane, Reason.PUBLISHED, f"it was published {when}", after=after, before=before)


def _dead(message: MessageFacts, there: SinkFacts, deferred: DeferredFacts) -> Answer:
    line = _line(message, there, deferred, "poison")
    since = deferred.failed_at or deferred.deferred_at
    by = "" if line is None else f", by {one_line(line.who)}"
    tried = f" after {count(deferred.attempts, 'attempt')}" if deferred.attempts and line is None else ""
    text = f"it has been dead since {moment(since, message.at)}{by}{tried}{why(deferred.error)}"
    facts = {"since": since, "attempts": deferred.attempts, "error": deferred.error, **by_line(line)}
    answer = answer_of(there.lane, Reason.DEAD, text, **facts)
    return advise(
        answer, "when the cause is fixed, retry it; or drop it", Action.RETRY, id=deferred.id, sink=there.lane.sink
    )


def _skipped(message: MessageFacts, there: SinkFacts, deferred: DeferredFacts) -> Answer:
    line = _line(message, there, deferred, "skip", "skip_key")
    text = f"{_operator(line)} skipped it{_when(message, line)}"
    return answer_of(there.lane, Reason.SKIPPED, text, **by_line(line))


def _dropped(message: MessageFacts, there: SinkFacts, deferred: DeferredFacts) -> Answer:
    if deferred.route is not None:
        text = (
            f"the relay dropped it at {moment(deferred.deferred_at, message.at)}, because no consumer had subscribed "
            f"to {quoted(deferred.route)} (unroutable = drop){why(deferred.error)}"
        )
        evidence = {"route": deferred.route, "since": deferred.deferred_at, "error": deferred.error}
        answer = answer_of(there.lane, Reason.UNROUTABLE, text, **evidence)
        return advise(
            answer, "bind a queue to this route, or create its topic; messages that are added from then on arrive"
        )
    line = _line(message, there, deferred, "drop")
    text = f"{_operator(line)} dropped it{_when(message, line)}"
    return answer_of(there.lane, Reason.DROPPED, text, **by_line(line), error=deferred.error)


def _canceled(message: MessageFacts, there: SinkFacts, deferred: DeferredFacts) -> Answer:
    line = _line(message, there, deferred, "cancel")
    role = "" if line is None else f", as {one_line(line.who)},"
    text = f"the application{role} canceled it{_when(message, line)}"
    return answer_of(there.lane, Reason.CANCELED, text, **by_line(line))


DECIDED: Final[Mapping[State, Callable[[MessageFacts, SinkFacts, DeferredFacts], Answer]]] = {
    State.DEAD: _dead,
    State.SKIPPED: _skipped,
    State.DROPPED: _dropped,
    State.CANCELED: _canceled,
}
"""The answers about states in which a message waits for nothing that could happen by itself."""


def _operator(line: AuditEntry | None) -> str:
    return "an operator" if line is None else one_line(line.who)


def _when(message: MessageFacts, line: AuditEntry | None) -> str:
    return "" if line is None else f" at {moment(line.at, message.at)}{why(line.reason)}"


def by_line(line: AuditEntry | None) -> dict[str, Any]:
    """A line of the audit as evidence."""
    return {} if line is None else {"who": line.who, "at": line.at, "why": line.reason, "audit": line.number}


def _line(message: MessageFacts, there: SinkFacts, deferred: DeferredFacts, *commands: str) -> AuditEntry | None:
    """The newest line of the audit by which the message can have come into its state."""
    fields = {"type": message.type, "topic": message.topic, "key": message.key, "sink": there.lane.sink}
    return first_line(message.audit, commands, str(deferred.id), fields, deferred.error or "")


def first_line(
    lines: Iterable[AuditEntry], commands: Sequence[str], id: str, fields: Mapping[str, Any], error: str = ""
) -> AuditEntry | None:
    """The first line with one of these commands whose arguments select the message with this id and these fields."""
    for line in lines:
        given: dict[str, Any] = dict(line.arguments)
        ids = given.pop("ids", None) or ([given.pop("id")] if "id" in given else None)
        wanted, pattern = given.pop("error", None), given.pop("error_pattern", None)
        if (
            line.command in commands
            and (ids is None or id in map(str, ids))
            and all(fields.get(name, value) == value for name, value in given.items())
            and (wanted is None or str(wanted).lower() in error.lower())
            and (pattern is None or pattern == normalise_error(error))
        ):
            return line
    return None
