"""Which classes of a module are events."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from postroad import InvalidSetting
from postroad.schemas.find import by_type, events_of

SHOP = """
from dataclasses import dataclass
from pathlib import PurePath
import attrs, msgspec, pydantic
from postroad import Message, event

class Base(msgspec.Struct): pass
class OrderPlaced(Base):
    lines: list["Line"]
class Line(pydantic.BaseModel):
    sku: str
Alias = OrderPlaced
@attrs.define
class Paid:
    order: int
@dataclass
class _Hidden:
    x: int
@event("address.v2")
@dataclass
class Address:
    street: str
@dataclass
class Moved:
    to: Address
class NoEvent: pass
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "shop_of_test_find.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    module: ModuleType = __import__("shop_of_test_find")
    monkeypatch.delitem(sys.modules, "shop_of_test_find", raising=False)
    monkeypatch.setitem(sys.modules, "shop_of_test_find", module)
    return module


def test_events_are_public_or_named_and_no_part_of_another(shop: ModuleType) -> None:
    found = {type: cls.__name__ for type, cls in events_of(shop).items()}
    assert found == {"order.placed": "OrderPlaced", "paid": "Paid", "address.v2": "Address", "moved": "Moved"}


def test_a_module_without_events_says_what_would_be_one() -> None:
    with pytest.raises(InvalidSetting, match="the module 'json' defines no events; an event is a dataclass"):
        events_of(__import__("json"))


@dataclass
class Paid:
    order: int


def test_two_classes_of_one_type(shop: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"shop_of_test_find.Paid and .*test_find.Paid have the same type, 'paid'"):
        by_type([shop.Paid, Paid])
    assert by_type([Paid, Paid]) == {"paid": Paid}


@pytest.mark.parametrize("wrong", [7, int, Paid(1)])
def test_what_is_no_class_with_fields(wrong: Any) -> None:
    with pytest.raises(InvalidSetting, match="is no event; an event is a class with fields"):
        by_type([wrong])
