"""How long a token for OAUTHBEARER lasts. Pure."""

from __future__ import annotations

from base64 import urlsafe_b64decode

import msgspec

from postroad.errors import InvalidSetting

__all__ = ["token_from"]


class _Claims(msgspec.Struct):
    exp: float


def token_from(text: str) -> tuple[str, float]:
    """The token (a JWT) in the text of a file, and when it expires, in seconds since 1970. Raises InvalidSetting, which
    does not quote the token.
    """
    token = text.strip()
    try:
        _, claims, _ = token.split(".")
        padded = claims + "=" * (-len(claims) % 4)
        return token, msgspec.json.decode(urlsafe_b64decode(padded), type=_Claims).exp
    except (ValueError, msgspec.MsgspecError):
        raise InvalidSetting(
            "token_file holds no JSON Web Token with the claim 'exp' (it is not shown because it is secret)"
        ) from None
