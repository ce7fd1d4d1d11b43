"""The wheel and the sdist, as they would be published: whole, typed, without tests, and importable with every extra."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
SERVES = {
    "alembic": "alembic.py", "aiosqlite": "stores/connections/sqlite.py",
    "cli": "ops/cli.py ops/commands/*.py ops/demo/*.py ops/rendering/*.py ops/top/*.py", "console": "console/**/*.py",
    "django": "django/*.py stores/connections/django.py", "encryption": "codecs/encryption.py",
    "http": "brokers/http/*.py", "kafka": "brokers/kafka/*.py", "metrics": "metrics/prometheus.py",
    "nats": "brokers/nats/*.py", "otel": "otel.py metrics/otel.py", "payloads": "codecs/payload_store.py",
    "postgresql": "stores/*postgresql*.py stores/admin/postgresql.py", "psycopg": "stores/connections/psycopg.py",
    "rabbitmq": "brokers/rabbitmq/*.py", "redis": "brokers/redis/*.py",
    "sqlalchemy": "sqlalchemy/*.py stores/connections/sqlalchemy.py", "zstd": "codecs/compression.py",
}  # fmt: skip
"""The modules of postroad that an extra is for."""
OF_THE_APPLICATION = {"sqlalchemy.ext.asyncio"}
"""What is imported only if the application has done so, and has installed what that needs (`sqlalchemy[asyncio]`)."""
IMPORT = """
import importlib, importlib.machinery, importlib.metadata, json, sys, sysconfig

task = json.loads(sys.argv[1])
site = sysconfig.get_path("purelib")
found = [importlib.metadata.distribution(name) for name in task["distributions"]]
installed = {str(each.locate_file(file)) for each in found for file in each.files or ()}

class Installed(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target)
        if spec and spec.origin and spec.origin.startswith(site) and spec.origin not in installed:
            return None
        return spec

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Installed
for name in task["modules"]:
    importlib.import_module(name)
"""
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
    assert set(MODULES) == set(SERVES) == set(PROJECT["optional-dependencies"]) - {"all"}


@pytest.mark.parametrize("extra", MODULES)
def test_what_an_extra_installs_is_enough_for_what_it_is_for(extra: str) -> None:
    """Each in a process that finds only what the extra installs, of all that the environment of the tests has."""
    files = sorted(file for glob in SERVES[extra].split() for file in (SOURCE / "postroad").glob(glob))
    assert files
    ours = [".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for file in files]
    others = {name for file in files for name in imported_by(file)} - OF_THE_APPLICATION
    task = {
        "distributions": sorted(installed_by(PROJECT["dependencies"] + PROJECT["optional-dependencies"][extra])),
        "modules": [*MODULES[extra].split(), *sorted(others), *ours],
    }
    done = subprocess.run(
        [sys.executable, "-I", "-c", IMPORT, json.dumps(task)], text=True, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def imported_by(file: Path) -> set[str]:
    """The modules of others that a module imports, now or when a function is called; none for type checkers only."""
    found = set[str]()
    left: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        left += ast.iter_child_nodes(node)
    return {name for name in found if name.partition(".")[0] not in {*sys.stdlib_module_names, "postroad"}}


def installed_by(requirements: Iterable[str]) -> set[str]:
    """The distributions that are installed for these requirements, as far as the environment of the tests has them."""
    found = set[str]()
    left = [(Requirement(each), frozenset({""})) for each in requirements]
    seen = set[tuple[str, frozenset[str]]]()
    while left:
        requirement, extras = left.pop()
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        name, asked = canonicalize_name(requirement.name), frozenset({"", *requirement.extras})
        if (name, asked) not in seen:
            seen.add((name, asked))
            found.add(name)
            left += [(Requirement(each), asked) for each in importlib.metadata.requires(name) or ()]
    return found
