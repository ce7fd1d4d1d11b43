"""The template of a routing key: checked when it is built, and filled in for each message. Pure.

`{topic}`, `{type}`, `{key}` and `{source}` are the message's own; any other name in braces is a header.
"""

from __future__ import annotations

import re
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from postroad.brokers.cloudevents import CannotEncode, decoded_headers
from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.message import StoredMessage

__all__ = ["RoutingKey"]

_FIELD: Final = re.compile(r"\{([^{}]+)\}")
_OWN_FIELDS: Final = ("topic", "type", "key")


class RoutingKey:
    """A template such as `{topic}` or `{tenant}.{type}`."""

    def __init__(self, template: str, setting: str = "routing_key") -> None:
        literals_and_names = _FIELD.split(template)
        if not template or any("{" in text or "}" in text for text in literals_and_names[::2]):
            raise InvalidSetting(
                f"{setting} is {template!r}; it must be a text with names in braces, for example '{{topic}}' or "
                "'{tenant}.{type}', where tenant is a header"
            )
        self.template = template
        self._literals = literals_and_names[::2]
        self._names = literals_and_names[1::2]
        self.of: Callable[[StoredMessage], str] = attrgetter("topic") if template == "{topic}" else self._filled
        """The routing key of a message. Raises CannotEncode when the message lacks what the template names."""

    def __repr__(self) -> str:
        return f"RoutingKey({self.template!r})"

    def _filled(self, message: StoredMessage) -> str:
        headers = decoded_headers(message)
        parts = [self._literals[0]]
        for name, literal in zip(self._names, self._literals[1:], strict=True):
            value: str | None = getattr(message, name) if name in _OWN_FIELDS else headers.get(name)
            if value is None:
                what = "key" if name == "key" else f"header {name!r}"
                raise CannotEncode(f"it has no {what}, and the routing key is made of {self.template!r}")
            parts += value, literal
        return "".join(parts)
