"""Reads take no pages from the kernel."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

READS = 1000
PROGRAM = f"""
import asyncio, resource, socket
from postroad.heap import keep_large_blocks

async def page_faults(reader, other):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({READS}):
        other.send(b"x")
        await reader.readexactly(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

async def main():
    one, other = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=one)
    await page_faults(reader, other)
    keep_large_blocks()
    print(await page_faults(reader, other))
    writer.close()

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a habit of glibc")
def test_after_a_large_block_was_freed_reads_cause_no_page_faults() -> None:
    # Who has tuned malloc has chosen otherwise.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=env)
    assert int(ran.stdout) < READS / 10, "there are two for each read otherwise"
