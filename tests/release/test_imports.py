"""What `import postroad` and `postroad --help` import: time limits would fail on a busy machine, lists do not."""

from __future__ import annotations

import json
import subprocess
import sys

SLOW = {
    "difflib", "email", "http", "importlib.metadata", "importlib.resources", "tempfile", "unittest", "urllib.request",
    "xml", "zipfile",
}  # fmt: skip
"""Modules of the standard library that take long, and are imported where they are needed."""
PACKAGES = {"msgspec", "postroad"}
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
    assert not any(name.startswith(("postroad.ops", "postroad.schemas", "postroad.testing")) for name in found)


def test_the_command_line_imports_no_driver() -> None:
    found = imported_by("import postroad.ops.cli")
    assert packages(found) - {"typing_extensions", "markdown_it", "mdurl", "pygments"} <= OF_THE_COMMAND_LINE
    assert found & {"rich.progress", "rich.traceback", "postroad.ops.demo.story"} == set()
