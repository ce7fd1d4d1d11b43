"""The schema of a class describes what is written for it: checked with real payloads, and the validator's own eyes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from jsonschema import Draft202012Validator

from postroad import InvalidSetting
from postroad.payload import encode_event
from postroad.schemas.json_schema import DEFAULTS, document, event_schema, is_event_class, parts_of


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Address(pydantic.BaseModel):
    street: str
    zip: str | None = None


class Item(msgspec.Struct, omit_defaults=True, rename="camel"):
    stock_number: str
    number_of: int = 1


@attrs.define
class Point:
    x: int
    y: list[int] = attrs.Factory(list)


class Card(msgspec.Struct, tag="card"):
    number: str


class Cash(msgspec.Struct, tag="cash"):
    amount: Decimal


@dataclass
class Placed:
    order: int
    total: Decimal
    id: UUID
    color: Color
    address: Address
    items: list[Item]
    point: Point
    payment: Card | Cash
    pair: tuple[int, str]
    kind: Literal["a", "b"]
    counts: dict[str, int]
    raw: bytes
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    note: str | None = None
    unset: int | msgspec.UnsetType = msgspec.UNSET
    parent: Placed | None = None


class Model(pydantic.BaseModel):
    total: Decimal
    address: Address
    at: datetime
    secret: str = pydantic.Field(default="", exclude=True)
    tags: list[str] = []

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def tax(self) -> int:
        return 7


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(serialize_by_alias=True, populate_by_name=True)
    order_number: int = pydantic.Field(alias="orderNumber")


def placed(**fields: Any) -> Placed:
    given: dict[str, Any] = {
        "order": 1, "total": Decimal("1.5"), "id": UUID(int=7), "color": Color.RED, "address": Address(street="a"),
        "items": [Item("x"), Item("y", 2)], "point": Point(1), "payment": Cash(Decimal(1)), "pair": (1, "a"),
        "kind": "a", "counts": {"a": 1}, "raw": b"\xff",
    }  # fmt: skip
    return Placed(**given | fields)


EVENTS: list[Any] = [
    placed(),
    placed(payment=Card("4"), parent=placed(), unset=3, note="x"),
    Item("x"),
    Point(1, [2]),
    Model(total=Decimal(1), address=Address(street="a"), at=datetime.now(UTC)),
    Aliased(orderNumber=3),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_what_is_written_is_valid(event: Any) -> None:
    schema = document({"some/type": type(event)}, title="t")
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema | {"$ref": "#/events/some~1type"})
    written = json.loads(encode_event(event)[0])
    validator.validate(written)
    for name in written:  # nothing is required too little: without what is always written, it is not valid
        missing = {key: value for key, value in written.items() if key != name}
        always = name not in {"unset", "numberOf"}
        assert validator.is_valid(missing) is not always, name


def test_fields_have_their_names_on_the_wire() -> None:
    assert list(event_schema(Item)["properties"]) == ["stockNumber", "numberOf"]
    assert list(event_schema(Aliased)["properties"]) == ["orderNumber"]
    assert list(event_schema(Model)["properties"]) == ["total", "address", "at", "tags", "tax"]


def test_what_a_reader_can_do_without() -> None:
    assert event_schema(Placed)["$defs"]["Placed"][DEFAULTS] == ["at", "note", "unset", "parent"]
    assert event_schema(Placed)["$defs"]["Address"][DEFAULTS] == ["zip"]
    assert event_schema(Placed)["$defs"]["Item"][DEFAULTS] == ["numberOf"]
    assert event_schema(Model)[DEFAULTS] == ["tags", "tax"]
    assert DEFAULTS not in event_schema(Card)


def test_the_same_classes_give_the_same_text() -> None:
    one = document({"b": Placed, "a": Model}, title="t")
    other = document({"a": Model, "b": Placed}, title="t")
    assert json.dumps(one) == json.dumps(other)
    assert list(one["events"]) == ["a", "b"]


def test_bytes_can_be_anything_and_a_dict_any_object() -> None:
    assert Draft202012Validator(event_schema(bytes)).is_valid(7)
    assert event_schema(dict)["type"] == "object"


def test_parts_are_found_in_lists_unions_and_models() -> None:
    assert parts_of(Placed) == {Address, Item, Point, Card, Cash}
    assert parts_of(Model) == {Address}


@pytest.mark.parametrize(
    ("cls", "expected"), [(Placed, True), (Item, True), (Model, True), (Point, True), (int, False)]
)
def test_classes_with_fields(cls: type, expected: bool) -> None:
    assert is_event_class(cls) is expected


class Strange:
    pass


@dataclass
class WithStrange:
    inner: Strange


class InnerAddress(msgspec.Struct):
    zip: int


InnerAddress.__name__ = "Address"


@dataclass
class TwoAddresses:
    one: Address
    other: InnerAddress


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (WithStrange, "Strange, which a field of an event has, can't be written as JSON"),
        (TwoAddresses, "two classes of one event are named Address; give one of them another name"),
    ],
)
def test_what_has_no_schema_is_named(cls: type, why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        event_schema(cls)
