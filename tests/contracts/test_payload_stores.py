"""What a payload store promises, on a folder and on a real server with S3's interface; and what a claim check makes of
a store that does not work.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest

from postroad import Outbox, PayloadsUnavailable
from postroad.codecs import ClaimCheck, PayloadStore, Zstd, decoded, payload_store
from postroad.message import StoredMessage
from postroad.received import Unreadable
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL
from tests.services.s3 import S3

STORES = import_module("postroad.codecs.payload_store")
AT_ONCE = timedelta(0)
LARGE = random.Random(20).randbytes(1_024_000)


def new_path() -> str:
    return f"2026-11-18/{uuid4()}-{'0' * 16}"


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return f"file://{tmp_path}/payloads"
    s3: S3 = request.getfixturevalue("s3")
    return f"s3://{s3.create_bucket()}/payloads"


async def listed(store: PayloadStore) -> set[str]:
    return {each.path async for page in store.older_than(AT_ONCE) for each in page}


async def test_what_was_put_is_there_until_it_is_deleted(url: str) -> None:
    store = payload_store(url)
    one, other = new_path(), new_path()
    await asyncio.to_thread(store.put, one, LARGE)
    await store.put_async(other, b"small")
    assert await store.get(one, len(LARGE)) == LARGE
    assert await store.get(other, 5) == b"small"
    pages = [page async for page in store.older_than(AT_ONCE)]
    assert {(each.path, each.size) for page in pages for each in page} == {(one, len(LARGE)), (other, 5)}
    assert [page async for page in store.older_than(timedelta(days=1))] == []
    await store.delete([one, one])
    assert await listed(store) == {other}


async def test_what_cannot_be_read_is_told_apart(url: str) -> None:
    store, path = payload_store(url), new_path()
    await store.put_async(path, LARGE)
    with pytest.raises(Unreadable, match=r"has 1,024,000 bytes, and ClaimCheck's largest is 1,000"):
        await store.get(path, 1000)
    with pytest.raises(Unreadable, match="is gone"):
        await store.get(new_path(), 1000)


async def test_more_than_a_page_is_listed(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STORES, "PAGE", 10)
    store = payload_store(f"s3://{s3.create_bucket()}/payloads")
    paths = {new_path() for _ in range(25)}
    await asyncio.gather(*(store.put_async(path, b"x") for path in paths))
    assert await listed(store) == paths


async def everything(store: PayloadStore, *, delete: bool = True) -> list[str]:
    """What each method of a store that does not work raises."""
    path = new_path()

    async def put() -> None:
        await asyncio.to_thread(store.put, path, b"x")

    calls: list[Callable[[], Any]] = [
        put,
        lambda: store.put_async(path, b"x"),
        lambda: store.get(path, 10),
        lambda: listed(store),
    ]
    if delete:
        calls.append(lambda: store.delete([path]))
    errors = []
    for call in calls:
        with pytest.raises(PayloadsUnavailable) as raised:
            await call()
        errors.append(str(raised.value))
    return errors


async def test_a_server_that_is_down_is_an_outage(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STORES, "RETRIES", {"max_retries": 0})
    store, path = payload_store(f"s3://{s3.create_bucket()}/payloads"), new_path()
    await store.put_async(path, b"kept")
    s3.stop()
    assert all("can't be" in error and "s3://" in error for error in await everything(store))
    s3.start()
    assert await store.get(path, 10) == b"kept"


async def test_a_bucket_that_does_not_exist_is_an_outage(s3: S3) -> None:
    """Not a payload that is gone: consumers would make dead letters of all their messages."""
    store = payload_store("s3://there-is-none/payloads")
    errors = await everything(store, delete=False)  # s3proxy answers that nothing is left to delete
    assert all("NoSuchBucket" in error for error in errors)


async def test_wrong_credentials_are_an_outage(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-by-purpose")
    errors = await everything(payload_store(f"s3://{s3.create_bucket()}/payloads"))
    assert all("wrong-by-purpose" not in error for error in errors)


# -- the claim check on it -------------------------------------------------------------------------------------------


async def rows(log: PostgreSQLLog) -> list[StoredMessage]:
    columns = "position, id, topic, key, slot, type, payload, content_type, headers::text"
    found = await log.execute(f"select {columns} from postroad.outbox order by position")
    return [
        StoredMessage(position, id, topic, key, slot, type, payload, content_type, headers, 0)
        for position, id, topic, key, slot, type, payload, content_type, headers in found
    ]


async def test_messages_with_payloads_in_s3_are_read_again(postgresql15: PostgreSQL, s3: S3) -> None:
    """On an async and a sync connection, with and without compression."""
    log, bucket = await PostgreSQLLog.fresh(postgresql15), s3.create_bucket()
    codecs = [Zstd(level=1), ClaimCheck(f"s3://{bucket}/payloads", above="1KB")]
    outbox = Outbox(source="/shop", codecs=codecs)
    connection = await asyncpg.connect(log.url)
    async with connection.transaction():
        await outbox.add(connection, LARGE, type="scan", key=1)
        await outbox.add(connection, b"small", type="scan", key=1)
    await connection.close()
    with psycopg.connect(log.url) as synchronous:
        await asyncio.to_thread(outbox.add, synchronous, LARGE[::-1], type="scan", key=2)
    messages = await rows(log)
    assert [len(each.payload) for each in messages] == [0, 5, 0]
    read = [(await decoded(each, codecs)).payload for each in messages]
    assert read == [LARGE, b"small", LARGE[::-1]]
    assert await listed(payload_store(f"s3://{bucket}/payloads")) == {
        each.all_headers["dataref"] for each in messages if not each.payload
    }


async def test_a_server_that_goes_down_takes_only_its_row_back(
    postgresql15: PostgreSQL, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application catches the error and commits the rest."""
    monkeypatch.setattr(STORES, "RETRIES", {"max_retries": 0})
    log = await PostgreSQLLog.fresh(postgresql15)
    outbox = Outbox(source="/shop", codecs=[ClaimCheck(f"s3://{s3.create_bucket()}/payloads", above="1KB")])
    connection = await asyncpg.connect(log.url)
    async with connection.transaction():
        await outbox.add(connection, LARGE, type="before")
        s3.stop()
        with pytest.raises(PayloadsUnavailable):
            await outbox.add(connection, LARGE, type="failed")
        s3.start()
        await outbox.add(connection, LARGE, type="after")
    await connection.close()
    assert [each.type for each in await rows(log)] == ["before", "after"]
