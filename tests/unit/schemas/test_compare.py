"""Every kind of change, and whether it breaks consumers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from dataclasses import field as dataclass_field
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from postroad.schemas.compare import compare
from postroad.schemas.json_schema import document


def made(*fields: Any, name: str = "Placed") -> type:
    return make_dataclass(name, fields)


def changes(old: type, new: type) -> list[tuple[str, str, bool]]:
    before, after = document({"placed": old}, title="old"), document({"placed": new}, title="new")
    return [(each.field, each.what, each.breaks is not None) for each in compare(before, after)]


ORDER = ("order", int)


@dataclass
class Street:
    name: str


@dataclass
class LongStreet:
    name: str
    number: int


@dataclass
class Tree:
    value: int
    left: Tree | None = None


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    order: int


class StrictWithMore(msgspec.Struct, forbid_unknown_fields=True):
    order: int
    note: str = ""


class Brief(msgspec.Struct, omit_defaults=True):
    order: int
    note: str = ""


class Long(msgspec.Struct):
    order: int
    note: str = ""


class Needed(msgspec.Struct):
    order: int
    note: str


class OnlyOrder(msgspec.Struct):
    order: int


class StrictOrder(msgspec.Struct, forbid_unknown_fields=True):
    order: int


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (made(ORDER), made(ORDER, name="Renamed"), []),
        (made(ORDER, ("note", str)), made(ORDER), [("note", "removed", True)]),
        (made(ORDER), made(ORDER, ("note", str)), [("note", "added without a default", True)]),
        (
            made(ORDER),
            made(ORDER, ("note", str, dataclass_field(default=""))),
            [("note", "added; it is optional", False)],
        ),
        (made(ORDER, ("note", str)), made(ORDER, ("note", str, dataclass_field(default=""))), []),
        (made(ORDER, ("note", str, dataclass_field(default=""))), made(ORDER, ("note", str)), []),
        (
            made(ORDER),
            made(("number", int)),
            [("order", "removed; was it renamed to number?", True), ("number", "added without a default", True)],
        ),
        (made(ORDER), made(("order", str)), [("order", "was integer, is string", True)]),
        (made(ORDER), made(("order", int | None)), [("order", "can now be null, too", True)]),
        (made(("order", int | None)), made(ORDER), [("order", "can no longer be null", True)]),
        (made(("order", int | str)), made(("order", str | int)), []),
        (
            made(("kind", Literal["a", "b"])),
            made(("kind", Literal["a", "c"])),
            [("kind", 'can no longer be "b"', True), ("kind", 'can now be "c", too', True)],
        ),
        (made(("lines", list[int])), made(("lines", list[str])), [("lines[]", "was integer, is string", True)]),
        (
            made(("sizes", dict[str, int])),
            made(("sizes", dict[str, str])),
            [("sizes{}", "was integer, is string", True)],
        ),
        (
            made(("sizes", dict[str, int])),
            made(("sizes", dict[str, Any])),
            [("sizes{}", "was integer, is anything", True)],
        ),
        (
            made(("pair", tuple[int, str])),
            made(("pair", tuple[int, int])),
            [("pair[1]", "was string, is integer", True)],
        ),
        (made(("pair", tuple[int, str])), made(("pair", tuple[int])), [("pair", "had 2 fixed items, has 1", True)]),
        (made(("street", Street)), made(("street", LongStreet)), [("street.number", "added without a default", True)]),
        (
            made(("street", Street | None)),
            made(("street", LongStreet | None)),
            [("street", "can no longer be Street", True), ("street", "can now be LongStreet, too", True)],
        ),
        (Tree, Tree, []),
        (
            made(("size", Annotated[int, msgspec.Meta(ge=1)])),
            made(("size", Annotated[int, msgspec.Meta(ge=0)])),
            [("size", "minimum was 1, is 0", True)],
        ),
        (Strict, StrictWithMore, [("note", "added, and unknown fields were refused", True)]),
        (OnlyOrder, Strict, [("", "unknown fields are refused now", False)]),
        (Strict, OnlyOrder, [("", "unknown fields are ignored now", False)]),
        (Brief, Long, [("note", "is always written now", False)]),
        (Long, Brief, [("note", "is no longer always written", True)]),
        (Brief, Needed, [("note", "is always written now", True)]),
        (Brief, OnlyOrder, [("note", "removed; it was optional", False)]),
        (
            Brief,
            StrictOrder,
            [("note", "removed; it was optional", True), ("", "unknown fields are refused now", False)],
        ),
    ],
)
def test_a_change(old: type, new: type, expected: Sequence[tuple[str, str, bool]]) -> None:
    assert changes(old, new) == expected


class ModelPlaced(pydantic.BaseModel):
    order: int
    street: str | None = None


def test_a_move_to_another_library_is_no_change() -> None:
    """`titles` and `defaults` are written in other words there."""
    assert changes(made(ORDER, ("street", str | None, dataclass_field(default=None))), ModelPlaced) == []


def test_a_class_that_changes_inside_of_itself() -> None:
    @dataclass
    class Node:
        value: str
        left: Any = None

    recursive = document({"tree": Tree}, title="")
    changed = msgspec.json.decode(msgspec.json.encode(recursive).replace(b'"integer"', b'"string"'))
    assert [str(each) for each in compare(recursive, changed) if each.field == "value"] == [
        "tree: value: was integer, is string (old and new consumers can't read each other's messages)"
    ]


def test_events_come_and_go() -> None:
    one, other = document({"a": OnlyOrder}, title=""), document({"b": OnlyOrder}, title="")
    assert [(each.event, each.what, each.breaks is not None) for each in compare(one, other)] == [
        ("a", "removed", True),
        ("b", "added", False),
    ]


def test_a_reference_that_means_something_else_is_seen_where_it_is_not_understood() -> None:
    def named(values: list[str]) -> dict[str, Any]:
        inner = {"type": "object", "propertyNames": {"$ref": "#/events/a/$defs/Name"}}
        return {"events": {"a": inner | {"$defs": {"Name": {"enum": values}}}}}

    assert compare(named(["x"]), named(["x"])) == []
    [change] = compare(named(["x"]), named(["y"]))
    assert change.what.startswith("propertyNames was")
    assert change.breaks


def test_one_and_true_are_different_values() -> None:
    [gone, new] = compare({"events": {"a": {"enum": [1]}}}, {"events": {"a": {"const": True}}})
    assert (gone.what, new.what) == ("can no longer be 1", "can now be true, too")
