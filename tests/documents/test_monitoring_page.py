"""docs/metrics.md, docs/monitoring.md, the alerts and the dashboard name the metrics that exist, and no others.

When the table differs, the right one is in the failure: it is made of `postroad.metrics.catalog`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroad.brokers.memory import MemoryBroker
from postroad.metrics.catalog import CATALOG
from postroad.relay import Relay
from tests.documents.test_links import anchors
from tests.logs import MemoryLog
from tests.services.prometheus import find_promtool
from tests.services.server import ServerMissing

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "monitoring.md"
METRICS = PAGE.with_name("metrics.md")
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "postroad.json"
METRIC = re.compile(r"\bpostroad_[a-z_]+\b")
SUFFIX = re.compile(r"_(bucket|sum|count)$")
RULE = re.compile(r"- alert: (\w+)\n(.*?)(?=- alert: |\Z)", re.DOTALL)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def table() -> str:
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} | {each.help} |"
        for each in CATALOG.values()
    ]
    return "\n".join(["| name | type | labels | meaning |", "|---|---|---|---|", *rows]) + "\n"


def text_of_page() -> str:
    return PAGE.read_text(encoding="utf-8")


def rules() -> dict[str, str]:
    return dict(RULE.findall(ALERTS.read_text(encoding="utf-8")))


def test_the_page_has_the_table_that_the_code_makes() -> None:
    assert table() in METRICS.read_text(encoding="utf-8"), f"the table should be:\n\n{table()}"


NAMING = [ALERTS, ALERTS.with_stem("alerts_test"), DASHBOARD, PAGE, METRICS]


@pytest.mark.parametrize("file", NAMING, ids=lambda file: file.name)
def test_every_metric_that_is_named_exists(file: Path) -> None:
    for name in METRIC.findall(file.read_text(encoding="utf-8")):
        metric = CATALOG.get(name) or CATALOG.get(SUFFIX.sub("", name))
        assert metric is not None, name
        assert name == metric.name or metric.kind == "histogram", name


def test_every_metric_is_in_a_panel() -> None:
    named = {SUFFIX.sub("", name) for name in METRIC.findall(DASHBOARD.read_text(encoding="utf-8"))}
    assert named == set(CATALOG)


def test_every_alert_has_its_runbook_entry_and_a_severity() -> None:
    assert len(rules()) == 12
    on_page = anchors(PAGE)
    for name, rule in rules().items():
        assert f"runbook: docs/monitoring.md#{name.lower()}\n" in rule
        assert name.lower() in on_page, name
        assert re.search(r"severity: (page|ticket)\n", rule), name
        entry = re.split(r"^#{2,3} ", text_of_page().split(f"### {name}\n")[1], flags=re.MULTILINE)[0]
        for part in ("**Means**", "**Look**", "**Do**"):
            assert part in entry, f"{name} does not say: {part}"


def test_every_alert_has_a_test_that_fires_and_one_that_does_not() -> None:
    text = ALERTS.with_stem("alerts_test").read_text(encoding="utf-8")
    for name in rules():
        assert f"alertname: {name}\n" in text, name
        assert f"runbook: docs/monitoring.md#{name.lower()}\n" in text, name


@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_promtool_accepts_the_alerts(arguments: tuple[str, ...]) -> None:
    promtool(*arguments)


def test_promtool_accepts_the_configuration_of_the_page(tmp_path: Path) -> None:
    (config,) = re.findall(r"^```yaml\n(scrape_configs:.*?)^```$", text_of_page(), re.MULTILINE | re.DOTALL)
    file = tmp_path / "prometheus.yml"
    file.write_text(config.replace("alerts.yml", str(ALERTS)))
    promtool("check", "config", str(file))


def promtool(*arguments: str) -> None:
    """Run it beside the alerts. It fails if promtool does."""
    try:
        program = find_promtool()
    except ServerMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    done = subprocess.run(
        [program, *arguments], cwd=ALERTS.parent, text=True, check=False, timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_dashboard_is_what_its_script_makes() -> None:
    spec = importlib.util.spec_from_file_location("dashboard", DASHBOARD.with_name("dashboard.py"))
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert json.loads(DASHBOARD.read_text(encoding="utf-8")) == made.dashboard(), "run deploy/grafana/dashboard.py"


def test_the_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert taken.isdisjoint(cells), panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("number", range(len(BLOCK.findall(text_of_page())) if PAGE.exists() else 0))
async def test_the_programs_on_the_page_work(number: int) -> None:
    """Each has a function that takes a store and a publisher, and ends when the relay does."""
    names: dict[str, Any] = {}
    exec(BLOCK.findall(text_of_page())[number], names)
    relays: list[Relay] = []

    def stopping_soon(*arguments: Any, **settings: Any) -> Relay:
        relays.append(Relay(*arguments, **settings))
        asyncio.get_running_loop().call_later(0.2, relays[-1].stop)
        return relays[-1]

    names["Relay"] = stopping_soon
    function: Callable[..., Any] = names["deliver"]
    async with asyncio.timeout(60):
        await function(MemoryLog().store, MemoryBroker())
    (relay,) = relays
    assert relay.stats().phase == "ended"
