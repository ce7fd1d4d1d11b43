"""What a change of schemas means for consumers. Pure.

Two rules decide, because old and new code run side by side, and messages of both are on their way:

- What the new schema writes must be valid by the old one: consumers that have not been changed yet read it.
- What the old schema wrote must be valid by the new one, except that fields with defaults (`x-defaults`) may be
  missing: changed consumers read what is still in the log, in queues and among dead letters.

What these can't decide counts as a break: a keyword that is not known here, and differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec

from postroad.schemas.json_schema import DEFAULTS, references

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.schemas.json_schema import Schema

__all__ = ["Change", "compare", "resolve"]

OLD_CONSUMERS: Final = "old consumers can't read new messages"
NEW_CONSUMERS: Final = "new consumers can't read old messages"
BOTH: Final = "old and new consumers can't read each other's messages"
GONE: Final = "consumers wait for messages that no longer come"

_ANNOTATIONS: Final = frozenset(
    {"$comment", "$defs", "default", "deprecated", "description", "discriminator", "examples", "readOnly", "title",
     "writeOnly", DEFAULTS}
)  # fmt: skip
_OF_OBJECTS: Final = frozenset({"additionalProperties", "properties", "required", "type"})
_OF_ARRAYS: Final = frozenset({"items", "prefixItems", "type"})


class Change(msgspec.Struct, frozen=True):
    """One difference."""

    event: str
    """The type of the event."""
    field: str
    """Which field of it, such as `items[].price`; empty for the event itself."""
    what: str
    breaks: str | None = None
    """Why it breaks consumers; None: it does not."""

    def __str__(self) -> str:
        where = f"{self.event}: {self.field}" if self.field else self.event
        return f"{where}: {self.what}" + (f" ({self.breaks})" if self.breaks else "")


def compare(old: Schema, new: Schema) -> list[Change]:
    """The differences between two documents of `json_schema.document`, in the order of the events' types."""
    before, after = old.get("events", {}), new.get("events", {})
    found: list[Change] = []
    for type in sorted(before.keys() | after.keys()):
        if type not in after:
            found.append(Change(type, "", "removed", GONE))
        elif type not in before:
            found.append(Change(type, "", "added"))
        else:
            found += _Comparison(type, old, new).schemas("", before[type], after[type])
    return list(dict.fromkeys(found))


def resolve(schema: Any, document: Schema) -> Schema:
    """A schema without references at its top; `True` and `False` as schemas are."""
    if not isinstance(schema, dict):
        return {} if schema else {"not": {}}
    found: Schema = schema
    while "$ref" in found:
        target: Any = document
        for step in found["$ref"].lstrip("#/").split("/"):
            target = target[unquote(step).replace("~1", "/").replace("~0", "~")]
        found = {**target, **{key: value for key, value in found.items() if key != "$ref"}}
    return found


class _Comparison:
    """The schemas of one event, old and new."""

    def __init__(self, event: str, old: Schema, new: Schema, within: frozenset[Any] = frozenset()) -> None:
        self._event = event
        self._old = old
        self._new = new
        self._within = within
        """What is being compared, from the event down: a class can be a part of itself."""

    def schemas(self, field: str, old: Any, new: Any) -> Iterator[Change]:
        """What differs between two schemas."""
        olds, news = list(_alternatives(old, self._old)), list(_alternatives(new, self._new))
        if len(olds) == len(news) == 1:
            yield from self._one(field, olds[0], news[0])
        else:
            yield from self._several(field, olds, news)

    def _several(self, field: str, olds: list[Schema], news: list[Schema]) -> Iterator[Change]:
        """What can be one of several: which of them are gone, and which are new."""
        gone = [old for old in olds if not any(self._fits(old, new) for new in news)]
        added = [new for new in news if not any(self._fits(old, new) for old in olds)]
        for old in list(gone):
            twin = next((new for new in added if _name(old) == _name(new)), None)
            if twin is not None:
                gone.remove(old)
                added.remove(twin)
                yield from self._one(field, old, twin)
        for old in gone:
            yield self._change(field, f"can no longer be {_name(old)}", NEW_CONSUMERS)
        for new in added:
            yield self._change(field, f"can now be {_name(new)}, too", OLD_CONSUMERS)

    def _fits(self, old: Schema, new: Schema) -> bool:
        return not any(change.breaks for change in self._one("", old, new))

    def _inside(self, old: Schema, new: Schema) -> _Comparison:
        """The same, one level deeper."""
        within = self._within | {(_identity(old), _identity(new))}
        return _Comparison(self._event, self._old, self._new, within)

    def _one(self, field: str, old: Schema, new: Schema) -> Iterator[Change]:
        if (_identity(old), _identity(new)) in self._within:
            return
        if "enum" in old and "enum" in new:
            yield from self._values(field, old["enum"], new["enum"])
            handled = frozenset({"enum", "type"})
        elif _kind(old) != _kind(new):
            yield self._change(field, f"was {_name(old)}, is {_name(new)}", BOTH)
            return
        elif (before := len(old.get("prefixItems", ()))) != (after := len(new.get("prefixItems", ()))):
            yield self._change(field, f"had {before} fixed items, has {after}", BOTH)
            return
        elif old.get("type") == "object":
            yield from self._inside(old, new).objects(field, old, new)
            handled = _OF_OBJECTS
        elif old.get("type") == "array":
            yield from self._inside(old, new).arrays(field, old, new)
            handled = _OF_ARRAYS
        else:
            handled = frozenset({"type"})
        for keyword in sorted((old.keys() | new.keys()) - handled - _ANNOTATIONS):
            if _unfolded(old.get(keyword), self._old) != _unfolded(new.get(keyword), self._new):
                what = f"{keyword} was {_shown(old.get(keyword))}, is {_shown(new.get(keyword))}"
                yield self._change(field, what, BOTH)

    def _values(self, field: str, old: list[Any], new: list[Any]) -> Iterator[Change]:
        before, after = list(map(_in_json, old)), list(map(_in_json, new))
        for value in (each for each in before if each not in after):
            yield self._change(field, f"can no longer be {value}", NEW_CONSUMERS)
        for value in (each for each in after if each not in before):
            yield self._change(field, f"can now be {value}, too", OLD_CONSUMERS)

    def arrays(self, field: str, old: Schema, new: Schema) -> Iterator[Change]:
        """What differs between two lists, or two tuples."""
        before, after = old.get("prefixItems", []), new.get("prefixItems", [])
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from self.schemas(f"{field}[{number}]", one, other)
        yield from self.schemas(f"{field}[]", old.get("items", True), new.get("items", True))

    # -- objects -----------------------------------------------------------------------------------------------------

    def objects(self, field: str, old: Schema, new: Schema) -> Iterator[Change]:
        """What differs between two objects with fields."""
        before, after = old.get("properties", {}), new.get("properties", {})
        for name in before:
            inner = f"{field}.{name}" if field else name
            if name in after:
                yield from self._kept(inner, name, old, new)
                yield from self.schemas(inner, before[name], after[name])
            else:
                yield self._removed(inner, name, old, new)
        for name in after:
            if name not in before:
                yield self._added(f"{field}.{name}" if field else name, name, old, new)
        yield from self._others(field, old, new)

    def _kept(self, field: str, name: str, old: Schema, new: Schema) -> Iterator[Change]:
        was, stays = name in old.get("required", ()), name in new.get("required", ())
        if was and not stays:
            yield self._change(field, "is no longer always written", OLD_CONSUMERS)
        if not was and stays:
            needed = name not in new.get(DEFAULTS, ())
            yield self._change(field, "is always written now", NEW_CONSUMERS if needed else None)

    def _removed(self, field: str, name: str, old: Schema, new: Schema) -> Change:
        if name in old.get("required", ()):
            others = new.get("properties", {}).keys() - old.get("properties", {}).keys()
            same = [each for each in sorted(others) if new["properties"][each] == old["properties"][name]]
            hint = f"; was it renamed to {same[0]}?" if same else ""
            return self._change(field, f"removed{hint}", OLD_CONSUMERS)
        refused = new.get("additionalProperties", True) is not True
        return self._change(field, "removed; it was optional", NEW_CONSUMERS if refused else None)

    def _added(self, field: str, name: str, old: Schema, new: Schema) -> Change:
        if name in new.get("required", ()) and name not in new.get(DEFAULTS, ()):
            return self._change(field, "added without a default", NEW_CONSUMERS)
        if old.get("additionalProperties", True) is not True:
            return self._change(field, "added, and unknown fields were refused", OLD_CONSUMERS)
        return self._change(field, "added; it is optional")

    def _others(self, field: str, old: Schema, new: Schema) -> Iterator[Change]:
        """Fields that have no name in the schema: those of a dict, or unknown ones."""
        before, after = old.get("additionalProperties", True), new.get("additionalProperties", True)
        if isinstance(before, dict) or isinstance(after, dict):
            yield from self.schemas(f"{field}{{}}", before, after)
        elif before != after:
            yield self._change(field, f"unknown fields are {'ignored' if after else 'refused'} now")

    def _change(self, field: str, what: str, breaks: str | None = None) -> Change:
        return Change(self._event, field, what, breaks)


# -- what a schema is ------------------------------------------------------------------------------------------------


def _alternatives(schema: Any, document: Schema) -> Iterator[Schema]:
    """What a schema allows: itself, or each of several that it lists."""
    schema = resolve(schema, document)
    if "const" in schema:
        schema = {**{key: value for key, value in schema.items() if key != "const"}, "enum": [schema["const"]]}
    rest = schema.keys() - _ANNOTATIONS
    if len(rest) == 1 and (several := next(iter(rest))) in {"anyOf", "oneOf"}:
        for each in schema[several]:
            yield from _alternatives(each, document)
    elif rest == {"allOf"} and len(schema["allOf"]) == 1:
        yield from _alternatives(schema["allOf"][0], document)
    elif isinstance(schema.get("type"), list):
        for type in schema["type"]:
            yield {**schema, "type": type}
    else:
        yield schema


def _identity(schema: Schema) -> tuple[str, int]:
    """The same for a part of a document, however it is reached."""
    keyword = next((each for each in ("properties", "prefixItems", "items") if each in schema), "")
    return keyword, id(schema[keyword] if keyword else schema)


def _kind(schema: Schema) -> Any:
    return "enum" if "enum" in schema else (schema.get("type"), schema.get("format"), schema.get("contentEncoding"))


def _name(schema: Schema) -> str:
    """What a schema is, in a word or two."""
    if "enum" in schema:
        return f"one of {_shown(schema['enum'])}"
    if "not" in schema:
        return "nothing"
    if schema.get("type") == "object" and "properties" in schema:
        return str(schema.get("title", "object"))
    return " ".join(str(schema[each]) for each in ("type", "format") if each in schema) or "anything"


def _unfolded(value: Any, document: Schema) -> tuple[Any, Schema]:
    """A part of a schema, with all that it refers to."""
    found: Schema = {}
    waiting = [value]
    while waiting:
        for ref in references(waiting.pop()):
            if ref not in found:
                found[ref] = resolve({"$ref": ref}, document)
                waiting.append(found[ref])
    return value, found


def _in_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _shown(value: Any) -> str:
    text = "not set" if value is None else _in_json(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
