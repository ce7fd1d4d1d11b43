"""What a message waits for that is not decided yet: sink, lane, key, route, or its next attempt. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from postroad.lifecycle import State
from postroad.stores.admin.answers import Action, Reason
from postroad.stores.admin.explain_answer import advise, answer_of, quoted, why
from postroad.wording import advice_on_route, count, moment, one_line

if TYPE_CHECKING:
    from postroad.stores.admin.answers import Answer, DeferredFacts, LaneFacts, MessageFacts, SinkFacts
    from postroad.stores.admin.contract import FollowedSlot

__all__ = ["STALLED_SECONDS", "deferred_message", "sink_or_lane", "unread"]

STALLED_SECONDS: Final = 10
"""A message that has waited for this long in a lane that has an owner, while the lane published nothing, is stalled."""


# -- what stops the sink or the lane ---------------------------------------------------------------------------------


def sink_or_lane(message: MessageFacts, there: SinkFacts) -> Answer | None:
    """What keeps the message's lane from working at all, if anything does."""
    lane, now = there.lane, message.at
    state = {} if there.deferred is None else {"state": there.deferred.state, "error": there.deferred.error}
    if lane.slot is not None and lane.slot.lost is not None:
        text = f"sink {quoted(lane.sink)} is paused, because {one_line(lane.slot.lost)}"
        answer = answer_of(lane, Reason.SLOT_LOST, text, slot=lane.slot.name, why=lane.slot.lost)
        return advise(
            answer, "it may never have been carried: have it carried, then", Action.ADOPT_SLOT, sink=lane.sink
        )
    if lane.pause is not None:
        pause = lane.pause
        by = f"by {one_line(pause.who)} since {moment(pause.since, now)}{why(pause.reason)}"
        text = f"sink {quoted(lane.sink)} is paused, {by}"
        paused = {"who": pause.who, "since": pause.since, "why": pause.reason}
        return advise(answer_of(lane, Reason.PAUSED, text, **paused, **state), "", Action.RESUME, sink=lane.sink)
    serving = {"relays": lane.relays, "served_at": lane.served_at}
    if lane.owner is None or lane.lease_until is None:
        others = _others(lane, f"a relay last served the sink at {moment(lane.served_at, now)}")
        text = f"no relay owns lane {lane.lane} of sink {quoted(lane.sink)}; {others}"
        return _start_relay(answer_of(lane, Reason.NO_OWNER, text, **serving, **state), lane)
    if lane.lease_until <= now:
        expired = moment(lane.lease_until, now)
        others = _others(lane, "no other relay serves the sink")
        text = f"{_relay(lane)} stopped renewing its lease on lane {lane.lane}, which expired at {expired}; {others}"
        lost = {"owner": lane.owner, "lease_until": lane.lease_until, "heartbeat_at": lane.heartbeat_at}
        return _start_relay(answer_of(lane, Reason.LEASE_EXPIRED, text, **lost, **serving, **state), lane)
    return None


def _others(lane: LaneFacts, none: str) -> str:
    if not lane.relays:
        return none
    return f"{count(lane.relays, 'relay')} of the sink {'is' if lane.relays == 1 else 'are'} alive and may take it"


def _start_relay(answer: Answer, lane: LaneFacts) -> Answer:
    if lane.relays:
        return advise(answer, "wait for a moment; if it stays so, read the relays' logs", Action.LIST_RELAYS)
    return advise(answer, "start a relay of this sink", Action.START_RELAY, sink=lane.sink)


def _relay(lane: LaneFacts) -> str:
    return "a relay" if lane.host is None else f"the relay on {one_line(lane.host)}, process {lane.pid},"


# -- what concerns the message ---------------------------------------------------------------------------------------


def unread(message: MessageFacts, lane: LaneFacts) -> Answer:
    """Why its lane, which has an owner, has not dealt with it."""
    if lane.slot is not None:
        return _not_confirmed(lane, lane.slot)
    stalled = _stalled(message, lane, message.created_at, "it has been waiting")
    if stalled is not None:
        return stalled
    position = message.position or 0
    places = {"position": position, "lane_position": lane.position}
    if lane.reading == "late":
        text = (
            f"its transaction committed late: lane {lane.lane} was past its position, {position:,}, by then "
            f"({lane.position:,}), and reads it next"
        )
        return answer_of(lane, Reason.COMMITTED_LATE, text, **places)
    gap = position - lane.position
    text = f"lane {lane.lane} has not read it yet: it is at position {lane.position:,}, and the message at {position:,}"
    return answer_of(lane, Reason.NOT_READ, text, **places, gap=gap)


def _not_confirmed(lane: LaneFacts, slot: FollowedSlot) -> Answer:
    """What the reader of a replication slot may be about."""
    evidence = {"slot": slot.name, "active": slot.active, "behind_bytes": slot.behind_bytes}
    if slot.active is None:
        answer = answer_of(lane, Reason.NOT_CONFIRMED, f"there is no replication slot {quoted(slot.name)}", **evidence)
        return advise(answer, "start the program that creates it, and reads it")
    if not slot.active:
        text = f"no program reads the replication slot {quoted(slot.name)}, which carries it"
        return advise(answer_of(lane, Reason.NOT_CONFIRMED, text, **evidence), "start the program that reads it")
    text = (
        f"the program that reads the replication slot {quoted(slot.name)} has not confirmed it; "
        f"{slot.behind_bytes or 0:,} bytes of the write-ahead log are not confirmed"
    )
    answer = answer_of(lane, Reason.NOT_CONFIRMED, text, **evidence)
    return advise(
        answer,
        "wait for a moment; if it stays so, read that program's log, and compare its configuration with what "
        "the command debezium prints: without heartbeat.action.query a quiet log is never confirmed",
    )


def _stalled(message: MessageFacts, lane: LaneFacts, since: Any, waits: str) -> Answer | None:
    """If nothing has moved in the lane for a while, although it has an owner."""
    now, moved = message.at, lane.progressed_at
    if any((now - each).total_seconds() < STALLED_SECONDS for each in (since, moved) if each is not None):
        return None
    published = "has published nothing" if moved is None else f"has published nothing since {moment(moved, now)}"
    text = f"{waits} since {moment(since, now)}: {_relay(lane)} owns lane {lane.lane}, and {published}"
    evidence = {
        "since": since, "progressed_at": moved, "host": lane.host, "pid": lane.pid, "heartbeat_at": lane.heartbeat_at
    }  # fmt: skip
    answer = answer_of(lane, Reason.STALLED, text, **evidence)
    return advise(answer, "read that relay's log: its broker may be unavailable", Action.LIST_RELAYS)


def deferred_message(message: MessageFacts, there: SinkFacts, deferred: DeferredFacts) -> Answer:
    """What a message that is retrying, held or being sent waits for, in a lane that has an owner."""
    lane, now = there.lane, message.at
    if deferred.state is State.SENDING:
        text = f"lane {lane.lane} is publishing it now"
        return answer_of(lane, Reason.SENDING, text, attempts=deferred.attempts, error=deferred.error)
    if there.hold is not None:
        hold = there.hold
        since = moment(hold.since, now)
        text = f"key {quoted(hold.key)} is held, by {one_line(hold.who)} since {since}{why(hold.reason)}"
        held = answer_of(lane, Reason.KEY_HELD, text, key=hold.key, who=hold.who, since=hold.since, why=hold.reason)
        return advise(held, "", Action.RELEASE, sink=lane.sink, key=hold.key)
    if there.head is not None:
        head = there.head
        text = f"it is behind message {head.id} of its key, which must go first"
        return answer_of(lane, Reason.BEHIND, text, head=head.id, head_position=head.position)
    if deferred.route is not None:
        return _route_blocked(message, there, deferred)
    return _due(message, there, deferred)


def _route_blocked(message: MessageFacts, there: SinkFacts, deferred: DeferredFacts) -> Answer:
    since = deferred.route_since or deferred.deferred_at
    blocked = moment(since, message.at)
    text = f"route {quoted(deferred.route or '')} has been blocked since {blocked}{why(deferred.error)}"
    answer = answer_of(there.lane, Reason.ROUTE_BLOCKED, text, route=deferred.route, since=since, error=deferred.error)
    return advise(answer, f"{advice_on_route(deferred.route or '')}; the relay tries again by itself")


def _due(message: MessageFacts, there: SinkFacts, deferred: DeferredFacts) -> Answer:
    now, due = message.at, deferred.due_at
    tried = f"after {count(deferred.attempts, 'failed attempt')}" if deferred.attempts else ""
    facts = {"attempts": deferred.attempts, "due_at": due, "error": deferred.error, "failed_at": deferred.failed_at}
    if due is not None and due > now:
        text = f"{tried}, it is tried again at {moment(due, now)}{why(deferred.error)}".lstrip(", ")
        return answer_of(there.lane, Reason.RETRYING, text, **facts)
    stalled = _stalled(message, there.lane, due or deferred.deferred_at, "it has been due")
    if stalled is not None:
        return replace(stalled, evidence={**stalled.evidence, **facts})
    again = " again, because of a rewind" if deferred.rewound else ""
    text = f"{tried}, nothing holds it: lane {there.lane.lane} sends it next{again}".lstrip(", ")
    return answer_of(there.lane, Reason.NEXT, text, **facts)
