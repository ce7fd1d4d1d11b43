"""Standard Webhooks: signs what is sent, and verifies what was received. Pure.

A signature covers the id, the time and the body, and no other header. No text of an error shows a secret.

| secret | what it is | signature |
|---|---|---|
| `whsec_…` | 24 to 64 bytes that both sides have | `v1`, HMAC with SHA-256 |
| `whsk_…` | an Ed25519 private key, which only the sender has | `v1a` |
| `whpk_…` | its public key, with which receivers verify | `v1a` |
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from postroad.errors import InvalidSetting, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "ID_HEADER",
    "SIGNATURE_HEADER",
    "TIMESTAMP_HEADER",
    "Key",
    "NotVerified",
    "Verified",
    "keys_for_signing",
    "keys_for_verifying",
    "signature_of",
    "verified",
]

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"

LONGEST_ID: Final = 255
MOST_SIGNATURES: Final = 20
"""Of one request, more are not looked at: each costs an attacker nothing, and the receiver some time."""
_FORMS: Final = "whsec_ and 24 to 64 bytes in base64, or whsk_ and an Ed25519 private key in base64"
_RECEIVED_FORMS: Final = "whsec_ and 24 to 64 bytes in base64, or whpk_ and an Ed25519 public key in base64"
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
_ID: Final = re.compile(r"[!-~]+")


class NotVerified(ValueError):
    """A request that is not signed by any of the secrets, or whose time is too long ago. The text may be sent back."""


class Key(Protocol):
    """A secret of which the form was checked."""

    version: str

    def sign(self, content: bytes) -> bytes: ...

    def verifies(self, content: bytes, signature: bytes) -> bool: ...


class SharedSecret:
    """`whsec_…`: signs and verifies."""

    version = "v1"

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, "sha256")

    def verifies(self, content: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(self.sign(content), signature)


class PrivateKey:
    """`whsk_…`: signs. It verifies nothing: a receiver that has it could forge what it receives."""

    version = "v1a"

    def __init__(self, seed: bytes) -> None:
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(seed)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def sign(self, content: bytes) -> bytes:
        signature: bytes = self._key.sign(content)
        return signature

    def verifies(self, content: bytes, signature: bytes) -> bool:
        return False


class PublicKey:
    """`whpk_…`: verifies."""

    version = "v1a"

    def __init__(self, key: bytes) -> None:
        self._key = _ed25519().Ed25519PublicKey.from_public_bytes(key)

    def sign(self, content: bytes) -> bytes:
        raise NotImplementedError

    def verifies(self, content: bytes, signature: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(signature, content)
        except InvalidSignature:
            return False
        return True


# -- secrets -----------------------------------------------------------------------------------------------------------


def keys_for_signing(setting: str, secrets: Iterable[str]) -> tuple[Key, ...]:
    """The secrets with which a sender signs. Raises InvalidSetting, which names the setting and shows no secret."""
    return _keys(setting, secrets, {"whsec_": _shared, "whsk_": _private}, _FORMS)


def keys_for_verifying(setting: str, secrets: Iterable[str]) -> tuple[Key, ...]:
    """The secrets with which a receiver verifies. Raises InvalidSetting, as `keys_for_signing` does."""
    return _keys(setting, secrets, {"whsec_": _shared, "whpk_": _public}, _RECEIVED_FORMS)


def _keys(setting: str, secrets: Iterable[str], kinds: Mapping[str, Any], forms: str) -> tuple[Key, ...]:
    found: list[Key] = []
    for number, secret in enumerate(secrets, start=1):
        prefix, _, encoded = secret.partition("_")
        kind = kinds.get(f"{prefix}_")
        key = None if kind is None else kind(_decoded(encoded))
        if key is None:
            raise InvalidSetting(
                f"{setting}: secret {number} has the wrong form (it is not shown); it must be {forms}",
                settings=(setting,),
            )
        found.append(key)
    if not found:
        raise InvalidSetting(f"{setting} holds no secret; each must be {forms}", settings=(setting,))
    return tuple(found)


def _decoded(encoded: str) -> bytes:
    """The bytes, with or without padding; none if it is no base64."""
    try:
        return b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (NotBase64, ValueError):
        return b""


def _shared(key: bytes) -> Key | None:
    return SharedSecret(key) if 24 <= len(key) <= 64 else None


def _private(key: bytes) -> Key | None:
    """A seed, or a seed with the public key behind it, as libsodium writes it."""
    if len(key) not in {32, 64}:
        return None
    private = PrivateKey(key[:32])
    return private if key[32:] in (b"", private.public) else None


def _public(key: bytes) -> Key | None:
    return PublicKey(key) if len(key) == 32 else None


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        raise MissingExtra("a signature of version v1a (whsk_, whpk_)", "http") from error
    return ed25519


# -- signatures --------------------------------------------------------------------------------------------------------


def signature_of(keys: Sequence[Key], id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for each secret, so that receivers can change to a new one."""
    content = b"%b.%d.%b" % (id.encode(), timestamp, body)
    return " ".join([f"{key.version},{b64encode(key.sign(content)).decode()}" for key in keys])


class Verified(NamedTuple):
    """A request that was signed with one of the secrets."""

    id: str
    sources: Sequence[str | None]
    """Those whose secrets it was signed with; None stands for any source."""


def verified(
    secrets: Mapping[str | None, Sequence[Key]],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float,
    tolerance: float,
) -> Verified:
    """The id of a request that one of the secrets has signed, and whose they are. Raises NotVerified.

    `secrets` are those of each source, or under None those of all. The names of `headers` are in lower case.
    `tolerance` is how many seconds the time of the request may differ from `now`, so that a request that was recorded
    can't be sent again later.
    """
    id, timestamp, signatures = (headers.get(each, "") for each in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER))
    if not id or not timestamp or not signatures:
        raise NotVerified(f"it must have the headers {ID_HEADER}, {TIMESTAMP_HEADER} and {SIGNATURE_HEADER}")
    if len(id) > LONGEST_ID or not _ID.fullmatch(id):
        raise NotVerified(f"{ID_HEADER} must be 1 to {LONGEST_ID} printable ASCII characters without spaces")
    if not _TIMESTAMP.fullmatch(timestamp):
        raise NotVerified(f"{TIMESTAMP_HEADER} must be seconds since 1970")
    if abs(now - int(timestamp)) > tolerance:
        raise NotVerified(f"{TIMESTAMP_HEADER} differs from this machine's clock by more than {tolerance:g} s")
    content = b"%b.%b.%b" % (id.encode(), timestamp.encode(), body)
    split = [each.partition(",") for each in signatures.split(" ")[:MOST_SIGNATURES]]
    given = [(version, signature) for version, _, encoded in split if encoded and (signature := _decoded(encoded))]
    sources = [source for source, keys in secrets.items() if _any_verifies(keys, content, given)]
    if not sources:
        raise NotVerified("no signature of it fits: it was made with another secret, or the body was changed")
    return Verified(id, sources)


def _any_verifies(keys: Sequence[Key], content: bytes, signatures: Sequence[tuple[str, bytes]]) -> bool:
    return any(
        key.version == version and key.verifies(content, signature) for version, signature in signatures for key in keys
    )
