"""The first to see each request: who it is from, and whether it may be trusted. Nothing behind it can forget to ask.

Every response gets the headers that keep other pages out: nothing inline, no frames, no sniffing, no caches. A request
that can change something needs `Sec-Fetch-Site: same-origin`, which pages of other sites can't send and which every
browser does, and a token in its form. A request without a user ends here.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from postroad.console.access import User

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CSRF_FIELD", "FORM", "USER", "Auth", "Guard", "form_token"]

Auth = Callable[[Request], User | Response | Awaitable[User | Response | None] | None]
"""Says who a request is from."""
USER: Final = "postroad.user"
"""The key of the scope with the user."""
FORM: Final = "postroad.form"
"""The key of the scope with the fields of the form."""
CSRF_FIELD: Final = "csrf"
LARGEST_FORM: Final = 256 * 1024

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def form_token(secret: bytes, user: User | None) -> str:
    """The token that a form of this user has."""
    return hmac.new(secret, (user.name if user else "").encode(), hashlib.sha256).hexdigest()


class Guard:
    """An ASGI middleware around the whole console."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        auth: Auth,
        secret: bytes,
        public: Collection[str],
        unknown: Callable[[Request], Response],
        hosts: Collection[str] | None = None,
    ) -> None:
        self._app = app
        self._auth = auth
        self._secret = secret
        self._public = frozenset(public)
        """The first parts of paths that need no user."""
        self._unknown = unknown
        """What a request without a user gets."""
        self._hosts = None if hosts is None else frozenset(hosts)
        """The names of this host that are answered; None: all."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = await self._refused(scope, receive)
        await (refused or self._app)(scope, receive, send_with_headers)

    async def _refused(self, scope: Scope, receive: Receive) -> Response | None:
        """The answer to a request that goes no further."""
        request = Request(scope, receive)
        if self._hosts is not None and request.url.hostname not in self._hosts:
            return PlainTextResponse(f"this console does not answer to the host {request.url.hostname!r}\n", 421)
        unsafe = scope["method"] not in _SAFE_METHODS
        if unsafe and Headers(scope=scope).get("sec-fetch-site") != "same-origin":
            return PlainTextResponse("a change must come from a page of this console (Sec-Fetch-Site)\n", 403)
        found: Any = None
        if not self._is_public(scope):
            found = self._auth(request)
            found = await found if inspect.isawaitable(found) else found
            if isinstance(found, Response):
                return _as_navigation(request, found)
            if found is None:
                return self._unknown(request)
            if not isinstance(found, User):
                raise TypeError(f"auth returned {type(found).__name__}; it must return a User, a Response or None")
        scope[USER] = found
        return await self._refused_form(request, found) if unsafe else None

    def _is_public(self, scope: Scope) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return path.strip("/").partition("/")[0] in self._public

    async def _refused_form(self, request: Request, user: User | None) -> Response | None:
        """Read the form, and check its token."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > LARGEST_FORM:
                return PlainTextResponse("the form is too large\n", 413)
        try:
            form = dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body)))
        except ValueError:
            return PlainTextResponse("this is no form\n", 400)
        if not hmac.compare_digest(form.get(CSRF_FIELD, "").encode(), form_token(self._secret, user).encode()):
            return PlainTextResponse("the form has no valid token: load the page again, and repeat it\n", 403)
        request.scope[FORM] = form
        return None


def _as_navigation(request: Request, response: Response) -> Response:
    """A redirect that the browser follows as a page: a script may not follow it to where one signs in, elsewhere."""
    if "hx-request" in request.headers and "location" in response.headers:
        response.headers["hx-redirect"] = response.headers["location"]
        del response.headers["location"]
        response.status_code = 204
    return response
