"""docs/tracing.md says what works: its example makes the spans that it names, with the attributes that it lists."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import postroad.otel
from postroad.stores.sqlite import SQLiteStore, migrate_sqlite

PAGE = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@dataclass
class OrderCreated:
    order: int


@dataclass
class StockReserved:
    order: int


async def test_the_example_makes_the_spans_it_names(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "shop.sqlite"
    migrate_sqlite(path)

    @asynccontextmanager
    async def begin() -> AsyncIterator[aiosqlite.Connection]:
        async with aiosqlite.connect(path) as connection:
            await connection.execute("begin immediate")
            yield connection
            await connection.commit()

    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    # As if it were the global one, which a process can set only once.
    monkeypatch.setattr(postroad.otel, "get_tracer", lambda *named: provider.get_tracer(*named[:2]))
    names: dict[str, Any] = {
        "OrderCreated": OrderCreated, "StockReserved": StockReserved, "Connection": aiosqlite.Connection,
        "begin": begin, "store": SQLiteStore(path), "tracer": provider.get_tracer("shop"),
    }  # fmt: skip
    (block,) = BLOCKS
    exec(compile(block, "tracing.md", "exec", dont_inherit=True), names)
    await names["place"](7)
    await names["relay"].run_until_empty()
    made = {span.name: span for span in spans.get_finished_spans()}
    assert set(made) >= {"place order", "deliver order.created", "send order.created", "process order.created"}
    handler = made["process order.created"].get_span_context()
    async with aiosqlite.connect(path) as connection:
        rows = await connection.execute_fetchall("select headers from postroad_outbox where type = 'stock.reserved'")
    assert handler is not None
    assert [f"{handler.span_id:016x}" in str(row) for row in rows] == [True]
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_the_page_lists_every_attribute() -> None:
    source = Path(postroad.otel.__file__).read_text(encoding="utf-8")
    made = set(re.findall(r'"((?:messaging|postroad)\.[\w.]+)"', source)) - {"postroad.otel"}
    listed = set(re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE))
    assert made - {"messaging.operation.name", "messaging.operation.type"} == listed
