"""What a page has to work with: the request, its user, its database, and how pages are linked and rendered."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from postroad.console.access import Right, may
from postroad.console.guard import FORM, USER, form_token
from postroad.console.text import filters, harmless_value
from postroad.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from postroad.console.access import User
    from postroad.console.database import Database
    from postroad.console.redaction import Redaction
    from postroad.consumer import Consumer

__all__ = ["STATIC", "Context", "Shared", "environment"]

_FOLDER: Final = Path(__file__).parent
STATIC: Final = _FOLDER / "static"
PAGES: Final = {
    "": "Now", "trouble": "Trouble", "messages": "Messages", "lanes": "Lanes", "latency": "Latency",
    "time-machine": "Time machine", "inbox": "Inbox", "audit": "Audit", "doctor": "Doctor",
}  # fmt: skip
"""The pages of a database in the navigation, by their paths."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all requests share."""

    databases: Mapping[str, Database]
    consumers: Mapping[str, Consumer[Any]]
    redaction: Redaction
    secret: bytes
    templates: Environment
    signs_out: bool
    """Whether the console itself keeps the sessions."""


def environment() -> Environment:
    """The templates: every value is escaped and made harmless."""
    made = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        finalize=harmless_value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= filters()
    return made


class Context:
    """A request, as pages see it."""

    def __init__(self, request: Request, shared: Shared, database: Database | None) -> None:
        self.request = request
        self.shared = shared
        self._database = database
        self.form: Mapping[str, str] = request.scope.get(FORM, {})

    @property
    def user(self) -> User:
        """Who is signed in."""
        user: User = self.request.scope[USER]
        return user

    @property
    def database(self) -> Database:
        """The database of the page."""
        assert self._database is not None  # noqa: S101 - pages of no database don't ask
        return self._database

    def may(self, right: Right) -> bool:
        """Whether the user has this right."""
        return may(self.user, right)

    # -- links -------------------------------------------------------------------------------------------------------

    def root(self, path: str) -> str:
        """The address of a page of the console itself."""
        return f"{quote(self.request.scope.get('root_path', ''))}/{path}"

    def link(self, path: str, query: Any = (), /, **more: Any) -> Markup:
        """The address of a page of this database, escaped for an attribute. Values that are None are left out."""
        return escape(self.address(path, query, **more))

    def address(self, path: str, query: Any = (), /, **more: Any) -> str:
        """The same, as it is."""
        pairs = [*(query.items() if hasattr(query, "items") else query), *more.items()]
        given = [(name, value) for name, value in pairs if value not in (None, "", ())]
        asked = f"?{urlencode(given, doseq=True)}" if given else ""
        return f"{self.root(quote(self.database.name))}/{quote(path)}{asked}"

    # -- results that outlive a redirect -----------------------------------------------------------------------------

    def sign(self, value: Any) -> str:
        """A value as a text that only this console can have made."""
        body = msgspec.json.encode(value)
        return base64.urlsafe_b64encode(self._mac(body) + body).decode().rstrip("=")

    def signed(self, text: str) -> Any:
        """The value; None if the text was not made by `sign`."""
        try:
            raw = base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
        except ValueError:
            return None
        mac, body = raw[:16], raw[16:]
        return msgspec.json.decode(body) if hmac.compare_digest(mac, self._mac(body)) else None

    def _mac(self, body: bytes) -> bytes:
        return hmac.new(self.shared.secret, b"result\n" + body, hashlib.sha256).digest()[:16]

    # -- pages -------------------------------------------------------------------------------------------------------

    def fragment(self, template: str, **values: Any) -> str:
        """A template with these values."""
        return self.shared.templates.get_template(template).render(**self._values(), **values)

    def page(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """A page with these values."""
        return HTMLResponse(self.fragment(template, **values), status)

    def _values(self) -> dict[str, Any]:
        user = self.request.scope.get(USER)
        path = self.request.scope["path"].removeprefix(self.request.scope.get("root_path", ""))
        here = "" if self._database is None else path.strip("/").partition("/")[2].partition("/")[0]
        return {
            "c": self, "user": user, "here": here, "pages": PAGES, "database": self._database, "Right": Right,
            "databases": self.shared.databases, "csrf": form_token(self.shared.secret, user), "version": __version__,
            "signs_out": self.shared.signs_out,
        }  # fmt: skip
