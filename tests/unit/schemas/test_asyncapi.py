"""The AsyncAPI document: valid by AsyncAPI's own schema, its references lead somewhere, and it describes payloads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft7Validator

from postroad import InvalidSetting
from postroad.payload import encode_event
from postroad.schemas.asyncapi import asyncapi
from postroad.schemas.compare import resolve
from postroad.schemas.json_schema import references
from tests.services.npm import from_npm
from tests.unit.schemas.test_json_schema import EVENTS, Model, Placed

BY_TYPE = {"order.placed/v2": Placed, "model": Model, "bytes": bytes, "dict": dict}


def the_document(**events: Any) -> dict[str, Any]:
    return asyncapi(events or BY_TYPE, title="shop.events", version="1.2.0", action="send")


def test_it_is_valid_by_the_official_schema() -> None:
    official = json.loads(from_npm("@asyncapi/specs", "6.11.1", "schemas/3.0.0.json").read_text(encoding="utf-8"))
    validator = Draft7Validator(official)
    validator.validate(the_document())
    broken = the_document() | {"channels": {"a": {"address": 7}}}
    assert not validator.is_valid(broken), "or it would find nothing at all"


def test_references_lead_somewhere() -> None:
    document = the_document()
    found = set(references(document))
    assert len(found) > 10
    for ref in found:
        assert resolve({"$ref": ref}, document)


@pytest.mark.parametrize("event", [each for each in EVENTS if type(each) in {Placed, Model}])
def test_payloads_are_valid(event: Any) -> None:
    document = the_document(event=type(event))
    payload = document["components"]["messages"]["event"]["payload"]
    validator = Draft7Validator(document | payload)
    written = json.loads(encode_event(event)[0])
    validator.validate(written)
    assert not validator.is_valid({"order": 1})
    assert not validator.is_valid(written | {"pair": [1, 2], "total": 7})


def test_each_type_is_a_channel_and_an_operation() -> None:
    document = the_document()
    assert document["channels"]["order.placed_v2"]["address"] == "order.placed/v2"
    assert document["operations"]["send.model"]["action"] == "send"
    assert document["info"] == {"title": "shop.events", "version": "1.2.0"}
    received = asyncapi({"a": Model}, title="", version="1", action="receive")
    assert received["operations"]["receive.a"]["action"] == "receive"


def test_two_types_with_one_name() -> None:
    with pytest.raises(InvalidSetting, match=r"'a b' and 'a/b' would both be named 'a_b' in AsyncAPI"):
        the_document(**{"a b": Model, "a/b": Model})
