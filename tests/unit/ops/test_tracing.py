"""A command makes spans if its process has an SDK, and imports OpenTelemetry in no other case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from postroad.stores.sqlite import migrate_sqlite

SDK = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
exporter = ConsoleSpanExporter(out=open("spans", "a"), formatter=lambda span: span.to_json(indent=None) + "\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""
SHOP = """
import sqlite3
from contextlib import closing, contextmanager
from postroad import Consumer, Outbox, Received

@contextmanager
def begin():
    with closing(sqlite3.connect("shop.sqlite")) as connection, connection:
        yield connection

stock = Consumer(name="stock", begin=begin)

@stock.on(dict, type="order.created")
def reserve(event: dict, tx: sqlite3.Connection, message: Received) -> None:
    pass
"""
PARENT = f"00-{0xABC:032x}-{0xDEF:016x}-01"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import sqlite3
    from contextlib import closing

    from postroad import Outbox

    migrate_sqlite(tmp_path / "shop.sqlite")
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "traced.py").write_text(SDK + SHOP)
    (tmp_path / "sitecustomize.py").write_text(f"import os\nif 'WITH_SDK' in os.environ:\n{_indented(SDK)}")
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection, connection:
        Outbox(source="/shop").add(connection, {"n": 1}, type="order.created", headers={"traceparent": PARENT})
    return tmp_path


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def relay(folder: Path, *arguments: str, **variables: str) -> list[str]:
    """The names of the spans of a relay that has published everything."""
    done = subprocess.run(
        [sys.executable, "-m", "postroad", "relay", "--until-empty", "--database", "sqlite:///shop.sqlite", *arguments],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)} | variables,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    spans = folder / "spans"
    return [json.loads(line)["name"] for line in spans.read_text().splitlines()] if spans.exists() else []


def test_an_sdk_that_the_app_sets_up(folder: Path) -> None:
    assert relay(folder, "--app", "traced:stock") == ["process order.created", "send order.created"]


def test_an_sdk_that_was_there_before_as_with_opentelemetry_instrument(folder: Path) -> None:
    assert relay(folder, "--to", "null://", WITH_SDK="1") == ["send order.created"]


def test_a_span_for_each_message_too(folder: Path) -> None:
    names = relay(folder, "--to", "null://", "--tracing", "deliver", WITH_SDK="1")
    assert names == ["deliver order.created", "send order.created"]


def test_off(folder: Path) -> None:
    assert relay(folder, "--app", "traced:stock", "--tracing", "off") == []


def test_no_sdk(folder: Path) -> None:
    assert relay(folder, "--app", "shop:stock") == []


def test_nothing_of_postroad_imports_opentelemetry_by_itself() -> None:
    program = (
        "import sys, postroad, postroad.ops.cli, postroad.asgi\n"
        "from postroad.ops.tracing import flush_spans, tracing_for\n"
        "assert tracing_for('auto') is None\n"
        "flush_spans()\n"
        "assert 'opentelemetry' not in sys.modules\n"
        "import opentelemetry.trace\n"
        "assert tracing_for('auto') is None, 'no provider is set'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_without_the_package_the_error_names_the_extra() -> None:
    program = "import sys\nsys.modules['opentelemetry'] = None\nimport postroad.otel\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.splitlines()[-1].endswith("install it with: pip install 'postroad[otel]'")
