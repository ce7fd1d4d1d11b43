"""Which messages a sink takes: by topic, type and source. Pure.

A message is taken if every part of the filter that is given takes it. The sink keeps its filter in the database, so
that all relays, operators and retention agree about it. A message that a sink does not take is passed by its cursors,
and is no message of this sink for anything else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from postroad.errors import InvalidSetting
from postroad.kinds import TEXTS, Kind
from postroad.message import LONGEST_NAME
from postroad.setting import SettingsGroup, setting
from postroad.topic_patterns import is_pattern, likes_of, regex_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.message import StoredMessage

__all__ = ["EVERYTHING", "PATTERNS", "SinkFilter", "takes"]

_MOST: Final = 1000


def _patterns(value: Any) -> tuple[str, ...] | None:
    texts = _names(value)
    return texts if texts and all(map(is_pattern, texts)) else None


def _names(value: Any) -> tuple[str, ...] | None:
    texts = None if isinstance(value, Mapping) else TEXTS.validate(value)
    return texts if texts and len(texts) <= _MOST else None


class _Patterns(Kind):
    """A list, and which of its texts is no pattern."""

    __slots__ = ()

    def check(self, name: str, value: Any) -> Any:
        for text in _names(value) or ():
            if not is_pattern(text):
                raise InvalidSetting(f"{name} has {text!r}; it must be {self.expected}")
        return Kind.check(self, name, value)


PATTERNS: Final = _Patterns(
    expected="a list of patterns such as ['order.*', 'payment.#'], at least one: words with dots between them, where * "
    f"stands for one word and # for any number of words (each has 1 to {LONGEST_NAME} bytes)",
    validate=_patterns,
    parse=TEXTS.parse,
    metavar="PATTERN,...",
)
_NAMES: Final = Kind(
    expected=f"a list of texts of 1 to {LONGEST_NAME} bytes, at least one",
    validate=_names,
    parse=TEXTS.parse,
    metavar="TEXT,...",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFilter(SettingsGroup):
    """The filter of a sink. Without any setting it takes every message."""

    topics: Sequence[str] | None = setting(
        None, PATTERNS, "The sink takes messages whose topic matches one of these patterns. Unset: any topic."
    )
    exclude_topics: Sequence[str] | None = setting(
        None, PATTERNS, "The sink does not take messages whose topic matches one of these patterns."
    )
    types: Sequence[str] | None = setting(None, _NAMES, "The sink takes messages of these types. Unset: any type.")
    sources: Sequence[str] | None = setting(
        None, _NAMES, "The sink takes messages of these sources. Unset: any source."
    )

    def __post_init__(self) -> None:
        """Check each part, and bring it into the one form in which equal filters are equal texts."""
        SettingsGroup.__post_init__(self)
        for name, value in self._given():
            object.__setattr__(self, name, tuple(sorted(set(value))))

    def _given(self) -> list[tuple[str, Sequence[str]]]:
        these: Any = self
        return [(each.name, value) for each in fields(these) if (value := getattr(self, each.name)) is not None]

    @property
    def text(self) -> str | None:
        """As the database keeps it: a JSON object. None for a filter that takes everything."""
        given = {name: list(value) for name, value in self._given()}
        return msgspec.json.encode(given).decode() if given else None

    @classmethod
    def of_text(cls, text: str | None) -> Self:
        """The filter that the database keeps."""
        return cls() if text is None else cls(**msgspec.json.decode(text))

    def __str__(self) -> str:
        """For people to read: `topics order.*, payment.#; types order.created`; `everything` without any setting."""
        parts = [f"{name} {', '.join(value)}" for name, value in self._given()]
        return "; ".join(parts).replace("_", " ") or "everything"

    def takes(self, message: StoredMessage) -> bool:
        """Whether the sink takes the message."""
        return takes(self.text, message.topic, message.type, message.headers_json)

    @property
    def columns(self) -> tuple[str | Sequence[str] | None, ...]:
        """What PostgreSQL keeps: the text, and what is made of it, to be compared with (see `topic_patterns`)."""
        return (self.text, *_compared(self.topics), *_compared(self.exclude_topics), self.types, self.sources)


EVERYTHING: Final = SinkFilter()


def _compared(patterns: Sequence[str] | None) -> tuple[Sequence[str] | None, str | None]:
    """LIKE patterns, and a regular expression if these take more than the patterns do."""
    if patterns is None:
        return None, None
    likes, exact = likes_of(patterns)
    return likes, None if exact else regex_of(patterns)


def takes(text: str | None, topic: str, type: str, headers: str) -> bool:
    """Whether a filter, as its text, takes a message of this topic and type with these headers."""
    if text is None:
        return True
    wanted, unwanted, types, sources = _compiled(text)
    return (
        (wanted is None or wanted.fullmatch(topic) is not None)
        and (unwanted is None or unwanted.fullmatch(topic) is None)
        and (types is None or type in types)
        and (sources is None or _source(headers) in sources)
    )


def _source(headers: str) -> str | None:
    """The source, unless the headers, which an application may have written itself, have none that is a text."""
    try:
        return _decode_source(headers).source
    except msgspec.MsgspecError:
        return None


class _Source(msgspec.Struct):
    source: str | None = None


_decode_source: Final = msgspec.json.Decoder(_Source).decode

_Compiled = tuple[re.Pattern[str] | None, re.Pattern[str] | None, frozenset[str] | None, frozenset[str] | None]


@lru_cache(maxsize=100)
def _compiled(text: str) -> _Compiled:
    filter = SinkFilter.of_text(text)
    wanted, unwanted = (each and re.compile(regex_of(each)) for each in (filter.topics, filter.exclude_topics))
    types, sources = (each and frozenset(each) for each in (filter.types, filter.sources))
    return wanted or None, unwanted or None, types or None, sources or None
