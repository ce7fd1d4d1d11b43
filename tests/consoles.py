"""A console as tests use one: a browser without scripts, that follows links and sends forms."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import httpx

from postroad.console import Console, Role, User
from tests.logs import Log, PostgreSQLLog, SQLiteLog

SAME_ORIGIN = {"sec-fetch-site": "same-origin"}
BASE = "http://console.example"


def url_of(log: Log) -> str:
    if isinstance(log, SQLiteLog):
        return f"sqlite:///{log.path}"
    assert isinstance(log, PostgreSQLLog)
    return log.url


class Form:
    """A form of a page, with the values that it would send."""

    def __init__(self, method: str, action: str) -> None:
        self.method, self.action = method, action
        self.fields: dict[str, str] = {}


class Page(HTMLParser):
    """A page, as far as tests look at it."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self.status = response.status_code
        self.headers = response.headers
        self.source = response.text
        self.text = ""
        self.links: dict[str, str] = {}
        self.forms: list[Form] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._link: str | None = None
        self._silent = 0
        self.feed(response.text)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag == "a":
            self._link = given.get("href")
            self.links[""] = ""
        elif tag == "form":
            self.forms.append(Form(given.get("method") or "get", given.get("action") or ""))
        elif tag == "input" and self.forms and given.get("name") and given.get("type") != "checkbox":
            self.forms[-1].fields[str(given["name"])] = given.get("value") or ""
        elif tag in {"script", "style", "title"}:
            self._silent += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self._link = None
        elif tag in {"script", "style", "title"}:
            self._silent -= 1

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        self.text += data
        if self._link is not None and data.strip():
            self.links[data.strip()] = self._link

    def form(self, part: str) -> Form:
        """The form whose address contains this."""
        (found,) = [form for form in self.forms if part in form.action and form.method == "post"]
        return found


class Browser:
    """Sends requests as a browser does that has signed in as this user."""

    def __init__(self, client: httpx.AsyncClient, name: str = "log") -> None:
        self.client = client
        self.name = name

    async def get(self, path: str, **query: Any) -> Page:
        """A page of the database."""
        return Page(await self.client.get(f"/{self.name}/{path}", params=query))

    async def follow(self, address: str) -> Page:
        parts = urlsplit(address)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        return Page(await self.client.get(target))

    async def send(self, form: Form, *, headers: dict[str, str] | None = None, **fields: str) -> Page:
        """Send a form with these fields, and follow its redirect."""
        sent = SAME_ORIGIN if headers is None else headers
        response = await self.client.post(form.action, data=form.fields | fields, headers=sent)
        if response.status_code == 303:
            return await self.follow(response.headers["location"])
        return Page(response)

    async def change(self, name: str, *, reason: str = "because", **query: Any) -> Page:
        """Open the preview of a change, confirm it, and give the page with its result."""
        preview = await self.get(f"do/{name}", **query)
        assert preview.status == 200, preview.text
        return await self.send(preview.form(f"/do/{name}"), reason=reason)


@asynccontextmanager
async def browsing(
    database: Any, *, role: Role = Role.ADMIN, payloads: bool = True, name: str = "anna", **more: Any
) -> AsyncIterator[Browser]:
    """A console on a database, and a browser that has signed in."""
    urls = database if isinstance(database, dict) else {"log": database}
    async with Console(urls, auth=lambda _: User(name, role, payloads), **more) as console:
        transport = httpx.ASGITransport(app=console)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            yield Browser(client, next(iter(urls)))
