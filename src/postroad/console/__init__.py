"""The console: a web application for operators, on the same API as the command line. Needs the extra `console`.

    app.mount("/postroad", Console("postgresql://operator@db.example/shop", auth=who))

`auth` says who a request is from: it takes Starlette's `Request` and returns a `User`, None, or a response such as a
redirect to where one signs in. It has no default. `postroad console` runs a console by itself.
"""

from __future__ import annotations

from postroad.errors import MissingExtra

try:
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtra("the console", "console") from error

from postroad.console.access import Role, User
from postroad.console.app import Console
from postroad.console.redaction import DEFAULT_NAMES, Redaction
from postroad.console.sign_in import SignIn

__all__ = ["DEFAULT_NAMES", "Console", "Redaction", "Role", "SignIn", "User"]
