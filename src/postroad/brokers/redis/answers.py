"""What the answers of Redis mean, and the answers to the messages of one call. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.brokers.redis.entries import Entry
    from postroad.message import StoredMessage

__all__ = ["NO_STREAM", "Answers", "is_outage", "refusal"]

NO_STREAM: Final = "NOSTREAM"
"""What stands for Redis' empty answer to an XADD that may not create its stream."""

_OUTAGES: Final = frozenset(
    {"ASK", "BUSY", "CLUSTERDOWN", "CROSSSLOT", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOAUTH", "NOREPLICAS"}
    | {"OOM", "READONLY", "TRYAGAIN"}
)
_TOO_LARGE: Final = "ERR Protocol error: invalid bulk length"


def is_outage(error: str) -> bool:
    """Whether the server takes nothing for now, or nothing from this user, whatever the message."""
    code, _, text = error.partition(" ")
    return code in _OUTAGES or (code == "NOPERM" and "'eval'" in text) or error.startswith("ERR unknown command")


def refusal(message: StoredMessage, stream: str, error: str) -> Refusal:
    """The refusal of a message for an error that is no outage."""
    match error.partition(" ")[0]:
        case "NOSTREAM":
            reason = f"there is no stream {stream!r}, and declare is 'check'; create it"
            return Refusal(message.position, reason, route=stream, unroutable=True)
        case "WRONGTYPE":
            reason = f"{stream!r} is no stream, but a value of another type; rename that, or the stream ({error})"
            return Refusal(message.position, reason, route=stream)
        case "NOPERM":
            reason = f"the user may not add to the stream {stream!r}; grant it ~{stream} and +xadd ({error})"
            return Refusal(message.position, reason, route=stream)
        case _:
            return Refusal(message.position, f"Redis refuses it: {error}", permanent=error.startswith(_TOO_LARGE))


class Answers:
    """The answers to the messages of one call, in the order of the call.

    A message is refused only after all before it, of its key, were taken; and a refusal ends its key in this call.
    """

    def __init__(self, messages: Sequence[StoredMessage]) -> None:
        self._messages = messages
        self.confirmed: set[int] = set()
        self._taken: list[int] = []
        self._refusals: dict[int, Refusal] = {}

    def note_all(self, entries: Sequence[Entry], replies: Sequence[Any]) -> list[str]:
        """Note the answers to the commands that add these entries, as far as they have come. Returns the outages."""
        outages, taken = [], self._taken
        for entry, reply in zip(entries, replies, strict=False):
            if reply.__class__ is bytes:  # the id of an entry without followers
                taken.append(entry.message.position)
            elif (outage := self.note(entry, reply)) is not None:
                outages.append(outage)
        return outages

    def note(self, entry: Entry, reply: Any) -> str | None:
        """Note the answer to the command that adds an entry. Returns the reason if it is an outage."""
        error: str | None
        if entry.followers and isinstance(reply, list):
            taken, *errors = reply
            error = errors[0].decode(errors="replace").removeprefix("-") if errors else None
        else:
            taken = int(isinstance(reply, bytes))
            error = None if taken else NO_STREAM if reply is None else str(reply)
        messages = [each.message for each in entry.all]
        self._taken += [message.position for message in messages[:taken]]
        if error is None:
            return None
        if is_outage(error):
            return error
        self.refuse(refusal(messages[taken], entry.stream, error))
        return None

    def confirm_taken(self) -> None:
        """What was taken so far is as safe as the settings ask."""
        self.confirmed.update(self._taken)
        self._taken.clear()

    def refuse(self, refusal: Refusal) -> None:
        """Note a refusal."""
        self._refusals[refusal.position] = refusal

    def missing(self) -> Sequence[StoredMessage]:
        """The messages that have no answer and are to get one: all but those behind a refused one of their key."""
        if len(self.confirmed) == len(self._messages):
            return ()
        if not self.confirmed and not self._refusals:
            return self._messages
        ended: set[str | None] = set()
        found = []
        for message in self._messages:
            if message.position in self._refusals:
                if message.key is not None:
                    ended.add(message.key)
            elif message.position not in self.confirmed and message.key not in ended:
                found.append(message)
        return found

    def refusals(self) -> list[Refusal]:
        """All refusals, in order."""
        if not self._refusals:
            return []
        return [self._refusals[each.position] for each in self._messages if each.position in self._refusals]
