"""What is due when: whatever is added, retried and ended, chains stay in order and time never goes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroad.testing.timeline import Timeline

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3)),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("retry"), st.integers(0, 50)),
        st.tuples(st.just("travel"), st.integers(0, 200)),
    ),
    max_size=60,
)


@given(STEPS)
def test_chains_stay_in_order_and_time_never_goes_back(steps: list[tuple[str, int]]) -> None:
    timeline: Timeline[tuple[int, int]] = Timeline(100)
    added: list[tuple[int, int]] = []
    ended: list[tuple[int, int]] = []
    not_before: dict[tuple[int, int], int] = {}
    for step, value in steps:
        was = timeline.now
        if step == "add":
            added.append((value, len(added)))
            timeline.add(added[-1], value)
        elif step == "travel":
            timeline.travel(value)
        elif timeline.next_due is not None:
            due = timeline.next_due
            item = timeline.take()
            assert timeline.now == max(was, due)
            assert timeline.now >= not_before.get(item.what, 0), "not before its retry is due"
            assert item.what == next(each for each in added if each not in ended and each[0] == item.what[0])
            if step == "end":
                timeline.end(item)
                ended.append(item.what)
            else:
                timeline.retry(item, value)
                not_before[item.what] = timeline.now + value
        assert timeline.now >= was
        assert list(timeline.waiting) == [each for each in added if each not in ended]
    while timeline.next_due is not None:
        timeline.end(timeline.take())
    assert list(timeline.waiting) == []


def test_what_was_added_first_comes_first() -> None:
    timeline: Timeline[str] = Timeline(0)
    for name in ("a", "b", "c"):
        timeline.add(name, name)
    assert timeline.take_if(lambda item: item.what == "b") is None
    first = timeline.take_if(lambda item: item.what == "a")
    assert first is not None
    timeline.retry(first, 5)
    assert [timeline.take().what for _ in range(3)] == ["b", "c", "a"]
    assert timeline.now == 5


def test_only_what_is_due_now_is_taken_with_others() -> None:
    timeline: Timeline[str] = Timeline(0)
    timeline.add("a", "a")
    timeline.retry(timeline.take(), 5)
    assert timeline.take_if(lambda _: True) is None
    assert timeline.now == 0
