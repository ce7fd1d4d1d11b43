"""The wheel and the sdist, as they would be published: whole, typed, without tests, and importable with every extra."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = ROOT / "src"
MODULES = {
    "alembic": "alembic", "aiosqlite": "aiosqlite", "cli": "typer rich", "console": "jinja2 starlette uvicorn",
    "django": "django", "encryption": "cryptography", "http": "aiohttp", "kafka": "confluent_kafka",
    "metrics": "prometheus_client", "nats": "cryptography", "otel": "opentelemetry", "payloads": "obstore",
    "postgresql": "asyncpg", "psycopg": "psycopg", "rabbitmq": "aiormq", "redis": "hiredis",
    "sqlalchemy": "sqlalchemy", "zstd": "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",
}  # fmt: skip
SAMPLE = """
from dataclasses import dataclass

import asyncpg

from postroad import Outbox

outbox = Outbox(source="/shop")

@dataclass
class OrderCreated:
    order: int

async def place(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    await outbox.add(connection, OrderCreated(1), key=1)
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, built without isolation, and so without the network."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True, timeout=300)
    return folder


def test_the_wheel_has_every_file_of_the_package_and_no_other(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = ((SOURCE / "postroad").rglob(f"*{suffix}") for suffix in (".py", ".sql", ".lua", ".html", "py.typed"))
    tracked = {str(path.relative_to(SOURCE)) for each in files for path in each}
    assert tracked <= packed
    assert {name.split("/")[0] for name in packed} == {"postroad"}
    assert "postroad/py.typed" in packed
    assert [name for name in packed if name.endswith(".sql")]


def test_the_sdist_can_be_built_and_tested(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/postroad/py.typed", "tests/conftest.py"} <= names
    assert [name for name in names if ".venv" in name or "__pycache__" in name] == []


def test_a_program_is_checked_against_the_wheel(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "sample.py").write_text(SAMPLE)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", tmp_path / "cache", "sample.py"],
        cwd=tmp_path, env=os.environ | {"MYPYPATH": str(tmp_path / "site")}, text=True, capture_output=True,
        timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_extra_is_listed_here() -> None:
    assert set(MODULES) == set(PROJECT["optional-dependencies"]) - {"all"}


@pytest.mark.parametrize(("extra", "modules"), MODULES.items())
def test_what_an_extra_installs_can_be_imported(extra: str, modules: str) -> None:
    for module in modules.split():  # the environment of the tests has all of them
        importlib.import_module(module)
