"""What a terminal is shown of what the database holds: harmless, cut, with its size."""

from __future__ import annotations

import unicodedata
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroad import InvalidSetting
from postroad.ops.parsing import parse_id_digits, parse_time, parse_time_or_position
from postroad.ops.rendering.text import (
    age,
    bars,
    count,
    one_line,
    sentence_lines,
    time_text,
    without_secrets,
)
from postroad.ops.terminal import as_json
from postroad.payload_view import LARGEST_SHOWN, payload_view
from postroad.stores.admin.names import suggestion

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
# What a terminal would obey: escapes (C0 and C1), bidirectional overrides, other line ends, and what can't be encoded.
HOSTILE = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(
            "\x1b\x07\x08\r\n\x00\x7f\x84\x9b\x9d\u202a\u202e\u2066\u2069\u200b\u200e\u2028\u2029\ud800\ufeff"
        ),
    )
)
CONTENT_TYPES = st.sampled_from(
    ["application/json", "text/plain; charset=utf-8", "application/octet-stream", "", "\x1b"]
)


def harms(text: str) -> list[str]:
    """Controls, formats (which include the overrides), surrogates and line separators."""
    return [each for each in text if unicodedata.category(each) in {"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"}]


@given(HOSTILE, st.integers(4, 50))
def test_any_text_is_one_harmless_line(text: str, most: int) -> None:
    assert not harms(one_line(text))
    assert not harms(without_secrets(text))
    assert len(one_line(text, most)) <= most
    assert one_line(text) == text or not text.isprintable()


@given(st.one_of(st.binary(max_size=300), HOSTILE.map(lambda text: text.encode(errors="surrogatepass"))), CONTENT_TYPES)
def test_any_payload_is_harmless_lines(payload: bytes, content_type: str) -> None:
    view = payload_view(payload, content_type, most=100)
    assert not harms("".join(view.lines))
    assert view.size == len(payload)
    assert view.shown <= min(100, len(payload))
    assert view.shown == len(payload) or len(payload) > 100


@given(st.binary(max_size=200))
def test_hexadecimal_shows_every_byte(payload: bytes) -> None:
    view = payload_view(b"\0" + payload, "application/octet-stream")
    assert view.kind == "binary"
    assert bytes.fromhex("".join(line[10:57] for line in view.lines)) == b"\0" + payload


@given(st.dictionaries(HOSTILE, st.one_of(HOSTILE, st.integers(), st.none(), st.lists(HOSTILE)), max_size=4))
def test_json_for_programs_is_letters_only(value: object) -> None:
    text = as_json(value)
    assert text.isascii()
    assert not harms(text.replace("\n", ""))


def test_a_megabyte_is_cut_and_its_size_is_shown() -> None:
    view = payload_view(b"x" * 1024 * 1024, "text/plain")
    assert (view.kind, view.size, view.shown) == ("text", 1024 * 1024, LARGEST_SHOWN)
    assert sum(map(len, view.lines)) == LARGEST_SHOWN


def test_a_text_is_cut_between_characters() -> None:
    view = payload_view("\N{EURO SIGN}".encode() * 3000, "text/plain", most=100)
    assert (view.kind, view.shown, view.lines) == ("text", 99, ["\N{EURO SIGN}" * 33])


@pytest.mark.parametrize(
    ("payload", "kind", "lines"),
    [
        (b'{"total":1.00000000000000000001,"a":"\\u001b"}', "json",
         ["{", '  "total": 1.00000000000000000001,', '  "a": "\\u001b"', "}"]),
        (b'{"total":', "text", ['{"total":']),  # what it says it is, it is not
        (b"[" * 2000 + b"]" * 2000, "text", ["[" * 2000 + "]" * 2000]),  # laid out, it would be a megabyte of blanks
        (b"", "text", [""]),
        (b"\xff\xfe", "binary", [f"00000000  {'ff fe':<47}  .."]),
    ],
)  # fmt: skip
def test_a_payload_is_shown_as_what_it_is(payload: bytes, kind: str, lines: list[str]) -> None:
    view = payload_view(payload, "application/json")
    assert (view.kind, view.lines) == (kind, lines)


def test_an_error_is_shown_without_its_password() -> None:
    assert without_secrets("can't reach amqp://me:geheim@host/") == "can't reach amqp://me:***@host/"


def test_times_are_in_utc_and_ages_in_two_units() -> None:
    assert time_text(datetime(2026, 3, 1, 14, tzinfo=timezone(timedelta(hours=2)))) == "2026-03-01 12:00:00Z"
    assert time_text(None) == ""
    spans = [0, 0.9, 59, 60, 61, 3600, 7325, 86400, 200_000, -5]
    assert [age(span) for span in spans] == [
        "0s", "0s", "59s", "1m", "1m 1s", "1h", "2h 2m", "1d", "2d 7h", "-5s",
    ]  # fmt: skip
    assert age(timedelta(days=3)) == "3d"
    assert [count(number, "message") for number in (0, 1, 2000)] == ["0 messages", "1 message", "2,000 messages"]


def test_bars_rise_with_their_values_and_nothing_is_a_blank() -> None:
    assert bars([0, 1, 50, 100]) == " ▁▅█"
    assert bars([0, 1, 50, 100], plain=True) == " .+#"
    assert bars([]) == ""
    assert bars([0, 0]) == "  "


# -- what operators type ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2h", NOW - timedelta(hours=2)),
        ("2026-02-28", datetime(2026, 2, 28, tzinfo=UTC)),
        ("2026-02-28 04:30", datetime(2026, 2, 28, 4, 30, tzinfo=UTC)),
        ("2026-02-28 04:30:05Z", datetime(2026, 2, 28, 4, 30, 5, tzinfo=UTC)),  # as it is shown
        ("2026-02-28T04:30+02:00", datetime(2026, 2, 28, 2, 30, tzinfo=UTC)),
    ],
)
def test_a_moment_is_a_time_or_how_long_ago(text: str, moment: datetime) -> None:
    assert parse_time("--since", text, NOW) == moment
    assert parse_time_or_position("--to", text, NOW) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "2026-13-01", "5", "-2h", "0001-01-01T00:00+10:00"])
def test_a_wrong_moment_says_what_would_be_right(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"--since is .*; it must be a time such as '2026-03-01 04:30' \(UTC\)"):
        parse_time("--since", text, NOW)


def test_a_number_alone_is_a_position() -> None:
    assert parse_time_or_position("--to", "120", NOW) == 120
    with pytest.raises(InvalidSetting, match="it must be a position, which is a whole number, or a time"):
        parse_time_or_position("--to", "9" * 19 + "0", NOW)


@example("0\x1f")
@example("9" * 5000)
@given(HOSTILE)
def test_whatever_is_typed_is_understood_or_refused(text: str) -> None:
    for read in (
        lambda: parse_id_digits(text),
        lambda: parse_time("--since", text, NOW),
        lambda: parse_time_or_position("--to", text, NOW),
    ):
        with suppress(InvalidSetting):
            read()


def test_the_nearest_name_is_suggested_or_all_there_are() -> None:
    assert suggestion("defualt", ["default", "audit"]) == "did you mean 'default'?"
    assert suggestion("x", ["default", "audit"]) == "there are 'audit', 'default'"
    assert suggestion("x", ["default"]) == "there is 'default'"
    assert suggestion("x", []) == "there is none yet"


def test_a_command_in_a_sentence_stays_on_one_line() -> None:
    text = "! sink 'default': no relay serves it; start one with `postroad relay --sink default`"
    assert sentence_lines(text, 66) == [text[:52], "  `postroad relay --sink default`"]
    assert sentence_lines(text, 200) == [text]
    assert all(len(line) <= 24 for line in sentence_lines(text, 24)), "it does not fit"
    assert " ".join(line.strip() for line in sentence_lines(text, 24)) == text
