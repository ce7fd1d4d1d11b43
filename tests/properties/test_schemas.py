"""What `compare` calls compatible is: each side's messages are valid for the other side's consumers.

Schemas and changes of them are drawn at random, with parts in `$defs`; a validator that knows nothing of postroad
judges.
"""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from postroad.schemas.compare import compare, resolve
from postroad.schemas.json_schema import DEFAULTS

PARTS = ["One", "Two"]
NAMES = ["a", "b", "c"]
LEAVES: list[dict[str, Any]] = [
    {"type": "integer"},
    {"type": "string"},
    {"type": "null"},
    {"enum": ["x", "y"]},
    {"enum": ["x"]},
    {"const": 1},
    {"type": ["string", "null"]},
    {"type": "integer", "minimum": 3},
    {"type": "string", "minLength": 2},
    {},
]
refs = st.sampled_from(PARTS).map(lambda part: {"$ref": f"#/events/e/$defs/{part}"})


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: draw(inner) for name in names},
        "required": [name for name in names if draw(st.integers(0, 3))],
        DEFAULTS: [name for name in names if draw(st.booleans())],
    }
    return found | ({"additionalProperties": False} if draw(st.integers(0, 4)) == 0 else {})


schemas = st.recursive(
    st.sampled_from(LEAVES) | refs,
    lambda inner: st.one_of(
        inner.map(lambda each: {"type": "array", "items": each}),
        inner.map(lambda each: {"type": "object", "additionalProperties": each}),
        st.lists(inner, min_size=1, max_size=3).map(lambda several: {"anyOf": several}),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda items: {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        ),
        objects(inner),
    ),
    max_leaves=5,
)
# A part may refer to itself only by a field that may be missing, else no message of it would end.
parts = st.builds(
    lambda part, ref: {
        **part, "properties": part["properties"] | {"self": ref}, "required": [*part["required"]], DEFAULTS: ["self"],
    },
    objects(st.sampled_from(LEAVES)), refs,
)  # fmt: skip


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    event = draw(objects(schemas)) | {"$defs": {part: draw(parts) for part in PARTS}}
    return {"events": {"e": copy.deepcopy(event)}}


@st.composite
def changed(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """The same document after a few changes, somewhere in it."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = [each for each in _objects(document["events"]["e"]) if each.get("type") == "object"]
        place = draw(st.sampled_from(places))
        name = draw(st.sampled_from(NAMES))
        known = place.setdefault("properties", {})
        match draw(st.sampled_from(["set", "remove", "required", "defaults"])):
            case "set":
                known[name] = draw(schemas)
            case "remove":
                for each in (known, place.get("required", []), place.get(DEFAULTS, [])):
                    _without(each, name)
            case keyword:
                listed = place.setdefault("required" if keyword == "required" else DEFAULTS, [])
                if name in listed:
                    listed.remove(name)
                elif name in known:
                    listed.append(name)
    return document


def _without(container: Any, name: str) -> None:
    if name in container:
        container.remove(name) if isinstance(container, list) else container.pop(name)


def _objects(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [found for each in schema for found in _objects(each)]
    if not isinstance(schema, dict):
        return []
    inner = [found for each in schema.values() for found in _objects(each)]
    return [schema, *inner] if schema.get("type") == "object" else inner


@st.composite
def instances(draw: st.DrawFn, schema: Any, document: dict[str, Any], depth: int = 0) -> Any:  # noqa: PLR0911
    """What a producer with this schema could write."""
    assume(depth < 20)  # a change may have made a part of itself required
    schema = resolve(schema, document)
    if "anyOf" in schema:
        return draw(instances(draw(st.sampled_from(schema["anyOf"])), document, depth + 1))
    if "const" in schema or "enum" in schema:
        return draw(st.sampled_from(schema.get("enum") or [schema["const"]]))
    kind = schema.get("type", draw(st.sampled_from(["integer", "string", "null"])))
    match draw(st.sampled_from(kind)) if isinstance(kind, list) else kind:
        case "integer":
            return draw(st.integers(schema.get("minimum", -5), 9))
        case "string":
            return draw(
                st.sampled_from([text for text in ("x", "xy", "abc") if len(text) >= schema.get("minLength", 0)])
            )
        case "array":
            fixed = [draw(instances(each, document, depth + 1)) for each in schema.get("prefixItems", [])]
            more = depth < 4 and isinstance(schema.get("items"), dict) and draw(st.booleans())
            return fixed + ([draw(instances(schema["items"], document, depth + 1))] if more else [])
        case "object":
            written = {
                name: draw(instances(inner, document, depth + 1))
                for name, inner in schema.get("properties", {}).items()
                if name in schema.get("required", ()) or (depth < 4 and draw(st.booleans()))
            }
            more = schema.get("additionalProperties")
            if isinstance(more, dict) and depth < 4 and draw(st.booleans()):
                written["z"] = draw(instances(more, document, depth + 1))
            return written
    return None


def reader(schema: Any) -> Any:
    """The schema as a consumer with its class reads: what has a default may be missing."""
    if isinstance(schema, list):
        return [reader(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {keyword: reader(value) for keyword, value in schema.items()}
    if DEFAULTS in found and "required" in found:
        found["required"] = [name for name in found["required"] if name not in found[DEFAULTS]]
    return found


def is_valid(instance: Any, document: dict[str, Any]) -> bool:
    return Draft202012Validator(document | {"$ref": "#/events/e"}).is_valid(instance)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_is_compatible_can_be_read_by_both_sides(data: st.DataObject) -> None:
    old = data.draw(documents())
    new = data.draw(changed(old))
    assume(not any(change.breaks for change in compare(old, new)))
    written = data.draw(instances({"$ref": "#/events/e"}, new))
    assert is_valid(written, new)
    assert is_valid(written, old), "an old consumer can't read a new message"
    before = data.draw(instances({"$ref": "#/events/e"}, old))
    assert is_valid(before, reader(new)), "a new consumer can't read an old message"


@given(documents())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_has_not_changed_has_no_change(document: dict[str, Any]) -> None:
    assert compare(document, copy.deepcopy(document)) == []
