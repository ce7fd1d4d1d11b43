"""The demo's shop and warehouse, which have trouble on purpose, and their console, as a process."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SECONDS = 120


@asynccontextmanager
async def demo(folder: Path) -> AsyncIterator[str]:
    """The address that signs in to its console, once."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
    command = ("-m", "postroad", "demo", "--console", "--port", "0", "--directory", str(folder))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, cwd=folder,
        env=environment | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(sys.path), "USER": "anna"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SECONDS):
            line = (await process.stdout.readline()).decode()
        found = re.search(r"http\S+", line)
        assert found is not None, line
        yield found[0]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()
