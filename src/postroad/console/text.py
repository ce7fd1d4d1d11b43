"""What templates do with values: texts are made harmless, times become elements that the viewer's zone can be shown in.

Every text that a template shows goes through `harmless_value`: it is escaped, control characters and changes of the
reading direction are made visible, and passwords in URLs are masked. Only `exact` gives a value back unchanged, but for
escaping, for the fields of forms.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from postroad.safe_text import harmless, without_passwords
from postroad.wording import age, time_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroad.admin import Count

__all__ = ["ago", "argument_text", "exact", "filters", "harmless_value", "number", "prose", "sentence", "time_element"]

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ")
_CODE: Final = re.compile(r"`([^`]+)`")


def harmless_value(value: Any) -> Any:
    """A text that is safe to show; markup and other values as they are."""
    return harmless(without_passwords(value)) if type(value) is str else value


def exact(value: str | None) -> Markup:
    """A text as it is, only escaped: what a form sends back."""
    return escape("" if value is None else value)


def time_element(time: datetime | None) -> Markup:
    """A time in UTC, for a machine and for people; the script shows it in the viewer's zone."""
    if time is None:
        return Markup('<span class="quiet">-</span>')
    text = time_text(time)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"), text, text
    )


def prose(text: str) -> Markup:
    """A sentence of `Admin`: its times become elements, and what stands in backquotes a command."""
    escaped = str(escape(harmless_value(text)))
    timed = _TIME.sub(lambda found: _in_sentence(found[0]), escaped)
    return Markup(_CODE.sub(r"<code>\1</code>", timed))  # noqa: S704 - escaped above


def sentence(text: str) -> Markup:
    """The same, beginning with a capital."""
    return prose(text[:1].upper() + text[1:])


def _in_sentence(text: str) -> str:
    return f'<time datetime="{text.replace(" ", "T")}" title="{text}">{text}</time>'


def ago(time: datetime | None, now: datetime) -> str:
    """How long ago, or in how long."""
    if time is None:
        return ""
    return f"in {age(time - now)}" if time > now else f"{age(now - time)} ago"


def number(value: Count | int) -> str:
    """A number; an estimate begins with "about"."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{'' if value.exact else 'about '}{value.number:,}"


def argument_text(arguments: Mapping[str, object]) -> str:
    """The arguments of a line of the audit."""
    given = {name: value for name, value in arguments.items() if value not in (None, [], "")}
    return ", ".join(f"{name} {_argument(value)}" for name, value in given.items())


def _argument(value: object) -> str:
    if isinstance(value, list | tuple):
        first = " ".join(str(each) for each in value[:3])
        return first if len(value) <= 3 else f"{first} and {len(value) - 3:,} more"
    return str(value)


def filters() -> dict[str, Any]:
    """The filters of templates, by name."""
    return {
        "age": age, "ago": ago, "arguments": argument_text, "exact": exact, "number": number, "prose": prose,
        "sentence": sentence, "time": time_element,
    }  # fmt: skip
