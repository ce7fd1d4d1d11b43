"""examples/roundtrip, end to end on real servers. It checks what it shows; here it must have shown all of it."""

from __future__ import annotations

from tests.examples.commands import assert_page_is_whole, printed_by, words_of
from tests.services.nats import NATS
from tests.services.postgresql import PostgreSQL


def test_the_one_command(postgresql15: PostgreSQL, nats: NATS) -> None:
    words = words_of(printed_by("roundtrip", "--orders", "40"))
    for shown in (
        "40 orders were placed, shipped, and noted by the shop as shipped",
        "kill -9: warehouse 1, and the shop's relay",
        "all 120 orders are shipped",
        "warehouse 120 orders, each once, each customer's in order",
        "shop 120 orders, each once, each customer's in order",
    ):
        assert shown in words


def test_the_page() -> None:
    assert_page_is_whole("roundtrip")
