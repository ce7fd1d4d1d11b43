"""Events as an AsyncAPI 3 document. Pure.

Each type of event is a channel of its own, whose address is the type: what routing keys, subjects and topics are,
unless `topic` is given. Messages are CloudEvents in binary mode, so their attributes are headers. AsyncAPI's own
schemas are JSON Schema draft 7, so what is newer there is written in its older form.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal

from postroad.errors import InvalidSetting
from postroad.schemas.json_schema import Schema, event_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["asyncapi"]

VERSION: Final = "3.0.0"
_NOT_IN_NAMES: Final = re.compile(r"[^\w.-]", re.ASCII)
_TEXT: Final = {"type": "string"}
_ATTRIBUTES: Final[Schema] = {
    "ce-specversion": {"const": "1.0"},
    "ce-id": _TEXT | {"description": "The same at every delivery of the message."},
    "ce-source": _TEXT,
    "ce-time": _TEXT | {"format": "date-time"},
    "ce-partitionkey": _TEXT | {"description": "Messages with the same key stay in order."},
    "ce-correlationid": _TEXT,
    "ce-causationid": _TEXT | {"description": "The id of the message that this one was added for."},
}


def asyncapi(events: Mapping[str, type], *, title: str, version: str, action: Literal["send", "receive"]) -> Schema:
    """The document of these events, by type, which the application sends or receives. Raises InvalidSetting."""
    names = _names(events)
    schemas: Schema = {}
    messages = {name: _message(type, name, events[type], schemas) for name, type in names.items()}
    channels = {
        name: {"address": type, "messages": {name: {"$ref": f"#/components/messages/{name}"}}}
        for name, type in names.items()
    }
    operations = {
        f"{action}.{name}": {
            "action": action,
            "channel": {"$ref": f"#/channels/{name}"},
            "messages": [{"$ref": f"#/channels/{name}/messages/{name}"}],
        }
        for name in names
    }
    return {
        "asyncapi": VERSION,
        "info": {"title": title, "version": version},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": schemas},
    }


def _names(events: Mapping[str, type]) -> dict[str, str]:
    """The name of each type in the document, where not every character may be in a name."""
    names: dict[str, str] = {}
    for type in sorted(events):
        name = _NOT_IN_NAMES.sub("_", type)
        if name in names:
            raise InvalidSetting(f"the types {names[name]!r} and {type!r} would both be named {name!r} in AsyncAPI")
        names[name] = type
    return names


def _message(type: str, name: str, cls: type, schemas: Schema) -> Schema:
    """A message. What its schema refers to is put into `schemas`, under names of its own."""
    place = "#/components/schemas"
    schema = event_schema(cls)
    renamed = {f"#/$defs/{part}": f"{place}/{name}.{part}" for part in schema.get("$defs", {})}
    for part, inner in schema.pop("$defs", {}).items():
        schemas[f"{name}.{part}"] = _in_draft_7(inner, renamed)
    schemas[name] = _in_draft_7(schema, renamed)
    headers = {
        "type": "object",
        "properties": {"ce-type": {"const": type}} | _ATTRIBUTES,
        "required": ["ce-type", "ce-specversion", "ce-id", "ce-source"],
    }
    return {"name": type, "title": cls.__name__, "headers": headers, "payload": {"$ref": f"{place}/{name}"}}


def _in_draft_7(schema: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_in_draft_7(each, renamed) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {keyword: _in_draft_7(value, renamed) for keyword, value in schema.items() if keyword != "$ref"}
    if "prefixItems" in found:
        found["additionalItems"] = found.pop("items", True)
        found["items"] = found.pop("prefixItems")
    if isinstance(found.get("discriminator"), dict) and "propertyName" in found["discriminator"]:
        found["discriminator"] = found["discriminator"]["propertyName"]
    if isinstance(schema.get("$ref"), str):  # draft 7 ignores what stands beside a reference
        return {"$ref": renamed.get(schema["$ref"], schema["$ref"])}
    return found
