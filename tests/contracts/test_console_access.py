"""Who may do what in the console: every route, for every role, wrong origins, missing tokens, wrong methods."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Mount

from postroad import InvalidSetting
from postroad.console import Console, Role, SignIn, User
from postroad.console.access import Right, may
from postroad.console.guard import CSRF_FIELD, form_token
from postroad.console.pages.routes import ROUTES, PageRoute
from postroad.stores.sqlite import migrate_sqlite
from tests.consoles import BASE, SAME_ORIGIN, Browser, Page

SECRET = b"a secret of these tests"
ID = "019a8b9c-1111-7222-8333-444455556666"
USERS = [
    User("vera", Role.VIEWER),
    User("olaf", Role.OPERATOR),
    User("ada", Role.ADMIN),
    User("paul", Role.VIEWER, True),
]
NOT_FOUND_OR_WRONG = {200, 303, 400, 404}  # what a page answers to a user who may ask, without anything to show


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log with nothing in it, which no test here changes."""
    file = tmp_path_factory.mktemp("console") / "log.sqlite"
    migrate_sqlite(file)
    return f"sqlite:///{file}"


@pytest.fixture
async def signed_in(url: str) -> AsyncIterator[Any]:
    """Makes a client that has signed in as a user, or as none."""
    users: list[User | None] = [None]
    async with Console({"log": url}, auth=lambda _: users[0], secret=SECRET) as console:

        def client(user: User | None) -> httpx.AsyncClient:
            users[0] = user
            return client_of(console)

        yield client


def client_of(console: Console) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=console), base_url=BASE)


def path_of(route: PageRoute) -> str:
    return "/log" + route.path.replace("{id}", ID).replace("{view}", "none")


def each(route: PageRoute) -> str:
    return f"{route.method} {route.path}"


@pytest.mark.parametrize("route", ROUTES, ids=each)
async def test_every_route_asks_for_its_right(signed_in: Any, route: PageRoute) -> None:
    for user in USERS:
        async with signed_in(user) as client:
            data = {CSRF_FIELD: form_token(SECRET, user), "expected": "1"} if route.method == "POST" else None
            response = await client.request(route.method, path_of(route), data=data, headers=SAME_ORIGIN)
        if may(user, route.right):
            assert response.status_code in NOT_FOUND_OR_WRONG, response.text
        else:
            assert response.status_code == 403
            assert "may not" in response.text


@pytest.mark.parametrize("route", ROUTES, ids=each)
async def test_every_route_asks_who_it_is(signed_in: Any, route: PageRoute) -> None:
    async with signed_in(None) as client:
        data = {CSRF_FIELD: form_token(SECRET, None)} if route.method == "POST" else None
        response = await client.request(route.method, path_of(route), data=data, headers=SAME_ORIGIN)
    assert response.status_code == 401


@pytest.mark.parametrize("route", [route for route in ROUTES if route.method == "POST"], ids=each)
async def test_a_change_from_elsewhere_is_refused(signed_in: Any, route: PageRoute) -> None:
    user = User("ada", Role.ADMIN, payloads=True)
    for origin in (None, "cross-site", "same-site", "none", "same-origin, cross-site"):
        headers = {} if origin is None else {"sec-fetch-site": origin}
        async with signed_in(user) as client:
            response = await client.post(path_of(route), data={CSRF_FIELD: form_token(SECRET, user)}, headers=headers)
        assert response.status_code == 403
        assert "Sec-Fetch-Site" in response.text


@pytest.mark.parametrize("route", [route for route in ROUTES if route.method == "POST"], ids=each)
async def test_a_change_without_its_token_is_refused(signed_in: Any, route: PageRoute) -> None:
    for token in (None, "", "wrong", form_token(SECRET, User("olaf", Role.OPERATOR))):
        async with signed_in(User("ada", Role.ADMIN, payloads=True)) as client:
            data = {"expected": "1"} | ({} if token is None else {CSRF_FIELD: token})
            response = await client.post(path_of(route), data=data, headers=SAME_ORIGIN)
        assert response.status_code == 403
        assert "token" in response.text


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
async def test_a_wrong_method_is_refused(signed_in: Any, path: str) -> None:
    user = User("ada", Role.ADMIN, payloads=True)
    routes = [route for route in ROUTES if route.path == path]
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - {route.method for route in routes}:
        async with signed_in(user) as client:
            data = None if method == "GET" else {CSRF_FIELD: form_token(SECRET, user)}
            response = await client.request(method, path_of(routes[0]), data=data, headers=SAME_ORIGIN)
        assert response.status_code == 405


async def test_every_answer_keeps_other_pages_out(signed_in: Any) -> None:
    async with signed_in(User("vera", Role.VIEWER)) as client:
        for path in ("/log/", "/log/none-such", "/none-such/", "/static/console.css", "/log/do/retry"):
            headers = (await client.get(path)).headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert headers["referrer-policy"] == "same-origin"


async def test_nothing_is_inline(signed_in: Any) -> None:
    """What the policy forbids is not on any page either: no style, no handler, no script but files."""
    async with signed_in(User("ada", Role.ADMIN, payloads=True)) as client:
        for route in ROUTES:
            if route.method == "GET" and "live" not in route.path:
                page = Page(await client.get(path_of(route)))
                for tag, attributes in page.tags:
                    assert tag != "style"
                    assert not [name for name in attributes if name == "style" or name.startswith(("on", "hx-on"))]
                    assert tag != "script" or attributes.get("src")


async def test_a_large_form_and_nonsense_are_refused(signed_in: Any) -> None:
    async with signed_in(User("ada", Role.ADMIN)) as client:
        large = await client.post("/log/do/retry", content=b"a=" + b"x" * 300_000, headers=SAME_ORIGIN)
        nonsense = await client.post("/log/do/retry", content=b"\xff\xfe", headers=SAME_ORIGIN)
    assert (large.status_code, nonsense.status_code) == (413, 400)


# -- signing in ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def alone(url: str) -> AsyncIterator[tuple[SignIn, httpx.AsyncClient]]:
    sign_in = SignIn(User("anna", Role.OPERATOR))
    async with (
        Console({"log": url}, auth=sign_in, hosts=["127.0.0.1", "localhost"]) as console,
        httpx.AsyncClient(transport=httpx.ASGITransport(app=console), base_url="http://127.0.0.1:8420") as client,
    ):
        yield sign_in, client


async def test_the_token_signs_in_once(alone: tuple[SignIn, httpx.AsyncClient]) -> None:
    sign_in, client = alone
    assert (await client.get("/log/")).status_code == 401
    token = sign_in.token
    assert token is not None
    first = await client.get("/sign-in", params={"token": token})
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert token not in cookie
    assert 'http-equiv="refresh"' in first.text
    assert (await client.get("/log/")).status_code == 200
    client.cookies.clear()
    assert (await client.get("/sign-in", params={"token": token})).status_code == 401
    assert (await client.get("/log/")).status_code == 401


async def test_the_token_can_be_pasted_and_the_session_ended(alone: tuple[SignIn, httpx.AsyncClient]) -> None:
    sign_in, client = alone
    form = Page(await client.get("/log/")).form("/sign-in")
    wrong = await client.post("/sign-in", data=form.fields | {"token": "wrong"}, headers=SAME_ORIGIN)
    assert wrong.status_code == 401
    assert sign_in.token is not None
    right = await client.post("/sign-in", data=form.fields | {"token": sign_in.token}, headers=SAME_ORIGIN)
    assert right.status_code == 200
    page = Page(await client.get("/log/"))
    assert "anna operator" in page.text
    out = await client.post("/sign-out", data=page.form("/sign-out").fields, headers=SAME_ORIGIN)
    assert out.status_code == 303
    assert (await client.get("/log/")).status_code == 401


async def test_another_name_of_the_host_is_not_answered(alone: tuple[SignIn, httpx.AsyncClient]) -> None:
    """A page of another site can't get in by letting its own name lead to this machine."""
    _, client = alone
    assert (await client.get("/sign-in", headers={"host": "evil.example"})).status_code == 421
    assert (await client.get("/sign-in", headers={"host": "localhost:8420"})).status_code == 401


# -- mounted ---------------------------------------------------------------------------------------------------------


async def test_it_works_under_a_path_and_behind_a_proxy(url: str) -> None:
    async with Console({"log": url}, auth=lambda _: User("anna", Role.ADMIN)) as console:
        app = Starlette(routes=[Mount("/postroad", console)])
        transport = httpx.ASGITransport(app=app, root_path="/ops")
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            overview = await client.get("/ops/postroad/")
            assert overview.headers["location"] == "/ops/postroad/log/"
            page = Page(await client.get("/ops/postroad/log/"))
            assert page.status == 200
            for tag, attributes in page.tags:
                address = attributes.get("href") or attributes.get("src") or attributes.get("action")
                if address and not address.startswith("#"):
                    assert address.startswith("/ops/postroad/"), (tag, address)
            assert (await client.get("/ops/postroad/static/htmx.min.js")).status_code == 200


async def test_auth_may_be_async_and_may_answer_itself(url: str) -> None:
    async def who(request: Request) -> User | PlainTextResponse | RedirectResponse | None:
        name = request.headers.get("x-user")
        return User(name, Role.VIEWER) if name else RedirectResponse("/log-in")

    async with Console({"log": url}, auth=who) as console, client_of(console) as client:
        assert (await client.get("/log/", headers={"x-user": "anna"})).status_code == 200
        assert (await client.get("/log/")).headers["location"] == "/log-in"


async def test_auth_is_required_and_must_return_a_user(url: str) -> None:
    with pytest.raises(TypeError, match="auth"):
        Console(url)  # type: ignore[call-arg]
    with pytest.raises(InvalidSetting, match="auth is None; it must be a function"):
        Console(url, auth=None)  # type: ignore[arg-type]
    wrong: Any = lambda _: "anna"  # noqa: E731 - it is what is wrong
    async with Console({"log": url}, auth=wrong) as console, client_of(console) as client:
        with pytest.raises(TypeError, match="auth returned str; it must return a User"):
            await client.get("/log/")


async def test_a_viewer_is_shown_no_button_that_is_refused(url: str, signed_in: Any) -> None:
    async with signed_in(User("vera", Role.VIEWER)) as client:
        for path in ("", "lanes", "trouble", "messages", "key?key=a", "time-machine", "inbox", "audit"):
            page = await Browser(client).follow(f"/log/{path}")
            assert not re.search(r"/do/", page.source), path


def test_there_are_routes_of_every_right() -> None:
    assert {route.right for route in ROUTES} == set(Right)


async def test_a_script_is_sent_to_where_one_signs_in_as_a_page(url: str) -> None:
    """A link loads a page by a script, after the session has ended: the script may not follow to another origin."""

    def gone(_: Request) -> RedirectResponse:
        response = RedirectResponse("https://login.example/?state=1")
        response.set_cookie("state", "1")
        return response

    async with Console({"log": url}, auth=gone) as console, client_of(console) as client:
        page = await client.get("/log/", headers={"hx-request": "true"})
        assert page.headers["hx-redirect"] == "https://login.example/?state=1"
        assert "location" not in page.headers
        assert page.headers["set-cookie"].startswith("state=1")
        assert page.is_success
        typed = await client.get("/log/")
        assert (typed.status_code, typed.headers["location"]) == (307, "https://login.example/?state=1")
