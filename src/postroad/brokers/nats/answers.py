"""What JetStream's answers to published messages mean, and the answers to the messages of one call. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from postroad.brokers.nats.reading import status_of
from postroad.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from postroad.message import StoredMessage

__all__ = ["Answers", "Problem", "why_not_stored"]

NO_RESPONDERS: Final = 503

_TOO_LARGE: Final = 10054
_FULL: Final = frozenset({10047, 10023, 10028, 10077})  # storage, resources, memory, the stream's own limits
_SEALED: Final = 10109
_WRONG_STREAM: Final = 10060


class Problem(msgspec.Struct, frozen=True):
    """What JetStream says went wrong."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class PubAck(msgspec.Struct, frozen=True):
    """JetStream's answer to a message."""

    stream: str = ""
    seq: int = 0
    error: Problem | None = None


_decode: Final = msgspec.json.Decoder(PubAck).decode


def why_not_stored(body: bytes) -> str | None:
    """Why a message was not stored, from the answer to it; None if it was."""
    try:
        answer = _decode(body)
    except ValueError:  # ValueError: malformed JSON, or no UTF-8
        return "what answers there is no stream"
    if answer.error is not None:
        return f"{answer.error.description} ({answer.error.err_code})"
    return None if answer.stream and answer.seq > 0 else "what answers there is no stream"


class Answers:
    """The answers to the messages of one call. A message is known by its number in the call."""

    def __init__(self, messages: Sequence[StoredMessage], subject_of: Callable[[StoredMessage], str]) -> None:
        self._messages = messages
        self._subject_of = subject_of
        self.pending: set[int] = set()
        """What was written and has no answer yet."""
        self.confirmed: set[int] = set()
        """The positions that were confirmed."""
        self.refusals: dict[int, Refusal] = {}
        self.without_responder: dict[int, str] = {}
        """By number, the subjects for which no stream has answered: there is none, or its leader is lost."""
        self.outage: str | None = None
        """Why the servers take nothing for now, if one has said so."""

    def add(self, number: int, headers: bytes, body: bytes) -> bool:
        """Note an answer. Returns whether it is one: other programs may answer on the same subject."""
        if number not in self.pending:
            return False
        message = self._messages[number]
        if headers:
            if status_of(headers)[0] != NO_RESPONDERS:
                return False
            self.without_responder[number] = self._subject_of(message)
        else:
            try:
                answer = _decode(body)
            except ValueError:  # ValueError: malformed JSON, or no UTF-8
                return False
            if answer.error is not None:
                self._problem(message, answer.error, answer.stream)
            elif answer.stream and answer.seq > 0:
                self.confirmed.add(message.position)
            else:
                return False
        self.pending.discard(number)
        return True

    def _problem(self, message: StoredMessage, problem: Problem, stream: str) -> None:
        code, words = problem.err_code, f"{problem.description} ({problem.err_code})"
        subject = self._subject_of(message)
        if code == _TOO_LARGE:
            self.refuse(message, f"the stream refuses it: {words}; see its max_msg_size", permanent=True)
        elif code in _FULL:
            self.refuse(
                message, f"no room for {subject!r}: {words}; raise the limits, or remove messages", route=subject
            )
        elif code == _SEALED:
            self.refuse(message, f"the stream for {subject!r} takes nothing any more: {words}", route=subject)
        elif code == _WRONG_STREAM:
            self.outage = f"{subject!r} goes to another stream than the setting 'stream' says: {words}"
        elif problem.code >= 500:
            self.outage = words
        else:
            self.refuse(message, f"NATS refuses it: {words}")

    def refuse(
        self,
        message: StoredMessage,
        reason: str,
        *,
        permanent: bool = False,
        route: str | None = None,
        unroutable: bool = False,
    ) -> None:
        """Refuse a message."""
        self.refusals[message.position] = Refusal(message.position, reason, permanent, route, unroutable)

    def deny(self, subject: str, words: str) -> bool:
        """Refuse what was written to a subject that the user may not publish to: no other answer comes. Returns whether
        there was any.
        """
        denied = [number for number in self.pending if self._subject_of(self._messages[number]) == subject]
        for number in denied:
            self.refuse(self._messages[number], f"{words}; allow the user to publish there", route=subject)
            self.pending.discard(number)
        return bool(denied)

    def explain(self, streams: Mapping[str, Collection[str] | None]) -> None:
        """Note which streams take the subjects that nothing answered for; None if the user may not ask.

        If there is none, the messages are refused; if there is one, its leader is lost.
        """
        for number, subject in self.without_responder.items():
            found, message = streams[subject], self._messages[number]
            if found is None:
                why = "no stream answers for {!r}, and the user may not ask which there are ($JS.API.STREAM.NAMES)"
                self.refuse(message, why.format(subject), route=subject)
            elif found:
                self.outage = f"the stream {next(iter(found))!r}, which takes {subject!r}, has no leader"
            else:
                why = "no stream takes the subject {!r}; create one"
                self.refuse(message, why.format(subject), route=subject, unroutable=True)
        self.without_responder.clear()

    @property
    def is_complete(self) -> bool:
        """Every message was confirmed or refused."""
        return len(self.confirmed) + len(self.refusals) == len(self._messages)

    def in_order(self) -> list[Refusal]:
        """The refusals, in the order of the messages."""
        if not self.refusals:
            return []
        return [self.refusals[each.position] for each in self._messages if each.position in self.refusals]
