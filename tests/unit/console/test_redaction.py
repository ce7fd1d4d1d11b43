"""Values are hidden by the names of their fields, wherever they are."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.console.redaction import DEFAULT_NAMES, HIDDEN, Redaction

DEFAULT = Redaction()


@pytest.mark.parametrize(
    "name", ["password", "Password", "user_password", "API-Key", "accessToken", "set_cookie", "IBAN"]
)
def test_names_are_found_however_they_are_written(name: str) -> None:
    assert DEFAULT.hides(name)
    assert DEFAULT.headers({name: "x", "type": "y"}) == {name: HIDDEN, "type": "y"}


@pytest.mark.parametrize("name", ["order", "keyboard", "spin", "description", "card"])
def test_other_names_are_shown(name: str) -> None:
    assert not DEFAULT.hides(name)


def test_fields_are_hidden_at_any_depth() -> None:
    payload = b'{"a":[{"secret":{"b":1}},{"c":"d"}],"password":null}'
    hidden = msgspec.json.decode(DEFAULT.payload(payload))
    assert hidden == {"a": [{"secret": HIDDEN}, {"c": "d"}], "password": HIDDEN}


def test_a_payload_with_nothing_to_hide_stays_as_it_is() -> None:
    for payload in (b'{ "amount": 1.00 }', b"\xff\x00", b"plain \\u00e4 text", b'{"cut": "off'):
        assert DEFAULT.payload(payload) is payload


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"user=anna&password=hunter2&x=1", b"user=anna&password [hidden]"),
        (b"Host: x\r\nAuthorization: Bearer hunter2", b"Host: x\r\nAuthorization [hidden]"),
        (b'<a id="1"><pass-word>hunter2</pass-word></a>', b'<a id="1"><pass-word [hidden]'),
        (b"name,PIN\nanna,hunter2\n", b"name,PIN [hidden]"),
        (b"user: anna\ncredentials:\n  key: hunter2\n", b"user: anna\ncredentials [hidden]"),
        (b"\xff\xfeid 1 secret hunter2 \x00\xff", b"\xff\xfeid 1 secret [hidden]"),
        ("id 1, secret hunter2".encode("utf-16-le"), "id 1, secre".encode("utf-16-le") + b"t [hidden]"),
    ],
)
def test_of_other_text_all_is_hidden_after_a_name(payload: bytes, shown: bytes) -> None:
    assert DEFAULT.payload(payload) == shown


DOCUMENT = {
    "note": "\u00e4\u20ac\U0001f600", "credentials": {"user": "hunter2"}, "tokens": ["hunter2", "hunter2"],
    "pin": 'a"hunter2', "access token": "hunter2", "sch\u00fctz": "hunter2", "amount": 1.5,
}  # fmt: skip


@pytest.mark.parametrize("ascii", [True, False])
def test_json_that_is_cut_anywhere_shows_no_value(ascii: bool) -> None:
    redaction = Redaction([*DEFAULT_NAMES, "SCH\u00dcTZ"])
    for each in range(1, len(DOCUMENT)):
        payload = json.dumps(dict([*DOCUMENT.items()][each:]), ensure_ascii=ascii).encode()
        for cut in range(len(payload) + 1):
            assert b"hunter2" not in redaction.payload(payload[:cut])


def test_a_name_that_is_there_twice_hides_both_values() -> None:
    assert DEFAULT.payload(b'{"a":{"pin":"hunter2"},"a":1}') == b'{"a":{"pin [hidden]'


def test_half_a_character_is_no_error() -> None:
    assert DEFAULT.payload(rb'{"half":"\ud83d","pin":1}') == rb'{"half":"\ud83d","pin":"[hidden]"}'
    assert DEFAULT.payload(rb'"half":"\ud83d","pin":1') == rb'"half":"\ud83d","pin [hidden]'


def test_names_can_be_chosen() -> None:
    chosen = Redaction(["e-mail", "*phone*"])
    assert chosen.hides("email")
    assert chosen.hides("mobile_phone_number")
    assert not chosen.hides("password")


@given(
    st.recursive(
        st.none() | st.text(max_size=5), lambda inner: st.dictionaries(st.text(max_size=5), inner), max_leaves=20
    )
)
def test_what_is_hidden_is_gone(value: object) -> None:
    payload = msgspec.json.encode({"x": value, "password": "hunter2"})
    assert b"hunter2" not in DEFAULT.payload(payload)


def test_deep_nesting_is_no_error() -> None:
    deep = b"[" * 3000 + b"]" * 3000
    assert isinstance(DEFAULT.payload(deep), bytes)
