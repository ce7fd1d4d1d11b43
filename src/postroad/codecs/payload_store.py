"""Where payloads are that are not in the log: an object store, through the package obstore.

S3, GCS, Azure, a folder, memory. The contract is small, so that an application can have a store of its own.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from postroad.errors import InvalidSetting, MissingExtra, PayloadsUnavailable
from postroad.received import Unreadable
from postroad.safe_text import harmless, without_passwords

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

__all__ = ["PayloadStore", "StoredPayload", "payload_store"]

PAGE: Final = 1000
RETRIES: Final[Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=15)}
"""obstore's own take three minutes, while the transaction of the `add` that waits for them is open."""
NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
"""What S3 and GCS, and Azure, answer about any object where the bucket does not exist."""


class StoredPayload(NamedTuple):
    """An object of the store."""

    path: str
    size: int


class PayloadStore(Protocol):
    """Keeps payloads by their paths. Each method raises PayloadsUnavailable when the store can't do it now."""

    def put(self, path: str, payload: bytes) -> None:
        """Store a payload durably: it is there when this returns. Called on sync connections."""
        ...

    async def put_async(self, path: str, payload: bytes) -> None:
        """The same, on async connections."""
        ...

    async def get(self, path: str, largest: int) -> bytes:
        """Read a payload. Raises Unreadable if there is none, or it has more bytes than `largest`."""
        ...

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete payloads. One that is gone already is no error."""
        ...

    def older_than(self, age: timedelta) -> AsyncIterator[Sequence[StoredPayload]]:
        """Pages of the payloads that were stored longer ago than this."""
        ...


def payload_store(store: Any) -> PayloadStore:
    """The store that is meant: a URL such as "s3://bucket/payloads", a store of obstore, or a PayloadStore.

    Raises InvalidSetting.
    """
    if isinstance(store, str):
        return _Objects(_from_url(store), without_passwords(store))
    if hasattr(store, "older_than"):
        found: PayloadStore = store
        return found
    if type(store).__module__.partition(".")[0] in {"obstore", "_obstore", "builtins"} and hasattr(store, "put_async"):
        return _Objects(store, type(store).__name__)
    raise InvalidSetting(
        f"store is {store!r:.80}; it must be a URL such as 's3://bucket/payloads', a store of obstore, or a "
        "PayloadStore of your own"
    )


def _from_url(url: str) -> Any:
    try:
        from obstore.store import LocalStore, from_url
    except ImportError:
        raise MissingExtra("a payload store", "payloads") from None
    try:
        if url.startswith("file://"):
            return LocalStore(urlsplit(url).path, mkdir=True)
        return from_url(url, retry_config=RETRIES)
    except Exception as error:  # obstore has several
        raise InvalidSetting(
            f"the payload store {without_passwords(url)!r} can't be used: {_first_line(error)}; it must be a URL such "
            "as 's3://bucket/payloads', 'gs://…', 'az://…' or 'file:///folder', with credentials in the environment"
        ) from error


class _Objects:
    """A store of obstore."""

    def __init__(self, store: Any, name: str) -> None:
        self._store = store
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def put(self, path: str, payload: bytes) -> None:
        with self._outages("stored"):
            self._store.put(path, payload)

    async def put_async(self, path: str, payload: bytes) -> None:
        with self._outages("stored"):
            await self._store.put_async(path, payload)

    async def get(self, path: str, largest: int) -> bytes:
        try:
            with self._outages("read"):
                found = await self._store.get_async(path)
                size: int = found.meta["size"]
                if size <= largest:
                    return bytes(await found.bytes_async())
        except FileNotFoundError:
            raise Unreadable(f"its payload, {path!r} in {self._name}, is gone") from None
        raise Unreadable(f"its payload in {self._name} has {size:,} bytes, and ClaimCheck's largest is {largest:,}")

    # The next two are called by a sweep, whose process may end right afterwards. They run in threads, because the
    # threads of obstore's async functions can abort a process that ends within milliseconds after them.

    async def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                with self._outages("deleted"):
                    await asyncio.to_thread(self._store.delete, path)
            except FileNotFoundError:
                continue

    async def older_than(self, age: timedelta) -> AsyncIterator[Sequence[StoredPayload]]:
        until = datetime.now(UTC) - age
        with self._outages("listed"):
            pages = iter(self._store.list(chunk_size=PAGE))
            while page := await asyncio.to_thread(next, pages, None):
                found = [StoredPayload(each["path"], each["size"]) for each in page if each["last_modified"] <= until]
                if found:
                    yield found

    @contextmanager
    def _outages(self, done: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # obstore's own, and Python's for some of them
            if isinstance(error, FileNotFoundError) and not any(each in str(error) for each in NO_BUCKET):
                raise
            raise PayloadsUnavailable(f"a payload can't be {done} in {self._name}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """Obstore's texts go on with a dump of its own objects."""
    return harmless(without_passwords(str(error).strip().partition("\n")[0])) or type(error).__name__
