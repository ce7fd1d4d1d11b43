"""NATS' keys: an Ed25519 seed, as text, signs what a server asks to be signed. No text shows a seed.

A `.creds` file has such a seed, and a JWT that says who its owner is.
"""

from __future__ import annotations

import re
from base64 import b32decode, b32encode, urlsafe_b64encode
from binascii import crc_hqx
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["Signer", "parse_credentials"]

_SEED: Final = 18 << 3  # the first five bits of a seed; the next eight say whose
_USER: Final = 20 << 3
_BLOCK: Final = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s*(\S+)\s*-{3,}END")


class Signer:
    """A user's key."""

    def __init__(self, seed: str) -> None:
        """Raises ValueError for what is not the seed of a user."""
        try:
            text = seed.strip()
            raw = b32decode(text + "=" * (-len(text) % 8))
        except ValueError:
            raise ValueError("it is not a seed, which is a text that begins with SU") from None
        prefix, checksum = raw[:2], int.from_bytes(raw[-2:], "little")
        whose = (prefix[0] & 7) << 5 | prefix[1] >> 3 if len(raw) == 36 else -1
        if len(raw) != 36 or prefix[0] & 0xF8 != _SEED or crc_hqx(raw[:-2], 0) != checksum:
            raise ValueError("it is not a seed, which is a text of 58 characters that begins with SU")
        if whose != _USER:
            raise ValueError("it is not the seed of a user, which begins with SU")
        self._key = Ed25519PrivateKey.from_private_bytes(raw[2:-2])

    @property
    def public(self) -> str:
        """The public key, as servers are configured with it."""
        raw = bytes([_USER]) + self._key.public_key().public_bytes_raw()
        return b32encode(raw + crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")

    def sign(self, nonce: str) -> str:
        """The signature of a server's nonce."""
        return urlsafe_b64encode(self._key.sign(nonce.encode())).decode().rstrip("=")


def parse_credentials(text: str) -> tuple[str, Signer]:
    """The JWT and the key in a `.creds` file. Raises ValueError."""
    blocks = dict(_BLOCK.findall(text))
    jwt, seed = blocks.get("NATS USER JWT"), blocks.get("USER NKEY SEED")
    if jwt is None or seed is None:
        raise ValueError("it has no block 'NATS USER JWT', or none 'USER NKEY SEED'")
    return jwt, Signer(seed)
