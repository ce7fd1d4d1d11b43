"""A registry of prometheus_client gives what the page has."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from postroad.brokers.memory import MemoryBroker
from postroad.metrics import Metrics
from postroad.metrics.exposition import exposition
from postroad.metrics.prometheus import PrometheusCollector
from postroad.relay import Relay
from tests.logs import MemoryLog, numbered


def samples(text: str) -> set[tuple[Any, ...]]:
    return {
        (
            family.type,
            sample.name,
            *sorted((k, float(v) if k == "le" else v) for k, v in sample.labels.items()),
            sample.value,
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "event_loop" not in sample.name
    }


async def test_a_registry_has_the_same_samples() -> None:
    metrics, log, registry = Metrics(), MemoryLog(), CollectorRegistry()
    registry.register(PrometheusCollector(metrics))
    await log.add(*numbered(*range(25)))
    await Relay(log.store, MemoryBroker(), listeners=[metrics]).run_until_empty()
    found = samples(generate_latest(registry).decode())
    assert found == samples(exposition(metrics.read()).decode())
    assert len(found) > 50
