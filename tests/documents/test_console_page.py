"""docs/console.md: the examples of mounting the console are run, also the one with a provider of OpenID Connect."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from authlib.integrations.starlette_client import OAuth, OAuthError  # type: ignore[import-untyped]
from fastapi import FastAPI
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from starlette.applications import Starlette
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from postroad.console import Console, Role, User
from postroad.stores.sqlite import migrate_sqlite
from tests.documents.reader import ROOT, blocks

ON_PAGE = "postgresql://operator@db.example/shop"
FASTAPI, DJANGO, OIDC = [text for kind, text in blocks(ROOT / "docs/console.md") if kind == "python"]
ISSUER = "https://login.example"


@pytest.fixture
def database(tmp_path: Path) -> str:
    migrate_sqlite(tmp_path / "shop.sqlite")
    return f"sqlite:///{tmp_path}/shop.sqlite"


def client_of(app: Any, base: str = "https://shop.example") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=base)


def run(block: str, **names: Any) -> dict[str, Any]:
    exec(compile(block, "docs/console.md", "exec"), names)
    return names


async def test_in_fastapi(database: str) -> None:
    assert ON_PAGE in FASTAPI
    names = run(FASTAPI.replace(ON_PAGE, database))
    async with names["lifespan"](names["app"]), client_of(names["app"]) as client:
        assert (await client.get("/postroad/shop/")).status_code == 401
        assert (await client.get("/postroad/shop/", headers={"x-forwarded-user": "eve"})).status_code == 401
        page = await client.get("/postroad/shop/", headers={"x-forwarded-user": "ben"})
        assert (page.status_code, "ben" in page.text) == (200, True)


async def test_beside_django(database: str) -> None:
    def who(request: Request) -> User:
        return User("anna", Role.VIEWER)

    names = run(
        DJANGO,
        get_asgi_application=lambda: PlainTextResponse("Django's"),
        Console=Console,
        DATABASE=database,
        who=who,
    )
    async with names["console"], client_of(names["application"]) as client:
        assert (await client.get("/shop/")).text == "Django's"
        page = await client.get("/postroad/shop/")
        assert (page.status_code, 'href="/postroad/shop/trouble"' in page.text) == (200, True)


async def test_with_a_provider_of_openid_connect(database: str) -> None:
    async def redirected(client: httpx.AsyncClient, url: str) -> str:
        answer = await client.get(url)
        assert answer.is_redirect, (answer.status_code, answer.text)
        return answer.headers["location"]

    app, provider = FastAPI(), Provider({"sub": "7", "email": "anna@shop.example", "groups": ["ops"]})
    oauth = OAuth()
    oauth.register(
        "company",
        client_id="console",
        client_secret="secret",
        server_metadata_url=f"{ISSUER}/.well-known/openid-configuration",
        client_kwargs={"scope": "openid email", "transport": httpx.ASGITransport(app=provider.app)},
    )
    names = run(
        OIDC, app=app, oauth=oauth, Request=Request, Response=Response, RedirectResponse=RedirectResponse, Role=Role,
        User=User,
    )  # fmt: skip
    console = Console(database, auth=names["who"])
    app.mount("/postroad", console)
    async with console, client_of(SessionMiddleware(app, secret_key="s" * 32)) as client:
        assert await redirected(client, "/postroad/shop/") == "/log-in"
        ask = await redirected(client, "/log-in")
        assert ask.startswith(f"{ISSUER}/authorize?")
        async with client_of(provider.app, ISSUER) as browser:
            back = await redirected(browser, ask)
        assert await redirected(client, back) == "/postroad/"
        page = await client.get("/postroad/shop/")
        assert (page.status_code, "anna@shop.example" in page.text, "admin" in page.text) == (200, True, True)
        with pytest.raises(OAuthError, match="state"):
            await client.get("/signed-in?code=made-up&state=made-up")


class Provider:
    """OpenID Connect's code flow for one person, who always agrees."""

    def __init__(self, person: dict[str, Any]) -> None:
        self._person = person
        self._key = RSAKey.generate_key(2048, {"kid": "1"})
        self._asked: dict[str, str] = {}
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._metadata),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/keys", self._keys),
            ]
        )

    async def _metadata(self, _: Request) -> Response:
        places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        urls = {name: f"{ISSUER}/{path}" for name, path in places.items()}
        return JSONResponse({"issuer": ISSUER, "id_token_signing_alg_values_supported": ["RS256"], **urls})

    async def _authorize(self, request: Request) -> Response:
        asked = request.query_params
        self._asked["the-code"] = asked["nonce"]
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': 'the-code', 'state': asked['state']})}")

    async def _token(self, request: Request) -> Response:
        form = dict(part.split("=", 1) for part in (await request.body()).decode().split("&"))
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": "console", "iat": now, "exp": now + 600, "nonce": self._asked[form["code"]]}
        token = jwt.encode({"alg": "RS256", "kid": "1"}, claims | self._person, self._key)
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "expires_in": 600, "id_token": token})

    async def _keys(self, _: Request) -> Response:
        return JSONResponse(KeySet([self._key]).as_dict(private=False))
