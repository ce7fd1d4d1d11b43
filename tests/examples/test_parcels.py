"""examples/parcels, end to end on a real server. It checks what it shows; here it must have shown all of it."""

from __future__ import annotations

from tests.examples.commands import assert_page_is_whole, printed_by, words_of
from tests.services.postgresql import PostgreSQL


def test_the_one_command(postgresql15: PostgreSQL) -> None:
    words = words_of(printed_by("parcels"))
    for shown in (
        "300 messages, 300 texts: each was sent once.",
        "sent outbox.cancel(session, id) -> TOO_LATE; now it is published",
        "refused 1x outbox.cancel(session, id) -> CANCELED; now it is canceled",
        "refused 2x it is dead",
        "of sink 'texts' was taken by another relay",
        "601 messages, 601 texts: each was sent once.",
        "try again done at the second try; the parcel is 'delivered', version 3",
        "log, go on None; the parcel is 'at depot 5', version 6",
        "gave up after 5 attempts that met a conflict",
        "raise StaleDataError",
        "already done None, and nothing is logged",
    ):
        assert shown in words
    assert words.count("texts sent") == 3


def test_the_page() -> None:
    assert_page_is_whole("parcels")
