"""The keys of `Encrypt`: which one a message is encrypted with, and which one has an id. A key is never shown.

- **Rotation**: a new key gets a new id. The old one stays until no message that was encrypted with it is left anywhere.
- **Erasure**: where each person or tenant has a key of their own, erasing the key erases what it has encrypted.
"""

from __future__ import annotations

import hmac
import os
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol

from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping

    from postroad.codecs.base import About

__all__ = ["Key", "KeyPerSubject", "KeyRing", "Keys", "Missing", "nonce_for"]

LENGTH: Final = 32
LONGEST_ID: Final = 200


class Missing(Enum):
    """Why there is no key."""

    ERASED = "erased"
    UNKNOWN = "unknown"


class Key:
    """A key of 32 random bytes, `os.urandom(32)`, and its id, which is sent with each message."""

    __slots__ = ("check", "id", "nonce_secret", "secret")

    def __init__(self, id: Any, secret: Any) -> None:
        if not isinstance(id, str) or not id or not id.isprintable() or len(id.encode()) > LONGEST_ID:
            raise InvalidSetting(
                f"a key's id is {id!r:.80}; it must be a printable text of 1 to {LONGEST_ID} bytes, such as '2026-11'"
            )
        if not isinstance(secret, bytes) or len(secret) != LENGTH:
            raise InvalidSetting(
                f"the key {id!r} is wrong (it is not shown); it must be {LENGTH} random bytes: os.urandom({LENGTH})"
            )
        self.id: str = id
        self.secret: bytes = secret
        self.nonce_secret = hmac.digest(secret, b"postroad nonce", "sha256")
        self.check = hmac.digest(secret, b"postroad check", "sha256")[:4].hex()
        """Tells whether a key is the one that a payload was encrypted with; it says nothing about the key."""

    def __repr__(self) -> str:
        return f"Key({self.id!r})"


class Keys(Protocol):
    """Where `Encrypt` gets keys from. An implementation of your own may ask a key management service."""

    def for_message(self, about: About) -> Key | None:
        """The key to encrypt this message with; None: it is not encrypted. Called by `add`, so it must not wait."""
        ...

    def find(self, id: str, check: str) -> Key | Missing | Awaitable[Key | Missing]:
        """The key with this id and this `Key.check`, for a consumer; it may be a coroutine.

        ERASED makes a ShreddedPayload of the message, UNKNOWN a dead letter.
        """
        ...


class KeyRing:
    """A few keys by their ids. Messages are encrypted with the `current` one, and decrypted with any."""

    def __init__(self, keys: Mapping[str, bytes], *, current: str, erased: Collection[str] = ()) -> None:
        """`erased` names keys that were deleted on purpose: their messages are shredded, not merely unreadable."""
        self._keys = {id: Key(id, secret) for id, secret in keys.items()}
        if current not in self._keys:
            raise InvalidSetting(f"current is {current!r:.80}; it must be the id of a key: {', '.join(self._keys)}")
        self._current = self._keys[current]
        self._erased = frozenset(erased)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(map(repr, self._keys))}; current={self._current.id!r})"

    def for_message(self, about: About) -> Key | None:
        """The current key."""
        return self._current

    def find(self, id: str, check: str) -> Key | Missing:
        """One of the keys."""
        if id in self._erased:
            return Missing.ERASED
        return self._keys.get(id, Missing.UNKNOWN)


class KeyPerSubject:
    """A key for each person or tenant. Deleting it from `keys` erases what was encrypted with it (crypto-shredding)."""

    def __init__(self, subject: Callable[[About], str | None], keys: MutableMapping[str, bytes]) -> None:
        """`subject` names the key of a message, such as `lambda about: about.headers.get("tenant")`; None: the message
        is not encrypted. `keys` are yours, in memory or in a database: it must have `get` and an atomic `setdefault`.
        """
        if not callable(subject):
            raise InvalidSetting(f"subject is {subject!r:.80}; it must be a function of the message: its key's id")
        self._subject = subject
        self._keys = keys

    def __repr__(self) -> str:
        return "KeyPerSubject(...)"

    def for_message(self, about: About) -> Key | None:
        """The subject's key, which is made when it is first needed."""
        id = self._subject(about)
        if id is None:
            return None
        return Key(id, self._keys.get(id) or self._keys.setdefault(id, os.urandom(LENGTH)))

    def find(self, id: str, check: str) -> Key | Missing:
        """The subject's key. If it has another one now, the one that the payload was encrypted with was erased."""
        secret = self._keys.get(id)
        if secret is None:
            return Missing.ERASED
        key = Key(id, secret)
        return key if key.check == check else Missing.ERASED


def nonce_for(key: Key, *parts: bytes) -> bytes:
    """The nonce of a payload: a keyed hash of the message and its content.

    So the same message gets the same bytes when it is added again, which `add` recognizes as the same; and no two
    different contents ever share a nonce, also after a fork or in a restored virtual machine.
    """
    mac: Any = hmac.new(key.nonce_secret, digestmod=sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    nonce: bytes = mac.digest()[:12]
    return nonce
