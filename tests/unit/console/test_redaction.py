"""Values are hidden by the names of their fields, wherever they are."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.console.redaction import HIDDEN, Redaction

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
    payload = b'{ "amount": 1.00 }'
    assert DEFAULT.payload(payload) is payload
    assert DEFAULT.payload(b"\xff\x00") == b"\xff\x00"


def test_text_is_searched_for_names_and_values() -> None:
    text = b"user=anna&password=hunter2&x=1; token: abc, note"
    assert DEFAULT.payload(text) == b"user=anna&password=[hidden]&x=1; token: [hidden], note"
    assert b"hunter2" not in DEFAULT.payload(b'<a password="hunter2">')


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
