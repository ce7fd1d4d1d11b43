"""The filter of a sink: what it takes, how it is written, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from postroad import InvalidSetting
from postroad.sink_filter import EVERYTHING, SinkFilter, takes

HEADERS = '{"source":"/shop","tenant":"t"}'


def taken(filter: SinkFilter, topic: str = "order.created", type: str = "t", headers: str = HEADERS) -> bool:
    return takes(filter.text, topic, type, headers)


def test_a_filter_without_settings_takes_everything() -> None:
    assert EVERYTHING.text is None
    assert str(EVERYTHING) == "everything"
    assert taken(EVERYTHING, "anything", "at all", "not even JSON")


def test_every_part_that_is_given_must_take_a_message() -> None:
    filter = SinkFilter(topics=["order.#"], exclude_topics=["*.debug"], types=["t", "u"], sources=["/shop"])
    assert taken(filter)
    assert not taken(filter, "payment.done")
    assert not taken(filter, "order.debug")
    assert not taken(filter, type="v")
    assert not taken(filter, headers='{"source":"/other"}')


@pytest.mark.parametrize("headers", ["", "[]", '{"source":1}', "{}", '{"source":null}', "{"])
def test_headers_without_a_source_that_is_a_text_have_none(headers: str) -> None:
    assert not taken(SinkFilter(sources=["/shop"]), headers=headers)
    assert taken(SinkFilter(types=["t"]), headers=headers)


def test_equal_filters_are_written_in_the_same_way() -> None:
    one, other = SinkFilter(topics=["b", "a", "b"]), SinkFilter(topics=("a", "b"))
    assert one == other
    assert one.text == other.text == '{"topics":["a","b"]}'
    assert SinkFilter.of_text(one.text) == one
    assert SinkFilter.of_text(None) == EVERYTHING
    assert str(SinkFilter(topics=["a.*"], exclude_topics=["a.x"])) == "topics a.*; exclude topics a.x"
    assert msgspec.to_builtins(one)["topics"] == ("a", "b")


@pytest.mark.parametrize("wrong", ["order.*", [], ["order*"], ["a", ""], [1], 5, {"a": 1}])
def test_bad_patterns_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidSetting, match=r"^topics (is|has) .*; it must be a list of patterns such as"):
        SinkFilter(topics=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="exclude_topics (is|has) .* list of patterns"):
        SinkFilter(exclude_topics=wrong)  # type: ignore[arg-type]


def test_the_error_names_the_pattern_that_is_wrong() -> None:
    with pytest.raises(InvalidSetting, match=r"topics has 'order\*'; it must be"):
        SinkFilter(topics=["a.b", "order*"])


@pytest.mark.parametrize("wrong", ["t", [], [""]])
def test_bad_names_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidSetting, match="types is .*; it must be a list of texts"):
        SinkFilter(types=wrong)  # type: ignore[arg-type]
