"""Find: a message by its id or the last digits of it, or else a key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse

from postroad.errors import InvalidSetting, NotFound

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroad.console.context import Context

__all__ = ["find"]

_DIGITS: Final = re.compile(r"[0-9a-fA-F]{4,32}")


async def find(context: Context) -> Response:
    """Go to the message that is meant, or to the key."""
    text = context.request.query_params.get("q", "").strip()
    if not text:
        return RedirectResponse(context.address("messages"), 303)
    digits = text.replace("-", "")
    if _DIGITS.fullmatch(digits):
        try:
            id = await (await context.database.admin()).find_id(digits.lower())
            return RedirectResponse(context.address(f"message/{id}"), 303)
        except InvalidSetting:
            raise
        except NotFound:
            pass  # it may be a key
    return RedirectResponse(context.address("key", key=text), 303)
