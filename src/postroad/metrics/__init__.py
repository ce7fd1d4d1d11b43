"""OBSERVE: what relays and consumers count, for Prometheus and OpenTelemetry, and the probes of an orchestrator.

    metrics = Metrics(database=DatabaseReader("postgresql://relay@db.example/shop"))
    relay = Relay(store, publisher, listeners=[LogListener(), metrics])
    async with MetricsServer(metrics, port=9464):
        await relay.run()

`metrics_app` is the same for an ASGI server; `postroad.metrics.prometheus` and `postroad.metrics.otel` are for programs
that have a registry or a meter already. Nothing here needs a library.
"""

from __future__ import annotations

from postroad.metrics.asgi import metrics_app
from postroad.metrics.collect import Metrics
from postroad.metrics.database import DatabaseReader
from postroad.metrics.server import MetricsServer

__all__ = ["DatabaseReader", "Metrics", "MetricsServer", "metrics_app"]
