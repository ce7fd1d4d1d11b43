"""A database that can't be reached is one outage for a relay; an error of one part is an outage of that part."""

from __future__ import annotations

from postroad.errors import NotMigrated, StoreUnavailable
from postroad.events import Event
from postroad.listeners import Listeners
from postroad.relay.store_outages import StoreOutages
from tests.clocks import FastClock


class Collecting:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def said(self) -> list[str]:
        said, self.events = [str(event) for event in self.events], []
        return said


class Relay:
    def __init__(self) -> None:
        self.clock, self.log = FastClock(), Collecting()
        self.outages = StoreOutages("s", Listeners([self.log]), self.clock)


GONE = StoreUnavailable("connection refused", transient=True)


def test_one_outage_for_all_parts() -> None:
    relay = Relay()
    for _ in range(3):
        relay.outages.failed("lanes", GONE, 0.05)
        relay.outages.failed("leases", GONE, 0.05)
        relay.outages.failed("retention", GONE, 0.05)
    assert relay.log.said() == [
        "relay s: database unavailable: connection refused; 0 s and 0 retries so far, retrying in 50 ms"
    ]
    relay.clock.time += 12
    relay.outages.failed("lanes", GONE, 5)
    assert relay.log.said() == [
        "relay s: database unavailable: connection refused; 12 s and 9 retries so far, retrying in 5,000 ms"
    ]
    relay.outages.worked("leases")
    relay.outages.worked("lanes")
    relay.outages.worked("retention")
    assert relay.log.said() == ["relay s: database available again, after 12 s and 9 retries"]


def test_an_error_of_one_part_hides_no_other() -> None:
    relay = Relay()
    relay.outages.failed("retention", StoreUnavailable("permission denied"), 1)
    relay.outages.failed("lanes", NotMigrated("run `postroad migrate`"), 1)
    relay.outages.failed("leases", GONE, 1)
    assert [each.partition(" unavailable")[0] for each in relay.log.said()] == [
        "relay s: retention",
        "relay s: lanes",
        "relay s: database",
    ]
    relay.outages.worked("leases")
    assert relay.log.said() == ["relay s: database available again, after 0 s and 0 retries"]
    relay.outages.worked("retention")
    assert relay.log.said() == ["relay s: retention available again, after 0 s and 0 retries"]


def test_without_a_failure_nothing_is_said() -> None:
    relay = Relay()
    relay.outages.worked("lanes")
    assert relay.log.said() == []
