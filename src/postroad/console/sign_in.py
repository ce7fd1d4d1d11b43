"""Signing in to a console that runs by itself: a one-time token, printed where it was started, becomes a cookie.

The token works once. The session lives in the memory of this process, and the cookie until the browser is closed.
"""

from __future__ import annotations

import secrets
from hmac import compare_digest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from postroad.console.access import User

__all__ = ["COOKIE", "SignIn"]

COOKIE: Final = "postroad_console"


class SignIn:
    """The `auth` of a console that runs by itself: the holder of the one-time token is this user."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._sessions: set[str] = set()
        self._token: str | None = secrets.token_urlsafe(32)

    @property
    def token(self) -> str | None:
        """The one-time token; None after it was used."""
        return self._token

    def __call__(self, request: Request) -> User | None:
        """The user whose session this is."""
        return self._user if request.cookies.get(COOKIE, "") in self._sessions else None

    def redeem(self, token: str) -> str | None:
        """A new session for the token; None if it is wrong or was used."""
        if self._token is None or not compare_digest(token.encode(), self._token.encode()):
            return None
        self._token = None
        session = secrets.token_urlsafe(32)
        self._sessions.add(session)
        return session

    def sign_out(self, request: Request) -> None:
        """End the session of this request."""
        self._sessions.discard(request.cookies.get(COOKIE, ""))

    @staticmethod
    def set_cookie(request: Request, response: Response, session: str) -> None:
        """Give the browser its session."""
        response.set_cookie(
            COOKIE,
            session,
            path=request.scope.get("root_path", "") or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
