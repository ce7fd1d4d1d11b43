"""Tokens in files."""

from __future__ import annotations

import pytest

from postroad.brokers.kafka.tokens import token_from
from postroad.errors import InvalidSetting

TOKEN = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJzaG9wIiwiZXhwIjoxODAwMDAwMDAwfQ."


def test_a_token_and_when_it_expires() -> None:
    assert token_from(f"{TOKEN}\n") == (TOKEN, 1_800_000_000)


@pytest.mark.parametrize("text", ["", "s3cr3t", "a.b.c", "eyJ9.e30.", "x.%%%.y", "é.é.é"])
def test_what_is_none_is_not_shown(text: str) -> None:
    with pytest.raises(InvalidSetting, match="no JSON Web Token") as error:
        token_from(text)
    assert "s3cr3t" not in str(error.value)
