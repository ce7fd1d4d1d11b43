"""The same messages for every benchmark: 170 bytes of JSON, with a number that tells them apart. Pure SQL and Python.

Backlogs are made inside the server, because making them through each library would take longer than the measuring.
"""

from __future__ import annotations

PAYLOAD_BYTES = 170
MESSAGES_PER_TRANSACTION = 5000
_TEXT = "a customer asked for this and is waiting for the parcel since last Tuesday "

PAYLOAD_SQL = (
    f"""rpad('{{"order":"' || lpad(n::text, 12, '0') || '","note":"', {PAYLOAD_BYTES - 2}, '{_TEXT}') || '"}}'"""
)
"""An SQL expression of type text: the payload of message number n."""


def payload(n: int) -> str:
    """The payload of message number n."""
    begun = f'{{"order":"{n:012}","note":"'
    missing = PAYLOAD_BYTES - 2 - len(begun)
    return begun + (_TEXT * (missing // len(_TEXT) + 1))[:missing] + '"}'


def key_sql(keys: int) -> str:
    """An SQL expression of type text: the key of message number n, spread over so many keys as a hash would."""
    if keys == 0:
        return "null::text"
    return f"'customer-' || (hashint8(n) & 2147483647) % {keys}"


def transactions(messages: int) -> list[tuple[int, int]]:
    """The first and last number of every transaction that a backlog of so many messages is made by."""
    size = MESSAGES_PER_TRANSACTION
    return [(first, min(first + size - 1, messages)) for first in range(1, messages + 1, size)]
