from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from postroad.brokers.kafka.window import LONGEST_LIST, Progress, Window

SIZES = st.integers(1, 6)


def filled(size: int, *offsets: int, start: int = 0, before: Progress | None = None) -> Window[str]:
    window: Window[str] = Window(size, start, before)
    window.confirm(window.progress())
    for offset in offsets:
        window.arrive(offset, f"record {offset}")
    return window


def offsets(taken: list[tuple[int, str, bool | None]]) -> list[int]:
    return [offset for offset, _, _ in taken]


def test_the_commit_stays_before_the_first_unfinished_record() -> None:
    window = filled(10, 0, 1, 2, 3)
    assert offsets(window.take()) == [0, 1, 2, 3]
    assert all(window.finish(offset) for offset in (1, 2))
    assert window.progress().offset == 0
    window.finish(0)
    assert window.progress().offset == 3
    window.finish(3)
    assert window.progress().offset == 4


def test_nothing_is_delivered_before_a_commit_says_that_it_may_be() -> None:
    window: Window[str] = Window(2, 7)
    window.arrive(7, "a")
    assert (window.take(), window.urgent) == ([], True)
    window.confirm(window.progress())
    assert offsets(window.take()) == [7]


def test_a_full_window_waits_and_what_is_finished_makes_room_after_a_commit() -> None:
    window = filled(2, 0, 1, 2, 3)
    assert offsets(window.take()) == [0, 1]
    assert (window.take(), window.urgent, window.pending) == ([], False, 2)
    window.finish(1)
    assert (window.take(), window.urgent) == ([], True)
    window.confirm(window.progress())
    assert offsets(window.take()) == [2]


def test_a_record_that_comes_again_or_is_finished_twice_changes_nothing() -> None:
    window = filled(5, 0, 1)
    window.take()
    assert not window.arrive(1, "again")
    assert (window.finish(0), window.finish(0), window.finish(9)) == (True, False, False)
    assert window.progress().offset == 1


def test_offsets_without_records_are_passed_when_the_end_is_reached() -> None:
    window = filled(5, 0, 4)
    window.take()
    window.reach(9)
    window.finish(0)
    assert window.progress().offset == 4
    window.finish(4)
    assert window.progress().offset == 9


def test_after_a_crash_only_what_may_have_been_begun_is_suspect() -> None:
    window = filled(3, 10, 11, 12, start=10)
    window.take()
    window.finish(11)
    left = Progress.read(10, window.progress().metadata())
    again = filled(3, 10, 11, 12, 13, 14, start=10, before=left)
    again.confirm(again.progress())
    taken = again.take()
    assert taken == [(10, "record 10", None), (12, "record 12", None), (13, "record 13", None)], "11 was finished"
    for offset in (10, 12, 13):
        again.finish(offset)
    again.confirm(again.progress())
    assert again.take() == [(14, "record 14", False)]


def test_of_what_has_not_arrived_yet_the_next_owner_knows_as_much() -> None:
    before = Progress(0, 100, 120, (0, 50))
    window = filled(5, 0, 1, 2, before=before)
    assert offsets(window.take()) == [0]
    assert window.progress() == before
    window.finish(0)
    assert window.progress() == Progress(3, 100, 120, (50,))


def test_a_list_that_is_too_long_is_cut_and_the_rest_counts_as_not_delivered() -> None:
    every_third = tuple(range(0, 300_000, 100))
    progress = Progress(0, 300_000, 300_500, every_third)
    text = progress.metadata()
    assert len(text) < LONGEST_LIST + 60
    read = Progress.read(0, text)
    assert read is not None
    assert read.open == every_third[: len(read.open)]
    assert read.delivered == every_third[len(read.open)]
    assert read.until == 300_500


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        None,
        "postroad",
        "postroad-1 7 0",
        "postroad-1 8 0 5",
        "postroad-1 7 x 5",
        "postroad-1 7 0 -5",
        "other 7 0 5",
    ],
)
def test_what_another_program_has_committed_says_nothing(metadata: str | None) -> None:
    assert Progress.read(7, metadata) is None


@given(st.integers(0, 1 << 40), st.lists(st.integers(1, 1000), max_size=30), st.integers(0, 50), st.integers(0, 50))
def test_metadata_can_be_read_back(offset: int, steps: list[int], behind: int, more: int) -> None:
    open = tuple(offset + sum(steps[:n]) for n in range(len(steps)))
    delivered = max((offset, *open)) + behind
    progress = Progress(offset, delivered, delivered + more, open)
    assert Progress.read(offset, progress.metadata()) == progress


class Partition(RuleBasedStateMachine):
    """A partition, and the consumers that have it one after the other, some of which are killed."""

    @initialize(size=SIZES)
    def begin(self, size: int) -> None:
        self.size = size
        self.records: list[int] = []
        self.end = 0
        self.committed: tuple[int, str] | None = None
        self.finished: set[int] = set()
        """What was finished by a consumer that had the partition then."""
        self.named: set[int] = set()
        """What the last commit says was finished. A consumer that is killed takes the rest with it."""
        self.begun: set[int] = set()
        self.assign()

    def assign(self) -> None:
        start = self.committed[0] if self.committed else 0
        before = Progress.read(*self.committed) if self.committed else None
        assert (before is None) == (self.committed is None)
        self.window: Window[int] = Window(self.size, start, before)
        self.fetched = start
        self.open: list[int] = []
        self.here: set[int] = set()
        self.known = set(self.named)
        """What this consumer knows to be finished."""

    @rule(gaps=st.lists(st.integers(0, 3), min_size=1, max_size=8))
    def produce(self, gaps: list[int]) -> None:
        for gap in gaps:
            self.records.append(self.end + gap)
            self.end = self.records[-1] + 1

    @rule(count=st.integers(1, 10))
    def fetch(self, count: int) -> None:
        new = [offset for offset in self.records if offset >= self.fetched][:count]
        for offset in new:
            self.window.arrive(offset, offset)
            self.fetched = offset + 1
        if not any(offset >= self.fetched for offset in self.records):
            self.window.reach(self.end)
            self.fetched = self.end

    @rule()
    def take(self) -> None:
        for offset, record, redelivered in self.window.take():
            assert offset == record
            assert offset not in self.here, "twice in one session"
            assert redelivered is None or offset not in self.begun, "it was begun before"
            assert offset not in self.known, "it was finished, and a commit said so"
            self.here.add(offset)
            self.begun.add(offset)
            self.open.append(offset)
        assert len(self.open) == self.window.open <= self.size

    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        if self.open:
            offset = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
            assert self.window.finish(offset)
            self.finished.add(offset)
            self.known.add(offset)

    @rule(answer=st.sampled_from(["confirmed", "confirmed", "unheard", "failed"]))
    def commit(self, answer: str) -> None:
        progress = self.window.progress()
        if answer != "failed":
            self.committed = (progress.offset, progress.metadata())
            self.named = set(self.known)
        if answer == "confirmed":
            self.window.confirm(progress)

    @rule()
    def leave(self) -> None:
        progress = self.window.last_progress()
        self.committed = (progress.offset, progress.metadata())
        self.named = set(self.known)
        self.assign()

    @rule()
    def crash(self) -> None:
        self.assign()

    @invariant()
    def the_commit_passes_nothing_unfinished(self) -> None:
        if getattr(self, "committed", None):
            assert self.committed is not None
            assert {offset for offset in self.records if offset < self.committed[0]} <= self.finished

    def teardown(self) -> None:
        """In the end all is read, and nothing is missing."""
        if not hasattr(self, "window"):
            return
        for _ in range(len(self.records) + 3):
            self.fetch(1000)
            self.commit("confirmed")
            self.take()
            while self.open:
                offset = self.open.pop()
                self.window.finish(offset)
                self.finished.add(offset)
        assert self.finished == set(self.records)
        assert self.window.progress().offset == max(self.end, 0)


TestPartition = Partition.TestCase
TestPartition.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
