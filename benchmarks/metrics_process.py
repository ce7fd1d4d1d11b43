"""A relay with every exporter on, or with none, in a process of its own: delivers all that is committed.

Run by the benchmarks as `python -m benchmarks.metrics_process DATABASE SINK [--exporters]`. With exporters, it serves
its metrics and is scraped over HTTP every 5 seconds, a registry of prometheus_client is collected as often, and so is
an OpenTelemetry reader. Prometheus asks every 15 seconds by default, and one of the three.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import urllib.request
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.subject import report, wait_for_go
from postroad.brokers import publisher_for
from postroad.heap import collect_seldom
from postroad.listeners import LogListener
from postroad.metrics import DatabaseReader, Metrics, MetricsServer
from postroad.relay import Relay, Summary
from postroad.stores import store_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

EVERY_SECONDS = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("sink")
    parser.add_argument("--exporters", action="store_true")
    arguments = parser.parse_args()
    metrics = Metrics(database=DatabaseReader(arguments.database)) if arguments.exporters else None
    collects = [] if metrics is None else [*_collectors(metrics)]
    collect_seldom()  # as `postroad relay`
    starting_cpu_seconds = wait_for_go()
    summary, scrapes = asyncio.run(_deliver(arguments.database, arguments.sink, metrics, collects))
    report(
        messages=summary.published,
        seconds=summary.seconds,
        settings=f"scraped {scrapes} times" if metrics else "no exporter",
        starting_cpu_seconds=starting_cpu_seconds,
    )


def _collectors(metrics: Metrics) -> tuple[Callable[[], object], Callable[[], object]]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from prometheus_client import CollectorRegistry, generate_latest

    from postroad.metrics.otel import instrument
    from postroad.metrics.prometheus import PrometheusCollector

    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    registry.register(PrometheusCollector(metrics))
    instrument(metrics, MeterProvider([reader]))
    return lambda: generate_latest(registry), reader.get_metrics_data


async def _deliver(
    database: str, sink: str, metrics: Metrics | None, collects: list[Callable[[], object]]
) -> tuple[Summary, int]:
    relay = Relay(
        store_for(database),
        publisher_for("null://"),
        sink=sink,
        listeners=[LogListener()] if metrics is None else [LogListener(), metrics],
    )
    if metrics is None:
        return await relay.run_until_empty(), 0
    async with MetricsServer(metrics, port=0) as server, _scraping(server.port, collects) as scrapes:
        return await relay.run_until_empty(), len(scrapes)


@asynccontextmanager
async def _scraping(port: int, collects: list[Callable[[], object]]) -> AsyncIterator[list[int]]:
    scrapes: list[int] = []
    ended = threading.Event()

    def scrape() -> None:
        while not ended.is_set():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                scrapes.append(len(answer.read()))
            for collect in collects:
                collect()
            ended.wait(EVERY_SECONDS)

    scraping = asyncio.create_task(asyncio.to_thread(scrape))
    try:
        yield scrapes
    finally:
        ended.set()
        await scraping


if __name__ == "__main__":
    main()
