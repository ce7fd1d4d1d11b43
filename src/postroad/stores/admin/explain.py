"""Why a message has not been sent, in words, from what was looked up. Pure: no I/O and no clock.

One answer per sink: the first that is true. `explain_decided` has what is final, and dead messages; `explain_waiting`
what stops the whole sink or the lane, and then what concerns the message alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from postroad.stores.admin.answers import Action, Answer, Explanation, KeyExplanation, Reason, Remedy
from postroad.stores.admin.explain_answer import LONGEST, advise, answer_of, quoted, why
from postroad.stores.admin.explain_decided import DECIDED, by_line, first_line, published
from postroad.stores.admin.explain_waiting import STALLED_SECONDS, deferred_message, sink_or_lane, unread
from postroad.wording import count, moment, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.stores.admin.answers import KeyFacts, LaneFacts, MessageFacts, SinkFacts, UnknownFacts

__all__ = ["explain", "explain_key", "explain_unknown"]

CLOCKS_DIFFER_SECONDS: Final = 5
"""An id has the time of the application's clock, in milliseconds, and the log that of the database's."""


# -- a message -------------------------------------------------------------------------------------------------------


def explain(message: MessageFacts) -> Explanation:
    """The answers about a message that is in the log, or scheduled."""
    if message.position is None:
        answers: Sequence[Answer] = [_scheduled(message)]
    elif not message.sinks:
        answers = [_no_sink(message)]
    else:
        answers = [_at_sink(message, sink) for sink in message.sinks]
    return Explanation(
        at=message.at,
        id=message.id,
        position=message.position,
        type=message.type,
        topic=message.topic,
        key=message.key,
        created_at=message.created_at,
        answers=answers,
    )


def _scheduled(message: MessageFacts) -> Answer:
    due, now = message.deliver_at, message.at
    evidence = {"deliver_at": due, "created_at": message.created_at}
    if due is None or (now - due).total_seconds() < STALLED_SECONDS:
        when = "" if due is None else f" for {moment(due, now)}"
        text = f"it is scheduled{when}; a relay then moves it into the log"
        return Answer(sink=None, reason=Reason.SCHEDULED, text=text, evidence=evidence)
    return Answer(
        sink=None,
        reason=Reason.OVERDUE,
        text=f"it was due at {moment(due, now)}, and no relay has moved it into the log",
        evidence=evidence,
        advice="any running relay of this database moves it; see which run, and read their logs",
        remedy=Remedy(action=Action.LIST_RELAYS),
    )


def _no_sink(message: MessageFacts) -> Answer:
    return Answer(
        sink=None,
        reason=Reason.NO_SINK,
        text="no relay has run yet, so there is no sink to deliver it to",
        evidence={"position": message.position},
        advice="start a relay; it delivers everything that is in the log",
        remedy=Remedy(action=Action.START_RELAY),
    )


def _at_sink(message: MessageFacts, there: SinkFacts) -> Answer:
    deferred, lane = there.deferred, there.lane
    if deferred is None and (lane.not_taken_by is not None or lane.reading == "passed"):
        return published(message, there) if lane.not_taken_by is None else _not_taken(lane, lane.not_taken_by)
    if deferred is not None and deferred.state in DECIDED:
        return DECIDED[deferred.state](message, there, deferred)
    if (stopped := sink_or_lane(message, there)) is not None:
        return stopped
    if deferred is None:
        return unread(message, lane)
    answer = deferred_message(message, there, deferred)
    if answer.reason is Reason.BEHIND and there.head is not None:
        first = _at_sink(message, replace(there, deferred=there.head, head=None))
        return replace(answer, advice=first.advice, remedy=first.remedy, because=first)
    return answer


def _not_taken(lane: LaneFacts, filter: str) -> Answer:
    text = f"sink {quoted(lane.sink)} does not take it: it takes {one_line(filter, LONGEST)}"
    return answer_of(lane, Reason.NOT_TAKEN, text, filter=filter)


# -- an unknown id ---------------------------------------------------------------------------------------------------


def explain_unknown(facts: UnknownFacts) -> Explanation:
    """The answer about an id that no message has."""
    return Explanation(
        at=facts.at,
        id=facts.id,
        position=None,
        type=None,
        topic=None,
        key=None,
        created_at=None,
        answers=[_unknown(facts)],
    )


def _unknown(facts: UnknownFacts) -> Answer:
    now, made, oldest = facts.at, facts.made_at, facts.oldest_at
    evidence = {"made_at": made, "oldest_at": oldest, "open_transactions": facts.open_transactions}
    line = first_line(facts.audit, ["cancel"], str(facts.id), {})
    if line is not None:
        text = f"the application, as {one_line(line.who)}, canceled it at {moment(line.at, now)}, before it was due"
        return Answer(sink=None, reason=Reason.CANCELED, text=text, evidence=by_line(line))
    if made is not None and oldest is not None and (oldest - made).total_seconds() > CLOCKS_DIFFER_SECONDS:
        text = (
            f"no message has this id any more: by its id it was made at {moment(made, now)}, and the oldest message in "
            f"the log is from {moment(oldest, now)}; retention has deleted it, after every sink had dealt with it, "
            "unless it was never committed"
        )
        return Answer(sink=None, reason=Reason.EXPIRED, text=text, evidence=evidence)
    deleted = ", and the log is empty: retention has deleted it, or" if oldest is None else ":"
    text = f"no message has this id{deleted} its transaction was rolled back, or is still open, or the id is wrong"
    if facts.open_transactions:
        number = facts.open_transactions
        text += f"; {count(number, 'open transaction')} {'has' if number == 1 else 'have'} written to the log"
    return Answer(
        sink=None,
        reason=Reason.UNKNOWN,
        text=text,
        evidence=evidence,
        advice="check the id, and in the application's log whether its transaction was committed",
    )


# -- a key -----------------------------------------------------------------------------------------------------------


def explain_key(key: str, at: Any, sinks: Sequence[KeyFacts]) -> KeyExplanation:
    """The answers about a key."""
    return KeyExplanation(at=at, key=key, answers=[_of_key(facts) for facts in sinks])


def _of_key(facts: KeyFacts) -> Answer:
    if facts.first is not None:
        (answer,) = explain(facts.first).answers
        more = facts.waiting - 1
        waiting = f"{'at least ' if facts.waiting >= facts.most else ''}{count(more, 'message')}" if more > 0 else ""
        behind = f", with {waiting} behind it" if waiting else ""
        text = f"its first message, {facts.first.id}{behind}: {answer.text}"
        evidence = {**answer.evidence, "message": facts.first.id, "waiting": facts.waiting}
        return replace(answer, text=text, evidence=evidence)
    if facts.hold is not None:
        hold = facts.hold
        text = (
            f"the key is held, by {one_line(hold.who)} since {moment(hold.since, facts.at)}{why(hold.reason)}; "
            "none of its messages waits yet"
        )
        answer = Answer(
            sink=facts.sink,
            reason=Reason.KEY_HELD,
            text=text,
            evidence={"key": hold.key, "who": hold.who, "since": hold.since, "why": hold.reason},
        )
        return advise(answer, "", Action.RELEASE, sink=facts.sink, key=hold.key)
    return _none_waits(facts)


def _none_waits(facts: KeyFacts) -> Answer:
    evidence: dict[str, Any] = {"searched": facts.searched}
    text = f"none of its messages waits, and none is among the newest {facts.searched:,} messages of the log"
    if facts.newest is not None:
        (newest,) = explain(facts.newest).answers
        text = f"none of its messages waits; its newest, {facts.newest.id}: {newest.text}"
        evidence |= {"message": facts.newest.id, "newest": newest.reason}
    return Answer(sink=facts.sink, reason=Reason.NONE_WAITS, text=text, evidence=evidence)
