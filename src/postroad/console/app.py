"""`Console`: an ASGI application, to be run or mounted. It assembles the pages; `guard` stands before all of them."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from postroad.config import DEFAULT_SCHEMA
from postroad.console.context import STATIC, Context, Shared, environment
from postroad.console.database import Database, named
from postroad.console.guard import Guard
from postroad.console.pages.routes import ROUTES, PageRoute
from postroad.console.redaction import Redaction
from postroad.console.sign_in import COOKIE, SignIn
from postroad.errors import (
    BrokerUnavailable,
    InvalidSetting,
    NotFound,
    PostroadError,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from types import TracebackType

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from postroad.console.guard import Auth
    from postroad.consumer import Consumer

__all__ = ["Console"]

_STATUS: Final = {NotFound: 404, InvalidSetting: 400, StoreUnavailable: 503, BrokerUnavailable: 503}
_TITLES: Final = {
    400: "That can't be done",
    403: "Not allowed",
    404: "Not found",
    405: "Not allowed",
    503: "Unavailable",
}


class Console:
    """The console of one or several databases.

    `auth` takes a request and returns its `User`, None or a response; it may be async. `consumers` are those whose dead
    letters can be retried and dropped here. `redaction` hides values of payloads and headers by their names. `secret`
    signs forms: give all processes that serve one console the same. `hosts` are the names of this host that requests
    may have; None: any.

    It connects when it is first used. Mounted, it does not see the end of the application: `async with console` in the
    application's lifespan, or `await console.close()` at its end, disconnects.
    """

    def __init__(
        self,
        database: str | Iterable[str] | Mapping[str, str],
        *,
        auth: Auth,
        schema: str = DEFAULT_SCHEMA,
        consumers: Iterable[Consumer[Any]] = (),
        redaction: Redaction | None = None,
        secret: bytes | None = None,
        hosts: Iterable[str] | None = None,
    ) -> None:
        if not callable(auth):
            raise InvalidSetting(f"auth is {auth!r}; it must be a function that takes a request and returns a User")
        self._sign_in = auth if isinstance(auth, SignIn) else None
        self._shared = Shared(
            databases={name: Database(name, url, schema=schema) for name, url in named(database).items()},
            consumers={consumer.name: consumer for consumer in consumers},
            redaction=redaction or Redaction(),
            secret=secret or secrets.token_bytes(32),
            templates=environment(),
            signs_out=self._sign_in is not None,
        )
        self._app = Guard(
            Starlette(
                routes=self._routes(),
                exception_handlers={HTTPException: self._http_error, PostroadError: self._error},
                lifespan=self._lifespan,
            ),
            auth=auth,
            secret=self._shared.secret,
            public={"static", *(["sign-in"] if self._sign_in else [])},
            unknown=self._unknown,
            hosts=None if hosts is None else list(hosts),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._app(scope, receive, send)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all streams, and disconnect."""
        await asyncio.gather(*(database.close() for database in self._shared.databases.values()))

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.close()

    # -- routes ------------------------------------------------------------------------------------------------------

    def _routes(self) -> list[BaseRoute]:
        pages = [
            Route(f"/{{database}}{route.path}", self._answer(route), methods=[route.method], name=route.path)
            for route in ROUTES
        ]
        own: list[BaseRoute] = [Mount("/static", StaticFiles(directory=STATIC)), Route("/", self._overview)]
        if self._sign_in is not None:
            own += [
                Route("/sign-in", self._signing_in, methods=["GET", "POST"]),
                Route("/sign-out", self._signing_out, methods=["POST"]),
            ]
        return [*own, *pages]

    def _answer(self, route: PageRoute) -> Any:
        async def answer(request: Request) -> Response:
            database = self._shared.databases.get(request.path_params["database"])
            if database is None:
                raise HTTPException(404, "this console has no such database")
            context = Context(request, self._shared, database)
            if not context.may(route.right):
                raise HTTPException(403, f"{context.user.name} ({context.user.role}) may not {route.right} here")
            return await route.answer(context)

        return answer

    async def _overview(self, request: Request) -> Response:
        context = Context(request, self._shared, None)
        databases = self._shared.databases
        if len(databases) == 1:
            return RedirectResponse(context.root(f"{next(iter(databases))}/"), 303)
        looks = await asyncio.gather(*(each.look() for each in databases.values()))
        return context.page("overview.html", looks=dict(zip(databases, looks, strict=True)))

    # -- signing in --------------------------------------------------------------------------------------------------

    async def _signing_in(self, request: Request) -> Response:
        """Redeem the token. The page that follows is loaded by this page, so that it gets the cookie (SameSite)."""
        assert self._sign_in is not None  # noqa: S101 - it has this route then
        context = Context(request, self._shared, None)
        token = context.form.get("token") or request.query_params.get("token", "")
        session = self._sign_in.redeem(token.strip()) if token else None
        if session is None:
            return self._sign_in_page(context, wrong=bool(token))
        response = context.page("signed_in.html")
        self._sign_in.set_cookie(request, response, session)
        return response

    async def _signing_out(self, request: Request) -> Response:
        assert self._sign_in is not None  # noqa: S101 - it has this route then
        self._sign_in.sign_out(request)
        response = RedirectResponse(Context(request, self._shared, None).root("sign-in"), 303)
        response.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/")
        return response

    def _sign_in_page(self, context: Context, *, wrong: bool) -> HTMLResponse:
        return context.page("sign_in.html", status=401, wrong=wrong)

    def _unknown(self, request: Request) -> Response:
        context = Context(request, self._shared, None)
        if self._sign_in is not None:
            return self._sign_in_page(context, wrong=False)
        return context.page("not_signed_in.html", status=401)

    # -- errors ------------------------------------------------------------------------------------------------------

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - that is what it is registered for
        headers = dict(error.headers or {})
        return self._error_page(request, error.status_code, str(error.detail), headers)

    async def _error(self, request: Request, error: Exception) -> Response:
        status = next((number for kind, number in _STATUS.items() if isinstance(error, kind)), 500)
        return self._error_page(request, status, str(error))

    def _error_page(self, request: Request, status: int, text: str, headers: dict[str, str] | None = None) -> Response:
        name = request.path_params.get("database", "") if hasattr(request, "path_params") else ""
        context = Context(request, self._shared, self._shared.databases.get(name))
        page = context.page("error.html", status=status, title=_TITLES.get(status, "An error"), text=text)
        page.headers.update(headers or {})
        return page
