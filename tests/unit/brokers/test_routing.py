"""Routing keys from templates."""

from __future__ import annotations

import pytest

from postroad import InvalidSetting
from postroad.brokers.cloudevents import CannotEncode
from postroad.brokers.routing import RoutingKey
from tests.destinations import stored


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("{topic}", "orders"),
        ("{type}", "order.created"),
        ("{key}", "k"),
        ("{source}", "/tests"),
        ("{tenant}.{type}", "acme.order.created"),
        ("v1.{topic}.{x-region}.end", "v1.orders.eu.end"),
        ("{topic}{topic}", "ordersorders"),
        ("always.the.same", "always.the.same"),
    ],
)
def test_names_are_filled_in(template: str, key: str) -> None:
    message = stored(topic="orders", key="k", headers={"tenant": "acme", "x-region": "eu"})
    assert RoutingKey(template).of(message) == key


def test_braces_in_a_value_are_left_alone() -> None:
    assert RoutingKey("{tenant}").of(stored(headers={"tenant": "{topic}"})) == "{topic}"


@pytest.mark.parametrize("template", ["", "{", "}", "{}", "{topic", "topic}", "{{topic}}", "{a{b}c}"])
def test_a_template_is_checked_when_it_is_built(template: str) -> None:
    with pytest.raises(InvalidSetting, match="routing_key is"):
        RoutingKey(template)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(CannotEncode, match="no header 'tenant'"):
        RoutingKey("{tenant}.{type}").of(stored())
    with pytest.raises(CannotEncode, match="no key"):
        RoutingKey("{key}").of(stored(key=None))
    with pytest.raises(CannotEncode, match="headers"):
        RoutingKey("{tenant}").of(stored(headers_json="5"))
