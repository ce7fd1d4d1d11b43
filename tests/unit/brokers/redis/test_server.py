import pytest

from postroad.brokers.redis.server import durability
from postroad.brokers.redis.settings import PublisherSettings

SAFE = {"appendonly": "yes", "appendfsync": "always", "maxmemory": "0"}


@pytest.mark.parametrize(
    ("facts", "weak"),
    [
        ({}, None),
        ({"appendfsync": "everysec"}, "two seconds"),
        ({"appendfsync": "no"}, "half a minute"),
        ({"appendonly": "no"}, "set appendonly yes"),
        ({"connected_slaves": "1"}, "replication is asynchronous"),
        ({"maxmemory": "1000", "maxmemory-policy": "allkeys-lfu"}, "whole streams"),
        ({"maxmemory": "1000", "maxmemory-policy": "noeviction"}, None),
    ],
)
def test_what_weakens_a_confirm(facts: dict[str, str], weak: str | None) -> None:
    warnings = durability(SAFE | facts, PublisherSettings()).warnings
    assert [weak in warning for warning in warnings] == [True] if weak else warnings == ()


def test_what_the_settings_ask_for() -> None:
    found = durability({"appendonly": "yes", "appendfsync": "everysec"}, PublisherSettings(fsync=True, replicas=2))
    assert (
        found.meaning == "written to the append-only file and synced to disk (fsync), and by 2 replicas, on their disks"
    )
    assert found.warnings == ()


def test_a_server_that_does_not_say() -> None:
    found = durability({}, PublisherSettings())
    assert "may not ask" in found.meaning
