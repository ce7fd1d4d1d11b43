from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from postroad import InvalidSetting
from postroad.brokers.http.signatures import (
    NotVerified,
    keys_for_signing,
    keys_for_verifying,
    signature_of,
    verified,
)

PAIR = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
PUBLIC = PAIR.public_key().public_bytes_raw()
ids = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=60)
secrets = st.binary(min_size=24, max_size=64).map(lambda key: f"whsec_{b64encode(key).decode()}")


def text(prefix: str, key: bytes) -> str:
    return f"{prefix}_{b64encode(key).decode()}"


@given(ids, st.binary(max_size=200), secrets, st.integers(0, 4_000_000_000))
def test_what_is_signed_is_verified_and_nothing_else(id: str, body: bytes, secret: str, now: int) -> None:
    pair = [secret, text("whsk", b"k" * 32)]
    value = signature_of(keys_for_signing("secrets", pair), id, now, body)
    headers = {"webhook-id": id, "webhook-timestamp": str(now), "webhook-signature": value}
    for verifying in (secret, text("whpk", PUBLIC)):
        keys = keys_for_verifying("secrets", [verifying])
        assert verified({None: keys}, headers, body, now=now + 300, tolerance=300) == (id, [None])
        for changed in (
            headers | {"webhook-id": f"{id}x"},
            headers | {"webhook-timestamp": str(now + 1)},
            headers | {"webhook-signature": "v1,AAAA v1a,AAAA v2,x , v1"},
            headers | {"webhook-signature": ""},
        ):
            with pytest.raises(NotVerified):
                verified({None: keys}, changed, body, now=now, tolerance=300)
        with pytest.raises(NotVerified):
            verified({None: keys}, headers, body + b"x", now=now, tolerance=300)
        with pytest.raises(NotVerified):
            verified({None: keys}, headers, body, now=now + 301, tolerance=300)


@given(st.text(st.characters(codec="utf-8"), max_size=100), secrets)
def test_the_official_library_makes_the_same_signature(body: str, secret: str) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    ours = signature_of(keys_for_signing("secrets", [secret]), "msg_1", int(now.timestamp()), body.encode())
    assert ours == Webhook(secret).sign("msg_1", now, body)


def test_a_private_key_as_libsodium_writes_it() -> None:
    short, long = (keys_for_signing("secrets", [text("whsk", key)])[0] for key in (b"k" * 32, b"k" * 32 + PUBLIC))
    assert short.sign(b"x") == long.sign(b"x")


@pytest.mark.parametrize(
    "secret",
    [
        "hunter2",
        "whsec_",
        "whsec_hunter2!",
        text("whsec", b"x" * 23),
        text("whsec", b"x" * 65),
        text("whsk", b"x" * 31),
        text("whsk", b"x" * 64),
        text("whpk", PUBLIC),
    ],
)
def test_a_wrong_form_is_an_error_that_does_not_show_it(secret: str) -> None:
    with pytest.raises(InvalidSetting, match=r"^secrets: secret 1 has the wrong form") as error:
        keys_for_signing("secrets", [secret])
    assert secret.partition("_")[2] not in str(error.value) or not secret.partition("_")[2]
    assert "hunter2" not in str(error.value)
