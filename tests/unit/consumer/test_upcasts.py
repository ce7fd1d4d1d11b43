"""Old versions of events: what an upcast takes and gives, chains of them, and what is wrong with one."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from postroad import Consumer, InvalidSetting, Message, Received, Tombstone, event, upcast
from postroad.consumer.upcasts import EVERYWHERE, Upcasts
from postroad.received import Unreadable
from postroad.testing import perform


@event("ticket.sold.v1")
@dataclass
class FirstSold:
    price: int


@event("ticket.sold.v2")
class SecondSold(msgspec.Struct):
    price: int
    currency: str


@event("ticket.sold")
class Sold(pydantic.BaseModel):
    cents: int
    currency: str


@contextmanager
def begin() -> Iterator[Any]:
    yield


def a_consumer(seen: list[Any], *classes: Any) -> Consumer[Any]:
    consumer: Consumer[Any] = Consumer(name="box office", begin=begin)
    for cls in classes or (Sold,):

        @consumer.on(cls)
        def handle(event: Any, tx: Any, message: Received) -> None:
            seen.append((event, message.type))

    return consumer


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers with `upcast` is forgotten after it."""
    monkeypatch.setattr(EVERYWHERE, "_own", {})
    monkeypatch.setattr(EVERYWHERE, "known", ChainMap(EVERYWHERE._own))


def to_second(old: FirstSold) -> SecondSold:
    return SecondSold(old.price, "EUR")


def to_sold(old: SecondSold) -> Sold:
    return Sold(cents=old.price * 100, currency=old.currency)


def from_dict(old):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return {"cents": old["price"] * 100, "currency": "EUR"}


def from_typed_dict(old: dict[str, Any]) -> dict[str, Any]:
    return {"cents": old["price"] * 100, "currency": "EUR"}


def from_bytes(old: bytes) -> Sold:
    return Sold(cents=int(old), currency="EUR")


@pytest.mark.parametrize("function", [from_dict, from_typed_dict])
def test_a_dict_becomes_the_event(function: Any) -> None:
    seen: list[Any] = []
    consumer = a_consumer(seen)
    consumer.upcast("ticket.sold.v1", to=Sold)(function)
    perform(consumer, FirstSold(7), tx=None)
    perform(consumer, Sold(cents=1, currency="DKK"), tx=None)
    assert seen == [(Sold(cents=700, currency="EUR"), "ticket.sold.v1"), (Sold(cents=1, currency="DKK"), "ticket.sold")]
    assert consumer.types == ["ticket.sold", "ticket.sold.v1"]


def test_bytes_become_the_event() -> None:
    seen: list[Any] = []
    consumer = a_consumer(seen)
    consumer.upcast("ticket.avro", to=Sold)(from_bytes)
    perform(consumer, Message(b"5", type="ticket.avro", content_type="application/avro"), tx=None)
    assert seen == [(Sold(cents=5, currency="EUR"), "ticket.avro")]


@pytest.mark.usefixtures("everywhere")
def test_upcasts_follow_each_other_whatever_comes_first() -> None:
    seen: list[Any] = []
    consumer = a_consumer(seen)
    upcast("ticket.sold.v2", to=Sold)(to_sold)
    upcast("ticket.sold.v1", to=SecondSold)(to_second)
    perform(consumer, FirstSold(7), tx=None)
    assert seen == [(Sold(cents=700, currency="EUR"), "ticket.sold.v1")]
    assert sorted(consumer.types) == ["ticket.sold", "ticket.sold.v1", "ticket.sold.v2"]


@pytest.mark.usefixtures("everywhere")
def test_a_chain_needs_no_class_in_the_middle() -> None:
    seen: list[Any] = []
    consumer = a_consumer(seen)
    upcast("ticket.sold.v1", to="ticket.sold.v2")(lambda old: {**old, "currency": "DKK"})
    upcast("ticket.sold.v2", to=Sold)(lambda old: {"cents": old["price"] * 100, "currency": old["currency"]})
    perform(consumer, FirstSold(7), tx=None)
    assert seen == [(Sold(cents=700, currency="DKK"), "ticket.sold.v1")]


@pytest.mark.usefixtures("everywhere")
def test_the_nearest_handler_gets_it_and_a_handler_of_the_old_type_comes_first() -> None:
    upcast("ticket.sold.v2", to=Sold)(to_sold)
    upcast("ticket.sold.v1", to=SecondSold)(to_second)
    seen: list[Any] = []
    perform(a_consumer(seen, Sold, SecondSold), FirstSold(7), tx=None)
    perform(a_consumer(seen, Sold, FirstSold), FirstSold(7), tx=None)
    assert [each for each, _ in seen] == [SecondSold(7, "EUR"), FirstSold(7)]


@pytest.mark.usefixtures("everywhere")
def test_a_consumer_s_own_comes_before_those_of_the_process() -> None:
    upcast("ticket.sold.v1", to=Sold)(from_dict)
    seen: list[Any] = []
    consumer = a_consumer(seen)
    consumer.upcast("ticket.sold.v1", to=Sold)(lambda old: Sold(cents=0, currency="own"))
    perform(consumer, FirstSold(7), tx=None)
    perform(a_consumer(seen), FirstSold(7), tx=None)
    assert [each.currency for each, _ in seen] == ["own", "EUR"]


def test_types_that_lead_to_no_handler_are_not_taken() -> None:
    consumer = a_consumer([], FirstSold)
    consumer.upcast("ticket.sold.v2", to=Sold)(to_sold)
    assert consumer.types == ["ticket.sold.v1"]
    with pytest.raises(Unreadable, match="takes the type 'ticket.sold.v2'; it has some for 'ticket.sold.v1'"):
        perform(consumer, SecondSold(7, "EUR"), tx=None)


def test_messages_without_content_come_to_the_handlers_of_the_new_type() -> None:
    seen: list[Any] = []
    consumer = a_consumer(seen)
    consumer.upcast("ticket.sold.v1", to=Sold)(from_dict)
    with pytest.raises(Unreadable, match=r"no handler .* takes tombstones of the type 'ticket.sold' \("):
        perform(consumer, Message(Tombstone(), type="ticket.sold.v1", key=1), tx=None)

    @consumer.on(Tombstone, type="ticket.sold")
    def gone(event: Tombstone, tx: Any, message: Received) -> None:
        seen.append((event, message.type))

    perform(consumer, Message(Tombstone(), type="ticket.sold.v1", key=1), tx=None)
    assert seen == [(Tombstone(), "ticket.sold.v1")]


def test_a_batch_has_old_and_new_ones() -> None:
    consumer: Consumer[Any] = Consumer(name="box office", begin=begin)
    consumer.upcast("ticket.sold.v1", to=Sold)(from_dict)
    seen: list[Any] = []

    @consumer.on_batch(Sold)
    def handle(batch: Any, tx: Any) -> None:
        seen.extend(event for event, message in batch)

    perform(consumer, FirstSold(7), tx=None)
    assert seen == [Sold(cents=700, currency="EUR")]


# -- what is wrong ---------------------------------------------------------------------------------------------------


def failing(old: dict[str, Any]) -> Sold:
    raise KeyError("price")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (failing, "failing, which upcasts 'ticket.sold.v1' to 'ticket.sold', failed: KeyError: 'price'"),
        (lambda old: {"cents": "many"}, "its payload is no Sold"),
        (lambda old: None, "an upcast returned what is no event: an event of type NoneType"),
        (to_sold, "its payload is no SecondSold"),
    ],
)
def test_what_can_t_be_upcast_can_t_be_read(function: Any, why: str) -> None:
    consumer = a_consumer([])
    consumer.upcast("ticket.sold.v1", to=Sold)(function)
    with pytest.raises(Unreadable, match=why):
        perform(consumer, FirstSold(7), tx=None)


async def is_async(old: dict[str, Any]) -> Sold: ...  # type: ignore[empty-body]
def yields(old: dict[str, Any]) -> Iterator[Sold]:
    yield Sold(cents=1, currency="EUR")


def takes_nothing() -> Sold: ...  # type: ignore[empty-body]
def takes_two(old: dict[str, Any], message: Received) -> Sold: ...  # type: ignore[empty-body]
def takes_an_int(old: int) -> Sold: ...  # type: ignore[empty-body]
def takes_what_is_not_there(old: NotThere) -> Sold: ...  # type: ignore[empty-body,name-defined]  # noqa: F821
def returns_another(old: dict[str, Any]) -> SecondSold: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("type", "to", "function", "why"),
    [
        ("a", Sold, is_async, "is_async must be a plain function, which returns the newer event"),
        ("a", Sold, yields, "yields must be a plain function"),
        ("a", Sold, takes_nothing, r"takes_nothing\(\) -> 'Sold' can't be called with one argument; an upcast takes"),
        ("a", Sold, takes_two, "takes_two.* can't be called with one argument"),
        ("a", Sold, takes_an_int, "takes_an_int takes 'int'; it must be the class of the old event, dict, str or"),
        ("a", Sold, takes_what_is_not_there, r"annotation of .*\(old: NotThere\) can't be evaluated; define the class"),
        ("a", Sold, returns_another, "returns SecondSold, and is registered to return Sold, or a dict"),
        ("a", Sold, 7, "upcast: 7 is no function"),
        ("a", dict, from_dict, "to is <class 'dict'>; it must be the class of the newer event, or the name"),
        ("a", 7, from_dict, "to is 7; it must be the class of the newer event, or the name of its type"),
        ("", Sold, from_dict, "upcast: type is empty"),
        (Sold, Sold, from_dict, "upcast: type is <class .*Sold'>; it must be a str"),
        ("ticket.sold", Sold, from_dict, "upcast: 'ticket.sold' is the type of Sold itself"),
    ],
)
def test_what_is_wrong_is_named(type: Any, to: Any, function: Any, why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        Upcasts().add(type, to, function)


def test_one_old_type_has_one_upcast() -> None:
    upcasts = Upcasts()
    upcasts.add("ticket.sold.v1", Sold, from_dict)
    upcasts.add("ticket.sold.v1", Sold, from_dict)  # its module was imported again
    with pytest.raises(InvalidSetting, match="'ticket.sold.v1' is upcast by from_dict already; from_typed_dict would"):
        upcasts.add("ticket.sold.v1", Sold, from_typed_dict)


def test_upcasts_can_t_go_in_a_circle() -> None:
    everywhere = Upcasts()
    everywhere.add("a", "b", from_dict)
    own = Upcasts(everywhere)
    own.add("b", "c", from_dict)
    with pytest.raises(InvalidSetting, match="from_dict would close a circle: c → a → b → c"):
        own.add("c", "a", from_dict)
    everywhere.add("c", "a", from_dict)  # one that only the consumer's own closes
    assert own.steps("a", {"elsewhere"}) == []
    assert own.types({"elsewhere"}) == []


def test_a_payload_that_is_no_json_is_named_by_its_content_type() -> None:
    consumer = a_consumer([], FirstSold)
    avro = Message(b"\x02", type="ticket.sold.v1", content_type="application/avro")
    with pytest.raises(Unreadable, match=r"no FirstSold: .* \(its content type is 'application/avro'; a handler for"):
        perform(consumer, avro, tx=None)
    with pytest.raises(Unreadable) as caught:
        perform(consumer, Message({"price": "high"}, type="ticket.sold.v1"), tx=None)
    assert "content type" not in str(caught.value)
