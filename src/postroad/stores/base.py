"""The contract of a store: what the relay asks of a database, and what happens to the loser of a race.

tests/contracts/test_stores.py tests every store against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

from postroad.errors import LaneChanged, LeaseLost, LogReset
from postroad.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import timedelta
    from uuid import UUID

    from postroad.message import StoredMessage
    from postroad.stores.copies import Copies
    from postroad.stores.cursor import Cursor, Page, PageLimit, Sweep
    from postroad.stores.leases import Leases
    from postroad.stores.naps import Naps
    from postroad.stores.replication import Replication

__all__ = [
    "ANY_SIZE",
    "FOLLOWERS",
    "PROBES_PER_SECOND",
    "Blocker",
    "Claim",
    "Claimed",
    "Cleaned",
    "Deferred",
    "Held",
    "Lease",
    "Loaded",
    "ManyLanes",
    "Moved",
    "Recorded",
    "Settlement",
    "Start",
    "Store",
    "Tally",
    "as_held",
    "key_and_source",
    "key_of",
    "not_moved",
]

Start = Literal["oldest", "now"]

ANY_SIZE: Final = (1 << 63) - 1
FOLLOWERS: Final = 100
"""How many messages of a key a claim takes at most behind a head that was only held."""

PROBES_PER_SECOND: Final = 50
"""A lane probes at most this many blocked routes per second; if more are blocked, each is probed less often."""

_SEPARATOR: Final = "\x1f"
_LONGEST_ERROR: Final = 2_000


class Lease(msgspec.Struct, frozen=True):
    """A lane as its owner loaded it. The fence of every write is `owner`, `epoch` and `version`, and `incarnation`."""

    sink: str
    lane: int
    first_slot: int
    last_slot: int
    owner: UUID
    epoch: int
    version: int
    cursor: Cursor
    incarnation: int = 0
    """Which copy of the database the lane was loaded from, where the store can tell copies apart."""
    filter: str | None = None
    """The filter of the sink when the lane was loaded, see `SinkFilter.text`; None: it takes every message."""

    def settled(self, cursor: Cursor) -> Lease:
        """The lease after a write of its own."""
        return msgspec.structs.replace(self, version=self.version + 1, cursor=cursor)

    def lost(self) -> LeaseLost:
        """What a store raises when the lane has another owner or epoch."""
        return LeaseLost(f"lane {self.lane} of sink {self.sink!r} was taken by another relay")

    def changed(self) -> LaneChanged:
        """What a store raises when the lane is not as this lease says."""
        return LaneChanged(f"lane {self.lane} of sink {self.sink!r} is no longer at version {self.version}")

    def locked(self) -> LaneChanged:
        """What a lane raises to load again, when an application was canceling what would have been due."""
        return LaneChanged(f"messages of lane {self.lane} of sink {self.sink!r} were locked when they were due")

    def check_read(self, cursor: Cursor, version: int | None, log_end: int) -> None:
        """Raise LaneChanged when a page that was read from `cursor` shows that the database was restored to an earlier
        time, or that another relay owns the lane.

        `version` is the lane's version in the page's snapshot; None if the lane has another owner, epoch or
        incarnation. `log_end` is the highest position that was ever given out, as far as the snapshot knows. Raises
        LogReset when even the saved cursor lies behind it: loading the lane again would change nothing.
        """
        if version is None:
            raise LaneChanged(f"lane {self.lane} of sink {self.sink!r} is not this relay's as it was loaded")
        if version < self.version:
            raise LaneChanged(
                f"lane {self.lane} of sink {self.sink!r} is at version {version} and was at {self.version}: "
                "the database was put back to an earlier time"
            )
        if log_end < self.cursor.position:
            raise LogReset(
                f"the log ends at position {log_end} and lane {self.lane} of sink {self.sink!r} has saved "
                f"{self.cursor.position}: the log was emptied and its positions begin anew, and messages up to "
                f"{self.cursor.position} could be passed over. Stop the sink's relays, remove it (postroad sink remove "
                f"{self.sink}), and start them again with start = 'oldest': they send all that is in the log"
            )
        if log_end < cursor.position:
            raise LaneChanged(
                f"the log ends at position {log_end} and lane {self.lane} of sink {self.sink!r} had come to "
                f"{cursor.position}: the database was put back to an earlier time"
            )

    def without_messages(self, gone: int) -> LaneChanged:
        """What a store raises when deferred messages are no longer in the log."""
        return LaneChanged(
            f"{gone} deferred messages of lane {self.lane} of sink {self.sink!r} were deleted from the log by hand; "
            "they can't be published, and their rows were deleted"
        )


class Loaded(msgspec.Struct, frozen=True):
    """All that a lane knows of itself when it begins, from one snapshot."""

    lease: Lease
    blocked_keys: dict[str, int]
    """For each key with deferred messages, the position of the first one that later messages wait for; 0 for a key
    that an operator holds. The lane changes it.
    """
    routes: Collection[str]
    """The blocked routes that messages of the lane wait for."""
    due_in: float | None
    """Seconds until the first deferred message is due, by the database's clock; None when none will be."""
    skipped: Collection[int] = frozenset()
    """Messages after the cursor that an operator has skipped or poisoned: they are not published."""
    paused: bool = False
    """An operator has paused the sink: nothing is to be published."""
    log_end: int = 0
    """The highest position in the log, asked after all earlier owners had lost the right to publish. A message up to
    here that the cursor has not passed may have been published before; a message after it can't have been.
    """
    locked: bool = False
    """An application that is canceling messages has locked rows that would be due: they were left out. Load again soon.
    """


class Deferred(msgspec.Struct, frozen=True):
    """The row of one deferred message; it replaces the row that it had before."""

    position: int
    key: str | None
    """The ordering key; None also when no order is kept."""
    state: State
    attempts: int = 0
    due_in: float | None = None
    route: str | None = None
    error: str | None = None
    blocks: bool = True
    unsure: bool = False
    """The broker may have the message: it was sent without an answer, or a lane may have published it before its cursor
    was saved. Such a message can't be canceled. Once written, it stays true as long as the row is there.
    """
    counted: bool = False
    """An attempt has failed just now: it is added to the history."""
    copy_to: str | None = None
    """The sink that is to get a copy of the dead message; the copy is written with this row."""

    @property
    def error_kept(self) -> str | None:
        """The error as any database stores it: not too long, without NUL, and valid UTF-8."""
        if self.error is None:
            return None
        return self.error[:_LONGEST_ERROR].replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


Held = tuple[int, str | None]
"""The position of a message that waits for an earlier one of its key, and its ordering key."""


def as_held(held: Iterable[Held], unsure_through: int) -> list[Deferred]:
    """The rows of messages that wait for an earlier one of their key."""
    return [Deferred(position, key, State.HELD, unsure=position <= unsure_through) for position, key in held]


def key_and_source(message: StoredMessage) -> str | None:
    """The ordering key with ordering = "source-key": messages with the same key and source are kept in order.

    The key comes first, so that `key_of` finds it (in SQL, split_part).
    """
    return None if message.key is None else f"{message.key}{_SEPARATOR}{_source(message)}"


def _source(message: StoredMessage) -> str:
    """The source in an ordering key; empty if the headers, which an application may have written itself, are not all
    texts, or contain a NUL, which PostgreSQL can't store.
    """
    try:
        source = message.all_headers.get("source", "")
    except msgspec.MsgspecError:
        return ""
    return "" if "\0" in message.headers_json or "\\u0000" in message.headers_json else source


def key_of(ordering_key: str) -> str:
    """The key in an ordering key; a key without a source is returned as it is."""
    return ordering_key.partition(_SEPARATOR)[0]


class Claimed(msgspec.Struct, frozen=True):
    """A deferred message that its lane is publishing."""

    message: StoredMessage
    attempts: int
    route: str | None
    rewind: str | None = None
    """The rewind because of which it is published again."""
    new_id: UUID | None = None
    """The id to publish it with; None: its own."""
    waited: float = 0.0
    """Seconds since it was first deferred."""


class Claim(msgspec.Struct, frozen=True):
    """The deferred messages that may be published now, in the order to publish them in."""

    lease: Lease
    claimed: Sequence[Claimed]
    due_in: float | None
    """Seconds until the first of the others is due; 0 when more of them are due already."""
    locked: bool = False
    """As in `Loaded`."""


class Recorded(msgspec.Struct, frozen=True):
    """What a record has changed."""

    lease: Lease
    blocked_keys: Mapping[str, int]
    """Of the keys that were freed, those that still have a message that later ones wait for, and its position."""
    locked: bool = False
    """As in `Loaded`."""


class Moved(msgspec.Struct, frozen=True):
    """What one call has moved."""

    moved: int
    due_in: float | None
    """Seconds until the next one is due, by the database's clock; 0 when more may be due already; None: none waits."""


def not_moved(id: UUID | str) -> str:
    """The warning when a scheduled message is due and the log has another message with its id."""
    return f"the scheduled message {id} was due and was dropped: the log has another message with its id"


class Tally(msgspec.Struct, frozen=True):
    """How many messages a lane has published, and how many attempts have failed, since its last tally."""

    published: int
    refused: int
    latencies: tuple[int, ...] | None = None
    """Of the messages that were published at their first attempt: how many took how long, in the buckets of `latency`.
    None: not measured.
    """


class Settlement(msgspec.Struct, frozen=True):
    """What `Store.settle` is asked for one lane."""

    lease: Lease
    cursor: Cursor
    tally: Tally | None = None


class Cleaned(msgspec.Struct, frozen=True):
    """What one batch of retention did."""

    deleted: int
    through: int
    """Every row up to this position was looked at."""
    more: bool
    """Something was old enough, so the next batch may find more."""
    behind: int = 0
    """How far the last of all lanes has come: what stays in the log up to there stays for another reason."""
    busy: bool = False
    """Another cleanup is running, so no row was looked at."""


class Blocker(msgspec.Struct, frozen=True):
    """A session of the database that has locked what a relay needs."""

    pid: int
    """The server's process; 0: a prepared transaction."""
    role: str | None
    application: str
    state: str
    """What the session does, such as "idle in transaction"; empty if the relay's role may not know."""
    transaction_seconds: float | None
    query_seconds: float | None

    def __str__(self) -> str:
        if self.pid == 0:
            return "a prepared transaction (see pg_prepared_xacts)"
        name = f" ({self.application})" if self.application else ""
        if self.transaction_seconds is None or self.query_seconds is None:
            age = "of unknown age: this session's role is not a member of pg_read_all_stats"
        else:
            age = f"{self.state}, transaction {self.transaction_seconds:.0f} s old, query {self.query_seconds:.0f} s"
        return f"process {self.pid} of role {self.role}{name}, {age}"


class ManyLanes(Protocol):
    """What a store does for several lanes of one relay in one statement."""

    async def read(self, lanes: Sequence[tuple[Lease, Cursor]], limit: PageLimit) -> Sweep:
        """The next messages that any of the lanes has not dealt with, in one snapshot: `share_out` makes pages of them.
        Writes nothing. See `Store.read`.

        No cursor may be catching up, and all leases have one sink and one owner. Changes of the lanes raise nothing
        here: the caller checks each lane with `Lease.check_read`.
        """
        ...

    async def settle(self, asked: Sequence[Settlement]) -> Sequence[Lease | None]:
        """Save the cursors, each fenced by its own lease; None for a lane that was not saved, because its row is not as
        the lease says, or is locked. No lock is waited for, so that no lane waits for another.
        """
        ...


class Store(Protocol):
    """A database with the log, the lanes and their cursors.

    Whatever goes wrong with the connection is raised as StoreUnavailable; the caller then forgets what it knew of its
    lanes and loads them again, because the database may have gone back in time.
    """

    @property
    def naps(self) -> Naps:
        """How lanes are woken."""
        ...

    @property
    def leases(self) -> Leases:
        """Lane ownership and lease expiry."""
        ...

    @property
    def many(self) -> ManyLanes | None:
        """How several lanes are read and settled at once; None where each lane does so alone."""
        ...

    @property
    def copies(self) -> Copies:
        """Copies of dead messages that wait for other sinks."""
        ...

    @property
    def replication(self) -> Replication | None:
        """Replication slots, by which another program may carry the log; None where the database has none."""
        ...

    async def open(self) -> None:
        """Connect, and check that this database may be read from.

        Raises StoreUnavailable, NotMigrated, ClientTooOld or LogNotReadable. A database that was restored into another
        cluster is converted here, once, with a warning in the application log.
        """

    async def close(self) -> None:
        """Close all connections."""

    async def load(self, lease: Lease, *, by_source: bool = False) -> Loaded:
        """The lane as it is now: every owner begins with this, and begins again with it.

        One transaction that writes, so that an owner that can't write finds out before it publishes. These become due:
        messages that were being sent, by any owner; the first deferred message of each key, if it only waited for an
        earlier one; and the first message of each blocked route, as its probe (PROBES_PER_SECOND of them in a second).
        No message of a key that an operator holds is due. `by_source`: the ordering key is `key_and_source`.
        Raises LeaseLost when the lane has another owner or epoch.
        """
        ...

    async def read(self, lease: Lease, cursor: Cursor, limit: PageLimit) -> Page:
        """The next messages that the lane has not dealt with, from `cursor` on, in one snapshot. Writes nothing.

        The page has the lane's version too, so that a change of the lane takes effect before messages that were added
        after it are published. Raises LaneChanged when the lane is not this owner's any more, or when the database was
        put back to an earlier time: the lane's row is older than `lease`, or the log ends before `cursor`.

        Raises StoreUnavailable also when the server was restarted since this store took or loaded the lane.
        """
        ...

    async def is_current(self, lease: Lease) -> bool:
        """Whether the lane is as `lease` says. For a lane that has nothing to write, and so would not find out."""
        ...

    async def settle(self, lease: Lease, cursor: Cursor, tally: Tally | None = None) -> Lease:
        """Save the cursor. Raises LaneChanged, and writes nothing, unless the lane is as `lease` says.

        A tally is saved too, with the time: operators see from it when a message was published.
        """
        ...

    async def record(
        self,
        lease: Lease,
        cursor: Cursor,
        *,
        deferred: Sequence[Deferred] = (),
        held: Sequence[Held] = (),
        unsure_through: int = 0,
        published: Sequence[int] = (),
        freed: Collection[str] = (),
        tally: Tally | None = None,
    ) -> Recorded:
        """Save the cursor and the rows of deferred messages, in one transaction that is on disk when it returns.

        `deferred` rows are written, with their history and the copies that other sinks are to get; an earlier error is
        kept unless there is a new one. `held` messages only wait for an earlier one of their key; there may be very
        many, and those up to position `unsure_through` are unsure (see `Deferred.unsure`). Rows of `published`
        positions are deleted. Of each of the `freed` keys, the message that is now the first deferred one becomes due,
        if it is held.
        Raises LaneChanged, and writes nothing, unless the lane is as `lease` says.
        """
        ...

    async def claim(
        self, lease: Lease, limit: int, *, payload_bytes: int = ANY_SIZE, routes: Collection[str] = ()
    ) -> Claim:
        """Mark up to `limit` deferred messages as being sent, and return them by position.

        The claim ends with the message whose payload and headers reach `payload_bytes`.

        Claimed are messages that are due, or that wait for one of `routes`, and whose key has no earlier message that
        blocks; and if the first message of a key was only held, also some that follow it: the lane publishes them one
        after the other. A message that probes a blocked route is claimed without those that follow it.
        Raises LaneChanged, and writes nothing, unless the lane is as `lease` says.

        The rows of deferred messages that were deleted from the log by hand are deleted, with a warning. That is a
        change too: LaneChanged is raised, because the lane may take keys for blocked that are not.
        """
        ...

    async def move_scheduled(self, limit: int) -> Moved:
        """Move up to `limit` scheduled messages that are due into the log, in the order in which they were due; those
        that were due at the same time, in the order in which they were added.

        One transaction that is on disk when it returns: a message is in exactly one of the two tables. If several
        relays call this at once, one moves messages, so that a key's messages keep their order, and the others get a
        `due_in` that makes them call again soon. A message that an application is canceling is left out. A message
        whose id is in the log already is dropped, with a warning.
        """
        ...

    async def delete_passed(self, *, after: int, older_than: timedelta, batch: int, key: str | None = None) -> Cleaned:
        """Delete, of the first `batch` rows after a position, those that every lane of every sink has passed, that are
        older than that, and that are not deferred; with `key`, only those of that key. Without any sink, no row has
        been passed.

        Rows in a final state in `deferred`, and the history, are deleted with their messages. If another cleanup is
        running, nothing is deleted, and `busy` is returned.
        """
        ...

    async def blocked(self) -> Sequence[Blocker]:
        """Wait until a statement of this store has waited for more than a second, or has skipped locked rows; then
        return the sessions that hold those locks, and have for more than a second. Never returns where they can't be
        named.
        """
        ...

    async def forget_progress(self, *, older_than: timedelta, batch: int) -> int:
        """Of the first `batch` tallies that are older than that, delete all but the last one of each lane, and clear
        the time of that one. Returns how many were deleted.
        """
        ...
