"""Patterns of topics: which topics match, and what databases are given to compare with."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.topic_patterns import is_pattern, likes_of, regex_of

words = st.sampled_from(["a", "b", "ab", "", "é", "%", "_", "a_b", "\\"])
patterns = st.lists(st.one_of(words, st.sampled_from(["*", "#"])), min_size=1, max_size=5).map(".".join).filter(bool)
topics = st.lists(words, min_size=1, max_size=6).map(".".join).filter(bool)


def matches(pattern: list[str], topic: list[str]) -> bool:
    """As the specification says it."""
    if not pattern:
        return not topic
    first, *rest = pattern
    if first == "#":
        return matches(rest, topic) or (bool(topic) and matches(pattern, topic[1:]))
    return bool(topic) and first in {"*", topic[0]} and matches(rest, topic[1:])


def is_like(like: str, topic: str) -> bool:
    """What LIKE means, with a backslash as the escape."""
    parts = re.findall(r"\\.|.", like, re.DOTALL)
    regex = "".join(".*" if each == "%" else "." if each == "_" else re.escape(each[-1]) for each in parts)
    return re.fullmatch(regex, topic, re.DOTALL) is not None


@pytest.mark.parametrize(
    ("pattern", "taken", "left"),
    [
        ("order.*", ["order.created", "order."], ["order", "order.item.added", "orders.created"]),
        ("order.#", ["order", "order.created", "order.item.added"], ["orders", "orders.x", "x.order"]),
        ("#", ["a", "a.b", "."], []),
        ("*", ["a"], ["a.b", "."]),
        ("#.failed", ["failed", "a.failed", "a.b.failed"], ["failed.a", "xfailed"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b", "a..b"], ["a", "b", "a.b.c", "ab"]),
        ("*.#", ["a", "a.b"], []),
        ("a.b", ["a.b"], ["a", "axb", "a.b.c", "A.b"]),
        ("a+b.(c", ["a+b.(c"], ["aab.(c"]),
    ],
)
def test_a_pattern_takes_these_topics_and_not_those(pattern: str, taken: list[str], left: list[str]) -> None:
    compiled = re.compile(regex_of([pattern]))
    assert [topic for topic in taken + left if compiled.fullmatch(topic)] == taken


@given(pattern=patterns, topic=topics)
def test_the_regular_expression_says_what_the_specification_says(pattern: str, topic: str) -> None:
    wanted = matches(pattern.split("."), topic.split("."))
    assert (re.fullmatch(regex_of([pattern]), topic) is not None) is wanted
    likes, exact = likes_of([pattern])
    is_one = any(is_like(like, topic) for like in likes)
    assert is_one if wanted else not (is_one and exact)


@given(several=st.lists(patterns, min_size=1, max_size=3), topic=topics)
def test_of_several_patterns_one_is_enough(several: list[str], topic: str) -> None:
    one = any(re.fullmatch(regex_of([each]), topic) for each in several)
    assert bool(re.fullmatch(regex_of(several), topic)) is one


@pytest.mark.parametrize("text", ["order.*", "#", "*.#.a", "order", "a..b", "."])
def test_a_pattern_has_wildcards_as_whole_words(text: str) -> None:
    assert is_pattern(text)


@pytest.mark.parametrize("text", ["order*", "*order", "a.b#", "##", "**", ""])
def test_a_wildcard_within_a_word_is_refused(text: str) -> None:
    assert not is_pattern(text)


def test_a_pattern_with_very_many_wildcards_has_one_like_pattern() -> None:
    likes, exact = likes_of([".".join(["#", "a"] * 20)])
    assert (len(likes), exact) == (1, False)
