"""docs/testing.md can be followed: its files pass on an empty PostgreSQL, and its TestCase in a Django of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.reader import ROOT, Reader, blocks
from tests.integrations.test_django import Site, site
from tests.services.postgresql import PostgreSQL

__all__ = ["site"]

PAGE = ROOT / "docs" / "testing.md"
PYTHON = [text for kind, text in blocks(PAGE) if kind == "python"]
IN_DJANGO = [each for each in PYTHON if "django" in each]
FILES = [each for each in PYTHON if each not in IN_DJANGO]


def test_the_tests_of_the_page_pass(postgresql15: PostgreSQL, tmp_path: Path) -> None:
    """Twice: they leave nothing."""
    reader = Reader(tmp_path)
    for each in FILES:
        reader.write(each)
    tests = re.findall(r"^def test_", "".join(FILES), re.MULTILINE)
    assert len(tests) > 10
    url = postgresql15.create_database()
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"], cwd=tmp_path,
            env=os.environ | {"SHOP_DATABASE": url.replace("postgresql", "postgresql+psycopg", 1)},
            text=True, capture_output=True, timeout=300, check=False,
        )  # fmt: skip
        assert f"{len(tests)} passed" in done.stdout, done.stdout + done.stderr
    postgresql15.drop_database(url)


def test_the_testcase_of_the_page(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DATABASE", "sqlite://")
    application = FILES[0].replace('Consumer(name="stock", begin=begin)', 'Consumer(name="stock", begin=lambda: None)')
    application = application.replace("begin=begin", "begin=lambda: None")
    (site.folder / "shop.py").write_text(application)
    (site.folder / "tests.py").write_text(f"from shop import *\n{IN_DJANGO[0]}")
    assert "Ran 1 test" in site.manage("test", "tests", "--noinput")
