"""The order of what was received: of each key one at a time, whatever is taken, finished, restored and cleared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroad.consumer.keys import Keys


def taken(keys: Keys[str]) -> list[str]:
    return [item for _ in iter(lambda: bool(keys.ready), False) for item in keys.take()]


def with_items(*items: str) -> Keys[str]:
    """The first letter is the key; a dash is none."""
    keys: Keys[str] = Keys()
    for item in items:
        keys.add(None if item[0] == "-" else item[0], item)
    return keys


def test_of_each_key_one_and_all_without() -> None:
    keys = with_items("a1", "a2", "-1", "b1", "-2")
    assert taken(keys) == ["a1", "-1", "b1", "-2"]
    keys.finish("b")
    assert taken(keys) == []
    keys.finish("a")
    assert taken(keys) == ["a2"]
    keys.finish("a")
    keys.add("a", "a3")
    assert taken(keys) == ["a3"]


def test_those_behind_go_along() -> None:
    keys = with_items("a1", "a2", "-1", "a3", "b1", "b2")
    assert keys.take(5) == ["a1", "a2", "a3", "-1", "b1"]
    assert not keys.ready
    keys.finish("b")
    keys.finish("a")
    assert taken(keys) == ["b2"]


def test_what_does_not_join_waits_with_all_behind_it() -> None:
    keys = with_items("a1", "a2 alone", "a3", "b1 alone", "c1")
    assert keys.take(9, lambda item: "alone" not in item) == ["a1"]
    assert taken(keys) == ["b1 alone", "c1"]
    keys.finish("a")
    assert taken(keys) == ["a2 alone"]
    keys.finish("a")
    assert taken(keys) == ["a3"]


def test_what_was_taken_together_can_be_taken_one_by_one() -> None:
    keys = with_items("a1", "a2", "a3", "-1", "-2")
    together = keys.take(2)
    assert together == ["a1", "a2"]
    keys.restore("a", together)
    keys.restore(None, ["-0"])
    assert taken(keys) == ["-0", "a1", "-1", "-2"]
    keys.finish("a")
    assert taken(keys) == ["a2"], "before a3, which came later"
    keys.finish("a")
    assert taken(keys) == ["a3"]


def test_what_is_under_way_keeps_its_key_busy() -> None:
    keys = with_items("a1", "a2", "b1", "b2")
    assert keys.take() == ["a1"]
    assert sorted(keys.clear()) == ["a2", "b1", "b2"]
    keys.add("a", "a1 again")
    keys.add("b", "b1 again")
    assert taken(keys) == ["b1 again"]
    keys.finish("a")
    assert taken(keys) == ["a1 again"]


@given(st.lists(st.sampled_from("abc-")), st.randoms(use_true_random=False))
def test_no_order_of_finishing_disturbs_a_key(keys_of: list[str], chance: object) -> None:
    items = [f"{key}{number}" for number, key in enumerate(keys_of)]
    keys = with_items(*items)
    done: list[str] = []
    open_: list[str] = []
    while keys.ready or open_:
        open_ += taken(keys)
        assert len({item[0] for item in open_ if item[0] != "-"}) == len([item for item in open_ if item[0] != "-"])
        item = open_.pop(chance.randrange(len(open_)))  # type: ignore[attr-defined]
        done.append(item)
        keys.finish(None if item[0] == "-" else item[0])
    assert sorted(done) == sorted(items)
    for key in "abc":
        assert [item for item in done if item[0] == key] == [item for item in items if item[0] == key]


def test_what_is_discarded_leaves_its_place_to_what_is_behind_it() -> None:
    keys = with_items("a1", "a2 gone", "b1 gone", "b2", "c1 gone", "-1", "-2 gone", "d1")
    assert keys.take() == ["a1"]
    assert sorted(keys.discard(lambda item: "gone" in item)) == ["-2 gone", "a2 gone", "b1 gone", "c1 gone"]
    keys.add("c", "c2")
    keys.add("a", "a3")
    assert taken(keys) == ["b2", "-1", "d1", "c2"]
    keys.finish("a")
    assert taken(keys) == ["a3"]


@given(
    st.lists(st.tuples(st.sampled_from("abc-"), st.booleans())), st.integers(0, 8), st.randoms(use_true_random=False)
)
def test_discarding_disturbs_no_other_item(of: list[tuple[str, bool]], before: int, chance: object) -> None:
    """Whatever is under way then: the rest comes in order, of each key one at a time, and nothing is left behind."""
    items = [f"{key}{number}{' gone' * gone}" for number, (key, gone) in enumerate(of)]
    keys = with_items(*items)
    done: list[str] = []
    open_: list[str] = []
    removed: list[str] | None = None
    while keys.ready or open_ or removed is None:
        if removed is None and (len(done) >= before or not (keys.ready or open_)):
            removed = keys.discard(lambda item: "gone" in item)
            assert not any("gone" in item for _, item in keys.ready)
        open_ += taken(keys) if keys.ready and chance.random() < 0.7 else []  # type: ignore[attr-defined]
        assert len({item[0] for item in open_ if item[0] != "-"}) == len([item for item in open_ if item[0] != "-"])
        if open_:
            done.append(item := open_.pop(chance.randrange(len(open_))))  # type: ignore[attr-defined]
            keys.finish(None if item[0] == "-" else item[0])
    assert sorted(done + removed) == sorted(items)
    assert all("gone" in item for item in removed)
    for key in "abc":
        left = [item for item in items if item[0] == key and item not in removed]
        assert [item for item in done if item[0] == key] == left
    assert not keys._behind
