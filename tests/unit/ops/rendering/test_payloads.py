"""What codecs did to a payload is named, in whatever form a broker has the headers, and the result is not shown."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from postroad import Outbox
from postroad.admin import DeadLetterRow
from postroad.brokers.cloudevents import PREFIXES, Mode, wrap
from postroad.codecs import ClaimCheck, Codec, Encrypt, KeyRing, Zlib
from postroad.codecs.description import by_codecs
from postroad.dead_letters import DeadLetter
from postroad.message import StoredMessage
from postroad.ops.rendering.letters import show_letter
from postroad.stores.memory import MemoryStore

COMPRESS, ENCRYPT = Zlib(above=10), Encrypt(KeyRing({"2026-11": bytes(32)}, current="2026-11"))
ELSEWHERE = ClaimCheck("memory:///", above=10)
DONE = [
    ([], ""),
    ([COMPRESS], "compressed (deflate)"),
    ([COMPRESS, ENCRYPT], "compressed (deflate), encrypted with the key 2026-11"),
    ([ENCRYPT, ELSEWHERE], "encrypted with the key 2026-11, stored elsewhere"),
]


def added(codecs: list[Codec]) -> StoredMessage:
    store = MemoryStore()
    with store.begin() as transaction:
        Outbox(source="/shop", codecs=codecs).add(transaction, "secret " * 100, type="order.created")
    (message,) = store._log
    return message


@pytest.mark.parametrize(("codecs", "says"), DONE, ids=lambda each: each or "nothing" if isinstance(each, str) else "")
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("mode", ["binary", "plain"])
def test_in_every_form_of_headers(mode: Mode, prefix: str, codecs: list[Codec], says: str) -> None:
    assert by_codecs(wrap(added(codecs), mode, prefix).headers) == says


def test_headers_of_other_programs() -> None:
    assert by_codecs({"encryption": "rot13"}) == "encrypted"
    assert by_codecs({"content_encoding": "\x1b[2Jbr"}).isprintable()


@pytest.mark.parametrize(("codecs", "says"), DONE, ids=lambda each: each or "nothing" if isinstance(each, str) else "")
def test_of_a_dead_letter(codecs: list[Codec], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    content_type, headers, body = wrap(added(codecs))
    row = DeadLetterRow(
        consumer="stock", id="/shop 1", type="order.created", dead_at=datetime.now(UTC), attempts=1,
        crashes=0, error="no key",
    )  # fmt: skip
    letter = DeadLetter(place="queue stock.dead", body=body, content_type=content_type, headers=headers)
    show_letter(row, letter, payload=True, asked=True)
    output = capsys.readouterr().out
    assert ("secret" in output) == (not codecs)
    if codecs:
        assert f" of text/plain; charset=utf-8, {says}\n" in output
        assert f"  | not shown: it is {says}\n" in output
