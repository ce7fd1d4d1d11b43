"""docs/migrations.md says what works: its commands run, and its blocks do what they say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from postroad.django import __name__ as app
from tests.documents.reader import ROOT, Reader, Step, blocks, steps

PAGE = ROOT / "docs" / "migrations.md"
PYTHON = [text for kind, text in blocks(PAGE) if kind == "python"]
COMMANDS = [step for kind, text in blocks(PAGE) if kind == "console" for step in steps(text)]


def run(words: str, **names: Any) -> dict[str, Any]:
    (text,) = [each for each in PYTHON if words in each]
    exec(compile(text, "migrations.md", "exec", dont_inherit=True), names)
    return names


def test_the_commands(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for step in COMMANDS:
        if ">" in step.command:
            script = reader.run(step.command.partition(" >")[0].split(), may_fail=False)
            assert "create table if not exists postroad.outbox" in script
        else:
            reader.do(Step(*step))
    assert len(COMMANDS) == 4


def test_alembic() -> None:
    called: list[str] = []
    run("def upgrade", op=SimpleNamespace(postroad_migrate=lambda: called.append("migrated")))["upgrade"]()
    assert called == ["migrated"]
    configured: dict[str, Any] = {}
    run("context.configure(", context=SimpleNamespace(configure=lambda *_, **given: configured.update(given)))
    assert not configured["include_name"]("outbox", "table", {"schema_name": "postroad"})
    assert configured["include_name"]("orders", "table", {"schema_name": None})


def test_django() -> None:
    names = run("INSTALLED_APPS")
    assert names["INSTALLED_APPS"][-1] == app
    assert names["POSTROAD_SCHEMA"] == "postroad"
