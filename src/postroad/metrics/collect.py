"""`Metrics`: a listener that measures, and what exporters read. One per process, for all its relays and consumers.

It is told once per page, per saved cursor and per attempt of a consumer, and counts in integers. All else is read from
the relays and consumers when an exporter asks, from any thread.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Self

from postroad.consumer import Consumer
from postroad.metrics.catalog import CATALOG
from postroad.metrics.instruments import DURATIONS, LATENCIES, Family, Histogram, Sample
from postroad.metrics.loop_lag import LoopLag
from postroad.relay import Relay
from postroad.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from postroad.consumer.model import ConsumerStats
    from postroad.events import Event
    from postroad.metrics.database import DatabaseReader
    from postroad.relay.stats import RelayStats

__all__ = ["Metrics"]

_Values = dict[tuple[str, ...], float]
_OVER = {"ended", "failed"}


class _Measured(NamedTuple):
    """What has the listener. It is replaced as a whole, so that another thread never counts something twice."""

    relays: tuple[Relay, ...] = ()
    consumers: tuple[Consumer[object], ...] = ()
    past: Mapping[str, _Values] = {}
    """The counters of those that others have replaced."""


class Metrics:
    """Pass it as a listener: `Relay(…, listeners=[LogListener(), metrics])`, or `consumer.add_listener(metrics)`.

    While the block of `async with metrics:` runs, the event loop is measured, and `database` may be read; without
    `database` there are no metrics of the database.
    """

    def __init__(self, *, database: DatabaseReader | None = None) -> None:
        self.database = database
        self.loop_lag = LoopLag()
        self._measured = _Measured()
        self._last_published: dict[str, float] = {}
        self._histograms: dict[str, dict[str, Histogram]] = {
            "postroad_relay_publish_duration_seconds": {},
            "postroad_relay_delivery_latency_seconds": {},
            "postroad_relay_settle_duration_seconds": {},
            "postroad_consumer_process_duration_seconds": {},
            "postroad_consumer_end_to_end_seconds": {},
        }
        publish, latency, settle, process, end_to_end = self._histograms.values()
        self._publish, self._latency, self._settle = publish, latency, settle
        self._process, self._end_to_end = process, end_to_end

    async def __aenter__(self) -> Self:
        self.loop_lag.start()
        if self.database is not None:
            await self.database.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.loop_lag.stop()
        if self.database is not None:
            await self.database.__aexit__()

    # -- a listener that measures ------------------------------------------------------------------------------------

    def attach(self, subject: object) -> None:
        """A relay or a consumer has this listener. It replaces those of its sink or name that have ended or failed:
        probes look at them no more, and their counters stay.
        """
        now = self._measured
        if isinstance(subject, Relay) and subject not in now.relays:
            sink = subject.stats().sink
            over = [each for each in now.relays if (stats := each.stats()).sink == sink and stats.phase in _OVER]
            self._measured = now._replace(
                relays=(*(each for each in now.relays if each not in over), subject),
                past=_added(now.past, _counters_of_relays(each.stats() for each in over)),
            )
            self._add_histograms(sink, self._publish, self._settle, latency=self._latency)
        elif isinstance(subject, Consumer) and subject not in now.consumers:
            name = subject.name
            ended = [each for each in now.consumers if each.name == name and each.stats().phase in _OVER]
            self._measured = now._replace(
                consumers=(*(each for each in now.consumers if each not in ended), subject),
                past=_added(now.past, _counters_of_consumers(each.stats() for each in ended)),
            )
            self._add_histograms(name, self._process, latency=self._end_to_end)

    def _add_histograms(self, name: str, *durations: dict[str, Histogram], latency: dict[str, Histogram]) -> None:
        for each in durations:
            each.setdefault(name, Histogram(DURATIONS))
        latency.setdefault(name, Histogram(LATENCIES))

    def wants(self, event_type: type[Event]) -> bool:
        """No event: numbers are read from the relays and consumers themselves."""
        return False

    def on_event(self, event: Event) -> None:
        """Never called."""

    def on_published(self, sink: str, messages: int, created_us: Sequence[int], seconds: float) -> None:
        """A page was confirmed."""
        now = time.time()
        self._publish[sink].observe(round(seconds * 1_000_000))
        self._latency[sink].observe_ages(created_us, int(now * 1_000_000), messages)
        self._last_published[sink] = now

    def on_settled(self, sink: str, seconds: float) -> None:
        """A cursor was saved."""
        self._settle[sink].observe(round(seconds * 1_000_000))

    def on_processed(self, consumer: str, seconds: float, created: Sequence[str | None]) -> None:
        """An attempt of a consumer has ended."""
        self._process[consumer].observe(round(seconds * 1_000_000))
        if created:
            now, times = int(time.time() * 1_000_000), [us for text in created if (us := _microseconds(text))]
            self._end_to_end[consumer].observe_ages(times, now, len(times))

    # -- for exporters and probes ------------------------------------------------------------------------------------

    def relays(self) -> list[RelayStats]:
        """Each relay at this moment."""
        return [relay.stats() for relay in self._measured.relays]

    def consumers(self) -> list[ConsumerStats]:
        """Each consumer at this moment."""
        return [consumer.stats() for consumer in self._measured.consumers]

    def read(self) -> list[Family]:
        """All metrics at this moment. From any thread; it asks no database, and returns what was last read there."""
        now = self._measured
        relays, consumers = [each.stats() for each in now.relays], [each.stats() for each in now.consumers]
        running = [relay for relay in relays if relay.phase in {"running", "draining"}]
        values: dict[str, _Values] = {
            **_added(now.past, {**_counters_of_relays(relays), **_counters_of_consumers(consumers)}),
            **_gauges_of_relays(running),
            **_gauges_of_consumers(consumers),
            "postroad_relay_last_published_timestamp_seconds": _by_name(self._last_published),
            "postroad_relay_event_loop_lag_seconds": {(): self.loop_lag.worst},
            "postroad_build_info": {(__version__, platform.python_version()): 1},
            **({} if self.database is None else self.database.values()),
        }
        return [Family(metric, self._samples(name, values.get(name, {}))) for name, metric in CATALOG.items()]

    def _samples(self, name: str, values: _Values) -> list[Sample]:
        if (histograms := self._histograms.get(name)) is not None:
            return [Sample((label,), histogram.read()) for label, histogram in list(histograms.items())]
        return [Sample(labels, value) for labels, value in values.items()]


def _added(some: Mapping[str, _Values], others: Mapping[str, _Values]) -> dict[str, _Values]:
    """The sum of counters, by metric and labels."""
    total = {name: dict(values) for name, values in some.items()}
    for name, values in others.items():
        of_metric = total.setdefault(name, {})
        for labels, value in values.items():
            of_metric[labels] = of_metric.get(labels, 0) + value
    return total


def _counters_of_relays(relays: Iterable[RelayStats]) -> dict[str, _Values]:
    """Two relays of one sink in one process are added up."""
    published, pages, refusals, dead, lost = (Counter[tuple[str, ...]]() for _ in range(5))
    for relay in relays:
        for lane, counts in relay.by_lane.items():
            published[relay.sink, str(lane)] += counts.published
            pages[relay.sink, str(lane)] += counts.pages
        for cause in ("refused", "permanent", "route"):
            refusals[relay.sink, cause] += relay.refusal_causes.get(cause, 0)
        dead[(relay.sink,)] += sum(counts.died for counts in relay.by_lane.values())
        lost[(relay.sink,)] += relay.lanes_lost
    return {
        "postroad_relay_published_messages_total": dict(published),
        "postroad_relay_pages_total": dict(pages),
        "postroad_relay_refusals_total": dict(refusals),
        "postroad_relay_dead_messages_total": dict(dead),
        "postroad_relay_lanes_lost_total": dict(lost),
    }


def _gauges_of_relays(relays: Sequence[RelayStats]) -> dict[str, _Values]:
    """Gauges of the relays that run. Of two relays of one sink, the worse value counts."""
    return {
        "postroad_relay_broker_up": _combined(relays, lambda each: int(each.broker_up), min),
        "postroad_relay_listening": _combined(
            relays, lambda each: None if each.listening is None else int(each.listening), min
        ),
        "postroad_relay_routes_blocked": _combined(relays, lambda each: each.routes_blocked, max),
        "postroad_relay_lanes": _combined(relays, lambda each: each.lanes, sum),
        "postroad_relay_lease_remaining_seconds": _combined(relays, lambda each: each.lease_remaining, min),
    }


def _combined(
    relays: Iterable[RelayStats],
    value_of: Callable[[RelayStats], float | None],
    combine: Callable[[list[float]], float],
) -> _Values:
    by_sink: dict[str, list[float]] = {}
    for relay in relays:
        if (value := value_of(relay)) is not None:
            by_sink.setdefault(relay.sink, []).append(value)
    return {(sink,): combine(values) for sink, values in by_sink.items()}


def _counters_of_consumers(consumers: Iterable[ConsumerStats]) -> dict[str, _Values]:
    messages = Counter[tuple[str, ...]]()
    for each in consumers:
        outcomes = {
            "handled": each.handled,
            "duplicate": each.duplicates,
            "failed": each.failed,
            "dead_lettered": each.dead,
        }
        for outcome, number in outcomes.items():
            messages[each.consumer, outcome] += number
    return {"postroad_consumer_messages_total": dict(messages)}


def _gauges_of_consumers(consumers: Iterable[ConsumerStats]) -> dict[str, _Values]:
    in_flight = Counter[tuple[str, ...]]()
    for each in consumers:
        in_flight[(each.consumer,)] += each.in_flight
    return {"postroad_consumer_in_flight": dict(in_flight)}


def _by_name(values: Mapping[str, float]) -> _Values:
    return {(name,): value for name, value in list(values.items())}


def _microseconds(text: str | None) -> int | None:
    """Microseconds since 1970 of a time as producers write it. None for one that can't be read, or has no zone."""
    try:
        time = datetime.fromisoformat(text or "")
        return None if time.tzinfo is None else round(time.timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        return None
