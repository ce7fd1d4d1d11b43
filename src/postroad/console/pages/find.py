"""Find: a message by its id, a key of recent messages, a message by the last digits of its id, or else any key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse

from postroad.admin import Filter
from postroad.errors import InvalidSetting, NotFound

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroad.admin import Admin
    from postroad.console.context import Context

__all__ = ["find"]

_WHOLE: Final = 32
_DIGITS: Final = re.compile(r"[0-9a-fA-F]{4,32}")


async def find(context: Context) -> Response:
    """Go to the message that is meant, or to the key."""
    text = context.request.query_params.get("q", "").strip()
    if not text:
        return RedirectResponse(context.address("messages"), 303)
    digits = text.replace("-", "")
    admin = await context.database.admin()
    if _DIGITS.fullmatch(digits) and not (len(digits) < _WHOLE and await _is_key(admin, text)):
        try:
            id = await admin.find_id(digits.lower())
            return RedirectResponse(context.address(f"message/{id}"), 303)
        except InvalidSetting:
            raise
        except NotFound:
            pass  # it may be a key
    return RedirectResponse(context.address("key", key=text), 303)


async def _is_key(admin: Admin, text: str) -> bool:
    """Whether a recent message has this key, such as 1234."""
    return bool((await admin.messages(Filter(key=text), 1)).messages)
