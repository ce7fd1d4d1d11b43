"""How an event becomes bytes, and what is refused because a part of it would be lost on the way."""

from __future__ import annotations

import sqlite3
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypedDict
from uuid import uuid4

import attrs
import msgspec
import pydantic
import pytest
from pydantic.dataclasses import dataclass as pydantic_dataclass

from postroad import InvalidMessage, Message, Outbox, Received
from postroad.message import encode
from postroad.payload import encode_event

NAN = float("nan")
INFINITY = float("inf")


@dataclass
class Line:
    price: Any = 1


@dataclass
class Order:
    total: Any = 1
    items: list[Any] = field(default_factory=list)


class Model(pydantic.BaseModel):
    total: float = 1
    items: list[Any] = []


class Constants(Model, ser_json_inf_nan="constants"):
    """Its JSON would be none."""


class Exact(pydantic.BaseModel, arbitrary_types_allowed=True):
    total: Any


@attrs.define
class Attrs:
    total: Any


@pydantic_dataclass
class Validated:
    total: float


class Struct(msgspec.Struct, rename="camel"):
    grand_total: Any


@pytest.mark.parametrize(
    ("event", "path", "value"),
    [
        (Order(total=NAN), "total", "nan"),
        (Order(total=-INFINITY), "total", "-inf"),
        (Order(total=Decimal("NaN")), "total", "NaN"),
        (Order(total=Decimal("sNaN")), "total", "sNaN"),
        (Order(total=Decimal("Infinity")), "total", "Infinity"),
        (Order(items=[Line(), Line(), Line(NAN)]), "items[2].price", "nan"),
        (Order(items=[Line(None), {"prices": (1.5, INFINITY)}]), "items[1].prices[1]", "inf"),
        (Order(items=[Model(total=NAN)]), "items[0].total", "nan"),
        (Order(items=[Exact(total=Decimal("NaN"))]), "items[0].total", "NaN"),
        ({"total": NAN}, "total", "nan"),
        ({"a": {"b": [[NAN]]}}, "a.b[0][0]", "nan"),
        ({"sums": {NAN}}, "sums[0]", "nan"),
        (Model(total=NAN), "total", "nan"),
        (Model(items=[Line(INFINITY)]), "items[0].price", "inf"),
        (Constants(total=NAN), "total", "nan"),
        (Exact(total=Decimal("-Infinity")), "total", "-Infinity"),
        (Attrs(NAN), "total", "nan"),
        (Validated(NAN), "total", "nan"),
        (Struct(NAN), "grandTotal", "nan"),
    ],
)
def test_what_json_has_no_number_for_is_refused_by_its_path(event: Any, path: str, value: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        encode(Message(event, type="order.created"), "/orders")
    text = str(caught.value)
    assert f"{path} is {value}" in text
    assert "JSON has no number for it" in text


@pytest.mark.parametrize(
    "event",
    [
        {"note": None, "total": 1.5},
        {"note": "NaN, null and Infinity are words", "total": Decimal("1.50")},
        Order(total=None, items=[None, Line(None), {"Infinity": None}]),
        Model(items=[None, "NaN"]),
        Order(total=1e308),
        {"nothing": [None] * 1000},
    ],
)
def test_what_only_looks_like_it_is_not(event: Any) -> None:
    assert encode_event(event)


def test_text_is_not_looked_into() -> None:
    assert encode_event("NaN null Infinity") == (b"NaN null Infinity", "text/plain; charset=utf-8")
    assert encode_event(b"NaN null Infinity")[0] == b"NaN null Infinity"


class Asked(TypedDict):
    order: int


def test_a_typed_dict_is_a_dict() -> None:
    assert encode_event(Asked(order=1)) == (b'{"order":1}', "application/json")


@pytest.mark.parametrize("event", [OrderedDict(a=1), defaultdict(int, a=1), Counter("a")])
def test_other_kinds_of_dict_are_refused_with_the_way_out(event: Any) -> None:
    with pytest.raises(InvalidMessage, match=rf"^{type(event).__name__} is not a plain dict.*dict\(event\)"):
        encode(Message(event, type="a"), "/orders")
    assert encode_event(dict(event))


def task(name: str, module: str, *bases: type) -> Any:
    """A class as a task framework has it. With the real ones the same was seen by hand."""
    return type(name, bases, {"__module__": module})


def tasks() -> list[tuple[str, Any]]:
    signature = task("Signature", "celery.canvas", dict)
    return [
        ("celery", signature(task="shop.mail", args=[1])),
        ("celery", task("_chain", "celery.canvas", signature)()),
        ("celery", task("OwnSignature", "shop.tasks", signature)()),
        ("dramatiq", dataclass(task("Message", "dramatiq.message"))()),
        ("rq", task("Job", "rq.job")()),
        ("arq", task("Job", "arq.jobs")()),
        ("huey", task("Task", "huey.api")()),
        ("taskiq", task("TaskiqMessage", "taskiq.message", pydantic.BaseModel)()),
        ("procrastinate", attrs.define(task("Job", "procrastinate.jobs"))()),
    ]


@pytest.mark.parametrize(("framework", "event"), tasks(), ids=[f"{name}-{type(t).__name__}" for name, t in tasks()])
@pytest.mark.parametrize("type", [None, "order.created"])
def test_a_task_of_another_framework_is_no_event(framework: str, event: Any, type: str | None) -> None:
    with pytest.raises(InvalidMessage) as caught:
        encode(Message(event, type=type), "/orders")
    text = str(caught.value)
    assert f"is a task of {framework}" in text
    assert "start the task in a handler" in text


@pytest.mark.parametrize("cls", [Order, Model, Attrs, Struct, dict, str])
@pytest.mark.parametrize("type", [None, "order.created"])
def test_a_class_is_no_event(cls: Any, type: str | None) -> None:
    with pytest.raises(InvalidMessage, match=rf"the event is the class {cls.__name__}; .*{cls.__name__}\(…\)"):
        encode(Message(cls, type=type), "/orders")


@pytest.mark.parametrize("event", [Message(Order(), key=1), Received(id=str(uuid4()), type="order.created")])
def test_a_message_is_no_event(event: Any) -> None:
    with pytest.raises(InvalidMessage, match=f"^{type(event).__name__} is a message of postroad, not an event"):
        encode(Message(event), "/orders")


def test_an_event_is_no_message() -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises(InvalidMessage, match=r"add_many got Order; .* Message\(event, key=…\)"):
        Outbox(source="/orders").add_many(connection, [Message(Order()), Order()])  # type: ignore[list-item]
    connection.close()
