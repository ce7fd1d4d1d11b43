"""The JSON Schema of an event's class: what its messages look like on the wire. Pure.

The rules:

- `required` lists what is always written. A field with a default is always written, too, except where a msgspec Struct
  leaves it out (`omit_defaults`, `UNSET`).
- `x-defaults` lists what a consumer with this class can do without, because the class has a default for it.
- The schema of an event has all that it refers to in its own `$defs`.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["DEFAULTS", "DRAFT", "Schema", "document", "event_schema", "is_event_class", "parts_of", "references"]

Schema = dict[str, Any]

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
DEFAULTS: Final = "x-defaults"


def document(events: Mapping[str, type], *, title: str) -> Schema:
    """All events in one JSON document: their schemas, by type. The same classes give the same document."""
    schemas = {type: event_schema(events[type], _place(type)) for type in sorted(events)}
    return {"$schema": DRAFT, "title": title, "events": schemas}


def is_event_class(cls: type) -> bool:
    """Whether a class has fields: a dataclass, a msgspec Struct, a pydantic or attrs model."""
    return (
        _is_pydantic(cls)
        or issubclass(cls, msgspec.Struct)
        or dataclasses.is_dataclass(cls)
        or hasattr(cls, "__attrs_attrs__")
    )


def parts_of(cls: type) -> set[type]:
    """The classes that the fields of this one have, and those of these."""
    return _pydantic_parts(cls) if _is_pydantic(cls) else {part for part, _ in _classes(cls)} - {cls}


def event_schema(cls: type, place: str = "#") -> Schema:
    """The schema of a class; `place` is where it will stand in its document. Raises InvalidSetting."""
    if cls is bytes:
        return {"title": "bytes", "description": "Anything; the message's content type says what."}
    refs = f"{place}/$defs/{{name}}"
    try:
        schema = _pydantic_schema(cls, refs) if _is_pydantic(cls) else _msgspec_schema(cls, refs)
    except InvalidSetting:
        raise
    except Exception as error:  # whatever the libraries raise for a type that they do not know
        raise InvalidSetting(f"the schema of {cls.__qualname__} can't be written: {error}") from error
    return _inlined(schema, refs)


def _place(type: str) -> str:
    """Where the schema of an event stands in the document, as a JSON pointer."""
    return f"#/events/{quote(type.replace('~', '~0').replace('/', '~1'), safe='~')}"


def _inlined(schema: Schema, refs: str) -> Schema:
    """The class's own schema first, and not by reference, unless it refers to itself."""
    defs = dict(schema.get("$defs", {}))
    name = next((name for name in defs if schema.get("$ref") == refs.format(name=name)), None)
    if name is None or schema["$ref"] in references(defs):
        return schema
    own: Schema = defs.pop(name)
    return own | ({"$defs": defs} if defs else {})


def references(schema: Any) -> Iterator[str]:
    """The references in a schema, however deep."""
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from references(inner)


# -- dataclasses, msgspec Structs and attrs --------------------------------------------------------------------------


def _msgspec_schema(cls: type, refs: str) -> Schema:
    nested: Schema = {}
    [schema], components = msgspec.json.schema_components(
        (cls,), schema_hook=_hook_for_models(nested, refs), ref_template=refs
    )
    classes = list(_classes(cls))
    for component in components.values():
        _add_written(component, classes)
    _check_names(components, nested)
    return schema | {"$defs": {**components, **nested}}


def _hook_for_models(nested: Schema, refs: str) -> Callable[[type], Schema]:
    """What msgspec calls for classes that it does not know: pydantic models."""

    def hook(cls: type) -> Schema:
        if not _is_pydantic(cls):
            raise InvalidSetting(f"{cls.__qualname__}, which a field of an event has, can't be written as JSON")
        schema = _inlined(_pydantic_schema(cls, refs), refs)
        defs = {cls.__name__: schema} | schema.pop("$defs", {})
        _check_names(nested, defs)
        nested.update(defs)
        return {"$ref": refs.format(name=cls.__name__)}

    return hook


def _check_names(some: Schema, others: Schema) -> None:
    for name in sorted(some.keys() & others.keys()):
        if some[name] != others[name]:
            raise InvalidSetting(f"two classes of one event are named {name}; give one of them another name")


def _add_written(component: Schema, classes: list[tuple[type, dict[str, bool]]]) -> None:
    """Say which fields are always written, and which have defaults."""
    names = list(component.get("properties", ()))
    for cls, written in classes:
        if cls.__name__ == component.get("title") and written.keys() <= set(names):
            _set_required(component, [name for name in names if written.get(name, True)])
            return


def _set_required(schema: Schema, written: list[str]) -> None:
    needed = schema.get("required", [])
    schema["required"] = written
    defaults = [name for name in schema["properties"] if name not in needed]
    if defaults:
        schema[DEFAULTS] = defaults


def _classes(cls: type) -> Iterator[tuple[type, dict[str, bool]]]:
    """The classes with fields in a class, and for each field whether it is always written."""
    waiting, seen = [msgspec.inspect.type_info(cls)], set[int]()
    while waiting:
        info = waiting.pop()
        if id(info) in seen:
            continue
        seen.add(id(info))
        if isinstance(info, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
            config = getattr(info.cls, "__struct_config__", None)
            omits = config is not None and config.omit_defaults
            yield info.cls, {each.encode_name: _is_written(each, omits) for each in info.fields}
        elif isinstance(info, msgspec.inspect.CustomType) and isinstance(info.cls, type):
            yield info.cls, {}
        waiting += _inner(info)


def _is_written(field: msgspec.inspect.Field, omits: bool) -> bool:
    if field.required:
        return True
    is_unset = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    return not (omits or is_unset)


def _inner(info: Any) -> Iterator[Any]:
    """The types that a type has inside."""
    for name in info.__struct_fields__:
        value = getattr(info, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, msgspec.inspect.Field):
                yield each.type
            elif isinstance(each, msgspec.inspect.Type):
                yield each


# -- pydantic --------------------------------------------------------------------------------------------------------


def _is_pydantic(cls: type) -> bool:
    return hasattr(cls, "model_json_schema")


def _pydantic_schema(cls: Any, refs: str) -> Schema:
    template = refs.format(name="{model}")
    alias = bool(cls.model_config.get("serialize_by_alias"))
    written: Schema = cls.model_json_schema(
        mode="serialization", ref_template=template, by_alias=alias, schema_generator=_as_written()
    )
    read: Schema = cls.model_json_schema(mode="validation", ref_template=template, by_alias=alias)
    _add_defaults(written, read)
    for name, each in written.get("$defs", {}).items():
        _add_defaults(each, read.get("$defs", {}).get(name, {}))
    return written


@lru_cache
def _as_written() -> Any:
    """Pydantic's own generator, for which fields with defaults are required, because they are always written."""
    from pydantic.json_schema import GenerateJsonSchema

    class AsWritten(GenerateJsonSchema):
        def field_is_required(self, field: Any, total: bool) -> bool:
            if field["type"] == "typed-dict-field":
                return super().field_is_required(field, total)
            return not (field.get("serialization_exclude") or field.get("serialization_exclude_if"))

    return AsWritten


def _add_defaults(written: Schema, read: Schema) -> None:
    needed = read.get("required", [])
    defaults = [name for name in written.get("properties", ()) if name not in needed]
    if defaults:
        written[DEFAULTS] = defaults


def _pydantic_parts(cls: Any) -> set[type]:
    parts: set[type] = set()
    waiting = [field.annotation for field in cls.model_fields.values()]
    while waiting:
        annotation: Any = waiting.pop()
        waiting += getattr(annotation, "__args__", ())
        if isinstance(annotation, type) and is_event_class(annotation) and annotation not in parts | {cls}:
            parts |= {annotation, *parts_of(annotation)}
    return parts
