"""The values that a consumer's parts share: its options, a delivery that is not acked yet, and the summary. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from postroad.brokers.base import Delivery
    from postroad.consumer.outages import Dependency
    from postroad.otel import ProcessSpan
    from postroad.received import Received
    from postroad.retry import RetryPolicy

__all__ = ["ConsumerOptions", "ConsumerStats", "OpenDelivery", "Summary"]


class ConsumerOptions(msgspec.Struct, frozen=True):
    """How a consumer works."""

    consumer: str
    concurrency: int
    keep_order: bool
    retry: RetryPolicy
    grace: float


class OpenDelivery(msgspec.Struct, eq=False):
    """A delivery that is not acked yet, and what has happened to it so far.

    What happened is kept here until it is written to the database: an outage in between repeats no step.
    """

    delivery: Delivery
    message: Received | None
    """None when it can't be read."""
    key: str | None
    """Deliveries with the same key are processed one after the other."""
    dead_letter_reason: str | None = None
    """Why it becomes a dead letter, once that is decided."""
    dead_letter_id: str | None = None
    """It is in the dead-letter queue, under this identity."""
    suspect: bool = False
    """It was, or may have been, delivered before, or was a dead letter: it may have crashed a process, so its attempts
    are marked.
    """
    revoked: bool = False
    """Its session ends: no attempt is begun any more, and what is not acked is delivered to another consumer."""
    alone: bool = False
    """It is processed in a transaction of its own, never in a group."""
    failure: str | None = None
    """Why its handler failed, until that attempt is counted."""
    error: BaseException | None = None
    """What the handler raised, until that was logged. Its traceback keeps alive whatever the handler used."""
    span: ProcessSpan | None = None
    """The span of the handler that runs, if it is traced."""
    losses: int = 0
    """How often its transaction was lost."""
    waits_for: Dependency | None = None
    """What was unavailable at the last try; None when it waits for something else."""
    waits_because: str = ""
    """Why that was unavailable."""
    locked: bool = False
    """At the last try, another transaction had locked its inbox row for longer than `lock_timeout`."""
    pauses: int = 0
    """How often it has waited because the message was busy, or the dead-letter queue unavailable."""


class Summary(msgspec.Struct):
    """What a consumer did."""

    handled: int = 0
    duplicates: int = 0
    """Messages that had been processed before."""
    failed: int = 0
    """Attempts that failed."""
    dead: int = 0
    """Messages that went to the dead-letter queue."""
    abandoned: int = 0
    """Handlers that were still running when the consumer ended."""
    seconds: float = 0.0

    def add(self, other: Summary) -> None:
        """Add what another run did."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        rate = f" ({self.handled / self.seconds:,.0f}/s)" if self.seconds > 0 and self.handled else ""
        text = f"{self.handled:,} handled"
        text += f", {self.dead:,} dead-lettered" if self.dead else ""
        text += f", {self.duplicates:,} processed before" if self.duplicates else ""
        text += f", {self.failed:,} {'attempt' if self.failed == 1 else 'attempts'} failed" if self.failed else ""
        return f"{text} in {self.seconds:.2f} s{rate}"


class ConsumerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer at one moment. Counts are since it was made."""

    consumer: str
    phase: Literal["starting", "running", "draining", "ended", "failed"]
    """starting: the database was not reached yet. draining: it is being stopped. failed: it has ended with an error."""
    handled: int
    duplicates: int
    failed: int
    dead: int
    in_flight: int
    """Messages that are being processed."""
