"""What `import postroad` and `postroad --help` import: time limits would fail on a busy machine, lists do not."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

import postroad
from postroad.ops.cli import app
from postroad.relay import Relay
from tests.command_line import command_line

SLOW = {
    "difflib", "email", "http", "importlib.metadata", "importlib.resources", "tempfile", "unittest", "urllib.request",
    "xml", "zipfile",
}  # fmt: skip
"""Modules of the standard library that take long, and are imported where they are needed."""
PACKAGES = {"msgspec", "postroad"}
NOT_OF_WRITERS = (
    "postroad.brokers", "postroad.consumer", "postroad.events", "postroad.ops", "postroad.relay", "postroad.schemas",
    "postroad.testing",
)  # fmt: skip
"""What an application that only writes messages does not need."""
OF_COMMANDS = (
    "postroad.admin", "postroad.consumer", "postroad.doctor", "postroad.metrics", "postroad.ops.commands",
    "postroad.ops.demo", "postroad.relay", "postroad.schemas", "rich.live", "rich.progress", "rich.traceback",
)  # fmt: skip
"""What commands need, and the help does not."""
OF_THE_COMMAND_LINE = PACKAGES | {"annotated_doc", "click", "rich", "shellingham", "typer"}


def imported_by(statement: str) -> set[str]:
    """What a new process imports, beside what asyncio and Python itself do."""
    program = (
        f"import asyncio, json, sys; before = set(sys.modules); {statement}; "
        "sys.stdout.write('\\n' + json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", program], text=True, check=True, capture_output=True, timeout=120)
    return set(json.loads(done.stdout.splitlines()[-1]))


def packages(modules: set[str]) -> set[str]:
    """The packages that were installed."""
    roots = {name.partition(".")[0] for name in modules}
    return {root for root in roots if root not in sys.stdlib_module_names and not root.startswith("_")}


def test_import_postroad_imports_no_driver_and_nothing_slow() -> None:
    found = imported_by("import postroad")
    assert packages(found) - {"typing_extensions"} == PACKAGES  # msgspec imports it, if it is there
    assert found & SLOW == set()
    assert not any(name.startswith(NOT_OF_WRITERS) for name in found)


def test_what_is_imported_at_its_first_use_is_where_it_should_be() -> None:
    missing = "postroad.consumer", "postroad.relay"
    assert imported_by("import postroad; postroad.Relay") >= {"postroad.relay.relay"}
    assert not any(name.startswith(missing) for name in imported_by("import postroad; dir(postroad); repr(postroad)"))
    assert set(dir(postroad)) >= set(postroad.__all__)
    assert postroad.Relay is Relay
    with pytest.raises(AttributeError, match="module 'postroad' has no attribute 'Relais'"):
        postroad.Relais  # type: ignore[attr-defined]  # noqa: B018


def test_the_help_imports_no_driver_and_no_command() -> None:
    found = imported_by("from postroad.ops.cli import app; app(['--help'], standalone_mode=False)")
    assert packages(found) - {"typing_extensions"} <= OF_THE_COMMAND_LINE
    assert not any(name.startswith(OF_COMMANDS) for name in found)


def test_a_command_imports_no_other() -> None:
    found = imported_by("from postroad.ops.cli import app; app(['health', '--help'], standalone_mode=False)")
    commands = {name for name in found if name.startswith("postroad.ops.commands.")}
    assert commands == {"postroad.ops.commands.health"}


def test_the_help_says_of_each_command_what_its_own_help_says_first() -> None:
    listed: Any = get_command(app)
    own = {name: " ".join(command.help.split("\n\n")[0].split()) for name, command in command_line().commands.items()}
    assert {name: command.help for name, command in listed.commands.items()} == own
