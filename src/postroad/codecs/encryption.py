"""Encryption with AES-256-GCM, of the package `cryptography`.

The payload becomes nonce (12 bytes), ciphertext, tag (16 bytes). The header `encryption` names the method and the key:
`A256GCM check=1c9a40d2 key=2026-11`. The type, the compression and this header are authenticated with the content:
a change of one of them, or a payload moved to a message of another type, makes it unreadable.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, Final

from postroad.codecs.base import Codec, KeyErased
from postroad.codecs.keys import Key, Missing, nonce_for
from postroad.errors import InvalidSetting, MissingExtra
from postroad.message import ENCRYPTION
from postroad.received import Unreadable

if TYPE_CHECKING:
    from postroad.codecs.base import About
    from postroad.codecs.keys import Keys

__all__ = ["Encrypt", "key_id_of"]

_VALUE: Final = re.compile(r"A256GCM check=([0-9a-f]{8}) key=(.{1,200})", re.DOTALL)
_NONCE: Final = 12
_TAG: Final = 16


class Encrypt(Codec):
    """Encrypts payloads with a key of `keys`: a KeyRing, a KeyPerSubject, or your own `Keys`."""

    header: str = ENCRYPTION
    form: str = "A256GCM"

    def __init__(self, keys: Keys) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise MissingExtra("Encrypt", "encryption") from None
        if not hasattr(keys, "for_message") or not hasattr(keys, "find"):
            raise InvalidSetting(  # it is not shown: it may be a key
                f"keys is of type {type(keys).__name__}; it must be a KeyRing, a KeyPerSubject, or have their methods"
            )
        self._keys = keys
        self._cipher: Any = AESGCM
        self._invalid: type[Exception] = InvalidTag

    def __repr__(self) -> str:
        return f"Encrypt({self._keys!r})"

    def encode(self, payload: bytes, about: About) -> tuple[bytes, str] | None:
        """Encrypt the payload, if there is a key for this message."""
        key = self._keys.for_message(about)
        if key is None:
            return None
        value = f"{self.form} check={key.check} key={key.id}"
        with_it = _authenticated(value, about)
        nonce = nonce_for(key, about.id.encode(), with_it, payload)
        return nonce + self._cipher(key.secret).encrypt(nonce, payload, with_it), value

    async def decode(self, payload: bytes, value: str, about: About) -> bytes:
        """Decrypt the payload. Raises Unreadable, or KeyErased."""
        matched = _VALUE.fullmatch(value)
        if matched is None:
            raise Unreadable(f"its header 'encryption' is {value!r:.80}; this is no encryption of postroad")
        check, id = matched.groups()
        found = self._keys.find(id, check)
        key: Key | Missing = await found if inspect.isawaitable(found) else found
        if key is Missing.ERASED:
            raise KeyErased(id)
        if not isinstance(key, Key):
            raise Unreadable(f"its payload was encrypted with the key {id!r}, which this consumer does not have")
        if key.check != check:
            raise Unreadable(f"its payload was encrypted with another key than the {id!r} that this consumer has")
        nonce, sealed = payload[:_NONCE], payload[_NONCE:]
        if len(sealed) < _TAG:
            raise Unreadable(f"its payload of {len(payload)} bytes is too short to be an encrypted one")
        try:
            plain: bytes = self._cipher(key.secret).decrypt(nonce, sealed, _authenticated(value, about))
        except self._invalid:
            raise Unreadable(
                f"its payload can't be decrypted with the key {id!r}: the payload, its type or its headers were changed"
            ) from None
        return plain


def key_id_of(value: str) -> str | None:
    """The key's id in a header `encryption`."""
    matched = _VALUE.fullmatch(value)
    return matched[2] if matched else None


def _authenticated(value: str, about: About) -> bytes:
    return f"{value}\n{about.encoding}\n{about.type}".encode()
